"""Push: a variable on all the ranks asked for, or on none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.events import RemoveRegion
from npu_notebook.messages import BulkLayout, ErrorInfo

if TYPE_CHECKING:
    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.bulk_routes import BulkRoutes
    from npu_notebook.controller.jobs import Jobs
    from npu_notebook.controller.records import HostRecord
    from npu_notebook.wire import Payload, Peer


class Push:
    """Assign variables on ranks: staged on all, then kept on all or on none."""

    def __init__(
        self,
        pushes: Pushes,
        notebook: Peer,
        request: messages.PushValues,
        payload: Payload,
    ) -> None:
        self.key = f"push {request.request_id}"
        self.ranks = request.ranks
        self.notebook = notebook
        self.request = request
        self.payload = payload
        self.staging = set(request.ranks)
        self.staged: set[int] = set()
        self.committing: set[int] = set()
        self.errors: dict[int, ErrorInfo] = {}
        self.waits_for: set[str] = set()
        self._pushes = pushes

    @property
    def running(self) -> list[int]:
        """See `Job`."""
        return sorted(self.staging | self.committing)

    def begin(self) -> None:
        """See `Job`."""
        self._pushes.begin(self)

    def lose(self, rank: int, error: ErrorInfo) -> None:
        """See `Job`."""
        self.staged.discard(rank)
        self.committing.discard(rank)
        self.staging.discard(rank)
        self.errors[rank] = error
        self._pushes.step(self)

    def refuse(self, errors: dict[int, ErrorInfo]) -> None:
        """See `Job`."""
        self.errors = errors
        self._pushes.end(self)


class Pushes:
    """All pushes of a cluster."""

    def __init__(self, board: Board, jobs: Jobs, routes: BulkRoutes) -> None:
        self._board = board
        self._jobs = jobs
        self._routes = routes
        self._pushes: dict[str, Push] = {}
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.PushValues: self._on_push,
            messages.ValuesStaged: self._on_staged,
            messages.ValuesCommitted: self._on_committed,
            messages.RegionStored: self._on_stored,
        }

    def _on_push(
        self, peer: Peer, message: messages.PushValues, payload: Payload
    ) -> None:
        problem, remedy = self._board.find_problem(message.ranks)
        if message.request_id in self._pushes:
            problem = f"request {message.request_id} exists already"
            remedy = "Give each request a new id."
        if problem:
            answer = messages.RequestDone(
                request_id=message.request_id, problem=problem, remedy=remedy
            )
            self._board.answer(peer, answer)
            return
        push = Push(self, peer, message, payload)
        self._pushes[message.request_id] = push
        gone = self._board.find_gone(push.ranks)
        if gone:
            push.refuse(gone)
        else:
            self._jobs.add(push)

    def begin(self, push: Push) -> None:
        """Stage on every host whose region is there."""
        layout = push.request.layout
        for host in self._board.hosts_of(push.ranks):
            path = layout.path
            if not push.payload and not self._board.shares_memory(host, push.notebook):
                name = host.spec.name
                stored = self._routes.stored(push.request.transfer_id, name)
                if stored is None:
                    push.waits_for.add(name)
                    continue
                path = stored
            self._stage(push, host, path)

    def _stage(self, push: Push, host: HostRecord, path: str) -> None:
        records = [
            record
            for record in self._board.records(push.ranks)
            if record.host == host.spec.name and record.rank in push.staging
        ]
        command = messages.StageValues(
            request_id=push.request.request_id,
            names=push.request.names,
            layout=BulkLayout(sizes=push.request.layout.sizes, path=path),
        )
        self._board.send_ranks(records, command, push.payload)

    def _on_stored(
        self, peer: Peer, message: messages.RegionStored, _payload: Payload
    ) -> None:
        host = self._board.hosts.get(peer.name)
        if host is None or peer.kind != "agent":
            return
        self._routes.note_stored(peer.name, message)
        for push in list(self._pushes.values()):
            if push.request.transfer_id != message.transfer_id:
                continue
            if peer.name in push.waits_for:
                push.waits_for.discard(peer.name)
                self._use_stored(push, host, message)

    def _use_stored(
        self, push: Push, host: HostRecord, message: messages.RegionStored
    ) -> None:
        if not message.problem:
            self._stage(push, host, message.path)
            return
        error = ErrorInfo(
            kind="DataError", message=f"host {host.spec.name}: {message.problem}"
        )
        for record in self._board.records(push.ranks):
            if record.host == host.spec.name:
                push.staging.discard(record.rank)
                push.errors[record.rank] = error
        self.step(push)

    def _on_staged(
        self, peer: Peer, message: messages.ValuesStaged, _payload: Payload
    ) -> None:
        record = self._board.rank_of(peer)
        push = self._pushes.get(message.request_id)
        if record is None or push is None or record.rank not in push.staging:
            return
        push.staging.discard(record.rank)
        if message.error is not None:
            push.errors[record.rank] = message.error
        else:
            push.staged.add(record.rank)
        self.step(push)

    def step(self, push: Push) -> None:
        """Keep or drop once every rank has answered; end once all have done so."""
        if push.staging or push.request.request_id not in self._pushes:
            return
        if push.staged:
            command = messages.CommitValues(
                request_id=push.request.request_id, keep=not push.errors
            )
            self._board.send_ranks(self._board.records(sorted(push.staged)), command)
            push.committing, push.staged = push.staged, set()
        if not push.committing:
            self.end(push)

    def _on_committed(
        self, peer: Peer, message: messages.ValuesCommitted, _payload: Payload
    ) -> None:
        record = self._board.rank_of(peer)
        push = self._pushes.get(message.request_id)
        if record is not None and push is not None:
            push.committing.discard(record.rank)
            self.step(push)

    def end(self, push: Push) -> None:
        """Answer the notebook."""
        self._pushes.pop(push.request.request_id, None)
        self._jobs.finish(push)
        self._routes.forget(push.request.transfer_id)
        problem, remedy = "", ""
        if push.errors:
            rank = min(push.errors)
            problem = f"nothing was pushed: {words.name_ranks(push.errors)}: " + (
                words.summarize(push.errors[rank])
            )
            remedy = "The variables on all ranks are as they were."
        answer = messages.RequestDone(
            request_id=push.request.request_id, problem=problem, remedy=remedy
        )
        self._board.answer(push.notebook, answer)
        if push.notebook.name not in self._board.notebooks:
            remove_region(self._board, push.request.layout.path)

    def end_all(self, reason: str) -> None:
        """End every push because the cluster ends."""
        error = ErrorInfo(kind=words.LOST, message=reason)
        for push in list(self._pushes.values()):
            push.refuse(dict.fromkeys(push.ranks, error))

    def lose_host(self, host: HostRecord) -> None:
        """Stop waiting for chunks on a host whose agent is gone."""
        message = messages.RegionStored(
            transfer_id="",
            host=host.spec.name,
            path="",
            problem="its agent is gone",
        )
        for push in list(self._pushes.values()):
            if host.spec.name in push.waits_for:
                push.waits_for.discard(host.spec.name)
                self._use_stored(push, host, message)


def remove_region(board: Board, path: str) -> None:
    """Have a region removed that its owner cannot remove any more."""
    if path:
        board.act(RemoveRegion(path))
