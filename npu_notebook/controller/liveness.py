"""Who has been heard of when: silence is shown, never taken for death."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.records import CONNECTED

if TYPE_CHECKING:
    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.wire import Payload, Peer

SILENCE_S = 10.0
"""Seconds without a heartbeat after which a rank is shown as unresponsive."""
_BEAT_S = 2.0
_OWN_SLEEP_S = 5.0
"""A gap between our own ticks that means we slept, not the others."""


class Liveness:
    """Heartbeats of ranks, agents and notebooks."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._looked_s: float | None = None
        self._beat_s = float("-inf")
        self._told_hosts: set[str] = set()
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.Heartbeat: self._on_heartbeat,
            messages.AgentAlive: self._on_agent_alive,
        }

    def hear(self, peer: Peer) -> None:
        """Note that a peer said something."""
        board = self._board
        if peer.kind == "rank":
            record = board.rank_of(peer)
            if record is not None:
                record.heard_s = board.now_s
                if record.silent:
                    record.silent = False
                    board.notice(f"{record.place} answers again")
                    board.changed()
        elif peer.kind == "agent":
            host = board.hosts.get(peer.name)
            if host is not None:
                host.heard_s = board.now_s
                self._told_hosts.discard(peer.name)
        else:
            notebook = board.notebooks.get(peer.name)
            if notebook is not None:
                notebook.heard_s = board.now_s

    def _on_heartbeat(
        self, peer: Peer, message: messages.Heartbeat, _payload: Payload
    ) -> None:
        record = self._board.rank_of(peer)
        if record is not None and record.doing != message.doing:
            record.doing = message.doing
            self._board.changed(soon=False)

    def _on_agent_alive(
        self, _peer: Peer, _message: messages.AgentAlive, _payload: Payload
    ) -> None:
        """`hear` has noted it."""

    def on_time(self) -> None:
        """Show who is silent; let agents hear from us."""
        board = self._board
        slept_s = 0.0 if self._looked_s is None else board.now_s - self._looked_s
        self._looked_s = board.now_s
        if slept_s > _OWN_SLEEP_S:
            self._forgive(slept_s)
        self._show_silent_ranks()
        self._show_silent_hosts()
        if board.now_s - self._beat_s >= _BEAT_S:
            self._beat_s = board.now_s
            for host in board.hosts.values():
                board.send_host(host, messages.AgentAlive(host=host.spec.name))

    def _forgive(self, slept_s: float) -> None:
        board = self._board
        for record in board.ranks:
            record.heard_s += slept_s
        for host in board.hosts.values():
            host.heard_s += slept_s
        for notebook in board.notebooks.values():
            notebook.heard_s += slept_s

    def _show_silent_ranks(self) -> None:
        board = self._board
        silent = [
            record
            for record in board.ranks
            if record.state in CONNECTED
            and not record.silent
            and board.now_s - record.heard_s > SILENCE_S
        ]
        if not silent:
            return
        for record in silent:
            record.silent = True
        ranks = [record.rank for record in silent]
        hosts = ", ".join(dict.fromkeys(record.host for record in silent))
        text = (
            f"{words.name_ranks(ranks)} on {hosts} said nothing for {SILENCE_S:g} s, "
            f"but did not end; wait, or replace with {words.restart_hint(ranks)}"
        )
        board.notice(text, "warning")
        board.changed()

    def _show_silent_hosts(self) -> None:
        board = self._board
        for host in board.hosts.values():
            name = host.spec.name
            late = board.now_s - host.heard_s > SILENCE_S
            if host.connected and late and name not in self._told_hosts:
                self._told_hosts.add(name)
                text = f"the agent on {name} said nothing for {SILENCE_S:g} s"
                board.notice(text, "warning")
