"""File descriptors 1 and 2 of a rank: a new pair of pipes for every cell.

A child process keeps the pipe of the cell that started it, so what it still prints
during later cells is known to be that cell's. A pipe is closed when its last writer
is gone.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import resource
import selectors
from typing import TYPE_CHECKING, Literal, TypeAlias

from npu_notebook.rank import children

if TYPE_CHECKING:
    from collections.abc import Callable

StreamName: TypeAlias = Literal["stdout", "stderr"]
Taker: TypeAlias = "Callable[[str, StreamName, str], None]"

_STREAMS: tuple[tuple[int, StreamName], ...] = ((1, "stdout"), (2, "stderr"))
_READ_NBYTES = 65_536
_DRAIN_READS = 64  # a child that never stops printing must not hold up the main thread
# C code that writes while it holds the GIL blocks us until the pipe has room. Larger
# than this could exhaust /proc/sys/fs/pipe-user-pages-soft with many ranks.
_PIPE_NBYTES = 256 << 10
_FIRST_FREE_FD = 3
_SET_PIPE_SIZE = getattr(fcntl, "F_SETPIPE_SZ", None)


class _Source:
    """The reading end of one pipe."""

    def __init__(self, fd: int, cell_id: str, stream: StreamName) -> None:
        self.fd = fd
        self.cell_id = cell_id
        self.stream: StreamName = stream
        # Bytes that are no UTF-8 are shown as \xff: no byte is lost.
        self.decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")


class CellPipes:
    """The pipes of the running cell and those that children of earlier cells hold.

    Only `wait` and `wake` may be called without the lock of the owner.

    Parameters
    ----------
    take : callable
        Gets cell, stream and text for everything that is read.
    """

    def __init__(self, take: Taker) -> None:
        self._take = take
        self._selector = selectors.DefaultSelector()
        self._sources: dict[int, _Source] = {}
        self._current: list[_Source] = []
        self._reaped = (0, 0)
        self._wake_read_fd, self._wake_write_fd = os.pipe()
        os.set_blocking(self._wake_read_fd, False)
        os.set_blocking(self._wake_write_fd, False)
        self._selector.register(self._wake_read_fd, selectors.EVENT_READ)

    def renew(self, cell_id: str) -> None:
        """Put pipes under 1 and 2 that belong to ``cell_id``.

        The pipes of the cell before are taken again if no process was started since:
        a quarter of a millisecond of system calls less.
        """
        whole = len(self._current) == len(_STREAMS)
        if whole and not self._may_be_held():
            for source in self._current:
                source.cell_id = cell_id
            return
        previous = self._current
        self._current = []
        for target_fd, stream in _STREAMS:
            read_fd, write_fd = _make_pipe()
            os.dup2(write_fd, target_fd, inheritable=True)
            os.close(write_fd)
            self._current.append(_Source(read_fd, cell_id, stream))
        for source in previous:
            # Our own writing ends are gone: the end of the file says that no child
            # has one either, the common case.
            self._read(source)
        for source in self._current:
            self._sources[source.fd] = source
            self._selector.register(source.fd, selectors.EVENT_READ)

    def _may_be_held(self) -> bool:
        """Return whether some child process, or a child of one, may hold our pipes."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        reaped = (usage.ru_minflt, usage.ru_nvcsw)
        if reaped != self._reaped:  # one has ended and may have left another behind
            self._reaped = reaped
            return True
        return children.exist()

    def drain(self) -> None:
        """Take what the running cell's pipes hold now."""
        for source in list(self._current):
            self._read(source)

    def read(self, fds: list[int]) -> None:
        """Take what lies in the pipes that `wait` named."""
        for fd in fds:
            source = self._sources.get(fd)  # None: closed meanwhile
            if source is not None:
                self._read(source)

    def wait(self, timeout_s: float | None) -> list[int]:
        """Return the pipes that can be read, at once after `wake`."""
        ready = [key.fd for key, _ in self._selector.select(timeout_s)]
        if self._wake_read_fd in ready:
            ready.remove(self._wake_read_fd)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read_fd, _READ_NBYTES)
        return ready

    def wake(self) -> None:
        """Let `wait` return, from any thread."""
        with contextlib.suppress(BlockingIOError):  # full: it is awake
            os.write(self._wake_write_fd, b"\0")

    def _read(self, source: _Source) -> None:
        for _ in range(_DRAIN_READS):
            try:
                data = os.read(source.fd, _READ_NBYTES)
            except BlockingIOError:
                return
            text = source.decoder.decode(data, final=not data)
            if text:
                self._take(source.cell_id, source.stream, text)
            if not data:
                self._close(source)
                return

    def _close(self, source: _Source) -> None:
        self._selector.unregister(source.fd)
        del self._sources[source.fd]
        os.close(source.fd)
        if source in self._current:
            self._current.remove(source)


def _make_pipe() -> tuple[int, int]:
    """Return a pipe that reads without waiting, and never as 0, 1 or 2.

    Those numbers are free, and would be given, after user code has closed them.
    """
    ends = os.pipe()
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for fd in ends]
    for fd in ends:
        os.close(fd)
    read_fd, write_fd = above
    if _SET_PIPE_SIZE is not None:
        with contextlib.suppress(OSError):  # over the limit: smaller ones do
            fcntl.fcntl(write_fd, _SET_PIPE_SIZE, _PIPE_NBYTES)
    os.set_blocking(read_fd, False)
    return read_fd, write_fd
