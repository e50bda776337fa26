"""The end of a cluster: nothing and nobody is left behind or left waiting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller.events import EndAgents, Exit, TellFailure
from npu_notebook.controller.records import HostStage

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.messages import StartFailed
    from npu_notebook.wire import Payload, Peer

GRACE_S = 3.0
"""What ranks get between SIGTERM and SIGKILL when the cluster stops."""
_AGENT_MARGIN_S = 3.0
"""What agents get on top of it; then they are killed."""
_TELL_S = 10.0
"""How long a failed start waits for its notebook to come and hear why."""


class Ending:
    """From the wish to stop to the end of the controller."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._reason = ""
        self._left: set[str] = set()
        self.due_s = math.inf
        """When `on_time` has something to do."""
        self._failure: StartFailed | None = None
        self._told = False
        self.over = False
        self.on_begin: Callable[[str], None] = lambda _reason: None
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.StopCluster: self._on_stop,
            messages.HostEnded: self._on_host_ended,
        }

    def _on_stop(
        self, _peer: Peer, message: messages.StopCluster, _payload: Payload
    ) -> None:
        self.begin(message.reason)

    def begin(self, reason: str) -> None:
        """Ask every agent to end its ranks, itself and all they started."""
        board = self._board
        if board.stopping:
            return
        board.stopping = True
        self._reason = reason
        self.on_begin(f"the cluster ended: {reason}")
        board.changed()
        board.publish_change(at_once=True)
        for host in board.hosts.values():
            if host.connected:
                self._left.add(host.spec.name)
                board.send_host(host, messages.EndHost(grace_s=GRACE_S))
        self.due_s = board.now_s + GRACE_S + _AGENT_MARGIN_S
        self._end_if_alone()

    def fail(self, failure: StartFailed) -> None:
        """Tell why the start failed, then end what had started."""
        if self._board.stopping:
            return
        self._failure = failure
        peers = tuple(record.peer for record in self._board.notebooks.values())
        if peers:
            self._board.act(TellFailure(peers, failure))
            self._told = True
        self.begin(f"{failure.what} did not start")

    def greet(self, notebook: Peer) -> None:
        """Tell a notebook that comes after a failed start."""
        if self._failure is not None and not self.over:
            self._board.act(TellFailure((notebook,), self._failure))
            self._told = True
            self._end_if_alone()

    def _on_host_ended(
        self, peer: Peer, _message: messages.HostEnded, _payload: Payload
    ) -> None:
        self.lose_host(peer.name)

    def lose_host(self, host: str) -> None:
        """Note that nothing of the cluster is left on a host."""
        record = self._board.hosts.get(host)
        if record is not None and self._board.stopping:
            record.stage = HostStage.GONE
            self._left.discard(host)
            self._end_if_alone()

    def on_time(self) -> None:
        """Go on without the agents that do not answer, or the notebook."""
        if self._board.now_s < self.due_s:
            return
        if not self._board.ended:
            self._left.clear()
            self._end_if_alone()
        else:
            self._exit()

    def _end_if_alone(self) -> None:
        board = self._board
        if self._left or self.over:
            return
        if not board.ended:
            board.ended = True
            board.act(EndAgents(GRACE_S))
            self.due_s = board.now_s + _TELL_S
        if self._failure is None or self._told:
            self._exit()

    def _exit(self) -> None:
        if self.over:
            return
        self.over = True
        self.due_s = math.inf
        self._board.publish(messages.ClusterEnded(reason=self._reason))
        self._board.act(Exit(self._reason))
