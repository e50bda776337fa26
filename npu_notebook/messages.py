"""Everything that crosses a process boundary, in families by direction.

A header on the wire is one of these structs as msgpack, tagged with its class name;
bulk bytes follow in frames of their own (`npu_notebook.wire`). Nothing here is ever
a pickle. Paths are strings because they cross hosts. One long file on purpose: what one
process may say to another is read, and changed, in one place.

Families
--------
``Request``     notebook -> controller
``Update``      controller -> notebook
``RankCommand`` controller -> rank
``RankReport``  rank -> controller
``AgentCommand`` controller -> agent
``AgentReport`` agent -> controller
"""

from __future__ import annotations

import enum
from typing import Any, Literal, TypeAlias

import msgspec

PROTOCOL_VERSION = 1
"""Raised with every change that an older process could not read."""


def _class_name(name: str) -> str:
    return name


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=_class_name):
    """Base of everything sent; the tag on the wire is the class name."""


class RankState(enum.StrEnum):
    """What is known of one rank; the cluster's state is computed from these."""

    WAITING = "waiting"  # planned, process not requested yet
    STARTING = "starting"  # process requested, has not joined
    JOINED = "joined"  # connected; process group not formed
    FORMING = "forming"  # inside init_process_group and the probe all_reduce
    IDLE = "idle"
    RUNNING = "running"
    INTERRUPTING = "interrupting"
    UNRESPONSIVE = "unresponsive"  # silent, but its process is alive
    LOST = "lost"  # its process was reaped or its host is gone
    ENDED = "ended"  # ended because the user asked


class ClusterState(enum.StrEnum):
    """State of the whole, computed from the ranks."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DEGRADED = "degraded"  # at least one rank lost
    STOPPING = "stopping"
    ENDED = "ended"


# Facts: parts of messages, never sent alone.


class FrameFact(msgspec.Struct, frozen=True, kw_only=True):
    """One user frame of a traceback. ``line`` counts from 1 in the cell's body."""

    file: str
    line: int
    function: str
    source: str = ""


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An exception as text; exceptions never cross as pickles.

    ``traceback`` is the rendered text without our frames (ANSI colours allowed);
    ``exit_code`` is set when the cell called ``exit()`` or raised ``SystemExit``.
    """

    kind: str
    message: str
    traceback: str = ""
    frames: tuple[FrameFact, ...] = ()
    exit_code: int | None = None
    interrupted: bool = False


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one cell ended on one rank.

    ``spool_path`` is set when output was long, or capped on screen; ``hidden_lines``
    counts the lines left out there. ``error`` is None for success.
    """

    rank: int
    error: ErrorInfo | None = None
    lost: bool = False
    elapsed_ns: int | None = None
    hidden_lines: int = 0
    spool_path: str = ""


class DeviceInventory(msgspec.Struct, frozen=True, kw_only=True):
    """What one provider found on one host without opening a device."""

    provider: str
    count: int
    names: tuple[str, ...] = ()
    reason: str = ""
    holders: tuple[str, ...] = ()


class HostFact(msgspec.Struct, frozen=True, kw_only=True):
    """One host as its agent described it.

    ``memory_key`` is equal for processes that see the same shared-memory folder.
    """

    name: str
    address: str
    agent_pid: int
    memory_key: str
    python: str
    torch: str
    cpu_count: int
    inventories: tuple[DeviceInventory, ...] = ()
    shared_memory_dir: str = ""


class RankFact(msgspec.Struct, frozen=True, kw_only=True):
    """One rank for status lines and views. ``pid`` and ``device`` None: not known."""

    rank: int
    host: str
    local_rank: int
    state: RankState
    pid: int | None = None
    device: str | None = None
    doing: str = ""
    log_path: str = ""
    memory_key: str = ""


class ClusterFact(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the cluster.

    ``epoch`` counts how often the process groups were formed; ``label`` is what views
    call the devices ("simulated NPU").
    """

    name: str
    state: ClusterState
    world_size: int
    provider: str
    label: str
    backend: str
    epoch: int
    ranks: tuple[RankFact, ...]
    linger_s: float | None
    age_s: float
    cell_ids: tuple[str, ...] = ()


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent starts one rank. ``env`` is complete but for inheritance."""

    rank: int
    local_rank: int
    incarnation: int
    env: dict[str, str]
    cwd: str
    log_path: str


class CollectiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One collective call as one rank saw it.

    ``sequence`` counts calls of its group from 1; ``nbytes`` is the whole tensor on the
    rank. ``start_ns`` and ``end_ns`` are CLOCK_MONOTONIC of the rank's host on CPU
    and simulated NPUs, device events mapped to it on accelerators. None: not known.
    ``source`` is ``"cell line 3"`` or the file and line of a module.
    """

    cell_id: str
    op: str
    group: str
    sequence: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    start_ns: int
    end_ns: int | None = None
    reduce_op: str = ""
    root: int | None = None
    source: str = ""
    first_of_group: bool = False


class BulkLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where the parts of packed values lie in one flat region.

    ``sizes[0]`` is the pickle, the rest are its out-of-band buffers, each starting at
    the next multiple of `npu_notebook.bulk.ALIGNMENT`. With ``path`` empty the region
    travels as the frames of the same message.
    """

    sizes: tuple[int, ...]
    path: str = ""


# Notebook -> controller


class JoinNotebook(Message, frozen=True, kw_only=True):
    """A notebook attaches. ``process_start_s`` tells a reused pid from this one."""

    protocol_version: int
    package_version: str
    python: str
    host: str
    pid: int
    process_start_s: float
    memory_key: str
    title: str = ""


class LeaveNotebook(Message, frozen=True, kw_only=True):
    """The notebook detaches and lets the cluster linger."""

    reason: str


class NotebookAlive(Message, frozen=True, kw_only=True):
    """Heartbeat of a notebook."""


class SubmitCell(Message, frozen=True, kw_only=True):
    """Run ``code`` on ``ranks``; output and outcome come back as updates.

    ``execution_count`` is the notebook's In[n], used in tracebacks. With
    ``want_value`` the last expression's value can be pulled as ``result_name``.
    """

    cell_id: str
    code: str
    ranks: tuple[int, ...]
    timeout_s: float | None = None
    execution_count: int | None = None
    want_value: bool = False


class InterruptCell(Message, frozen=True, kw_only=True):
    """Stop what runs. ``level`` 1 asks, 2 insists, 3 ends the ranks that still run.

    ``cell_id`` None means whatever runs. An outcome is not answered: the cell ends.
    """

    level: int
    cell_id: str | None = None


class PushValues(Message, frozen=True, kw_only=True):
    """Assign packed variables on ranks, all or none.

    The region lies at ``layout.path`` for hosts that share memory with the notebook;
    other hosts received it before as chunks of ``transfer_id``.
    """

    request_id: str
    transfer_id: str
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    layout: BulkLayout


class PullValues(Message, frozen=True, kw_only=True):
    """Ask ranks for variables; each answers with `PulledValues` or an error."""

    request_id: str
    names: tuple[str, ...]
    ranks: tuple[int, ...]


class RestartRanks(Message, frozen=True, kw_only=True):
    """Replace the processes of ``ranks`` and form the groups again."""

    request_id: str
    ranks: tuple[int, ...]


class AskState(Message, frozen=True, kw_only=True):
    """Ask for a `ClusterFact`, sent back as `StateAnswer`."""

    request_id: str


class StopCluster(Message, frozen=True, kw_only=True):
    """End every process of the cluster; answered by `ClusterEnded`."""

    reason: str


class BulkChunk(Message, frozen=True, kw_only=True):
    """One piece of a region, its bytes in the payload; any process may send it on.

    ``host`` is the agent that stores it, or "" on the way to the notebook. Chunks of a
    transfer are sent in order and at most `npu_notebook.bulk.CREDIT` unacknowledged.
    """

    transfer_id: str
    host: str
    offset: int
    total_nbytes: int


class BulkCredit(Message, frozen=True, kw_only=True):
    """The receiver of chunks has stored everything below ``upto``."""

    transfer_id: str
    host: str
    upto: int


# Controller -> notebook


class Welcome(Message, frozen=True, kw_only=True):
    """Answer to `JoinNotebook`. ``refused`` is a sentence when it may not join."""

    protocol_version: int
    package_version: str
    fact: ClusterFact
    refused: str = ""


class StateChanged(Message, frozen=True, kw_only=True):
    """The ranks' states changed (also the progress of a start)."""

    fact: ClusterFact


class Notice(Message, frozen=True, kw_only=True):
    """One sentence for the user; ``cell_id`` "" means it belongs to no cell."""

    text: str
    level: Literal["info", "warning", "error"] = "info"
    cell_id: str = ""


class StartFailed(Message, frozen=True, kw_only=True):
    """The cluster could not start; all that had started is being ended.

    ``config_error`` is true when the user's words were wrong rather than a process.
    """

    what: str
    reason: str
    remedy: str = ""
    stderr_tail: str = ""
    log_path: str = ""
    config_error: bool = False


class CellFinished(Message, frozen=True, kw_only=True):
    """A cell has ended on all its ranks."""

    cell_id: str
    outcomes: tuple[RankOutcome, ...]
    timed_out: bool = False


class RequestDone(Message, frozen=True, kw_only=True):
    """A request that has no other answer is done. ``problem`` "" means success."""

    request_id: str
    problem: str = ""
    remedy: str = ""


class StateAnswer(Message, frozen=True, kw_only=True):
    """Answer to `AskState`."""

    request_id: str
    fact: ClusterFact


class ClusterEnded(Message, frozen=True, kw_only=True):
    """All processes but the controller are gone; the controller ends next."""

    reason: str


# Controller -> rank


class FormGroup(Message, frozen=True, kw_only=True):
    """Leave any process group and form the one of ``epoch``."""

    epoch: int
    master_address: str
    master_port: int
    world_size: int
    timeout_s: float


class RunCell(Message, frozen=True, kw_only=True):
    """Run a cell in the main thread, after what is already queued there."""

    cell_id: str
    code: str
    execution_count: int | None = None
    want_value: bool = False


class InterruptRank(Message, frozen=True, kw_only=True):
    """Stop ``cell_id`` (None: what runs) on this rank; see `InterruptCell`."""

    level: int
    cell_id: str | None = None


class StageValues(Message, frozen=True, kw_only=True):
    """Unpack variables and hold them until `CommitValues`."""

    request_id: str
    names: tuple[str, ...]
    layout: BulkLayout


class CommitValues(Message, frozen=True, kw_only=True):
    """Assign what was staged (``keep``) or drop it."""

    request_id: str
    keep: bool


class SendValues(Message, frozen=True, kw_only=True):
    """Pack variables; answered by `PulledValues`."""

    request_id: str
    names: tuple[str, ...]
    shared_memory_dir: str


class EndRank(Message, frozen=True, kw_only=True):
    """Leave the main loop and exit."""


# Rank -> controller


class RankJoined(Message, frozen=True, kw_only=True):
    """A rank is connected, its shell works and its device is bound."""

    rank: int
    incarnation: int
    host: str
    pid: int
    python: str
    torch: str
    device: str
    protocol_version: int


class RankFailed(Message, frozen=True, kw_only=True):
    """A rank cannot start; its process ends right after."""

    rank: int
    incarnation: int
    error: ErrorInfo


class GroupFormed(Message, frozen=True, kw_only=True):
    """The group of ``epoch`` exists and one all_reduce gave the right sum.

    ``error`` is set when it did not.
    """

    rank: int
    epoch: int
    elapsed_ns: int
    error: ErrorInfo | None = None


class Heartbeat(Message, frozen=True, kw_only=True):
    """The link thread of a rank is alive. ``doing`` is "" or e.g. "running line 12"."""

    rank: int
    cell_id: str = ""
    doing: str = ""


class CellStarted(Message, frozen=True, kw_only=True):
    """The main thread of a rank began a cell."""

    rank: int
    cell_id: str


class StreamText(Message, frozen=True, kw_only=True):
    """Joined text of one stream of one rank, in the order it was written."""

    cell_id: str
    rank: int
    stream: Literal["stdout", "stderr"]
    text: str


class DisplayOutput(Message, frozen=True, kw_only=True):
    """A rich output: ``kind`` as in Jupyter's protocol, value = last expression."""

    cell_id: str
    rank: int
    kind: Literal["display", "update", "value", "clear"]
    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    display_id: str = ""
    wait: bool = False


class CellDone(Message, frozen=True, kw_only=True):
    """A cell ended on one rank, after all output it wrote itself.

    ``group_present`` is false when user code destroyed the default process group.
    """

    cell_id: str
    rank: int
    elapsed_ns: int
    error: ErrorInfo | None = None
    group_present: bool = True


class ValuesStaged(Message, frozen=True, kw_only=True):
    """Answer to `StageValues`; ``error`` names why one cannot be unpacked."""

    request_id: str
    rank: int
    error: ErrorInfo | None = None


class ValuesCommitted(Message, frozen=True, kw_only=True):
    """Answer to `CommitValues`."""

    request_id: str
    rank: int


class PulledValues(Message, frozen=True, kw_only=True):
    """Packed variables of one rank, or the names it lacks, or why they cannot travel.

    With ``layout.path`` empty the region follows in the payload, one frame a part.
    ``moved_to_cpu`` names device tensors that arrive as CPU tensors.
    """

    request_id: str
    rank: int
    layout: BulkLayout
    missing: tuple[str, ...] = ()
    problem: str = ""
    moved_to_cpu: tuple[str, ...] = ()


class CollectivesRecorded(Message, frozen=True, kw_only=True):
    """A batch of records, oldest first; ``dropped`` counts those the ring lost."""

    rank: int
    records: tuple[CollectiveRecord, ...]
    dropped: int = 0


# Controller -> agent


class PrepareHost(Message, frozen=True, kw_only=True):
    """Make ``provider`` ready ("" for none): build the simulator, warm the template."""

    provider: str
    env: dict[str, str]


class StartStore(Message, frozen=True, kw_only=True):
    """Start the TCPStore process; ``address`` is the interface it listens on."""

    address: str
    port: int
    world_size: int


class StartRanks(Message, frozen=True, kw_only=True):
    """Start rank processes; each joins by itself or is reported as exited."""

    provider: str
    endpoint: str
    ranks: tuple[RankSpec, ...]


class EndRanks(Message, frozen=True, kw_only=True):
    """End ranks and all they started: SIGTERM, SIGKILL after ``grace_s`` seconds."""

    ranks: tuple[int, ...]
    grace_s: float


class EndHost(Message, frozen=True, kw_only=True):
    """End all ranks, the store, the template and the agent itself."""

    grace_s: float


class AgentAlive(Message, frozen=True, kw_only=True):
    """Heartbeat both ways between controller and agent."""

    host: str


class SendRegion(Message, frozen=True, kw_only=True):
    """Send the region at ``path`` to the controller as chunks, then remove it."""

    transfer_id: str
    path: str


# Agent -> controller


class AgentJoined(Message, frozen=True, kw_only=True):
    """An agent is up."""

    protocol_version: int
    fact: HostFact


class AgentNotice(Message, frozen=True, kw_only=True):
    """Progress or a warning from a host, for the user's eyes."""

    host: str
    text: str
    level: Literal["info", "warning", "error"] = "info"


class HostPrepared(Message, frozen=True, kw_only=True):
    """Answer to `PrepareHost`; ``problem`` "" means ready."""

    host: str
    problem: str = ""
    remedy: str = ""


class StoreStarted(Message, frozen=True, kw_only=True):
    """The TCPStore listens on ``port``; ``problem`` "" means it does."""

    host: str
    port: int
    problem: str = ""


class RankSpawned(Message, frozen=True, kw_only=True):
    """The process of a rank exists."""

    host: str
    rank: int
    incarnation: int
    pid: int


class RankExited(Message, frozen=True, kw_only=True):
    """The agent reaped a rank. ``returncode`` is negative for a signal."""

    host: str
    rank: int
    incarnation: int
    pid: int
    returncode: int
    stderr_tail: str = ""


class HostEnded(Message, frozen=True, kw_only=True):
    """Nothing of the cluster is left on the host but the agent, which ends next."""

    host: str


class RegionStored(Message, frozen=True, kw_only=True):
    """All chunks of a transfer lie at ``path`` on ``host``; ``problem`` "" means so."""

    transfer_id: str
    host: str
    path: str
    problem: str = ""


Request: TypeAlias = (
    JoinNotebook
    | LeaveNotebook
    | NotebookAlive
    | SubmitCell
    | InterruptCell
    | PushValues
    | PullValues
    | RestartRanks
    | AskState
    | StopCluster
    | BulkChunk
    | BulkCredit
)
RankReport: TypeAlias = (
    RankJoined
    | RankFailed
    | GroupFormed
    | Heartbeat
    | CellStarted
    | StreamText
    | DisplayOutput
    | CellDone
    | ValuesStaged
    | ValuesCommitted
    | PulledValues
    | CollectivesRecorded
)
AgentReport: TypeAlias = (
    AgentJoined
    | AgentNotice
    | AgentAlive
    | HostPrepared
    | StoreStarted
    | RankSpawned
    | RankExited
    | HostEnded
    | RegionStored
    | BulkChunk
    | BulkCredit
)
Update: TypeAlias = (
    Welcome
    | StateChanged
    | Notice
    | StartFailed
    | StreamText
    | DisplayOutput
    | CellFinished
    | RequestDone
    | StateAnswer
    | PulledValues
    | CollectivesRecorded
    | ClusterEnded
    | BulkChunk
    | BulkCredit
)
RankCommand: TypeAlias = (
    FormGroup
    | RunCell
    | InterruptRank
    | StageValues
    | CommitValues
    | SendValues
    | EndRank
)
AgentCommand: TypeAlias = (
    PrepareHost
    | StartStore
    | StartRanks
    | EndRanks
    | EndHost
    | AgentAlive
    | SendRegion
    | BulkChunk
    | BulkCredit
)
ToController: TypeAlias = Request | RankReport | AgentReport
