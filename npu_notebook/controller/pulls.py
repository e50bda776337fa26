"""Pull: each rank's answer goes to the notebook as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.pushes import remove_region
from npu_notebook.messages import BulkLayout, ErrorInfo

if TYPE_CHECKING:
    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.bulk_routes import BulkRoutes
    from npu_notebook.controller.jobs import Jobs
    from npu_notebook.wire import Payload, Peer


class Pull:
    """Read variables of ranks: each rank's answer goes to the notebook as it comes."""

    def __init__(
        self, pulls: Pulls, notebook: Peer, request: messages.PullValues
    ) -> None:
        self.key = f"pull {request.request_id}"
        self.ranks = request.ranks
        self.notebook = notebook
        self.request = request
        self.waiting = set(request.ranks)
        self._pulls = pulls

    @property
    def running(self) -> list[int]:
        """See `Job`."""
        return sorted(self.waiting)

    def begin(self) -> None:
        """See `Job`."""
        self._pulls.begin(self)

    def lose(self, rank: int, error: ErrorInfo) -> None:
        """See `Job`."""
        if rank in self.waiting:
            self._pulls.answer_without(self, rank, error)

    def refuse(self, errors: dict[int, ErrorInfo]) -> None:
        """See `Job`."""
        others = words.not_run_because_of(errors)
        for rank in sorted(self.waiting):
            self._pulls.answer_without(self, rank, errors.get(rank, others))


class Pulls:
    """All pulls of a cluster."""

    def __init__(self, board: Board, jobs: Jobs, routes: BulkRoutes) -> None:
        self._board = board
        self._jobs = jobs
        self._routes = routes
        self._pulls: dict[str, Pull] = {}
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.PullValues: self._on_pull,
            messages.PulledValues: self._on_pulled,
        }

    def _on_pull(
        self, peer: Peer, message: messages.PullValues, _payload: Payload
    ) -> None:
        problem, remedy = self._board.find_problem(message.ranks)
        if message.request_id in self._pulls:
            problem = f"request {message.request_id} exists already"
            remedy = "Give each request a new id."
        if problem:
            answer = messages.RequestDone(
                request_id=message.request_id, problem=problem, remedy=remedy
            )
            self._board.answer(peer, answer)
            return
        pull = Pull(self, peer, message)
        self._pulls[message.request_id] = pull
        gone = self._board.find_gone(pull.ranks)
        if gone:
            pull.refuse(gone)
        else:
            self._jobs.add(pull)

    def begin(self, pull: Pull) -> None:
        """Ask every rank."""
        for host in self._board.hosts_of(pull.ranks):
            records = [
                record
                for record in self._board.records(pull.ranks)
                if record.host == host.spec.name
            ]
            command = messages.SendValues(
                request_id=pull.request.request_id,
                names=pull.request.names,
                shared_memory_dir=host.fact.shared_memory_dir if host.fact else "",
            )
            self._board.send_ranks(records, command)

    def _on_pulled(
        self, peer: Peer, message: messages.PulledValues, payload: Payload
    ) -> None:
        record = self._board.rank_of(peer)
        pull = self._pulls.get(message.request_id)
        if record is None or pull is None or record.rank not in pull.waiting:
            return
        host = self._board.hosts[record.host]
        path = message.layout.path
        if pull.notebook.name not in self._board.notebooks:
            remove_region(self._board, path)
        elif path and not self._board.shares_memory(host, pull.notebook):
            self._routes.fetch(host, pull.notebook, message)
        else:
            self._board.answer(pull.notebook, message, payload)
        self._note_answer(pull, record.rank)

    def answer_without(self, pull: Pull, rank: int, error: ErrorInfo) -> None:
        """Answer for a rank that cannot."""
        answer = messages.PulledValues(
            request_id=pull.request.request_id,
            rank=rank,
            layout=BulkLayout(sizes=()),
            problem=error.message,
        )
        self._board.answer(pull.notebook, answer)
        self._note_answer(pull, rank)

    def _note_answer(self, pull: Pull, rank: int) -> None:
        pull.waiting.discard(rank)
        if not pull.waiting:
            self._pulls.pop(pull.request.request_id, None)
            self._jobs.finish(pull)

    def end_all(self, reason: str) -> None:
        """End every pull because the cluster ends."""
        error = ErrorInfo(kind=words.LOST, message=reason)
        for pull in list(self._pulls.values()):
            for rank in sorted(pull.waiting):
                self.answer_without(pull, rank, error)
