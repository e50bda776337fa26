"""Where chunks of a region go: from a notebook to agents, from agents to a notebook.

The controller only passes them on; the ends keep to `npu_notebook.bulk.CREDIT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from npu_notebook import messages
from npu_notebook.controller.events import Send

if TYPE_CHECKING:
    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.records import HostRecord
    from npu_notebook.wire import Payload, Peer


@dataclass(slots=True)
class _Fetch:
    """A region that goes from a host to a notebook once the notebook asks for it."""

    host: str
    notebook: Peer
    path: str
    asked: bool = False


class BulkRoutes:
    """All transfers in chunks."""

    def __init__(self, board: Board) -> None:
        self._board = board
        # By transfer and host: which notebook sends, and where the region lies at last.
        self._senders: dict[tuple[str, str], Peer] = {}
        self._stored: dict[tuple[str, str], str] = {}
        self._fetches: dict[str, _Fetch] = {}
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.BulkChunk: self._on_chunk,
            messages.BulkCredit: self._on_credit,
        }

    def _on_chunk(
        self, peer: Peer, message: messages.BulkChunk, payload: Payload
    ) -> None:
        if peer.kind == "notebook":
            self._pass_to_agent(peer, message, payload)
        elif peer.kind == "agent":
            self._pass_to_notebook(peer, message, payload)

    def _pass_to_agent(
        self, peer: Peer, message: messages.BulkChunk, payload: Payload
    ) -> None:
        host = self._board.hosts.get(message.host)
        if host is None or not host.connected:
            self._refuse(peer, message.transfer_id, message.host)
            return
        self._senders[message.transfer_id, message.host] = peer
        self._board.act(Send((host.peer,), message, payload))

    def _pass_to_notebook(
        self, peer: Peer, message: messages.BulkChunk, payload: Payload
    ) -> None:
        fetch = self._fetches.get(message.transfer_id)
        if fetch is None or fetch.host != peer.name:
            return
        self._board.answer(fetch.notebook, message, payload)
        nbytes = sum(memoryview(frame).nbytes for frame in payload)
        if message.offset + nbytes >= message.total_nbytes:
            del self._fetches[message.transfer_id]

    def _on_credit(
        self, peer: Peer, message: messages.BulkCredit, payload: Payload
    ) -> None:
        if peer.kind == "agent":
            sender = self._senders.get((message.transfer_id, peer.name))
            if sender is not None:
                self._board.answer(sender, message, payload)
            return
        fetch = self._fetches.get(message.transfer_id)
        if fetch is None or fetch.notebook != peer:
            return
        host = self._board.hosts[fetch.host]
        if not fetch.asked:
            fetch.asked = True
            command = messages.SendRegion(
                transfer_id=message.transfer_id, path=fetch.path
            )
            self._board.send_host(host, command)
        else:
            self._board.send_host(host, message)

    def _refuse(self, notebook: Peer, transfer_id: str, host: str) -> None:
        answer = messages.RequestDone(
            request_id=transfer_id,
            problem=f"host {host} cannot send or receive data: it has no agent",
            remedy="Run `%npu_cluster restart`.",
        )
        self._board.answer(notebook, answer)

    # For pushes

    def note_stored(self, host: str, message: messages.RegionStored) -> None:
        """Remember where a region lies on a host."""
        key = message.transfer_id, host
        if key in self._senders and not message.problem:
            self._stored[key] = message.path

    def stored(self, transfer_id: str, host: str) -> str | None:
        """Return the path of a region on a host, None if it is not all there."""
        return self._stored.get((transfer_id, host))

    def forget(self, transfer_id: str) -> None:
        """Forget a transfer to agents that is over."""
        for table in (self._senders, self._stored):
            for key in [key for key in table if key[0] == transfer_id]:
                del table[key]

    # For pulls

    def fetch(
        self, host: HostRecord, notebook: Peer, answer: messages.PulledValues
    ) -> None:
        """Offer a region to a notebook that does not share memory with the host.

        The answer goes ahead with an empty path and no payload. The notebook asks for
        the chunks of transfer ``REQUEST/RANK`` with its first `BulkCredit`.
        """
        transfer_id = f"{answer.request_id}/{answer.rank}"
        fetch = _Fetch(host.spec.name, notebook, answer.layout.path)
        self._fetches[transfer_id] = fetch
        layout = messages.BulkLayout(sizes=answer.layout.sizes)
        self._board.answer(notebook, msgspec.structs.replace(answer, layout=layout))

    # Ends

    def lose_host(self, host: str) -> None:
        """Tell the notebooks whose chunks go to or come from a host that is gone."""
        for transfer_id, one in [key for key in self._senders if key[1] == host]:
            sender = self._senders.pop((transfer_id, one))
            self._stored.pop((transfer_id, one), None)
            self._refuse(sender, transfer_id, host)
        for transfer_id, fetch in list(self._fetches.items()):
            if fetch.host == host:
                del self._fetches[transfer_id]
                self._refuse(fetch.notebook, transfer_id, host)

    def lose_notebook(self, notebook: Peer) -> None:
        """Forget the transfers of a notebook that is gone."""
        for key in [key for key, peer in self._senders.items() if peer == notebook]:
            del self._senders[key]
            self._stored.pop(key, None)
        for transfer_id, fetch in list(self._fetches.items()):
            if fetch.notebook == notebook:
                del self._fetches[transfer_id]
