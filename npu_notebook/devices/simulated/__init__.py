"""The simulated NPU: device type ``npu`` and backend ``hccl`` without hardware.

A small C++ library (`csrc`) registers a device whose memory is host memory and whose
operators are torch's CPU kernels. `build` compiles it once per torch build in the
agent, `install` loads it in the rank. Importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook.devices.provider import Inventory, ProviderFacts
from npu_notebook.devices.simulated import build
from npu_notebook.devices.simulated.settings import MAX_DEVICES
from npu_notebook.devices.torch_install import find_torch

if TYPE_CHECKING:
    from collections.abc import Callable


class SimulatedProvider:
    """NPUs that exist in host memory only, on any machine with torch."""

    facts = ProviderFacts(
        name="simulated",
        device_type="npu",
        backend="cpu:gloo,npu:hccl",
        forkable=True,
        label="simulated NPU",
    )

    def discover(self) -> Inventory:
        """Return the largest number of simulated NPUs a host may have."""
        if find_torch() is None:
            return Inventory(
                count=0,
                names=(),
                reason="Simulated NPUs need torch, and torch is not installed in this "
                "Python: pip install torch.",
            )
        return Inventory(count=MAX_DEVICES, names=(), reason="")

    def prepare(self, report: Callable[[str], None]) -> None:
        """Compile the library if this torch build has none yet, about a minute.

        Raises
        ------
        DeviceError
            If it cannot be compiled.
        """
        build.ensure_built(report)

    def environment(self, local_rank: int) -> dict[str, str]:  # noqa: ARG002 - seam
        """Keep a real, perhaps broken torch_npu out of ``import torch``."""
        return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    def bind(self, local_rank: int) -> str:
        """Make the simulated NPUs exist in this process and take one of them.

        Raises
        ------
        DeviceError
            If the library is missing, or another package owns device type ``npu``.
        ConfigError
            If ``NPU_NOTEBOOK_SIMULATED_DEVICES`` or ``NPU_NOTEBOOK_SIMULATED_MEMORY``
            cannot be read.
        """
        # Imports torch, which the agent must not do.
        from npu_notebook.devices.simulated.install import install

        return install(local_rank)
