"""What all parts of the lifecycle share: the facts so far and the actions decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from npu_notebook import messages
from npu_notebook.controller.events import Action, Send
from npu_notebook.controller.facts import Facts, Surroundings
from npu_notebook.wire import Payload, Peer

if TYPE_CHECKING:
    from npu_notebook.controller.records import HostRecord, Leaving, RankRecord
    from npu_notebook.messages import Message
    from npu_notebook.topology import ClusterSpec

Reaction: TypeAlias = Callable[[Peer, Any, Payload], None]
"""What a part does when a message of one class arrives."""

KILL_GRACE_S = 2.0
"""What a rank gets between SIGTERM and SIGKILL when the user wants it gone."""
_CHANGE_GAP_S = 0.1
"""At most about ten `StateChanged` a second."""
_CELL_DELAY_S = 0.05
"""A cell that is over sooner changes nothing worth showing."""


class Board(Facts):
    """The facts and the out-tray of one cluster. It decides nothing by itself."""

    def __init__(self, spec: ClusterSpec, around: Surroundings) -> None:
        super().__init__(spec, around)
        self._actions: list[Action] = []
        self.publish_due_s = math.inf
        """When `publish_change` has something to do."""
        self._published: messages.ClusterFact | None = None
        self._published_s = -math.inf

    def act(self, action: Action) -> None:
        """Add an action."""
        self._actions.append(action)

    def take_actions(self) -> list[Action]:
        """Return the actions decided since the last call and forget them."""
        taken, self._actions = self._actions, []
        return taken

    def send_ranks(
        self, records: Iterable[RankRecord], message: Message, payload: Payload = ()
    ) -> None:
        """Send a message to ranks."""
        peers = tuple(record.peer for record in records)
        if peers:
            self.act(Send(peers, message, payload))

    def send_host(self, host: HostRecord, message: Message) -> None:
        """Send a message to an agent if it is connected."""
        if host.connected:
            self.act(Send((host.peer,), message))

    def end_ranks(self, records: Iterable[RankRecord], why: Leaving) -> None:
        """Ask the agents to end ranks; each is reported as exited."""
        chosen = list(records)
        for record in chosen:
            record.leaving = why
        for host in self.hosts_of(record.rank for record in chosen):
            name = host.spec.name
            ranks = tuple(record.rank for record in chosen if record.host == name)
            self.send_host(host, messages.EndRanks(ranks=ranks, grace_s=KILL_GRACE_S))

    def answer(self, notebook: Peer, message: Message, payload: Payload = ()) -> None:
        """Send a message to a notebook if it is still there."""
        if notebook.name in self.notebooks:
            self.act(Send((notebook,), message, payload))

    def publish(self, message: Message) -> None:
        """Send a message to all notebooks."""
        peers = tuple(record.peer for record in self.notebooks.values())
        if peers:
            self.act(Send(peers, message))

    def notice(
        self,
        text: str,
        level: Literal["info", "warning", "error"] = "info",
        cell_id: str = "",
    ) -> None:
        """Say one sentence to all notebooks."""
        self.publish(messages.Notice(text=text, level=level, cell_id=cell_id))

    def changed(self, *, soon: bool = True) -> None:
        """Note that the snapshot may differ; ``soon=False`` for what cells do."""
        due_s = self.now_s if soon else self.now_s + _CELL_DELAY_S
        due_s = max(due_s, self._published_s + _CHANGE_GAP_S)
        self.publish_due_s = min(self.publish_due_s, due_s)

    def publish_change(self, *, at_once: bool = False) -> None:
        """Send `StateChanged` if it is due and the snapshot differs from the last."""
        if self.now_s < self.publish_due_s and not at_once:
            return
        self.publish_due_s = math.inf
        fact = self.fact()
        last = self._published
        if last is not None and _same(fact, last):
            return
        self._published = fact
        self._published_s = self.now_s
        self.publish(messages.StateChanged(fact=fact))


def _same(one: messages.ClusterFact, other: messages.ClusterFact) -> bool:
    if (one.state, one.ranks, one.epoch) != (other.state, other.ranks, other.epoch):
        return False
    return one.cell_ids == other.cell_ids and one.provider == other.provider
