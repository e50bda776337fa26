"""Ranks end: by themselves, because a host is gone, or to be replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.cells import end_ranks
from npu_notebook.controller.records import WORKING, HostRecord, Leaving
from npu_notebook.errors import ConfigError
from npu_notebook.messages import ErrorInfo, RankState, StartFailed
from npu_notebook.topology import parse_ranks

if TYPE_CHECKING:
    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.groups import Groups
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
    """The end of ranks and their replacement."""

    def __init__(
        self, board: Board, jobs: Jobs, groups: Groups, startup: Startup
    ) -> None:
        self._board = board
        self._jobs = jobs
        self._groups = groups
        self._startup = startup
        self._restarts: dict[str, _Restart] = {}
        # Why a rank could not start, said before its process is reaped.
        self._last_words: dict[int, ErrorInfo] = {}
        self.on_start_failed: Callable[[StartFailed], None] = lambda _failure: None
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.RestartRanks: self._on_restart,
            messages.RankFailed: self._on_rank_failed,
            messages.RankExited: self._on_rank_exited,
        }

    def deadlines(self) -> list[float]:
        """Return when `on_time` has something to do."""
        return [restart.due_s for restart in self._restarts.values()]

    # Requests

    def _on_restart(
        self, peer: Peer, message: messages.RestartRanks, _payload: Payload
    ) -> None:
        board = self._board
        problem, remedy = self._find_problem(message)
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
        end_ranks(board, alive, Leaving.RESTART)
        self._startup.advance()
        board.changed()

    def _find_problem(self, message: messages.RestartRanks) -> tuple[str, str]:
        board = self._board
        if board.stopping:
            return "the cluster is being stopped", "Start one: `%npu_cluster start`."
        if not board.started:
            return "the cluster is still starting", "Wait until it is ready."
        if message.request_id in self._restarts:
            return f"request {message.request_id} exists already", "Give a new id."
        try:
            parse_ranks(message.ranks, len(board.ranks))
        except ConfigError as error:
            return error.problem, error.remedy
        return "", ""

    def settle(self) -> None:
        """Answer the restarts whose ranks are all there again."""
        ready = (RankState.IDLE, *WORKING)
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

    def _fail_restarts(self, rank: int, problem: str, remedy: str) -> None:
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

    # Ends of ranks

    def _on_rank_failed(
        self, peer: Peer, message: messages.RankFailed, _payload: Payload
    ) -> None:
        record = self._board.rank_of(peer)
        if record is None or record.state is not RankState.STARTING:
            return
        self._last_words[record.rank] = message.error
        if not self._board.started:
            self.on_start_failed(
                StartFailed(
                    what=record.place,
                    reason=words.summarize(message.error),
                    stderr_tail=message.error.traceback,
                    log_path=record.log_path,
                )
            )

    def _on_rank_exited(
        self, peer: Peer, message: messages.RankExited, _payload: Payload
    ) -> None:
        board = self._board
        if peer.kind != "agent" or message.rank >= len(board.ranks):
            return
        record = board.ranks[message.rank]
        if record.incarnation != message.incarnation or record.host != peer.name:
            return
        if record.gone or record.state is RankState.WAITING:
            return
        record.pid = message.pid
        reason = words.describe_exit(message.returncode)
        self._end_rank(record, reason, message.stderr_tail)

    def _end_rank(self, record: RankRecord, reason: str, tail: str = "") -> None:
        board = self._board
        leaving, before = record.leaving, record.state
        record.reason = _reason(leaving, reason)
        record.leaving = Leaving.NO
        record.doing = ""
        record.move(RankState.LOST if leaving is Leaving.NO else RankState.ENDED)
        error = words.lost_error(record.rank, record.host, record.pid, record.reason)
        last_words = self._last_words.pop(record.rank, None)
        board.changed()
        if board.stopping:
            return
        if not board.started:
            why = words.summarize(last_words) if last_words else reason
            self._fail_start(record, why, tail)
            return
        self._groups.lose(record, error)
        self._jobs.lose(record.rank, error)
        if leaving is Leaving.RESTART:
            record.renew()
            self._startup.advance()
            return
        starting = before in (RankState.STARTING, RankState.JOINED, RankState.FORMING)
        why = words.summarize(last_words) if last_words else reason
        if starting:
            last = f"; last lines of its log:\n{tail.rstrip()}" if tail.strip() else ""
            problem = f"{record.place} {why}{last}"
            self._fail_restarts(record.rank, problem, f"Its log: {record.log_path}.")
        if leaving is Leaving.NO:
            hint = words.restart_hint([record.rank])
            board.notice(f"{error.message}; {hint} replaces it", "error")

    def _fail_start(self, record: RankRecord, reason: str, tail: str) -> None:
        self.on_start_failed(
            StartFailed(
                what=record.place,
                reason=reason,
                stderr_tail=tail,
                log_path=record.log_path,
            )
        )

    def refuse(self, record: RankRecord, conflict: str) -> None:
        """End a rank that has joined but does not fit the others."""
        board = self._board
        if not board.started:
            remedy = "Use the same versions of Python and torch on all hosts."
            failure = StartFailed(what=record.place, reason=conflict, remedy=remedy)
            self.on_start_failed(failure)
            return
        end_ranks(board, [record], Leaving.INTERRUPT)
        self._fail_restarts(record.rank, conflict, "Use the same versions everywhere.")

    def lose_host(self, host: HostRecord, reason: str) -> None:
        """Count the ranks of a host without an agent as lost."""
        for record in self._board.ranks:
            if record.host != host.spec.name or record.gone:
                continue
            if record.state is RankState.WAITING:
                problem = f"host {record.host} was lost: {reason}"
                record.move(RankState.LOST)
                record.reason = f"was not started: {reason}"
                self._fail_restarts(record.rank, problem, "See its agent's log.")
            else:
                # What was asked of the agent is moot; its end is the reason now.
                record.leaving = Leaving.NO
                self._end_rank(record, f"is lost with its host: {reason}")

    def group_failed(self, what: str, error: ErrorInfo) -> None:
        """Tell who waits that the process group did not form."""
        board = self._board
        problem = f"the process group was not formed: {what}: {words.summarize(error)}"
        if not board.started:
            ranks = [r for r in board.ranks if r.state is RankState.FORMING]
            log_path = ranks[0].log_path if ranks else ""
            self.on_start_failed(
                StartFailed(
                    what=what,
                    reason=f"the process group was not formed: {words.summarize(error)}",
                    stderr_tail=error.traceback,
                    log_path=log_path,
                )
            )
            return
        board.notice(f"{problem}; {_RETRY}", "error")
        remedy = "`%npu_cluster restart` of all ranks makes a new start."
        for restart in list(self._restarts.values()):
            del self._restarts[restart.request_id]
            self._answer(restart.notebook, restart.request_id, problem, remedy)

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
            problem = (
                f"not ready after {self._board.spec.start_timeout_s:g} s: {where}"
            )
            remedy = f"Try {words.restart_hint(ranks)}, or see {late[0].log_path}."
            self._answer(restart.notebook, restart.request_id, problem, remedy)

    def end_all(self, reason: str) -> None:
        """Answer everyone who waits, because the cluster ends."""
        for restart in list(self._restarts.values()):
            self._answer(restart.notebook, restart.request_id, reason)
        self._restarts.clear()


_RETRY = "the next cell tries again, cells without collectives run as they are"


def _reason(leaving: Leaving, reason: str) -> str:
    match leaving:
        case Leaving.RESTART:
            return "was replaced by a restart"
        case Leaving.INTERRUPT:
            return "was ended because it could not be interrupted"
        case Leaving.STOP:
            return "was ended with the cluster"
        case Leaving.NO:
            return reason
