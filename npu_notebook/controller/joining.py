"""Ranks appear: their processes exist, then they connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.records import HostStage
from npu_notebook.controller.versions import find_rank_conflict
from npu_notebook.messages import RankState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.groups import Groups
    from npu_notebook.controller.records import RankRecord
    from npu_notebook.wire import Payload, Peer


class Joining:
    """From a rank that was asked for to one that has joined."""

    def __init__(self, board: Board, groups: Groups) -> None:
        self._board = board
        self._groups = groups
        self.on_refused: Callable[[RankRecord, str], None] = lambda _record, _why: None
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.RankSpawned: self._on_spawned,
            messages.RankJoined: self._on_joined,
        }

    def _on_spawned(
        self, peer: Peer, message: messages.RankSpawned, _payload: Payload
    ) -> None:
        board = self._board
        if peer.kind != "agent" or message.rank >= len(board.ranks):
            return
        record = board.ranks[message.rank]
        if record.incarnation == message.incarnation and record.host == peer.name:
            record.pid = message.pid
            board.changed()

    def _on_joined(
        self, peer: Peer, message: messages.RankJoined, _payload: Payload
    ) -> None:
        board = self._board
        record = board.rank_of(peer)
        if record is None or record.state is not RankState.STARTING:
            return
        record.move(RankState.JOINED)
        record.pid = message.pid
        record.device = message.device or None
        record.heard_s = board.now_s
        first = board.hosts[board.ranks[0].host].fact
        conflict = find_rank_conflict(record.place, message, first) if first else ""
        if conflict:
            self.on_refused(record, conflict)
            return
        self._groups.invalidate()
        self._groups.advance()
        board.changed()


def describe_missing(board: Board) -> tuple[str, str]:
    """Say what a start still waits for, and which log may tell more."""
    away = [h.spec.name for h in board.hosts.values() if not h.connected]
    if away:
        log_path = board.agent_log_path(away[0])
        return f"the agent on {', '.join(away)} has not joined", log_path
    for host in board.hosts.values():
        if host.stage is HostStage.PREPARING:
            log_path = board.agent_log_path(host.spec.name)
            return f"host {host.spec.name} is still being prepared", log_path
    if any(record.state is RankState.WAITING for record in board.ranks):
        return f"the store on {board.ranks[0].host} has not started", ""
    late = [r for r in board.ranks if r.state is RankState.STARTING]
    if late:
        places = f"{late[0].place} has not joined"
        if len(late) > 1:
            numbers = words.name_ranks(record.rank for record in late)
            hosts = ", ".join(dict.fromkeys(record.host for record in late))
            places = f"{numbers} on {hosts} have not joined"
        return places, late[0].log_path
    return "the process group has not formed", ""
