"""``torch.npu``: how much memory of each device is in use, in bytes.

There is no cache above the memory itself, so reserved equals allocated.
"""

from __future__ import annotations

from npu_notebook.devices.simulated.library import library
from npu_notebook.devices.simulated.npu.device import Device, index_of
from npu_notebook.devices.simulated.settings import simulated_memory_nbytes

_ALLOCATED, _PEAK, _LIMIT, _ALLOCATIONS, _OOMS = range(5)


def memory_allocated(device: Device = None) -> int:
    """Return the bytes that tensors use now."""
    return library().memory(index_of(device))[_ALLOCATED]


def max_memory_allocated(device: Device = None) -> int:
    """Return the most bytes in use since the last reset."""
    return library().memory(index_of(device))[_PEAK]


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start `max_memory_allocated` again."""
    library().reset_peak(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Do nothing: only the peak can be reset."""


memory_reserved = memory_allocated
memory_cached = memory_allocated
max_memory_reserved = max_memory_allocated
max_memory_cached = max_memory_allocated
reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_cached = reset_peak_memory_stats


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return the free and the total bytes of a device."""
    figures = library().memory(index_of(device))
    return figures[_LIMIT] - figures[_ALLOCATED], figures[_LIMIT]


def memory_stats(device: Device = None) -> dict[str, int]:
    """Return the figures that are known, under the names torch gives them."""
    figures = library().memory(index_of(device))
    return {
        "allocated_bytes.all.current": figures[_ALLOCATED],
        "allocated_bytes.all.peak": figures[_PEAK],
        "reserved_bytes.all.current": figures[_ALLOCATED],
        "reserved_bytes.all.peak": figures[_PEAK],
        "allocation.all.allocated": figures[_ALLOCATIONS],
        "num_ooms": figures[_OOMS],
        "num_alloc_retries": 0,
    }


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:  # noqa: FBT001, FBT002, ARG001  as in torch_npu
    """Return the figures as one line of text."""
    index = index_of(device)
    figures = library().memory(index)
    return (
        f"simulated NPU {index}: {figures[_ALLOCATED]:,} bytes in use, "
        f"{figures[_PEAK]:,} at most, {figures[_LIMIT]:,} in all, "
        f"{figures[_ALLOCATIONS]:,} allocations, {figures[_OOMS]:,} refused"
    )


def empty_cache() -> None:
    """Do nothing: freed memory is free at once."""


def ipc_collect() -> None:
    """Do nothing: no memory is shared between processes."""


def get_per_process_memory_fraction(device: Device = None) -> float:
    """Return which part of a device's memory this process may use."""
    return library().memory(index_of(device))[_LIMIT] / simulated_memory_nbytes()


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Let this process use a part of a device's memory.

    Raises
    ------
    ValueError
        If the fraction is not above 0 and at most 1.
    """
    if not 0 < fraction <= 1:
        problem = f"Invalid fraction value: {fraction}. Allowed range: 0 to 1"
        raise ValueError(problem)
    whole = simulated_memory_nbytes()
    library().set_limit(index_of(device), int(whole * fraction))
