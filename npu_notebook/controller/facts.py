"""What is known of a cluster, and what follows from it without deciding anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.records import (
    WORKING,
    HostRecord,
    NotebookRecord,
    RankRecord,
)
from npu_notebook.errors import ConfigError
from npu_notebook.messages import ClusterState, RankState
from npu_notebook.topology import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npu_notebook.topology import ClusterSpec, Plan
    from npu_notebook.wire import Peer


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


class Facts:
    """The specification, the clock, and records of ranks, hosts and notebooks."""

    def __init__(self, spec: ClusterSpec, around: Surroundings) -> None:
        self.spec = spec
        self.around = around
        self.now_s = 0.0
        self.opened_s = 0.0
        self.hosts = {host.name: HostRecord(host) for host in spec.hosts}
        self.ranks: list[RankRecord] = []
        self.notebooks: dict[str, NotebookRecord] = {}
        self.plan: Plan | None = None
        self.provider = ProviderWords("", "")
        self.epoch = 0
        self.started = False  # the start sequence is over and went well
        self.stopping = False
        self.ended = False
        self.cell_ids: Callable[[], tuple[str, ...]] = tuple
        self._by_name: dict[str, RankRecord] = {}

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

    def agent_log_path(self, host: str) -> str:
        """Return where an agent's own words go, on the controller's host."""
        return str(PurePath(self.around.logs) / f"agent-{host}.log")

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
