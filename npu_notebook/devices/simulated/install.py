"""Make device type ``npu`` and backend ``hccl`` exist in a rank process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.utils import backend_registration

from npu_notebook.devices.simulated import build, composite, refusals, torch_npu_stub
from npu_notebook.devices.simulated.library import library, load
from npu_notebook.devices.simulated.settings import (
    simulated_devices,
    simulated_memory_nbytes,
)
from npu_notebook.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from datetime import timedelta

    from torch._C._distributed_c10d import Backend, Store

# Keeps the keys of gloo inside hccl apart from those of a gloo group that shares the
# store, as in "cpu:gloo,npu:hccl".
_STORE_PREFIX = "simulated_hccl/"


def install(local_rank: int) -> str:
    """Install the simulated NPUs, once per process, and take device `local_rank`.

    Parameters
    ----------
    local_rank : int
        Index of the device, from 0.

    Returns
    -------
    str
        The device, for example ``"npu:2"``.

    Raises
    ------
    DeviceError
        If the library is missing, or device type ``npu`` belongs to somebody else.
    ConfigError
        If a setting cannot be read, or there are fewer devices than `local_rank` asks
        for.
    """
    devices = simulated_devices()
    if not 0 <= local_rank < devices:
        problem = f"rank {local_rank} of this host has no NPU: {devices} are simulated"
        remedy = "Unset NPU_NOTEBOOK_SIMULATED_DEVICES or set it to a larger number."
        raise ConfigError(problem, remedy)
    if hasattr(torch, "npu"):
        # Inherited by a fork of the agent's template, which knew other settings.
        library().start(devices, simulated_memory_nbytes())
    else:
        _install(devices, simulated_memory_nbytes())
    library().exchange_device(local_rank)
    return f"npu:{local_rank}"


def _install(devices: int, memory_nbytes: int) -> None:
    owner = torch._C._get_privateuse1_backend_name()  # noqa: SLF001  no public name
    if owner != "privateuseone" or "torch_npu" in sys.modules:
        problem = (
            f"another package owns torch's extra device (named {owner!r}) in this "
            "process"
        )
        remedy = (
            "Start the cluster without importing torch_npu first, or use --device "
            "ascend for real NPUs."
        )
        raise DeviceError(build.DEVICE, problem, remedy)
    load().start(devices, memory_nbytes)
    backend_registration.rename_privateuse1_backend("npu")

    # Its modules use device type "npu", which exists from here on.
    from npu_notebook.devices.simulated import npu

    # torch documents this name for device packages.
    torch._register_device_module("npu", npu)  # type: ignore[no-untyped-call]  # noqa: SLF001
    sys.modules["torch.npu.amp"] = npu.amp
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    dist.Backend.register_backend("hccl", new_hccl, devices=["npu"])
    composite.register()
    refusals.install()
    torch_npu_stub.install(npu)


def new_hccl(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    """Return a backend ``hccl``; `torch.distributed` calls it for each new group.

    Parameters
    ----------
    store : Store
        Where the members of the group meet.
    rank : int
        Rank of this process in the group.
    size : int
        Number of ranks in the group.
    timeout : timedelta
        Longest a collective may take.
    """
    gloo_store = PrefixStore(_STORE_PREFIX, store)
    gloo = dist.ProcessGroupGloo(gloo_store, rank, size, timeout=timeout)
    return library().new_hccl(gloo, rank, size)


def gloo_of(backend: Backend) -> Backend | None:
    """Return the gloo backend inside a simulated ``hccl`` backend, else None."""
    return library().gloo_of(backend)
