"""What the simulated NPU does not do raises a sentence that says so.

A notebook meets these by name (``torch_npu.npu_fusion_attention``), by function
(``flex_attention``) or deep inside torch (inductor, `DataParallel`, queues of
`torch.multiprocessing`). None of them may end in a wrong value or in a message about
somebody else's device.
"""

from __future__ import annotations

import functools
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from npu_notebook.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

_REAL_NPU = "or run it on real NPUs (--device ascend)"

# What is refused, and what to use instead.
_INDUCTOR = (
    "torch.compile with the inductor backend",
    "Use torch.compile(..., backend='aot_eager'), or leave torch.compile out.",
)
_DATA_PARALLEL = (
    "torch.nn.DataParallel",
    "Use torch.nn.parallel.DistributedDataParallel with one rank per device.",
)
_SHARING = (
    "sharing tensors through torch.multiprocessing",
    "Send tensor.cpu() and call .npu() on the other side.",
)
_FLEX_ATTENTION = (
    "flex_attention",
    "Use torch.nn.functional.scaled_dot_product_attention.",
)


class NotSimulatedError(DeviceError, NotImplementedError):
    """The simulated NPU does not do what was asked.

    Parameters
    ----------
    what : str
        What was asked, for example ``"torch.nn.DataParallel"``.
    instead : str
        What to use instead, a whole sentence.
    """

    def __init__(self, what: str, instead: str) -> None:
        super().__init__("simulated NPU", f"it does not do {what}", instead)
        self.args = (what, instead)


class NotSimulatedNameError(NotSimulatedError, AttributeError):
    """A name of ``torch.npu`` or ``torch_npu`` that the simulated NPU lacks."""


def missing_name(module: str, name: str) -> AttributeError:
    """Return the error for a name that `module` does not have.

    Names with leading underscores get the plain `AttributeError`: they are asked for
    by torch and by the import system, not by people.
    """
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    if name.startswith("npu_"):
        instead = f"Write it with operators of torch itself, {_REAL_NPU}."
    else:
        instead = f"Leave it out for simulated NPUs, {_REAL_NPU}."
    return NotSimulatedNameError(f"{module}.{name}", instead)


class _RefusesInductor(type):
    """Raises where inductor first asks the class of a code generator something."""

    @property
    def supports_caching(cls) -> NoReturn:
        what, instead = _INDUCTOR
        raise NotSimulatedError(what, instead)


class NoInductor(metaclass=_RefusesInductor):
    """Stands where inductor looks for the code generators of a device."""

    def __init__(self, *_: object, **__: object) -> None:
        what, instead = _INDUCTOR
        raise NotSimulatedError(what, instead)


def install() -> None:
    """Put the sentences in place. Runs once, while the device is installed."""
    _refuse_data_parallel()
    _refuse_sharing()
    _refuse_flex_attention()


def _refuse_data_parallel() -> None:
    # A torch without CUDA lacks these functions, one with CUDA looks for a GPU.
    count_gpus: Callable[[], int] = getattr(torch._C, "_cuda_getDeviceCount", int)  # noqa: SLF001  asks the driver, not torch.cuda

    def guarded(original: Callable[..., Any] | None) -> Callable[..., Any]:
        def call(*args: Any) -> Any:  # noqa: ANN401  the signature of each
            if original is None or _holds_npu_tensor(args) or count_gpus() == 0:
                what, instead = _DATA_PARALLEL
                raise NotSimulatedError(what, instead)
            return original(*args)

        return call

    names = ("_scatter", "_scatter_out", "_gather", "_gather_out")
    for name in (*names, "_broadcast", "_broadcast_out", "_broadcast_coalesced"):
        original = getattr(torch._C, name, None)  # noqa: SLF001  DataParallel calls it
        setattr(torch._C, name, guarded(original))  # noqa: SLF001


def _holds_npu_tensor(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == "npu"
    return isinstance(value, list | tuple) and any(map(_holds_npu_tensor, value))


def _refuse_sharing() -> None:
    reducers: dict[type, Callable[..., Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # noqa: SLF001  not in typeshed

    def guarded(reduce: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(reduce)
        def reduce_unless_npu(tensor: torch.Tensor) -> Any:  # noqa: ANN401  pickle's
            if tensor.device.type == "npu":
                what, instead = _SHARING
                raise NotSimulatedError(what, instead)
            return reduce(tensor)

        return reduce_unless_npu

    for kind in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage):
        ForkingPickler.register(kind, guarded(reducers[kind]))


def _refuse_flex_attention() -> None:
    try:
        from torch.nn.attention import flex_attention as module
    except ImportError:
        return  # a torch without it has nothing to refuse
    original = module.flex_attention

    @functools.wraps(original)
    def flex_attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  torch's signature
        if query.device.type == "npu":
            what, instead = _FLEX_ATTENTION
            raise NotSimulatedError(what, instead)
        return original(query, *args, **kwargs)

    module.flex_attention = flex_attention
