"""``from torch_npu.contrib import transfer_to_npu``: CUDA code runs on NPUs.

After the import ``"cuda"`` means ``"npu"`` and ``"nccl"`` means ``"hccl"`` for the
calls that place tensors, modules and process groups. Which calls those are follows
torch_npu 2.13.0. Source: its ``torch_npu/contrib/transfer_to_npu.py``, lists of names.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from npu_notebook.devices.simulated import npu

if TYPE_CHECKING:
    from collections.abc import Callable

_FACTORIES = (
    "arange",
    "as_tensor",
    "bartlett_window",
    "blackman_window",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "get_device_module",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "linspace",
    "load",
    "logspace",
    "normal",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "range",
    "scalar_tensor",
    "set_default_device",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
    "zeros_like",
)
_TENSOR_METHODS = (
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_tensor",
    "new_zeros",
    "to",
)
_MODULE_METHODS = ("to", "to_empty")
_GROUP_CALLS = ("init_process_group", "new_group")
_DEVICE_WORD = re.compile(r"cuda(:\d+)?")
_BACKEND_WORDS = re.compile(r"nccl|(cpu:gloo,)?cuda:nccl(,cpu:gloo)?")
# Not taken over by torch.cuda: torch itself asks its own module these.
_STAY_WITH_CUDA = frozenset({"amp", "default_generators", "init", "is_initialized"})


def _renamed(value: Any) -> Any:  # noqa: ANN401  any argument of any call
    if isinstance(value, str):
        # Whole words only: torch.load("cuda_model.pt") names a file.
        if _DEVICE_WORD.fullmatch(value):
            return value.replace("cuda", "npu")
        if _BACKEND_WORDS.fullmatch(value):
            return value.replace("cuda", "npu").replace("nccl", "hccl")
        return value
    if isinstance(value, torch.device) and value.type == "cuda":
        # torch's type stub says int; torch.device("cuda") has no index.
        index: int | None = value.index
        return torch.device("npu") if index is None else torch.device("npu", index)
    if isinstance(value, dict):
        return {_renamed(key): _renamed(item) for key, item in value.items()}
    return value


def _redirect(owner: Any, name: str) -> None:  # noqa: ANN401  a module or a class
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def redirected(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  original's
        new_args = [_renamed(value) for value in args]
        return original(*new_args, **{key: _renamed(v) for key, v in kwargs.items()})

    setattr(owner, name, redirected)


def _install() -> None:
    for name in _FACTORIES:
        if hasattr(torch, name):
            _redirect(torch, name)
    for name in _TENSOR_METHODS:
        _redirect(torch.Tensor, name)
    for name in _MODULE_METHODS:
        _redirect(torch.nn.Module, name)
    for name in _GROUP_CALLS:
        _redirect(dist, name)
    _redirect(torch.autocast, "__init__")
    _redirect(torch.amp.GradScaler, "__init__")
    # torch adds these to its classes when a device is registered.
    for owner in (torch.Tensor, torch.nn.Module):
        owner.cuda = owner.npu  # type: ignore[union-attr, method-assign]
    torch.Tensor.is_cuda = torch.Tensor.is_npu  # type: ignore[attr-defined]
    for name in set(npu.__all__) - _STAY_WITH_CUDA:
        setattr(torch.cuda, name, getattr(npu, name))
    torch.cuda.amp.autocast = npu.amp.autocast  # type: ignore[misc, assignment]
    torch.cuda.amp.GradScaler = npu.amp.GradScaler  # type: ignore[misc, assignment]


_install()
