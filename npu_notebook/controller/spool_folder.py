"""The folder of spooled output: a budget, and one word when the disk is full."""

from __future__ import annotations

import errno
import logging
import os
import re
from typing import TYPE_CHECKING, BinaryIO

from npu_notebook.messages import Notice

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

_FILE_NAME = re.compile(r"cell-(\d+)-rank-\d+\b.*")


class SpoolFolder:
    """Files of output, private to the user, the oldest removed first.

    Parameters
    ----------
    path : Path
        The folder; exists.
    budget_nbytes : int
        Bytes of all files together.
    tell : callable
        Gets a `Notice` when output cannot be kept.
    """

    def __init__(
        self, path: Path, budget_nbytes: int, tell: Callable[[Notice], None]
    ) -> None:
        self.path = path
        self._budget_nbytes = budget_nbytes
        self._tell = tell
        self._trouble = ""
        self._busy: set[Path] = set()
        self._used_nbytes = sum(size for _, size, _ in self._list())

    def last_number(self) -> int:
        """Return the highest number of a cell in use, 0 if there is none."""
        matches = (_FILE_NAME.fullmatch(path.name) for path in self.path.iterdir())
        return max((int(match[1]) for match in matches if match), default=0)

    def write(self, path: Path, file: BinaryIO | None, data: bytes) -> BinaryIO | None:
        """Append to a file, opened if need be.

        Returns
        -------
        BinaryIO or None
            The open file; None if the bytes cannot be kept, which the user is told
            once for each reason.
        """
        try:
            self._make_room(len(data))
            if file is None:
                file = _open(path)
                self._busy.add(path)
            _write_all(file, data)
        except OSError as error:
            if file is not None:
                self.close(path, file)
            self._note_trouble(error)
            return None
        self._used_nbytes += len(data)
        return file

    def close(self, path: Path, file: BinaryIO) -> None:
        """Close a file and keep it."""
        self._busy.discard(path)
        file.close()

    def remove(self, path: Path, nbytes: int) -> None:
        """Remove a closed file that nobody needs."""
        path.unlink(missing_ok=True)
        self._used_nbytes -= nbytes

    def _list(self) -> list[tuple[float, int, Path]]:
        found = []
        for path in self.path.glob("cell-*-rank-*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found.append((status.st_mtime, status.st_size, path))
        return sorted(found)

    def _make_room(self, nbytes: int) -> None:
        if self._used_nbytes + nbytes <= self._budget_nbytes:
            return
        files = self._list()
        self._used_nbytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._used_nbytes + nbytes <= self._budget_nbytes:
                return
            if path not in self._busy:
                self.remove(path, size)
        if self._used_nbytes + nbytes > self._budget_nbytes:
            reason = f"more than {self._budget_nbytes:,} bytes of output"
            raise OSError(errno.EDQUOT, reason)

    def _note_trouble(self, error: OSError) -> None:
        log.warning("output cannot be spooled: %s", error)
        reason = error.strerror or str(error)
        if reason == self._trouble:
            return
        self._trouble = reason
        hint = "free some space there" if error.errno == errno.ENOSPC else "see there"
        text = (
            f"long output cannot be kept in {self.path} ({reason}): what is beyond the "
            f"cap on screen is lost, cells run on; {hint}"
        )
        self._tell(Notice(text=text, level="warning"))


def _open(path: Path) -> BinaryIO:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return os.fdopen(fd, "ab", buffering=0)


def _write_all(file: BinaryIO, data: bytes) -> None:
    # A disk that fills up takes part of the bytes first and fails the next time.
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
