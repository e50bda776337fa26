"""What the controller remembers of each rank, host and notebook.

`TRANSITIONS` is the whole life of a rank; `docs/states.md` shows it as a table.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_notebook.messages import HostFact, JoinNotebook, RankFact, RankState
from npu_notebook.wire import Peer

if TYPE_CHECKING:
    from npu_notebook.topology import HostSpec

_GONE = frozenset({RankState.LOST, RankState.ENDED})

TRANSITIONS: dict[RankState, frozenset[RankState]] = {
    RankState.WAITING: _GONE | {RankState.STARTING},
    RankState.STARTING: _GONE | {RankState.JOINED},
    RankState.JOINED: _GONE | {RankState.FORMING, RankState.IDLE},
    RankState.FORMING: _GONE | {RankState.IDLE},
    RankState.IDLE: _GONE | {RankState.FORMING, RankState.RUNNING},
    RankState.RUNNING: _GONE | {RankState.IDLE, RankState.INTERRUPTING},
    RankState.INTERRUPTING: _GONE | {RankState.IDLE},
    RankState.LOST: frozenset({RankState.WAITING}),
    RankState.ENDED: frozenset({RankState.WAITING}),
}
"""Which state may follow which. ``unresponsive`` is not here: it is shown in place of
the state of a connected rank while that rank is silent, and never stored."""

CONNECTED = frozenset(
    {
        RankState.JOINED,
        RankState.FORMING,
        RankState.IDLE,
        RankState.RUNNING,
        RankState.INTERRUPTING,
    }
)
"""States in which a rank can be sent commands."""

WORKING = frozenset({RankState.RUNNING, RankState.INTERRUPTING})
"""States in which a rank has a cell."""


class Leaving(enum.StrEnum):
    """Why a rank's process ends; NO if nobody asked for it."""

    NO = ""
    HOST_LOST = "host lost"
    RESTART = "restart"
    INTERRUPT = "interrupt"
    STOP = "stop"


@dataclass(slots=True)
class RankRecord:
    """One rank. ``reason`` says how its last process ended."""

    rank: int
    host: str
    local_rank: int
    log_path: str
    state: RankState = RankState.WAITING
    incarnation: int = 0
    pid: int | None = None
    device: str | None = None
    doing: str = ""
    heard_s: float = 0.0
    silent: bool = False
    leaving: Leaving = Leaving.NO
    reason: str = ""

    @property
    def peer(self) -> Peer:
        """The current process of this rank as a receiver."""
        return Peer("rank", str(self.rank), self.incarnation)

    @property
    def gone(self) -> bool:
        """True if there is no process and none is coming."""
        return self.state in _GONE

    @property
    def shown(self) -> RankState:
        """The state that people see."""
        if self.silent and self.state in CONNECTED:
            return RankState.UNRESPONSIVE
        return self.state

    @property
    def place(self) -> str:
        """``rank 2 on host a``, as it stands in sentences."""
        return f"rank {self.rank} on {self.host}"

    def move(self, state: RankState) -> None:
        """Change the state.

        Raises
        ------
        ValueError
            If the table does not allow it: a mistake in the lifecycle.
        """
        if state not in TRANSITIONS[self.state]:
            problem = f"rank {self.rank} cannot go from {self.state} to {state}"
            raise ValueError(problem)
        self.state = state

    def renew(self) -> None:
        """Wait for a new process after the old one is gone."""
        self.move(RankState.WAITING)
        self.incarnation += 1
        self.pid = None
        self.device = None
        self.doing = ""
        self.silent = False
        self.leaving = Leaving.NO

    def fact(self, memory_key: str) -> RankFact:
        """Return what views show of this rank."""
        return RankFact(
            rank=self.rank,
            host=self.host,
            local_rank=self.local_rank,
            state=self.shown,
            pid=self.pid,
            device=self.device,
            doing=self.doing,
            log_path=self.log_path,
            memory_key=memory_key,
        )


class HostStage(enum.Enum):
    """How far a host has come."""

    AWAY = enum.auto()
    LAUNCHED = enum.auto()
    JOINED = enum.auto()
    PREPARING = enum.auto()
    PREPARED = enum.auto()
    GONE = enum.auto()


@dataclass(slots=True)
class HostRecord:
    """One host and its agent."""

    spec: HostSpec
    stage: HostStage = HostStage.AWAY
    fact: HostFact | None = None
    heard_s: float = 0.0

    @property
    def peer(self) -> Peer:
        """The agent as a receiver."""
        return Peer("agent", self.spec.name)

    @property
    def connected(self) -> bool:
        """True while the agent can be sent commands."""
        return self.stage in (
            HostStage.JOINED,
            HostStage.PREPARING,
            HostStage.PREPARED,
        )


@dataclass(slots=True)
class NotebookRecord:
    """One notebook that has joined. ``watched``: its end will be reported."""

    peer: Peer
    joined: JoinNotebook
    heard_s: float
    watched: bool = False
