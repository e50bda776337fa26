"""Restarts: ranks are replaced by new processes, the groups are formed again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.records import WORKING, Leaving
from npu_notebook.messages import RankState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.jobs import Jobs
    from npu_notebook.controller.records import RankRecord
    from npu_notebook.controller.startup import Startup
    from npu_notebook.wire import Payload, Peer


@dataclass(slots=True)
class _Restart:
    """One request to replace ranks."""

    request_id: str
    notebook: Peer
    ranks: tuple[int, ...]
    due_s: float


class Restarts:
    """All requests to replace ranks."""

    def __init__(self, board: Board, jobs: Jobs, startup: Startup) -> None:
        self._board = board
        self._jobs = jobs
        self._startup = startup
        self._restarts: dict[str, _Restart] = {}
        self.forming: Callable[[], bool] = lambda: False
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.RestartRanks: self._on_restart,
        }

    def due_s(self) -> float:
        """Return when `on_time` has something to do."""
        if not self._restarts:
            return math.inf
        return min(one.due_s for one in self._restarts.values())

    # Requests

    def _on_restart(
        self, peer: Peer, message: messages.RestartRanks, _payload: Payload
    ) -> None:
        board = self._board
        problem, remedy = board.find_problem(message.ranks)
        if message.request_id in self._restarts:
            problem = f"request {message.request_id} exists already"
            remedy = "Give each request a new id."
        if problem:
            self._answer(peer, message.request_id, problem, remedy)
            return
        due_s = board.now_s + board.spec.start_timeout_s
        restart = _Restart(message.request_id, peer, message.ranks, due_s)
        self._restarts[message.request_id] = restart
        cause = f"{words.name_ranks(message.ranks)} was replaced before its turn came"
        waiting = dict.fromkeys(message.ranks, words.not_run_error(cause))
        self._jobs.refuse_waiting(waiting)
        alive: list[RankRecord] = []
        for record in board.records(message.ranks):
            if record.gone:
                record.renew()
            elif record.state is not RankState.WAITING and not record.leaving:
                alive.append(record)
        board.end_ranks(alive, Leaving.RESTART)
        self._startup.advance()
        board.changed()

    def settle(self) -> None:
        """Answer the restarts whose ranks are all there again."""
        ready = (RankState.IDLE, *WORKING)
        if not self._restarts or self.forming():
            return
        for restart in list(self._restarts.values()):
            records = self._board.records(restart.ranks)
            if any(record.leaving for record in records):
                continue
            if all(record.state in ready for record in records):
                self._finish(restart)
            elif all(record.state is RankState.JOINED for record in records):
                self._finish_without_group(restart)

    def _finish(self, restart: _Restart) -> None:
        del self._restarts[restart.request_id]
        every = len(restart.ranks) == len(self._board.ranks)
        one = len(restart.ranks) == 1
        text = (
            f"{words.name_ranks(restart.ranks)} {'was' if one else 'were'} replaced: "
            f"{'its' if one else 'their'} variables are gone"
        )
        if not every:
            text += ", the other ranks kept theirs"
        self._board.notice(text)
        # Whoever gets the answer looks at the state next.
        self._board.publish_change(at_once=True)
        self._answer(restart.notebook, restart.request_id)

    def _finish_without_group(self, restart: _Restart) -> None:
        busy = [r.rank for r in self._board.ranks if r.state in WORKING]
        gone = [r.rank for r in self._board.ranks if r.gone]
        if gone:
            text = (
                f"there is no process group while {words.name_ranks(gone)} is lost; "
                f"{words.restart_hint(gone)} brings it back"
            )
            self._board.notice(text, "warning")
            for record in self._board.records(restart.ranks):
                record.move(RankState.IDLE)
            self._finish(restart)
        elif busy:
            text = (
                f"the process group is formed again once the cell on "
                f"{words.name_ranks(busy)} has ended"
            )
            self._board.notice(text)
            self._finish(restart)

    def fail_for(self, rank: int, problem: str, remedy: str) -> None:
        """Answer those who wait for a rank that will not come."""
        for restart in list(self._restarts.values()):
            if rank in restart.ranks:
                del self._restarts[restart.request_id]
                self._answer(restart.notebook, restart.request_id, problem, remedy)

    def _answer(
        self, notebook: Peer, request_id: str, problem: str = "", remedy: str = ""
    ) -> None:
        done = messages.RequestDone(
            request_id=request_id, problem=problem, remedy=remedy
        )
        self._board.answer(notebook, done)

    def on_time(self) -> None:
        """Give up on restarts that take too long."""
        for restart in list(self._restarts.values()):
            if self._board.now_s < restart.due_s:
                continue
            del self._restarts[restart.request_id]
            late = [
                record
                for record in self._board.records(restart.ranks)
                if record.state not in (RankState.IDLE, *WORKING)
            ]
            ranks = [record.rank for record in late]
            where = ", ".join(f"{record.place} is {record.state}" for record in late)
            problem = f"not ready after {self._board.spec.start_timeout_s:g} s: {where}"
            remedy = f"Try {words.restart_hint(ranks)}, or see {late[0].log_path}."
            self._answer(restart.notebook, restart.request_id, problem, remedy)

    def fail_all(self, problem: str, remedy: str = "") -> None:
        """Answer everyone who waits, because what they all need failed."""
        for restart in list(self._restarts.values()):
            self._answer(restart.notebook, restart.request_id, problem, remedy)
        self._restarts.clear()
