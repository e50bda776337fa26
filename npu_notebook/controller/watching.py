"""What the controller's loop sleeps on: its socket, signals, processes of notebooks."""

from __future__ import annotations

import logging
import os
import signal
import socket
from typing import TYPE_CHECKING

import zmq

from npu_notebook.runtime import process_start_s

if TYPE_CHECKING:
    from npu_notebook.wire import Peer

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Watching:
    """One poller for everything that can wake the controller.

    Notes
    -----
    A notebook on this host is watched by a process descriptor, which becomes readable
    the moment the process ends. Source: pidfd_open(2).
    """

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._poller = zmq.Poller()
        self._poller.register(router, zmq.POLLIN)
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0.0)
        self._writer.settimeout(0.0)
        self._poller.register(self._reader, zmq.POLLIN)
        self._notebooks: dict[int, Peer] = {}
        self._ready: set[int] = set()
        self._signalled = False

    def install_signals(self) -> None:
        """Let signals wake the loop instead of doing what they usually do."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, _ignore)

    def close(self) -> None:
        """Give everything back."""
        signal.set_wakeup_fd(-1)
        for fd in self._notebooks:
            os.close(fd)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout_s: float) -> None:
        """Sleep until something is there, at most ``timeout_s`` seconds."""
        timeout_ms = max(0, int(timeout_s * 1000) + 1)
        ready = {fd for fd, _ in self._poller.poll(timeout_ms) if isinstance(fd, int)}
        self._signalled = self._reader.fileno() in ready
        self._ready = ready & self._notebooks.keys()

    def take_signals(self) -> set[int]:
        """Return the signals that came."""
        if not self._signalled:
            return set()
        self._signalled = False
        try:
            return set(self._reader.recv(4096))
        except BlockingIOError:
            return set()

    def watch(self, notebook: Peer, pid: int, start_s: float) -> bool:
        """Watch a notebook's process on this host; return whether that is possible."""
        if process_start_s(pid) != start_s:
            return False  # in another container: its heartbeats must do
        try:
            fd = os.pidfd_open(pid)
        except (AttributeError, OSError) as error:
            log.info("%s is watched by its heartbeats only: %s", notebook, error)
            return False
        self._notebooks[fd] = notebook
        self._poller.register(fd, zmq.POLLIN)
        return True

    def forget(self, notebook: Peer) -> None:
        """Stop watching a notebook."""
        for fd in [fd for fd, one in self._notebooks.items() if one == notebook]:
            self._poller.unregister(fd)
            del self._notebooks[fd]
            self._ready.discard(fd)
            os.close(fd)

    def take_gone(self) -> list[Peer]:
        """Return the notebooks whose processes have ended."""
        return [self._notebooks[fd] for fd in self._ready]


def _ignore(_number: int, _frame: object) -> None:
    """Let the wake-up descriptor do the work; SIG_IGN would not wake anything."""
