"""The agent's one loop: sockets, pipes and signals, asleep while none has news."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import zmq

if TYPE_CHECKING:
    from types import FrameType

Callback: TypeAlias = Callable[[], None]


class Watchable(Protocol):
    """Whatever has a file descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""
        ...


class Loop:
    """Call back when something can be read, or when a signal came.

    Parameters
    ----------
    on_signal : callable
        Called with the signal's number, outside of the signal handler.
    signals : sequence of signal.Signals
        The ones to take.
    """

    def __init__(
        self, signals: tuple[signal.Signals, ...], on_signal: Callable[[int], None]
    ) -> None:
        self._poller = zmq.Poller()
        self._callbacks: dict[Any, Callback] = {}
        self._on_signal = on_signal
        self._signals, self._wake = socket.socketpair()
        for end in (self._signals, self._wake):
            end.settimeout(0)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, _note)
        self.watch(self._signals, self._read_signals)

    def watch(
        self, source: Watchable | zmq.Socket[bytes] | int, callback: Callback
    ) -> None:
        """Call ``callback`` whenever ``source`` can be read."""
        key = _key(source)
        self._poller.register(key, zmq.POLLIN)
        self._callbacks[key] = callback

    def forget(self, source: Watchable | zmq.Socket[bytes] | int) -> None:
        """Stop watching; call it before the source is closed."""
        key = _key(source)
        if self._callbacks.pop(key, None) is not None:
            self._poller.unregister(key)

    def wait(self, timeout_s: float) -> None:
        """Sleep until something happens, at most ``timeout_s`` seconds; call back."""
        ready = self._poller.poll(max(0, int(timeout_s * 1000) + 1))
        for key, _event in ready:
            callback = self._callbacks.get(key)
            if callback is not None:
                callback()

    def close(self) -> None:
        """Give the signals back."""
        signal.set_wakeup_fd(-1)
        self._signals.close()
        self._wake.close()

    def _read_signals(self) -> None:
        try:
            numbers = os.read(self._signals.fileno(), 4096)
        except BlockingIOError:
            return
        for number in sorted(set(numbers)):
            self._on_signal(number)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Let the interpreter write the number to the wake-up descriptor, nothing more."""


def _key(source: Watchable | zmq.Socket[bytes] | int) -> Any:  # noqa: ANN401  as zmq has it
    if isinstance(source, zmq.Socket | int):
        return source
    return source.fileno()
