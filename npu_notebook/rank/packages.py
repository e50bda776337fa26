"""``%pip`` and its like: once per host, though every rank runs the cell."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import select
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npu_notebook.rank.shell import RankShell

_MAGICS = ("pip", "conda", "mamba", "micromamba", "uv")
_LOOK_S = 0.1


class OncePerHost:
    """Let the first rank of a host run a command while the others wait for it.

    Parameters
    ----------
    folder : str
        A folder that all ranks of this host and cluster share, and nobody else's.
    """

    def __init__(self, folder: str) -> None:
        self._file = Path(folder) / "packages.lock"
        self._cell_id = ""
        self._count = 0

    def install(self, shell: RankShell, running_cell: Callable[[], str]) -> None:
        """Wrap the shell's package magics."""
        for name in _MAGICS:
            magic = shell.find_line_magic(name)
            if magic is not None:
                wrapped = self._wrap(magic, running_cell)
                shell.magics_manager.register_function(wrapped, "line", name)

    def _wrap(
        self, magic: Callable[[str], Any], running_cell: Callable[[], str]
    ) -> Callable[[str], None]:
        def run_once(line: str) -> None:
            with self._turn(running_cell()) as first:
                if first:
                    magic(line)
            importlib.invalidate_caches()

        run_once.__doc__ = magic.__doc__
        return run_once

    @contextlib.contextmanager
    def _turn(self, cell_id: str) -> Iterator[bool]:
        """Wait until no other rank is at it; True if none has done this one before."""
        self._count = self._count + 1 if cell_id == self._cell_id else 1
        self._cell_id = cell_id
        key = f"{cell_id} {self._count}"
        with self._file.open("a+", encoding="utf-8") as file:
            while not _lock(file.fileno()):
                select.select((), (), (), _LOOK_S)
            file.seek(0)
            done = file.read().split("\n")
            first = key not in done
            yield first
            if first:
                file.write(f"{key}\n")


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
