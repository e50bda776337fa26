"""Plain CPU ranks over gloo: the provider that works everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook.devices.provider import Inventory, ProviderFacts

if TYPE_CHECKING:
    from collections.abc import Callable

# More ranks than this on one host is a typing error, not a wish.
_MAX_RANKS = 64


class CpuProvider:
    """Ranks that compute on the CPU."""

    facts = ProviderFacts(
        name="cpu", device_type="cpu", backend="gloo", forkable=True, label="CPU"
    )

    def discover(self) -> Inventory:
        """Return the largest number of ranks one host may have."""
        return Inventory(count=_MAX_RANKS, names=(), reason="")

    def prepare(self, report: Callable[[str], None]) -> None:
        """Do nothing: a CPU needs no preparation."""

    def environment(self, local_rank: int) -> dict[str, str]:  # noqa: ARG002 - seam
        """Keep a broken device package on this machine out of ``import torch``."""
        return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    def bind(self, local_rank: int) -> str:  # noqa: ARG002 - seam
        """Return ``"cpu"``; every rank has it already."""
        return "cpu"
