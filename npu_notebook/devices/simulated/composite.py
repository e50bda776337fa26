"""Operators that torch has for devices only, written with other operators.

RNN cells and SyncBatchNorm call these on every accelerator; there is no CPU kernel to
fall back to. Formulas: Hochreiter, Schmidhuber 1997 (LSTM), Cho et al. 2014 (GRU, in
the form of cuDNN), Ioffe, Szegedy 2015 (batch normalisation); what is saved for the
backward pass is ours alone, only these functions read it.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

MaybeTensor: TypeAlias = "Tensor | None"

# Kernels registered through a Library live as long as it does.
_libraries: list[torch.library.Library] = []


def register() -> None:
    """Register the operators for the simulated NPU. Runs once per process."""
    kernels = {
        "_thnn_fused_lstm_cell": lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
        "_thnn_fused_gru_cell": gru_cell,
        "_thnn_fused_gru_cell_backward": gru_cell_backward,
        "batch_norm_stats": batch_norm_stats,
        "batch_norm_gather_stats_with_counts": batch_norm_gather_stats,
        "batch_norm_elemt": batch_norm_apply,
        "batch_norm_backward_reduce": batch_norm_backward_reduce,
        "batch_norm_backward_elemt": batch_norm_backward_apply,
    }
    aten = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, kernel in kernels.items():
        aten.impl(name, kernel, "PrivateUse1")  # type: ignore[no-untyped-call]
    _libraries.append(aten)


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: MaybeTensor = None,
    hidden_bias: MaybeTensor = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden state, cell state and the activated gates, shape (batch, 4 n)."""
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    enter, forget, new, leave = gates.chunk(4, 1)
    enter, forget, leave = enter.sigmoid(), forget.sigmoid(), leave.sigmoid()
    new = new.tanh()
    next_cell = forget * cell + enter * new
    saved = torch.cat([enter, forget, new, leave], 1)
    return leave * next_cell.tanh(), next_cell, saved


def lstm_cell_backward(
    grad_hidden: MaybeTensor,
    grad_next_cell: MaybeTensor,
    cell: Tensor,
    next_cell: Tensor,
    saved: Tensor,
    has_bias: bool,  # noqa: FBT001
) -> tuple[MaybeTensor, MaybeTensor, MaybeTensor]:
    """Return the gradients of gates, of the cell state and of the bias."""
    if grad_hidden is None and grad_next_cell is None:
        return None, None, None
    enter, forget, new, leave = saved.chunk(4, 1)
    squashed = next_cell.tanh()
    if grad_hidden is None:
        grad_hidden = torch.zeros_like(next_cell)
    if grad_next_cell is None:
        grad_next_cell = torch.zeros_like(next_cell)
    grad = grad_next_cell + grad_hidden * leave * (1 - squashed * squashed)
    grad_gates = torch.cat(
        [
            grad * new * enter * (1 - enter),
            grad * cell * forget * (1 - forget),
            grad * enter * (1 - new * new),
            grad_hidden * squashed * leave * (1 - leave),
        ],
        1,
    )
    return grad_gates, grad * forget, grad_gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: MaybeTensor = None,
    hidden_bias: MaybeTensor = None,
) -> tuple[Tensor, Tensor]:
    """Return the hidden state and what the backward pass needs, shape (batch, 5 n)."""
    if input_bias is not None and hidden_bias is not None:
        input_gates = input_gates + input_bias
        hidden_gates = hidden_gates + hidden_bias
    input_reset, input_update, input_new = input_gates.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden_gates.chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    saved = torch.cat([reset, update, new, hidden, hidden_new], 1)
    return new + update * (hidden - new), saved


def gru_cell_backward(
    grad_hidden: Tensor,
    saved: Tensor,
    has_bias: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor, Tensor, MaybeTensor, MaybeTensor]:
    """Return the gradients of both gates, of the hidden state and of both biases."""
    reset, update, new, hidden, hidden_new = saved.chunk(5, 1)
    grad_new = grad_hidden * (1 - update) * (1 - new * new)
    grad_update = grad_hidden * (hidden - new) * update * (1 - update)
    grad_reset = grad_new * hidden_new * reset * (1 - reset)
    grad_input = torch.cat([grad_reset, grad_update, grad_new], 1)
    grad_hidden_gates = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    return (
        grad_input,
        grad_hidden_gates,
        grad_hidden * update,
        grad_input.sum(0) if has_bias else None,
        grad_hidden_gates.sum(0) if has_bias else None,
    )


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view([1, -1] + [1] * (like.dim() - 2))


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and inverse deviation per channel of this rank's batch."""
    x = x.float()
    dims = _all_but_channels(x)
    return x.mean(dims), (x.var(dims, unbiased=False) + eps).rsqrt()


def batch_norm_gather_stats(  # noqa: PLR0913, PLR0917  the operator's signature
    _x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: MaybeTensor,
    running_var: MaybeTensor,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return mean and inverse deviation over all ranks; update the running ones.

    `mean` and `invstd` have the shape (ranks, channels), `counts` (ranks,).
    """
    weights = counts.view(-1, 1).to(mean.dtype)
    total = weights.sum()
    mean_all = (mean * weights).sum(0) / total
    variances = invstd.pow(-2) - eps + (mean - mean_all) ** 2
    variance = (variances * weights).sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(
            mean_all.to(running_mean.dtype), alpha=momentum
        )
    if running_var is not None:
        unbiased = variance * total / (total - 1)
        running_var.mul_(1 - momentum).add_(
            unbiased.to(running_var.dtype), alpha=momentum
        )
    return mean_all, (variance + eps).rsqrt()


def batch_norm_apply(
    x: Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    mean: Tensor,
    invstd: Tensor,
    _eps: float,
) -> Tensor:
    """Return the normalised batch."""
    y = (x.float() - _per_channel(mean, x)) * _per_channel(invstd, x)
    if weight is not None:
        y = y * _per_channel(weight, x)
    if bias is not None:
        y = y + _per_channel(bias, x)
    return y.to(x.dtype)


def batch_norm_backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    _weight: MaybeTensor,
    _input_needed: bool,  # noqa: FBT001
    weight_needed: bool,  # noqa: FBT001
    bias_needed: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor, MaybeTensor, MaybeTensor]:
    """Return sums over this rank's batch: of the gradient, and times the deviation."""
    dims = _all_but_channels(x)
    grad = grad.float()
    grad_sum = grad.sum(dims)
    grad_times_x = (grad * (x.float() - _per_channel(mean, x))).sum(dims)
    return (
        grad_sum,
        grad_times_x,
        grad_times_x * invstd if weight_needed else None,
        grad_sum if bias_needed else None,
    )


def batch_norm_backward_apply(  # noqa: PLR0913, PLR0917  the operator's signature
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: MaybeTensor,
    grad_sum: Tensor,
    grad_times_x: Tensor,
    counts: Tensor,
) -> Tensor:
    """Return the gradient of the batch; the sums are those over all ranks."""
    total = counts.sum()
    factor = _per_channel(invstd if weight is None else invstd * weight, x)
    mean_grad = _per_channel(grad_sum / total, x)
    slope = _per_channel(invstd * invstd * grad_times_x / total, x)
    centred = x.float() - _per_channel(mean, x)
    return ((grad.float() - mean_grad - centred * slope) * factor).to(x.dtype)
