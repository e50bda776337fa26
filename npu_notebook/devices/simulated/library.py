"""The compiled library of this process."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Protocol, cast

from npu_notebook.devices.simulated import build
from npu_notebook.errors import DeviceError

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Backend


class Library(Protocol):
    """What `csrc/simulated_npu.cpp` exports."""

    build_key: str

    def start(self, devices: int, nbytes: int, /) -> None:
        """Make `devices` devices of `nbytes` bytes each exist; the last call counts."""

    def device_count(self) -> int:
        """Return the number of devices."""

    def current_device(self) -> int:
        """Return the current device of this thread."""

    def exchange_device(self, index: int, /) -> int:
        """Set the current device unless `index` is below 0; return the one before."""

    def memory(self, index: int, /) -> tuple[int, int, int, int, int]:
        """Return bytes in use, peak, limit, number of allocations and of failures."""

    def set_limit(self, index: int, nbytes: int, /) -> None:
        """Set the memory of a device in bytes."""

    def reset_peak(self, index: int, /) -> None:
        """Start the peak again from what is in use now."""

    def default_generator(self, index: int, /) -> torch.Generator:
        """Return the generator of a device."""

    def new_hccl(self, gloo: Backend, rank: int, size: int, /) -> Backend:
        """Return a backend ``hccl`` over a gloo backend."""

    def gloo_of(self, backend: Backend, /) -> Backend | None:
        """Return the gloo backend inside a simulated hccl backend, else None."""


_loaded: list[Library] = []


def load() -> Library:
    """Load the library of exactly this torch build, once per process.

    Raises
    ------
    DeviceError
        If this torch build has no library yet, or it cannot be loaded.
    """
    if _loaded:
        return _loaded[0]
    wanted = build.plan()
    if not build.is_built(wanted):
        problem = f"no library for torch {wanted.torch.version} in {wanted.folder}"
        remedy = (
            "Start the cluster again (its agent compiles it), or start with "
            "`--device cpu`."
        )
        raise DeviceError(build.DEVICE, problem, remedy)
    spec = importlib.util.spec_from_file_location(build.MODULE_NAME, wanted.library)
    if spec is None or spec.loader is None:
        problem = f"{wanted.library} is no Python extension"
        raise DeviceError(build.DEVICE, problem, "Delete it and start again.")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        problem = f"{wanted.library} cannot be loaded ({error})"
        raise DeviceError(
            build.DEVICE, problem, "Delete it and start the cluster again."
        ) from error
    _loaded.append(cast("Library", module))
    return _loaded[0]


def library() -> Library:
    """Return the loaded library.

    Raises
    ------
    DeviceError
        If no simulated NPU was installed in this process.
    """
    if not _loaded:
        problem = "there is none in this process"
        raise DeviceError(build.DEVICE, problem, "Start a cluster first.")
    return _loaded[0]
