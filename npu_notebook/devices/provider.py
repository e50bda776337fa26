"""The seam between the cluster and the devices its ranks compute on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """What never changes about a provider.

    Parameters
    ----------
    name : {"simulated", "ascend", "cuda", "cpu"}
        The word after ``--device``.
    device_type : str
        torch's device type: ``"npu"``, ``"cuda"`` or ``"cpu"``.
    backend : str
        Argument of ``torch.distributed.init_process_group``. With a mapping such as
        ``"cpu:gloo,npu:hccl"`` plain ``dist.get_backend()`` answers with what torch
        stored, see Notes.
    forkable : bool
        True if ranks may be forked from a template that has imported torch and called
        `DeviceProvider.bind` for device 0, so that what it loads is shared; devices
        with a driver behind them need processes of their own (spawn).
    label : str
        What views show, for example ``"simulated NPU"``. It never claims hardware
        that is not there.

    Notes
    -----
    A group made with ``"cpu:gloo,npu:hccl"`` answers ``dist.get_backend()`` with
    ``"cpu:gloo,npu:hccl"``, while scripts compare with ``"hccl"``.
    ``init_process_group("hccl")`` answers ``"hccl"``, but has no CPU collectives.
    Source: measured with torch 2.13.0, `tests/simulated`.
    """

    name: str
    device_type: str
    backend: str
    forkable: bool
    label: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices `DeviceProvider.discover` found on this host.

    Parameters
    ----------
    count : int
        Devices a cluster can use. For ``simulated`` and ``cpu`` a generous maximum,
        not a hardware number.
    names : tuple of str
        One name per device, or empty if the names are not known.
    reason : str
        Why `count` is 0, a sentence for the user; empty otherwise.
    holders : tuple of str
        Who holds devices now, for example ``"npu 2: pid 123 (python), user ada"``;
        empty if nobody does or if it cannot be known.
    """

    count: int
    names: tuple[str, ...]
    reason: str
    holders: tuple[str, ...] = ()


class DeviceProvider(Protocol):
    """Give each rank its device. One instance per process, made without arguments.

    The agent calls `discover`, `prepare` and `environment`; the rank calls `bind`.
    Neither making one nor any method but `bind` imports torch.
    """

    facts: ProviderFacts

    def discover(self) -> Inventory:
        """Look for devices without opening one. Runs in the agent, takes seconds."""
        ...

    def prepare(self, report: Callable[[str], None]) -> None:
        """Do once per host what must precede the ranks. Runs in the agent.

        Parameters
        ----------
        report : callable
            Called with one line of progress at a time, from the calling thread.

        Raises
        ------
        DeviceError
            If ranks could not use the device; says what to do instead.
        """
        ...

    def environment(self, local_rank: int) -> dict[str, str]:
        """Return the variables a rank needs before torch is imported (agent)."""
        ...

    def bind(self, local_rank: int) -> str:
        """Make the rank's device its current one. Runs in the rank, torch imported.

        Where ranks are forked it has run for device 0 in the template before; there it
        may start no thread and run no torch operation.

        Returns
        -------
        str
            The device as torch writes it, for example ``"npu:2"`` or ``"cpu"``.

        Raises
        ------
        DeviceError
            If the device cannot be used.
        ConfigError
            If a setting of the device cannot be used.
        """
        ...
