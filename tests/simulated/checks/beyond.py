"""What programs do beyond the usual: it works, or the list in the docs says not."""

import gc
import resource
import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from tests.simulated.parts import raises, train
from tests.simulated.rank_process import Rank


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="npu")


def training_leaks_no_memory() -> None:
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).npu()
    optimizer = torch.optim.AdamW(module.parameters())
    batch = _randn(32, 64)
    train(module, optimizer, batch, steps=50)
    gc.collect()
    allocated = torch.npu.memory_allocated()
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    train(module, optimizer, batch, steps=500)
    gc.collect()
    assert torch.npu.memory_allocated() == allocated
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib < 8192


def default_device(rank: Rank) -> None:
    torch.set_default_device("npu")
    try:
        assert torch.ones(2).device == rank.device
    finally:
        torch.set_default_device(None)


def double_backward() -> None:
    x = _randn(3).requires_grad_()
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    grad.sum().backward()
    torch.testing.assert_close(x.grad, 6 * x.detach())


def out_of_memory_inside_backward() -> None:
    x = torch.ones(20 << 20, device="npu", requires_grad=True)
    loss = ((x * x) * 2).sum()
    raises(torch.OutOfMemoryError, loss.backward, "out of memory")
    del x, loss
    gc.collect()
    assert torch.ones(40 << 20, device="npu")[-1].item() == 1


def a_memory_fraction_limits_the_device() -> None:
    torch.npu.set_per_process_memory_fraction(0.5)
    try:
        assert torch.npu.mem_get_info()[1] == 128 << 20
        assert torch.npu.get_per_process_memory_fraction() == 0.5
    finally:
        torch.npu.set_per_process_memory_fraction(1.0)
    raises(ValueError, lambda: torch.npu.set_per_process_memory_fraction(2), "2")


def jagged_nested_tensors() -> None:
    parts = [torch.ones(2, 3, device="npu"), torch.ones(4, 3, device="npu")]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    assert nested.values().sum().item() == 18


def script_trace_and_export() -> None:
    module, x = nn.Linear(4, 4).npu(), _randn(2, 4)
    expected = module(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit says that it is old
        torch.testing.assert_close(torch.jit.script(module)(x), expected)
        torch.testing.assert_close(torch.jit.trace(module, x)(x), expected)
    exported = torch.export.export(module, (x,)).module()
    torch.testing.assert_close(exported(x), expected)


def bags_grids_and_spectra_equal_the_cpu() -> None:
    weight, image, grid, wave = (
        torch.randn(5, 3),
        torch.randn(1, 1, 4, 4),
        torch.randn(1, 2, 2, 2).tanh(),
        torch.randn(1, 400),
    )
    bag = torch.tensor([[1, 2]])
    torch.testing.assert_close(
        functional.embedding_bag(bag, weight),
        functional.embedding_bag(bag.npu(), weight.npu()).cpu(),
    )
    torch.testing.assert_close(
        functional.grid_sample(image, grid, align_corners=False),
        functional.grid_sample(image.npu(), grid.npu(), align_corners=False).cpu(),
    )
    window = torch.hann_window(64)
    torch.testing.assert_close(
        torch.stft(wave, 64, return_complex=True, window=window),
        torch.stft(wave.npu(), 64, return_complex=True, window=window.npu()).cpu(),
    )


def attention_with_weights_dropout_and_groups() -> None:
    x = _randn(2, 3, 8)
    mask = torch.ones(3, 3, dtype=torch.bool, device="npu").triu(1)
    _, weights = nn.MultiheadAttention(8, 2, batch_first=True).npu()(
        x, x, x, attn_mask=mask
    )
    torch.testing.assert_close(weights.sum(-1).cpu(), torch.ones(2, 3))
    assert weights[0, 0, 1:].tolist() == [0, 0]
    out = functional.scaled_dot_product_attention(
        _randn(1, 4, 5, 8),
        _randn(1, 2, 5, 8),
        _randn(1, 2, 5, 8),
        dropout_p=0.1,
        enable_gqa=True,
    )
    assert out.shape == (1, 4, 5, 8)


def decompositions(rank: Rank) -> None:
    x = _randn(3, 3)
    u, s, vh = torch.linalg.svd(x)
    torch.testing.assert_close(u @ torch.diag(s) @ vh, x)
    q, r = torch.linalg.qr(x)
    torch.testing.assert_close(q @ r, x)
    spd = x @ x.t() + torch.eye(3, device="npu")
    factor = torch.linalg.cholesky(spd)
    torch.testing.assert_close(factor @ factor.t(), spd)
    assert torch.linalg.eigh(spd)[0].device == rank.device


def other_types() -> None:
    x = _randn(2, 2)
    assert (x.double() @ x.double()).dtype == torch.float64
    assert x.to(torch.int8).dtype == torch.int8
    assert x.to(torch.complex128).real.dtype == torch.float64
    eighth = x.to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(eighth.cpu(), x.cpu().to(torch.float8_e4m3fn).float())


def custom_operators() -> None:
    @torch.library.custom_op("simulated_checks::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert twice(torch.ones(3).npu()).tolist() == [2, 2, 2]


def the_profiler_sees_operators() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        _randn(8, 8) @ _randn(8, 8)
    assert any(event.key == "aten::mm" for event in profiler.key_averages())


def transfer_to_npu_redirects_cuda_code(rank: Rank) -> None:
    """Last in this file: it changes torch for the rest of the process."""
    from torch_npu.contrib import transfer_to_npu

    assert transfer_to_npu.__name__ == "torch_npu.contrib.transfer_to_npu"
    x = torch.ones(2, device="cuda")
    assert x.device == rank.device
    assert x.is_cuda
    assert torch.ones(2).cuda().device == rank.device
    assert torch.ones(2).to("cuda:3").device.index == 3
    assert torch.ones(2).to(torch.device("cuda", 2)).device.index == 2
    assert nn.Linear(2, 2).cuda().weight.device == rank.device
    assert nn.Linear(2, 2).to(device="cuda").weight.device == rank.device
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 8
    assert torch.cuda.get_device_name() == "simulated NPU"
    torch.cuda.set_device(rank.rank)
    torch.cuda.synchronize()
    with torch.autocast("cuda"):
        assert (x[:, None] @ x[None]).dtype == torch.float16
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group(
        "nccl", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    assert torch.distributed.get_backend() == "hccl"
    torch.distributed.all_reduce(x)
    assert x.tolist() == [1, 1]
