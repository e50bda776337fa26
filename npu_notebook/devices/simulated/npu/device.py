"""``torch.npu``: which devices there are and which one is current."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeAlias

import torch

from npu_notebook.devices.simulated.library import library

if TYPE_CHECKING:
    from types import TracebackType

Device: TypeAlias = "torch.device | str | int | None"

NAME = "simulated NPU"


def index_of(device: Device) -> int:
    """Return the index of a device; None and ``"npu"`` mean the current one.

    Raises
    ------
    ValueError
        If it is no NPU.
    """
    if device is None:
        return library().current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "npu":
        problem = f"Expected a npu device, but got: {device}"
        raise ValueError(problem)
    # torch's type stub says int; the index of torch.device("npu") is None.
    index: int | None = device.index
    return library().current_device() if index is None else index


class device:  # noqa: N801  torch's name
    """Context manager: the current device is another one inside."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = library().exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        library().exchange_device(self.prev_idx)


class device_of(device):  # noqa: N801  torch's name
    """Context manager: the current device is that of a tensor inside."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "npu" else None)


def init() -> None:
    """Do nothing: the devices exist since the rank started."""


def is_initialized() -> bool:
    """Return True."""
    return True


def is_available() -> bool:
    """Return True if there is at least one simulated NPU."""
    return library().device_count() > 0


def device_count() -> int:
    """Return the number of simulated NPUs."""
    return library().device_count()


def current_device() -> int:
    """Return the index of the current device of this thread."""
    return library().current_device()


def set_device(device: Device) -> None:
    """Make a device the current one of this thread.

    Raises
    ------
    RuntimeError
        If there is no such device.
    """
    index = index_of(device)
    if index >= 0:
        library().exchange_device(index)


def synchronize(device: Device = None) -> None:
    """Return at once: every operation is complete when its call returns."""
    library().memory(index_of(device))  # raises for a device that is not there


def get_device_name(device: Device = None) -> str:
    """Return ``"simulated NPU"``."""
    library().memory(index_of(device))
    return NAME


def get_device_capability(device: Device = None) -> None:
    """Return None, as torch_npu does."""


def get_device_properties(device: Device = None) -> SimpleNamespace:
    """Return the name and the memory in bytes; what is not simulated is None."""
    return SimpleNamespace(
        name=NAME,
        total_memory=library().memory(index_of(device))[2],
        cube_core_num=None,
        vector_core_num=None,
        L2_cache_size=None,
        uuid=None,
        major=None,
        minor=None,
        multi_processor_count=None,
    )


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Return True: all simulated NPUs share the host's memory."""
    return index_of(device) != index_of(peer_device)


def utilization(device: Device = None) -> None:
    """Return None: the load of a simulated NPU is not known."""
