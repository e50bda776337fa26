"""A queue between threads whose arrival a poller can wait for.

ZeroMQ sockets belong to one thread. Other threads leave items here and the owner,
asleep in its poller on `Mailbox.fileno`, wakes up.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Many threads put, one thread drains.

    Notes
    -----
    The wake-up is one byte in a pipe, written only when the owner has not been woken
    since its last drain, so a burst of items costs one system call.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._woken = False
        self._closed = False
        self._pid = os.getpid()
        self._fd_lock = threading.Lock()  # a closed descriptor may be someone else's

    def fileno(self) -> int:
        """Return the descriptor that is readable while items wait."""
        return self._read_fd

    def put(self, item: T) -> None:
        """Leave an item; never blocks. It is dropped after `close` and in a fork."""
        self._items.append(item)
        # The owner clears the flag before it takes items: whoever finds it set has
        # appended before that, so its item is taken by the drain to come.
        if self._woken:
            return
        with self._fd_lock:
            # A forked child shares the pipe: its byte would wake the parent for ever.
            if not self._closed and os.getpid() == self._pid and not self._woken:
                self._woken = True
                os.write(self._write_fd, b"\0")

    def drain(self) -> list[T]:
        """Take everything that waits, oldest first."""
        if self._woken:
            with self._fd_lock:
                self._empty_pipe()
                self._woken = False
        taken: list[T] = []
        while True:
            try:
                taken.append(self._items.popleft())
            except IndexError:
                return taken

    def __len__(self) -> int:
        return len(self._items)

    def close(self) -> None:
        """Give the descriptors back."""
        with self._fd_lock:
            if not self._closed:
                self._closed = True
                os.close(self._read_fd)
                os.close(self._write_fd)

    def _empty_pipe(self) -> None:
        if self._closed:
            return
        try:
            os.read(self._read_fd, 16)
        except BlockingIOError:
            return
