"""The one connection of a notebook or a rank: a thread that owns a DEALER socket.

The main thread runs user code and may hold still for hours; this thread goes on
reading commands, sending what others left in the mailbox and beating.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import zmq

from npu_notebook import wire
from npu_notebook.errors import ProtocolError
from npu_notebook.mailbox import Mailbox

if TYPE_CHECKING:
    from npu_notebook.messages import Message

log = logging.getLogger(__name__)

_M = TypeVar("_M")
Reader: TypeAlias = Callable[[Sequence[Any]], tuple[_M, list[Any]]]
_LARGE_NBYTES = 65_536  # from here on ZeroMQ's zero-copy send is cheaper than a copy


class Link(Generic[_M]):
    """Read with one callback, send from any thread.

    Parameters
    ----------
    endpoint : str
        The controller's address.
    identity : bytes
        From `npu_notebook.wire`.
    read : callable
        One of the ``read_*`` functions of `npu_notebook.wire`.
    on_message : callable
        Called in the link's thread with message and payload; must not block.
    on_tick : callable, optional
        Called in the link's thread about every ``tick_s`` seconds.
    tick_s : float
        Seconds between ticks.
    keys : CurveKeys or None
        Needed for TCP.
    """

    def __init__(  # noqa: PLR0913  a link has this many facts
        self,
        endpoint: str,
        identity: bytes,
        *,
        read: Reader[_M],
        on_message: Callable[[_M, list[Any]], None],
        on_tick: Callable[[], None] | None = None,
        tick_s: float = 1.0,
        keys: wire.CurveKeys | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._read = read
        self._on_message = on_message
        self._on_tick = on_tick
        self._tick_s = tick_s
        self._keys = keys
        self._outgoing: Mailbox[list[wire.Buffer] | None] = Mailbox()
        self._thread = threading.Thread(target=self._serve, name="link", daemon=True)

    def start(self) -> None:
        """Connect and begin to read; returns at once."""
        self._thread.start()

    def send(self, message: Message, payload: wire.Payload = ()) -> None:
        """Hand a message to the link thread; never blocks."""
        self._outgoing.put(wire.encode(message, payload))

    def close(self, flush_s: float = 1.0) -> None:
        """Send what waits, for at most ``flush_s`` seconds, and end the thread."""
        if not self._thread.is_alive():
            return
        self._flush_ms = int(flush_s * 1000)
        self._outgoing.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(flush_s + 2.0)

    _flush_ms = 1000

    def _serve(self) -> None:
        # A context of its own: a forked child must never share one with its parent.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = wire.open_dealer(context, self._endpoint, self._identity, self._keys)
        try:
            self._loop(dealer)
        finally:
            dealer.close(linger=self._flush_ms)
            context.term()
            self._outgoing.close()

    def _loop(self, dealer: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        poller.register(self._outgoing.fileno(), zmq.POLLIN)
        next_tick_s = time.monotonic() + self._tick_s
        while True:
            wait_ms = max(0, int((next_tick_s - time.monotonic()) * 1000) + 1)
            poller.poll(wait_ms if self._on_tick else None)
            for frames in self._outgoing.drain():
                if frames is None:
                    return
                _send(dealer, frames)
            self._receive(dealer)
            if self._on_tick and time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + self._tick_s
                self._on_tick()

    def _receive(self, dealer: zmq.Socket[bytes]) -> None:
        for _ in range(100):  # then look at the mailbox again
            try:
                parts = dealer.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                message, payload = self._read([parts[0].buffer, *parts[1:]])
            except ProtocolError:
                log.exception("a message from the controller cannot be read")
                continue
            self._on_message(message, [part.buffer for part in payload])


def _send(dealer: zmq.Socket[bytes], frames: list[wire.Buffer]) -> None:
    large = any(len(frame) >= _LARGE_NBYTES for frame in frames[1:])
    dealer.send_multipart(frames, copy=not large)
