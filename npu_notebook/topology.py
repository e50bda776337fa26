"""Which rank runs where: what the user asked, rank sets, hosts and the plan.

Everything here is pure. The facts of hosts come in, a `Plan` comes out, and the words
of `--ranks` and `--hosts` are read in this one place.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from npu_notebook.errors import ConfigError
from npu_notebook.messages import DeviceInventory, HostFact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_SIMULATED_RANKS = 4
MAX_RANKS_WITHOUT_DEVICE = 64
"""More on one host is a typing error, not a wish."""
DEVICE_NAMES = ("ascend", "simulated", "cuda", "cpu", "none")

# Variables by which torchrun, Slurm and MPI tell a process its place. A rank must see
# ours and no left-over of another job.
# Source: https://docs.pytorch.org/docs/stable/elastic/run.html (environment
# variables), the "OUTPUT ENVIRONMENT VARIABLES" of srun(1), Open MPI's FAQ.
PLACEMENT_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
)


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A host the user named; ``num_ranks`` None means one per device."""

    name: str
    num_ranks: int | None = None


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; stored as JSON for the controller.

    ``device`` None means an Ascend NPU if there is one, simulated NPUs otherwise;
    ``linger_s`` None means for ever. ``owner`` names the notebook that may replace
    this cluster by starting again.
    """

    name: str
    num_ranks: int | None = None
    device: str | None = None
    hosts: tuple[HostSpec, ...] = (HostSpec(name="localhost"),)
    launcher: str = "local"
    env: dict[str, str] = {}
    cwd: str = "."
    port: int = 0
    linger_s: float | None = 600.0
    orphan_timeout_s: float = 30.0
    start_timeout_s: float = 300.0
    output_cap_nbytes: int = 1 << 20
    owner: str = ""
    owner_pid: int = 0


class RankSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank runs."""

    rank: int
    host: str
    local_rank: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The decision which provider and which ranks; ``notice`` "" or one line."""

    provider: str
    slots: tuple[RankSlot, ...]
    notice: str = ""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.slots)

    def on_host(self, host: str) -> list[RankSlot]:
        """Return the slots of one host, by local rank."""
        return [slot for slot in self.slots if slot.host == host]


def parse_ranks(
    words: str | int | Iterable[int] | None, world_size: int
) -> tuple[int, ...]:
    """Read a set of ranks.

    Parameters
    ----------
    words : str, int, iterable of int or None
        ``"0,2-3"``, a rank, ranks, or None for all.
    world_size : int
        Number of ranks of the cluster.

    Returns
    -------
    tuple of int
        In rising order.

    Raises
    ------
    ConfigError
        If a part is no rank, a rank does not exist, one is named twice, or none is.

    Examples
    --------
    >>> parse_ranks("0,2-3", 4)
    (0, 2, 3)
    """
    if words is None:
        return tuple(range(world_size))
    ranks: list[int]
    if isinstance(words, str):
        ranks = []
        for part in words.split(","):
            # One rank beyond the last tells enough of a range without an end.
            ranks += _parse_part(part, words)[: world_size + 1]
    else:
        ranks = _read_numbers(words)
    _check_ranks(ranks, words, world_size)
    return tuple(sorted(ranks))


def _read_numbers(words: int | Iterable[int]) -> list[int]:
    several = words if isinstance(words, Iterable) else (words,)
    try:
        return [int(operator.index(rank)) for rank in several]
    except TypeError as error:
        problem = f"{words!r} is not a set of ranks ({error})"
        raise ConfigError(problem, "Give whole numbers, like [0, 2, 3].") from error


_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")


def _parse_part(part: str, words: str) -> range:
    match = _RANGE.fullmatch(part)
    if match is None:
        problem = f"'{part.strip()}' in the rank set '{words}' is not a rank or a range"
        raise ConfigError(problem, "Write ranks like 0,2-3.")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        problem = f"the range '{part.strip()}' in the rank set '{words}' runs backwards"
        raise ConfigError(problem, f"Write {last}-{first}.")
    return range(first, last + 1)


def _check_ranks(ranks: Sequence[int], words: object, world_size: int) -> None:
    if not ranks:
        problem = "the rank set is empty"
        raise ConfigError(problem, "Name at least one rank, like 0,2-3.")
    for rank in ranks:
        if not 0 <= rank < world_size:
            problem = (
                f"rank {rank} in '{words}' does not exist: "
                f"this cluster has {world_size} ranks"
            )
            raise ConfigError(problem, f"Use ranks 0 to {world_size - 1}.")
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        problem = f"the rank set '{words}' names {format_ranks(twice)} twice"
        raise ConfigError(problem, "Name each rank once.")


def format_ranks(ranks: Iterable[int]) -> str:
    """Write a set of ranks as `parse_ranks` reads it.

    Examples
    --------
    >>> format_ranks([0, 2, 3, 1, 7])
    '0-3,7'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_hosts(words: str) -> tuple[HostSpec, ...]:
    """Read ``"a:8,b:8"``; a host without a number gets one rank per device.

    Raises
    ------
    ConfigError
        If a part is empty, a number is not positive, or a host is named twice.

    Examples
    --------
    >>> [(host.name, host.num_ranks) for host in parse_hosts("a:8,b")]
    [('a', 8), ('b', None)]
    """
    hosts: list[HostSpec] = []
    for part in words.split(","):
        name, colon, number = part.strip().partition(":")
        if not name or (colon and not number.isdigit()) or number == "0":
            problem = (
                f"'{part.strip()}' in the host list '{words}' is not HOST or HOST:N"
            )
            raise ConfigError(problem, "Write hosts like a:8,b:8.")
        if name in {host.name for host in hosts}:
            problem = f"the host list '{words}' names {name} twice"
            raise ConfigError(problem, "Name each host once with its number of ranks.")
        hosts.append(HostSpec(name=name, num_ranks=int(number) if colon else None))
    return tuple(hosts)


def plan(spec: ClusterSpec, facts: Sequence[HostFact]) -> Plan:
    """Decide the provider and place the ranks, host by host in the user's order.

    Parameters
    ----------
    spec : ClusterSpec
        What the user asked.
    facts : sequence of HostFact
        One per host of ``spec.hosts``.

    Raises
    ------
    ConfigError
        If there are fewer devices than ranks, or the device asked for is not there.
    """
    by_name = {fact.name: fact for fact in facts}
    ordered = [by_name[host.name] for host in spec.hosts]
    provider, notice = _choose_provider(spec, ordered)
    counts = _count_ranks(spec, provider, ordered)
    slots: list[RankSlot] = []
    for host, count in zip(spec.hosts, counts, strict=True):
        first = len(slots)
        slots.extend(
            RankSlot(rank=first + local, host=host.name, local_rank=local)
            for local in range(count)
        )
    if notice:
        notice = f"{notice}: starting {len(slots)} simulated NPUs."
    return Plan(provider=provider, slots=tuple(slots), notice=notice)


def _choose_provider(spec: ClusterSpec, facts: Sequence[HostFact]) -> tuple[str, str]:
    if spec.device is not None:
        return spec.device, ""
    found = [_inventory(fact, "ascend") for fact in facts]
    if all(one.count for one in found):
        return "ascend", ""
    if any(one.count for one in found):
        lacking = [f.name for f, one in zip(facts, found, strict=True) if not one.count]
        problem = f"no Ascend NPU was found on {', '.join(lacking)}"
        remedy = "Leave that host out, or choose --device simulated for all."
        raise ConfigError(problem, remedy)
    reason = next((one.reason for one in found if one.reason), "No Ascend NPU found")
    return "simulated", reason.rstrip(".")


def _inventory(fact: HostFact, provider: str) -> DeviceInventory:
    for one in fact.inventories:
        if one.provider == provider:
            return one
    return DeviceInventory(provider=provider, count=0, reason="provider not installed")


def _count_ranks(
    spec: ClusterSpec, provider: str, facts: Sequence[HostFact]
) -> list[int]:
    counts = [host.num_ranks for host in spec.hosts]
    if spec.num_ranks is not None:
        if len(counts) == 1:
            counts = [spec.num_ranks]
        elif sum(count or 0 for count in counts) != spec.num_ranks:
            problem = f"-n {spec.num_ranks} does not agree with the host list"
            raise ConfigError(problem, "Give the numbers in --hosts a:8,b:8 only.")
    return [
        _count_on_host(count, provider, fact)
        for count, fact in zip(counts, facts, strict=True)
    ]


def _count_on_host(asked: int | None, provider: str, fact: HostFact) -> int:
    if provider == "none":
        count = asked or DEFAULT_SIMULATED_RANKS
        if count > MAX_RANKS_WITHOUT_DEVICE:
            problem = f"{count} ranks were asked for on host {fact.name}"
            raise ConfigError(problem, f"Use -n {MAX_RANKS_WITHOUT_DEVICE} or fewer.")
        return count
    inventory = _inventory(fact, provider)
    if inventory.count == 0:
        problem = f"host {fact.name} has no {provider} device"
        if inventory.reason:
            problem += f" ({inventory.reason.rstrip('.')})"
        remedy = "Choose --device simulated or --device cpu, or fix the host."
        raise ConfigError(problem, remedy)
    if provider in ("simulated", "cpu"):
        count = asked or DEFAULT_SIMULATED_RANKS
    else:
        count = asked or inventory.count
    if count > inventory.count:
        problem = (
            f"{count} ranks were asked for on host {fact.name}, "
            f"which has {inventory.count} {provider} devices"
        )
        raise ConfigError(problem, f"Use -n {inventory.count} or fewer.")
    return count


def rank_environment(
    plan: Plan, slot: RankSlot, master_address: str, master_port: int
) -> dict[str, str]:
    """Return the variables by which training scripts know their place.

    Parameters
    ----------
    plan : Plan
        All ranks.
    slot : RankSlot
        The rank.
    master_address, master_port : str, int
        Where the TCPStore listens.

    Notes
    -----
    The set torchrun gives its workers, and on one host gloo's loopback interface.
    ``TORCHELASTIC_USE_AGENT_STORE`` makes rank 0 a client of the store like every
    other rank.
    Source: https://docs.pytorch.org/docs/stable/elastic/run.html.
    """
    hosts = list(dict.fromkeys(one.host for one in plan.slots))
    local_world_size = len(plan.on_host(slot.host))
    values: Mapping[str, object] = {
        "RANK": slot.rank,
        "LOCAL_RANK": slot.local_rank,
        "WORLD_SIZE": plan.world_size,
        "LOCAL_WORLD_SIZE": local_world_size,
        "GROUP_RANK": hosts.index(slot.host),
        "GROUP_WORLD_SIZE": len(hosts),
        "ROLE_NAME": "default",
        "ROLE_RANK": slot.rank,
        "ROLE_WORLD_SIZE": plan.world_size,
        "MASTER_ADDR": master_address,
        "MASTER_PORT": master_port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "npu_notebook",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    env = {name: str(value) for name, value in values.items()}
    if len(hosts) == 1 and sys.platform == "linux":
        # gloo would listen on the address of the host's name, which others can reach.
        env["GLOO_SOCKET_IFNAME"] = "lo"
    return env
