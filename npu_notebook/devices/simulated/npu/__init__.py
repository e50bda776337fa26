"""The module ``torch.npu`` of the simulated NPU.

It has the names that training scripts and notebooks use; any other name raises an
`AttributeError` that says the simulated NPU does not have it. The names and their
signatures are those of torch_npu 2.13.0.
Source: its ``torch_npu/npu/__init__.py``, ``__all__``.
"""

from __future__ import annotations

import torch

from npu_notebook.devices.simulated.npu import amp
from npu_notebook.devices.simulated.npu.device import (
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    set_device,
    synchronize,
    utilization,
)
from npu_notebook.devices.simulated.npu.memory import (
    empty_cache,
    get_per_process_memory_fraction,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from npu_notebook.devices.simulated.npu.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from npu_notebook.devices.simulated.npu.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from npu_notebook.devices.simulated.refusals import NoInductor, missing_name

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "amp",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_autocast_enabled",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_jit_compile_false",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_compile_mode",
    "set_device",
    "set_option",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "utilization",
]

_NAME = "torch.npu"

# torch.compile asks for these four when it meets a device for the first time.
Scheduling = NoInductor
PythonWrapperCodegen = NoInductor
CppWrapperCodegen = NoInductor
WrapperFxCodegen = NoInductor


def __getattr__(name: str) -> object:
    raise missing_name(_NAME, name)


def _is_in_bad_fork() -> bool:
    """Return False: memory of the host survives a fork (torch asks)."""
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the types `torch.autocast` may cast to."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Return True: the CPU kernels compute with bfloat16."""
    return True


def is_autocast_enabled() -> bool:
    """Return whether autocast is on for NPUs in this thread."""
    return torch.is_autocast_enabled("npu")


def set_autocast_enabled(enabled: bool) -> None:  # noqa: FBT001  as in torch_npu
    """Switch autocast on or off for NPUs in this thread."""
    torch.set_autocast_enabled("npu", enabled)


def get_autocast_dtype() -> torch.dtype:
    """Return the type autocast casts to."""
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Set the type autocast casts to."""
    torch.set_autocast_dtype("npu", dtype)


def set_compile_mode(jit_compile: bool = False) -> None:  # noqa: FBT001, FBT002  as in torch_npu
    """Do nothing: there are no operators to compile on the simulated NPU."""


def is_jit_compile_false() -> bool:
    """Return True: the simulated NPU compiles no operators."""
    return True


def set_option(option: dict[str, str]) -> None:
    """Do nothing: the options are those of CANN's compiler."""
