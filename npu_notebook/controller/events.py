"""What the lifecycle is told (events) and what it wants done (actions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from npu_notebook.messages import (
        CellFinished,
        DisplayOutput,
        JoinNotebook,
        Message,
        StartFailed,
        StreamText,
        ToController,
    )
    from npu_notebook.topology import HostSpec
    from npu_notebook.wire import Payload, Peer

# Events. ``now_s`` is the controller's monotonic clock in seconds.


@dataclass(frozen=True, slots=True)
class Opened:
    """The socket is bound: begin."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Reported:
    """A message arrived."""

    peer: Peer
    message: ToController
    payload: Payload
    now_s: float


@dataclass(frozen=True, slots=True)
class HostExited:
    """The launcher saw the agent of ``host`` end, or could not start it.

    ``tail`` is what it said last, may be empty.
    """

    host: str
    reason: str
    now_s: float
    tail: str = ""


@dataclass(frozen=True, slots=True)
class NotebookGone:
    """The process of a notebook ended without a word."""

    notebook: Peer
    now_s: float


@dataclass(frozen=True, slots=True)
class NotebookWatched:
    """`NotebookGone` will come when a notebook ends: its silence means nothing."""

    notebook: Peer
    now_s: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A signal asked the controller to stop the cluster."""

    reason: str
    now_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: a deadline is due, or about a second went by."""

    now_s: float


Event: TypeAlias = (
    Opened | Reported | HostExited | NotebookGone | NotebookWatched | StopAsked | Tick
)


# Actions.


@dataclass(frozen=True, slots=True)
class Send:
    """Send one message, encoded once, to every peer named."""

    peers: tuple[Peer, ...]
    message: Message
    payload: Payload = ()


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """Count and spool output; show it to ``notebook`` as far as the cap allows."""

    notebook: Peer | None
    message: StreamText | DisplayOutput


@dataclass(frozen=True, slots=True)
class OpenCell:
    """Begin to count the output of a cell."""

    cell_id: str


@dataclass(frozen=True, slots=True)
class FinishCell:
    """Send ``message`` with what the spool knows of hidden output filled in."""

    notebook: Peer | None
    message: CellFinished


@dataclass(frozen=True, slots=True)
class LaunchAgent:
    """Start the agent of a host with the launcher."""

    host: HostSpec


@dataclass(frozen=True, slots=True)
class EndOrphans:
    """End what an agent that died left behind on the controller's own host."""

    host: str


@dataclass(frozen=True, slots=True)
class EndAgents:
    """Wait for the agents to end, at most ``grace_s`` seconds, then kill them."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class WatchNotebook:
    """Report `NotebookGone` when the process that sent ``message`` ends."""

    notebook: Peer
    message: JoinNotebook


@dataclass(frozen=True, slots=True)
class ForgetNotebook:
    """Stop watching a notebook."""

    notebook: Peer


@dataclass(frozen=True, slots=True)
class RemoveRegion:
    """Remove a region of shared memory that nobody will read any more."""

    path: str


@dataclass(frozen=True, slots=True)
class TellFailure:
    """Send ``message`` with the end of the log it names filled in if it has none."""

    notebooks: tuple[Peer, ...]
    message: StartFailed


@dataclass(frozen=True, slots=True)
class Planned:
    """Publish what was decided: other notebooks list the cluster with it."""

    provider: str
    num_ranks: int


@dataclass(frozen=True, slots=True)
class Exit:
    """End the controller; nothing else of the cluster is left."""

    reason: str


Action: TypeAlias = (
    Send
    | ForwardOutput
    | OpenCell
    | FinishCell
    | Planned
    | LaunchAgent
    | EndOrphans
    | EndAgents
    | WatchNotebook
    | ForgetNotebook
    | RemoveRegion
    | TellFailure
    | Exit
)
