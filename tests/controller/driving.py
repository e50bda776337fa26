"""A lifecycle without processes: events go in by hand, well-behaved peers answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from npu_notebook import messages
from npu_notebook.controller import events
from npu_notebook.controller.facts import ProviderWords, Surroundings
from npu_notebook.controller.lifecycle import Lifecycle
from npu_notebook.messages import (
    BulkLayout,
    ClusterState,
    DeviceInventory,
    HostFact,
    Message,
    RankState,
)
from npu_notebook.topology import ClusterSpec, HostSpec
from npu_notebook.wire import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

A = TypeVar("A")
M = TypeVar("M", bound=Message)


def describe_provider(name: str) -> ProviderWords:
    if name == "none":
        return ProviderWords("no device", "")
    return ProviderWords("CPU", "gloo")


def host_fact(name: str, **changes: object) -> HostFact:
    facts: dict[str, object] = {
        "name": name,
        "address": f"address-{name}",
        "agent_pid": 100,
        "memory_key": f"memory-{name}",
        "python": "3.11.9",
        "torch": "2.13.0+cpu",
        "cpu_count": 8,
        "inventories": (DeviceInventory(provider="cpu", count=64),),
        "shared_memory_dir": f"/shm-{name}",
    }
    return HostFact(**{**facts, **changes})


def join_message(**changes: object) -> messages.JoinNotebook:
    facts: dict[str, object] = {
        "protocol_version": messages.PROTOCOL_VERSION,
        "package_version": "1.0",
        "python": "3.11.4",
        "host": "a",
        "pid": 10,
        "process_start_s": 5.0,
        "memory_key": "memory-a",
    }
    return messages.JoinNotebook(**{**facts, **changes})


class World:
    """One lifecycle and its peers.

    Peers answer by themselves with what makes a start go well; put the class of a
    command into ``mute`` to answer it by hand. Cells and data are never answered.
    """

    def __init__(
        self,
        num_ranks: int = 4,
        device: str = "cpu",
        hosts: Sequence[str] = ("a",),
        hosts_spec: tuple[HostSpec, ...] = (),
        **spec: object,
    ) -> None:
        per_host = num_ranks // len(hosts)
        even = tuple(HostSpec(name=h, num_ranks=per_host) for h in hosts)
        facts: dict[str, object] = {
            "name": "test",
            "device": device,
            "hosts": hosts_spec or even,
            "cwd": "/home/me",
        }
        self.spec = ClusterSpec(**{**facts, **spec})
        around = Surroundings(
            endpoint="ipc:///run/s",
            logs="/logs",
            python="3.11.4",
            package_version="1.0",
            describe_provider=describe_provider,
        )
        self.lifecycle = Lifecycle(self.spec, around)
        self.now_s = 100.0
        self.log: list[events.Action] = []
        self.mute: set[type] = set()
        self.host_facts = {name: host_fact(name) for name in hosts}

    @property
    def board(self):
        return self.lifecycle.board

    # Events

    def tell(self, event: events.Event) -> list[events.Action]:
        """Pass an event, let peers answer, return all actions."""
        before = len(self.log)
        actions = self.lifecycle.handle(event)
        self.log += actions
        for action in actions:
            self.answer(action)
        return self.log[before:]

    def report(self, peer: Peer, message: Message, payload=()) -> list[events.Action]:
        return self.tell(events.Reported(peer, message, payload, self.now_s))

    def from_rank(self, rank: int, message: Message, payload=()) -> list[events.Action]:
        return self.report(self.rank_peer(rank), message, payload)

    def from_agent(self, host: str, message: Message) -> list[events.Action]:
        return self.report(Peer("agent", host), message)

    def from_notebook(self, message: Message, name: str = "n", payload=()):
        return self.report(Peer("notebook", name), message, payload)

    def pass_time(self, seconds: float) -> list[events.Action]:
        """Let time pass in steps of a second while every peer beats its heart."""
        before = len(self.log)
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.beat()
            self.tell(events.Tick(self.now_s))
        rest_s = seconds - int(seconds)
        if rest_s:
            self.now_s += rest_s
            self.tell(events.Tick(self.now_s))
        return self.log[before:]

    def beat(self) -> None:
        for name in list(self.board.notebooks):
            self.from_notebook(messages.NotebookAlive(), name)
        for host in self.board.hosts:
            self.from_agent(host, messages.AgentAlive(host=host))
        for record in self.board.ranks:
            self.from_rank(record.rank, messages.Heartbeat(rank=record.rank))

    def rank_peer(self, rank: int) -> Peer:
        return self.board.ranks[rank].peer

    def join(self, name: str = "n", **changes: object) -> list[events.Action]:
        return self.from_notebook(join_message(**changes), name)

    def start(self, notebook: str = "n") -> World:
        """Open, join one notebook, and come up (as far as peers answer)."""
        self.tell(events.Opened(self.now_s))
        self.join(notebook)
        return self

    def submit(self, cell_id="c1", ranks=None, name="n", **changes: object):
        chosen = tuple(range(len(self.board.ranks))) if ranks is None else tuple(ranks)
        cell = messages.SubmitCell(
            cell_id=cell_id, code="x = 1", ranks=chosen, **changes
        )
        return self.from_notebook(cell, name)

    def finish(self, cell_id="c1", ranks=None, **changes: object):
        """Let ranks end a cell."""
        before = len(self.log)
        for rank in range(len(self.board.ranks)) if ranks is None else ranks:
            done = messages.CellDone(
                cell_id=cell_id, rank=rank, elapsed_ns=7, **changes
            )
            self.from_rank(rank, done)
        return self.log[before:]

    def exit_rank(self, rank: int, returncode: int = -9, tail: str = ""):
        record = self.board.ranks[rank]
        return self.from_agent(
            record.host,
            messages.RankExited(
                host=record.host,
                rank=rank,
                incarnation=record.incarnation,
                pid=1000 + rank,
                returncode=returncode,
                stderr_tail=tail,
            ),
        )

    # Peers

    def answer(self, action: events.Action) -> None:
        if isinstance(action, events.LaunchAgent):
            if events.LaunchAgent not in self.mute:
                self.join_agent(action.host.name)
        elif isinstance(action, events.Send) and type(action.message) not in self.mute:
            for peer in action.peers:
                self.answer_command(peer, action.message)

    def join_agent(self, host: str) -> list[events.Action]:
        joined = messages.AgentJoined(
            protocol_version=messages.PROTOCOL_VERSION, fact=self.host_facts[host]
        )
        return self.from_agent(host, joined)

    def answer_command(self, peer: Peer, message: Message) -> None:
        match message:
            case messages.PrepareHost():
                self.report(peer, messages.HostPrepared(host=peer.name))
            case messages.StartStore():
                self.report(peer, messages.StoreStarted(host=peer.name, port=4567))
            case messages.StartRanks(ranks=specs):
                for spec in specs:
                    self.spawn_rank(peer, spec)
            case messages.EndRanks(ranks=ranks):
                for rank in ranks:
                    self.exit_rank(rank, -15)
            case messages.EndHost():
                self.report(peer, messages.HostEnded(host=peer.name))
            case messages.FormGroup(epoch=epoch):
                self.form_group(int(peer.name), epoch)
            case _:
                pass

    def spawn_rank(self, agent: Peer, spec: messages.RankSpec) -> None:
        spawned = messages.RankSpawned(
            host=agent.name,
            rank=spec.rank,
            incarnation=spec.incarnation,
            pid=1000 + spec.rank,
        )
        self.report(agent, spawned)
        if messages.RankJoined not in self.mute:
            self.join_rank(spec.rank)

    def join_rank(self, rank: int, **changes: object) -> list[events.Action]:
        record = self.board.ranks[rank]
        facts: dict[str, object] = {
            "rank": rank,
            "incarnation": record.incarnation,
            "host": record.host,
            "pid": 1000 + rank,
            "python": "3.11.9",
            "torch": "2.13.0+cpu",
            "device": "cpu",
            "protocol_version": messages.PROTOCOL_VERSION,
        }
        return self.from_rank(rank, messages.RankJoined(**{**facts, **changes}))

    def form_group(self, rank: int, epoch: int, error=None) -> list[events.Action]:
        formed = messages.GroupFormed(rank=rank, epoch=epoch, elapsed_ns=5, error=error)
        return self.from_rank(rank, formed)

    # What was seen

    @property
    def state(self) -> ClusterState:
        return self.board.state()

    @property
    def states(self) -> list[RankState]:
        return [record.shown for record in self.board.ranks]


def actions_of(log: Sequence[events.Action], kind: type[A]) -> list[A]:
    return [action for action in log if isinstance(action, kind)]


def sent(
    log: Sequence[events.Action], kind: type[M], to: Callable[[Peer], bool] = bool
) -> list[M]:
    """Return the messages of one class, one for each receiver."""
    return [
        action.message
        for action in log
        if isinstance(action, events.Send) and isinstance(action.message, kind)
        for peer in action.peers
        if to(peer)
    ]


def receivers(log: Sequence[events.Action], kind: type[Message]) -> list[str]:
    """Return the names of those who were sent a message of one class."""
    return [
        peer.name
        for action in log
        if isinstance(action, events.Send) and isinstance(action.message, kind)
        for peer in action.peers
    ]


def finished(log: Sequence[events.Action]) -> list[messages.CellFinished]:
    return [action.message for action in actions_of(log, events.FinishCell)]


def layout(path: str = "") -> BulkLayout:
    return BulkLayout(sizes=(10, 20), path=path)
