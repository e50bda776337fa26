"""Ranks and hosts that are gone: what it means for whoever needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.records import HostRecord, Leaving
from npu_notebook.messages import ErrorInfo, RankState, StartFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.groups import Groups
    from npu_notebook.controller.jobs import Jobs
    from npu_notebook.controller.records import RankRecord
    from npu_notebook.controller.restarts import Restarts
    from npu_notebook.controller.startup import Startup
    from npu_notebook.wire import Payload, Peer


class Departures:
    """The end of processes, wanted or not."""

    def __init__(
        self,
        board: Board,
        jobs: Jobs,
        groups: Groups,
        startup: Startup,
        restarts: Restarts,
    ) -> None:
        self._board = board
        self._jobs = jobs
        self._groups = groups
        self._startup = startup
        self._restarts = restarts
        # Why a rank could not start, said before its process is reaped.
        self._last_words: dict[int, ErrorInfo] = {}
        self.on_start_failed: Callable[[StartFailed], None] = lambda _failure: None
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.RankFailed: self._on_rank_failed,
            messages.RankExited: self._on_rank_exited,
        }

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
        leaving = record.leaving
        record.reason = _reason(leaving, reason)
        record.leaving = Leaving.NO
        record.doing = ""
        unwanted = leaving in (Leaving.NO, Leaving.HOST_LOST)
        record.move(RankState.LOST if unwanted else RankState.ENDED)
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
        why = f"did not start: {words.summarize(last_words)}" if last_words else reason
        last = f"; last lines of its log:\n{tail.rstrip()}" if tail.strip() else ""
        problem = f"{record.place} {why}{last}"
        self._restarts.fail_for(record.rank, problem, f"Its log: {record.log_path}.")
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
            failure = StartFailed(
                what=record.place, reason=conflict, remedy=_SAME_VERSIONS
            )
            self.on_start_failed(failure)
            return
        board.end_ranks([record], Leaving.INTERRUPT)
        self._restarts.fail_for(record.rank, conflict, _SAME_VERSIONS)

    def lose_host(self, host: HostRecord, reason: str) -> None:
        """Count the ranks of a host without an agent as lost."""
        there = [
            record
            for record in self._board.ranks
            if record.host == host.spec.name and not record.gone
        ]
        text = f"host {host.spec.name} is lost: {reason}"
        if there:
            ranks = [record.rank for record in there]
            verb = "is lost with it" if len(ranks) == 1 else "are lost with it"
            text += f"; {words.name_ranks(ranks)} {verb}, {words.restart_hint(ranks)}"
            text += " starts again"
        self._board.notice(text, "error")
        for record in there:
            if record.state is RankState.WAITING:
                self._give_up(record, f"host {record.host} is lost: {reason}")
            else:
                # What was asked of the agent is moot; its end is the reason now.
                record.leaving = Leaving.HOST_LOST
                self._end_rank(record, f"is lost with its host: {reason}")

    def host_failed(self, failure: StartFailed) -> None:
        """Give up ranks whose host came back for a restart but cannot be used."""
        problem = f"{failure.what} did not start: {failure.reason}"
        self._board.notice(problem, "error")
        for record in self._board.ranks:
            if record.state is RankState.WAITING:
                self._give_up(record, problem, failure.remedy)

    def _give_up(self, record: RankRecord, problem: str, remedy: str = "") -> None:
        record.move(RankState.LOST)
        record.reason = f"was not started: {problem}"
        error = words.lost_error(record.rank, record.host, None, record.reason)
        self._jobs.lose(record.rank, error)
        self._restarts.fail_for(record.rank, problem, remedy or _AGENT_LOG)
        self._board.changed()

    def group_failed(self, what: str, error: ErrorInfo) -> None:
        """Tell who waits that the process group did not form."""
        board = self._board
        problem = f"no process group was formed: {what}: {words.summarize(error)}"
        if not board.started:
            ranks = [r for r in board.ranks if r.state is RankState.FORMING]
            log_path = ranks[0].log_path if ranks else ""
            self.on_start_failed(
                StartFailed(
                    what=what,
                    reason=f"no process group was formed: {words.summarize(error)}",
                    stderr_tail=error.traceback,
                    log_path=log_path,
                )
            )
            return
        board.notice(f"{problem}; {_RETRY}", "error")
        remedy = "`%npu_cluster restart` of all ranks makes a new start."
        self._restarts.fail_all(problem, remedy)


_SAME_VERSIONS = "Use the same versions of Python and torch on all hosts."
_AGENT_LOG = "See the log of its agent with `npu-notebook logs`."
_RETRY = "the next cell tries again, cells without collectives run as they are"


def _reason(leaving: Leaving, reason: str) -> str:
    match leaving:
        case Leaving.RESTART:
            return "was replaced by a restart"
        case Leaving.INTERRUPT:
            return "was ended because it could not be interrupted"
        case Leaving.STOP:
            return "was ended with the cluster"
        case Leaving.NO | Leaving.HOST_LOST:
            return reason
