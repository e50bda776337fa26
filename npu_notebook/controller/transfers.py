"""Push, pull and the chunks of regions for hosts without common memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.events import RemoveRegion
from npu_notebook.errors import ConfigError
from npu_notebook.messages import BulkLayout, ErrorInfo
from npu_notebook.topology import parse_ranks

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
        transfers: Transfers,
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
        self._transfers = transfers

    def begin(self) -> None:
        """See `Job`."""
        self._transfers.begin_push(self)

    def lose(self, rank: int, error: ErrorInfo) -> None:
        """See `Job`."""
        self.staged.discard(rank)
        self.committing.discard(rank)
        self.staging.discard(rank)
        self.errors[rank] = error
        self._transfers.step(self)

    def refuse(self, errors: dict[int, ErrorInfo]) -> None:
        """See `Job`."""
        self.errors = errors
        self._transfers.end_push(self)


class Pull:
    """Read variables of ranks: each rank's answer goes to the notebook as it comes."""

    def __init__(
        self, transfers: Transfers, notebook: Peer, request: messages.PullValues
    ) -> None:
        self.key = f"pull {request.request_id}"
        self.ranks = request.ranks
        self.notebook = notebook
        self.request = request
        self.waiting = set(request.ranks)
        self._transfers = transfers

    def begin(self) -> None:
        """See `Job`."""
        self._transfers.begin_pull(self)

    def lose(self, rank: int, error: ErrorInfo) -> None:
        """See `Job`."""
        if rank in self.waiting:
            self._transfers.answer_without(self, rank, error)

    def refuse(self, errors: dict[int, ErrorInfo]) -> None:
        """See `Job`."""
        cause = words.not_run_error(f"{words.name_ranks(errors)} could not")
        for rank in sorted(self.waiting):
            self._transfers.answer_without(self, rank, errors.get(rank, cause))


class Transfers:
    """All pushes and pulls of a cluster."""

    def __init__(self, board: Board, jobs: Jobs, routes: BulkRoutes) -> None:
        self._board = board
        self._jobs = jobs
        self._routes = routes
        self._pushes: dict[str, Push] = {}
        self._pulls: dict[str, Pull] = {}
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.PushValues: self._on_push,
            messages.PullValues: self._on_pull,
            messages.ValuesStaged: self._on_staged,
            messages.ValuesCommitted: self._on_committed,
            messages.PulledValues: self._on_pulled,
            messages.RegionStored: self._on_stored,
        }

    # Requests

    def _on_push(
        self, peer: Peer, message: messages.PushValues, payload: Payload
    ) -> None:
        if not self._accept(peer, message):
            return
        push = Push(self, peer, message, payload)
        self._pushes[message.request_id] = push
        gone = self._gone(push.ranks)
        if gone:
            push.refuse(gone)
        else:
            self._jobs.add(push)

    def _on_pull(
        self, peer: Peer, message: messages.PullValues, _payload: Payload
    ) -> None:
        if not self._accept(peer, message):
            return
        pull = Pull(self, peer, message)
        self._pulls[message.request_id] = pull
        gone = self._gone(pull.ranks)
        if gone:
            pull.refuse(gone)
        else:
            self._jobs.add(pull)

    def _accept(
        self, peer: Peer, message: messages.PushValues | messages.PullValues
    ) -> bool:
        board = self._board
        problem = remedy = ""
        if board.stopping or not board.started:
            problem, remedy = f"the cluster is {board.state()}", "Wait until it is ready."
        elif message.request_id in self._pushes or message.request_id in self._pulls:
            problem = f"request {message.request_id} exists already"
            remedy = "Give each request a new id."
        else:
            try:
                parse_ranks(message.ranks, len(board.ranks))
            except ConfigError as error:
                problem, remedy = error.problem, error.remedy
        if problem:
            answer = messages.RequestDone(
                request_id=message.request_id, problem=problem, remedy=remedy
            )
            board.answer(peer, answer)
        return not problem

    def _gone(self, ranks: tuple[int, ...]) -> dict[int, ErrorInfo]:
        return {
            record.rank: words.lost_error(
                record.rank, record.host, record.pid, record.reason
            )
            for record in self._board.records(ranks)
            if record.gone
        }

    # Push

    def begin_push(self, push: Push) -> None:
        """Stage on every host whose region is there."""
        layout = push.request.layout
        for host in self._hosts_of(push.ranks):
            path = layout.path
            if not push.payload and not self._shares_memory(host, push.notebook):
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
        """Keep or drop once every rank has answered; end once every rank has done so."""
        if push.staging or push.request.request_id not in self._pushes:
            return
        if push.staged:
            command = messages.CommitValues(
                request_id=push.request.request_id, keep=not push.errors
            )
            self._board.send_ranks(self._board.records(sorted(push.staged)), command)
            push.committing, push.staged = push.staged, set()
        if not push.committing:
            self.end_push(push)

    def _on_committed(
        self, peer: Peer, message: messages.ValuesCommitted, _payload: Payload
    ) -> None:
        record = self._board.rank_of(peer)
        push = self._pushes.get(message.request_id)
        if record is not None and push is not None:
            push.committing.discard(record.rank)
            self.step(push)

    def end_push(self, push: Push) -> None:
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
            self._remove(push.request.layout.path)

    # Pull

    def begin_pull(self, pull: Pull) -> None:
        """Ask every rank."""
        for host in self._hosts_of(pull.ranks):
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
            self._remove(path)
        elif path and not self._shares_memory(host, pull.notebook):
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

    # Ends

    def end_all(self, reason: str) -> None:
        """End every transfer because the cluster ends."""
        error = ErrorInfo(kind="RankLostError", message=reason)
        for push in list(self._pushes.values()):
            push.refuse(dict.fromkeys(push.ranks, error))
        for pull in list(self._pulls.values()):
            for rank in sorted(pull.waiting):
                self.answer_without(pull, rank, error)

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

    def _hosts_of(self, ranks: tuple[int, ...]) -> list[HostRecord]:
        names = dict.fromkeys(record.host for record in self._board.records(ranks))
        return [self._board.hosts[name] for name in names]

    def _shares_memory(self, host: HostRecord, notebook: Peer) -> bool:
        record = self._board.notebooks.get(notebook.name)
        if record is None or host.fact is None:
            return False
        return record.joined.memory_key == host.fact.memory_key

    def _remove(self, path: str) -> None:
        if path:
            self._board.act(RemoveRegion(path))
