"""The controller's way out: encode once, send to many, spool what is too long."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from npu_notebook import messages, wire

if TYPE_CHECKING:
    from npu_notebook.controller import events
    from npu_notebook.controller.board import Board
    from npu_notebook.controller.spool import Spool
    from npu_notebook.wire import Peer

log = logging.getLogger(__name__)

_TAIL_NBYTES = 4096
_LARGE_NBYTES = 65_536  # from here on ZeroMQ's zero-copy send is cheaper than a copy


class Outgoing:
    """Everything the controller sends.

    Parameters
    ----------
    router : zmq.Socket
        The one socket.
    spool : Spool
        Keeps long output.
    board : Board
        Knows the notebooks.
    """

    def __init__(self, router: zmq.Socket[bytes], spool: Spool, board: Board) -> None:
        self._router = router
        self._spool = spool
        self._board = board
        self._peers: dict[bytes, Peer] = {}
        self._identities: dict[Peer, bytes] = {}

    def find(self, identity: bytes) -> Peer:
        """Return who an identity belongs to, and remember where to send to.

        Raises
        ------
        ProtocolError
            If it is none of ours.
        """
        peer = self._peers.get(identity)
        if peer is None:
            peer = wire.parse_identity(identity)
            self._peers[identity] = peer
            self._identities[peer] = identity
        return peer

    def send(
        self,
        peers: tuple[Peer, ...],
        message: messages.Message,
        payload: wire.Payload = (),
    ) -> None:
        """Send one message, encoded once, to every peer."""
        frames = wire.encode(message, payload)
        copy = not any(len(frame) >= _LARGE_NBYTES for frame in payload)
        for peer in peers:
            identity = self._identities.get(peer)
            if identity is None:
                log.warning("%s has never said a word: %s", peer, type(message))
                continue
            try:
                self._router.send_multipart([identity, *frames], copy=copy)
            except zmq.ZMQError as error:
                # Its process is gone; whoever watches it reports that.
                log.warning("%s cannot be reached: %s", peer, error)

    def forward(self, action: events.ForwardOutput) -> None:
        """Spool output and show what the cap allows."""
        shown: messages.Message | None
        if isinstance(action.message, messages.StreamText):
            watched = action.notebook is not None
            shown = self._spool.take_text(action.message, watched=watched)
        else:
            shown = self._spool.take_display(action.message)
        if shown is not None and action.notebook is not None:
            self.send((action.notebook,), shown)
        self._pass_notices()

    def finish_cell(self, action: events.FinishCell) -> None:
        """Say how a cell ended, and where its long output lies."""
        message = action.message
        outcomes = self._spool.finish_cell(message.cell_id, message.outcomes)
        if action.notebook is not None:
            message = msgspec.structs.replace(message, outcomes=outcomes)
            self.send((action.notebook,), message)
        self._pass_notices()

    def _pass_notices(self) -> None:
        if not self._spool.notices:
            return
        peers = tuple(r.peer for r in self._board.notebooks.values())
        for notice in self._spool.notices:
            self.send(peers, notice)
        self._spool.notices.clear()

    def tell_failure(self, action: events.TellFailure) -> None:
        """Say why a start failed, with the end of the log it names."""
        self.send(action.notebooks, _with_tail(action.message))


def _with_tail(failure: messages.StartFailed) -> messages.StartFailed:
    if failure.stderr_tail.strip() or not failure.log_path:
        return failure
    try:
        data = Path(failure.log_path).read_bytes()[-_TAIL_NBYTES:]
    except OSError:
        return failure  # on another host, or never written
    tail = data.decode(errors="replace")
    return msgspec.structs.replace(failure, stderr_tail=tail)
