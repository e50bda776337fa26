"""What all parts of the lifecycle share: the facts so far and the actions decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.events import Action, Send
from npu_notebook.controller.records import (
    WORKING,
    HostRecord,
    Leaving,
    NotebookRecord,
    RankRecord,
)
from npu_notebook.errors import ConfigError
from npu_notebook.messages import ClusterState, Message, RankState
from npu_notebook.topology import parse_ranks
from npu_notebook.wire import Payload, Peer

if TYPE_CHECKING:
    from npu_notebook.topology import ClusterSpec, Plan

Reaction: TypeAlias = Callable[[Peer, Any, Payload], None]
"""What a part does when a message of one class arrives."""

KILL_GRACE_S = 2.0
"""What a rank gets between SIGTERM and SIGKILL when the user wants it gone."""
_CHANGE_GAP_S = 0.1
"""At most about ten `StateChanged` a second."""
_CELL_DELAY_S = 0.05
"""A cell that is over sooner changes nothing worth showing."""


@dataclass(frozen=True, slots=True)
class ProviderWords:
    """What views call the devices and which backend groups use ("" for none)."""

    label: str
    backend: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the lifecycle cannot know by itself, given once.

    Parameters
    ----------
    endpoint : str
        Where ranks and agents connect to.
    logs : str
        Folder of the log files of ranks.
    python : str
        Version of Python of the controller.
    package_version : str
        Version of this package.
    describe_provider : callable
        Returns the words of a provider by its name.
    """

    endpoint: str
    logs: str
    python: str
    package_version: str
    describe_provider: Callable[[str], ProviderWords]


class Board:
    """The facts and the out-tray of one cluster. It decides nothing by itself."""

    def __init__(self, spec: ClusterSpec, around: Surroundings) -> None:
        self.spec = spec
        self.around = around
        self.now_s = 0.0
        self.opened_s = 0.0
        self.hosts = {host.name: HostRecord(host) for host in spec.hosts}
        self.ranks: list[RankRecord] = []
        self._by_name: dict[str, RankRecord] = {}
        self.notebooks: dict[str, NotebookRecord] = {}
        self.plan: Plan | None = None
        self.provider = ProviderWords("", "")
        self.epoch = 0
        self.started = False  # the start sequence is over and went well
        self.stopping = False
        self.ended = False
        self.cell_ids: Callable[[], tuple[str, ...]] = tuple
        self._actions: list[Action] = []
        self.publish_due_s = math.inf
        """When `publish_change` has something to do."""
        self._published: messages.ClusterFact | None = None
        self._published_s = float("-inf")

    # Out-tray

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

    # Facts

    def place_ranks(self, plan: Plan) -> None:
        """Take over the plan: its ranks wait for their processes."""
        logs = PurePath(self.around.logs)
        self.plan = plan
        self.ranks = [
            RankRecord(
                rank=slot.rank,
                host=slot.host,
                local_rank=slot.local_rank,
                log_path=str(logs / f"rank-{slot.rank}.log"),
            )
            for slot in plan.slots
        ]
        self._by_name = {str(record.rank): record for record in self.ranks}

    @property
    def has_groups(self) -> bool:
        """True if ranks form process groups (all providers but "none")."""
        return bool(self.provider.backend)

    def rank_of(self, peer: Peer) -> RankRecord | None:
        """Return the record of a reporting rank; None for a process of the past."""
        record = self._by_name.get(peer.name)
        if record is None or peer.kind != "rank":
            return None
        return record if record.incarnation == peer.incarnation else None

    def records(self, ranks: Iterable[int]) -> list[RankRecord]:
        """Return the records of ranks."""
        return [self.ranks[rank] for rank in ranks]

    def find_problem(self, ranks: tuple[int, ...]) -> tuple[str, str]:
        """Say why work on ``ranks`` cannot be taken now: problem and remedy, or ""."""
        if self.stopping:
            return "the cluster is being stopped", "Start one: `%npu_cluster start`."
        if not self.started:
            return "the cluster is still starting", "Wait until it is ready."
        try:
            parse_ranks(ranks, len(self.ranks))
        except ConfigError as error:
            return error.problem, error.remedy
        return "", ""

    def find_gone(self, ranks: Iterable[int]) -> dict[int, messages.ErrorInfo]:
        """Return an error for each of ``ranks`` that has no process."""
        return {
            record.rank: words.lost_error(
                record.rank, record.host, record.pid, record.reason
            )
            for record in self.records(ranks)
            if record.gone
        }

    def hosts_of(self, ranks: Iterable[int]) -> list[HostRecord]:
        """Return the hosts that ranks run on."""
        names = dict.fromkeys(record.host for record in self.records(ranks))
        return [self.hosts[name] for name in names]

    def shares_memory(self, host: HostRecord, notebook: Peer) -> bool:
        """Return whether a notebook and a host see the same shared memory."""
        record = self.notebooks.get(notebook.name)
        if record is None or host.fact is None:
            return False
        return record.joined.memory_key == host.fact.memory_key

    def state(self) -> ClusterState:
        """Compute the state of the whole from the ranks."""
        if self.ended:
            return ClusterState.ENDED
        if self.stopping:
            return ClusterState.STOPPING
        if not self.started:
            return ClusterState.STARTING
        return cluster_state(record.state for record in self.ranks)

    def fact(self) -> messages.ClusterFact:
        """Return a snapshot for notebooks."""
        keys = {
            name: host.fact.memory_key if host.fact else ""
            for name, host in self.hosts.items()
        }
        return messages.ClusterFact(
            name=self.spec.name,
            state=self.state(),
            world_size=len(self.ranks),
            provider=self.plan.provider if self.plan else "",
            label=self.provider.label,
            backend=self.provider.backend,
            epoch=self.epoch,
            ranks=tuple(record.fact(keys[record.host]) for record in self.ranks),
            linger_s=self.spec.linger_s,
            age_s=round(self.now_s - self.opened_s, 3),
            cell_ids=self.cell_ids(),
        )

    # Changes

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


_PRECEDENCE = (
    (frozenset({RankState.LOST, RankState.ENDED}), ClusterState.DEGRADED),
    (
        frozenset({RankState.WAITING, RankState.STARTING, RankState.FORMING}),
        ClusterState.STARTING,
    ),
    (WORKING, ClusterState.BUSY),
    (frozenset({RankState.JOINED}), ClusterState.STARTING),
)


def cluster_state(states: Iterable[RankState]) -> ClusterState:
    """Compute the state of a cluster that has started from those of its ranks.

    Examples
    --------
    >>> cluster_state([RankState.IDLE, RankState.LOST, RankState.RUNNING])
    <ClusterState.DEGRADED: 'degraded'>
    """
    present = set(states)
    for some, state in _PRECEDENCE:
        if present & some:
            return state
    return ClusterState.READY


def _same(one: messages.ClusterFact, other: messages.ClusterFact) -> bool:
    if (one.state, one.ranks, one.epoch) != (other.state, other.ranks, other.epoch):
        return False
    return one.cell_ids == other.cell_ids and one.provider == other.provider
