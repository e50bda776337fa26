"""``torch.npu.amp``: torch's mixed precision with ``device_type="npu"`` filled in."""

from __future__ import annotations

import functools

import torch

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="npu")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="npu")


class autocast(torch.amp.autocast_mode.autocast):  # noqa: N801  torch's name
    """`torch.autocast` on NPUs."""

    def __init__(
        self,
        enabled: bool = True,  # noqa: FBT001, FBT002  as in torch_npu
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        super().__init__(
            "npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled
        )


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` on NPUs."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,  # noqa: FBT001, FBT002, ARG002
        enabled: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        super().__init__(
            "npu",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
