"""The one connection of a notebook or a rank: a thread that owns a DEALER socket.

The main thread runs user code and may hold still for hours; this thread goes on
reading commands, sending what others left in the mailbox and beating. What has no
payload the other threads send themselves: waking this one for it costs more than the
message does.
"""

from __future__ import annotations

import logging
import os
import select
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
_MESSAGES_AT_ONCE = 100  # then look at the mailbox again


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

    Notes
    -----
    A ZeroMQ socket may be used by several threads, one at a time behind a lock. So the
    link's thread sleeps on the socket's descriptor and not in ``zmq_poll``, which uses
    the socket. The descriptor tells of changes, not of states: whoever has used the
    socket must look at its events before anybody sleeps again.
    Source: libzmq, zmq_socket(3), "Thread safety"; zmq_getsockopt(3), ZMQ_FD.
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
        # An item without frames only wakes the thread; None ends it.
        self._outgoing: Mailbox[list[wire.Buffer] | None] = Mailbox()
        self._dealer: zmq.Socket[bytes] | None = None
        # Reentrant: a signal handler may send while its thread does.
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="link", daemon=True)

    def start(self) -> None:
        """Connect and begin to read; returns at once."""
        self._thread.start()

    def send(self, message: Message, payload: wire.Payload = ()) -> None:
        """Send a message, from any thread; what other threads send comes in between.

        Never blocks for longer than another thread needs to send or read a few
        messages.
        """
        frames = wire.encode(message, payload)
        # One frame, one call: no interrupt of the main thread can cut it in two.
        if len(frames) > 1 or not self._send_at_once(frames[0]):
            self._outgoing.put(frames)

    def _send_at_once(self, frame: wire.Buffer) -> bool:
        with self._lock:
            dealer = self._dealer
            # What waits in the mailbox comes first. A forked child has the socket, but
            # not the threads behind it.
            if dealer is None or len(self._outgoing) or os.getpid() != self._pid:
                return False
            dealer.send(frame)
            if _has_arrived(dealer):
                self._outgoing.put([])
        return True

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
            with self._lock:
                self._dealer = dealer
            self._loop(dealer)
        finally:
            with self._lock:
                self._dealer = None
            dealer.close(linger=self._flush_ms)
            context.term()
            self._outgoing.close()

    def _loop(self, dealer: zmq.Socket[bytes]) -> None:
        poller = select.poll()
        poller.register(int(dealer.getsockopt(zmq.FD)), select.POLLIN)
        poller.register(self._outgoing.fileno(), select.POLLIN)
        next_tick_s = time.monotonic() + self._tick_s
        is_over = False
        while not is_over:
            with self._lock:
                is_over = self._send_waiting(dealer)
                arrived = [] if is_over else _receive(dealer)
            for frames in arrived:
                self._take(frames)
            if self._on_tick and time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + self._tick_s
                self._on_tick()
            if len(arrived) < _MESSAGES_AT_ONCE and not is_over:
                poller.poll(self._wait_ms(next_tick_s))

    def _wait_ms(self, next_tick_s: float) -> int | None:
        if self._on_tick is None:
            return None
        return max(0, int((next_tick_s - time.monotonic()) * 1000) + 1)

    def _send_waiting(self, dealer: zmq.Socket[bytes]) -> bool:
        """Send what waits in the mailbox; return whether that was the last."""
        for frames in self._outgoing.drain():
            if frames is None:
                return True
            if frames:
                _send(dealer, frames)
        return False

    def _take(self, parts: list[zmq.Frame]) -> None:
        try:
            message, payload = self._read([parts[0].buffer, *parts[1:]])
        except ProtocolError:
            log.exception("a message from the controller cannot be read")
            return
        self._on_message(message, [part.buffer for part in payload])


def _has_arrived(dealer: zmq.Socket[bytes]) -> bool:
    return bool(int(dealer.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def _receive(dealer: zmq.Socket[bytes]) -> list[list[zmq.Frame]]:
    """Return what has arrived; fewer than `_MESSAGES_AT_ONCE` means all of it."""
    arrived: list[list[zmq.Frame]] = []
    while len(arrived) < _MESSAGES_AT_ONCE and _has_arrived(dealer):
        arrived.append(dealer.recv_multipart(zmq.NOBLOCK, copy=False))
    return arrived


def _send(dealer: zmq.Socket[bytes], frames: list[wire.Buffer]) -> None:
    large = any(len(frame) >= _LARGE_NBYTES for frame in frames[1:])
    dealer.send_multipart(frames, copy=not large)
