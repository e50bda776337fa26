"""Log files of processes: private, appended, and their last lines for error texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

_TAIL_NBYTES = 4096


def open_log(path: str) -> BinaryIO:
    """Open a log for appending, made with mode 0600 together with its folder.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    file = Path(path)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return os.fdopen(fd, "ab", buffering=0)


def read_tail(path: str, start: int) -> str:
    """Return the last lines written after byte ``start``, at most 4 KiB of them."""
    try:
        with Path(path).open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = max(start, end - _TAIL_NBYTES)
            file.seek(begin)
            data = file.read(_TAIL_NBYTES)
    except OSError:
        return ""
    if begin > start:
        data = data.partition(b"\n")[2]  # half a line tells less than none
    return data.decode(errors="replace")
