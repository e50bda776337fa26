"""Operators and modules give what they give on the CPU, forward and backward."""

import copy
import threading

import torch
from torch import nn
from torch.nn import functional

from tests.simulated.parts import raises
from tests.simulated.rank_process import Rank


def views_in_place_out_resize_and_storages(rank: Rank) -> None:
    x = torch.arange(12.0).npu()
    view = x.view(3, 4).t()[1:, :]
    view.add_(100)
    assert x.cpu()[1] == 101
    assert view._is_view()
    assert view.data_ptr() == x.data_ptr() + 4
    assert x.unfold(0, 3, 2).shape == (5, 3)
    assert x.view(torch.int32).dtype == torch.int32
    assert torch.view_as_complex(x.view(6, 2)).shape == (6,)

    out = torch.empty(0, device="npu")
    torch.add(x, 1, out=out)
    assert out.shape == (12,)
    assert out.device == rank.device
    assert out.cpu()[0] == 1
    out.resize_(20)
    assert out.cpu()[11] == 112
    out.zero_()
    x[2:4] = 7.0
    x[x > 50] = 0
    assert x.cpu()[1] == 0

    storage = x.untyped_storage()
    window = torch.empty(0, device="npu").set_(storage, 2, (2,), (1,))
    assert window.cpu().tolist() == [7, 7]
    assert storage.device == rank.device
    nbytes = storage.nbytes()
    assert nbytes == 48
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(nbytes)
    assert storage.nbytes() == nbytes


def _indexed(x):
    rows = torch.arange(x.shape[0], device=x.device)
    return x[:, [0, 2]] + x[x > 0].sum() + x[rows, 0][:, None, None]


def _gathered(x):
    zeros = torch.zeros_like(x, dtype=torch.long)
    return x.gather(1, zeros) + torch.zeros_like(x).scatter_add(1, zeros, x)


def _inverted(x):
    square = x @ x.transpose(1, 2) + torch.eye(4, device=x.device) * 3
    return torch.linalg.inv(square)


def _attended(x):
    heads = x[:, None]
    return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def _classified(x):
    target = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    return functional.cross_entropy(x.flatten(1), target)


def _split_and_joined(x):
    first = torch.stack(x.split(2, 1)[:1] * 2)[0]
    return torch.cat([first, x.chunk(2, 1)[0]], 1)


def _low_precision(x):
    square = (x.bfloat16() @ x.bfloat16().transpose(1, 2)).float()
    return square + (x.half() * 2).float().sum()


# Each maps a tensor of shape (3, 4, 6) to a result that depends on it.
_GROUPS = {
    "einsum, bmm": lambda x: torch.einsum("bij,bjk->bik", x, x.transpose(1, 2)),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:]),
    "gelu, silu": lambda x: functional.gelu(x) + functional.silu(x),
    "conv1d": lambda x: functional.conv1d(
        x, torch.ones(3, x.shape[1], 3, device=x.device)
    ),
    "sort, topk": lambda x: x.sort(-1)[0] + x.topk(x.shape[-1])[0],
    "cumsum": lambda x: x.cumsum(1),
    "cat, stack, split, chunk": _split_and_joined,
    "where, masked_fill": lambda x: torch.where(x > 0, x, x.masked_fill(x < -1, 0.0)),
    "gather, scatter_add": _gathered,
    "index by list, mask and tensor": _indexed,
    "var, std, norm": lambda x: x.var() + x.std(1).sum() + x.norm(),
    "interpolate": lambda x: functional.interpolate(x, scale_factor=2),
    "pad, roll, flip": lambda x: functional.pad(
        x.roll(1, 0).flip(1), (1, 1), mode="reflect"
    ),
    "fft": lambda x: torch.fft.rfft(x).abs(),
    "linalg.inv": _inverted,
    "attention": _attended,
    "max_pool, avg_pool": lambda x: (
        functional.max_pool1d(x, 2) + functional.avg_pool1d(x, 2)
    ),
    "bfloat16, float16": _low_precision,
    "unique": lambda x: x.detach().round().unique(),
    "nonzero": lambda x: x.detach().nonzero(),
    "clamp, lerp": lambda x: x.clamp(-1, 1).lerp(x, 0.3),
    "foreach": lambda x: torch._foreach_add([x, x * 2], [x, x])[1],
    "complex": lambda x: (x + 1j * x).conj().real,
    "tril, triu": lambda x: x.tril() + x.triu(1),
    "cross_entropy": _classified,
    "baddbmm": lambda x: torch.baddbmm(
        torch.zeros(x.shape[0], 4, 4, device=x.device), x, x.transpose(1, 2)
    ),
    "histc": lambda x: torch.histc(x.detach(), 5),
    "bincount": lambda x: torch.bincount((x > 0).long().flatten()),
    "repeat, expand": lambda x: (
        x.repeat(1, 2, 1).sum() + x[:, :1].expand(-1, 3, -1).contiguous()
    ),
    "integers": lambda x: ((x * 10).long() % 3).float() + ((x * 10).int() & 1).float(),
}


def operator_groups_equal_the_cpu(rank: Rank) -> None:
    failures = []
    for name, group in _GROUPS.items():
        torch.manual_seed(1)
        on_cpu = torch.randn(3, 4, 6, requires_grad=True)
        on_npu = on_cpu.detach().npu().requires_grad_()
        try:
            expected, found = group(on_cpu), group(on_npu)
            assert found.device == rank.device
            torch.testing.assert_close(expected, found.cpu())
            assert expected.requires_grad == found.requires_grad
            if expected.requires_grad:
                expected.float().sum().backward()
                found.float().sum().backward()
                torch.testing.assert_close(on_cpu.grad, on_npu.grad.cpu())
        except (AssertionError, RuntimeError) as error:
            failures.append(f"{name}: {error}")
    assert not failures, "\n".join(failures)


def _zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return {
        "convolutions": (
            nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.ConvTranspose2d(8, 4, 2, 2),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(4, 2),
            ),
            (2, 3, 8, 8),
        ),
        "lstm": (nn.LSTM(6, 5, 2, batch_first=True), (2, 4, 6)),
        "gru": (nn.GRU(6, 5), (4, 2, 6)),
        "transformer encoder": (nn.TransformerEncoder(encoder, 2), (2, 5, 8)),
        "norms": (
            nn.Sequential(
                nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.GroupNorm(5, 5)
            ),
            (2, 5, 8),
        ),
    }


def _loss(output):
    first = output[0] if isinstance(output, tuple) else output
    return first.pow(2).mean()


def modules_train_as_on_the_cpu(rank: Rank) -> None:
    for reference, shape in _zoo().values():
        torch.manual_seed(0)
        module = copy.deepcopy(reference).npu()
        x = torch.randn(*shape)
        expected, found = _loss(reference(x)), _loss(module(x.npu()))
        expected.backward()
        found.backward()
        torch.testing.assert_close(expected, found.cpu())
        for p, q in zip(reference.parameters(), module.parameters(), strict=True):
            assert q.grad.device == rank.device
            torch.testing.assert_close(p.grad, q.grad.cpu(), rtol=1e-4, atol=1e-5)
        reference.eval()
        module.eval()
        with torch.no_grad():
            torch.testing.assert_close(
                _loss(reference(x)), _loss(module(x.npu())).cpu(), rtol=1e-4, atol=1e-5
            )


def embeddings_equal_the_cpu() -> None:
    torch.manual_seed(0)
    reference = nn.Embedding(10, 4, padding_idx=0)
    module = copy.deepcopy(reference).npu()
    index = torch.tensor([[1, 2, 0], [9, 1, 1]])
    reference(index).pow(2).sum().backward()
    module(index.npu()).pow(2).sum().backward()
    torch.testing.assert_close(reference.weight.grad, module.weight.grad.cpu())


def random_numbers_repeat_and_leave_the_cpu_alone() -> None:
    torch.manual_seed(5)
    cpu_only = torch.rand(3)

    torch.manual_seed(5)
    numbers = torch.randn(5, device="npu")
    dropped = functional.dropout(torch.ones(100, device="npu"))
    assert torch.equal(torch.rand(3), cpu_only)
    assert set(dropped.tolist()) == {0.0, 2.0}

    torch.manual_seed(5)
    assert torch.equal(numbers, torch.randn(5, device="npu"))
    assert torch.equal(dropped, functional.dropout(torch.ones(100, device="npu")))
    assert not torch.equal(numbers, torch.randn(5, device="npu"))


def dropout_keeps_the_mean_and_its_backward_uses_the_mask() -> None:
    x = torch.ones(20_000, device="npu", requires_grad=True)
    y = functional.dropout(x, 0.25)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert abs(y.mean().item() - 1) < 0.02
    assert torch.equal(functional.dropout(x, 0.25, training=False), x)
    assert functional.dropout(x, 1.0).sum().item() == 0


def generators_and_their_states(rank: Rank) -> None:
    torch.npu.manual_seed(3)
    state = torch.npu.get_rng_state()
    first = torch.rand(4, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(first, torch.rand(4, device="npu"))

    generator = torch.Generator(device="npu")
    generator.manual_seed(1)
    drawn = torch.rand(3, device="npu", generator=generator)
    generator.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3, device="npu", generator=generator))

    before = torch.npu.get_rng_state()
    with torch.random.fork_rng(devices=[rank.rank], device_type="npu"):
        torch.rand(4, device="npu")
    assert torch.equal(torch.npu.get_rng_state(), before)
    raises(RuntimeError, lambda: torch.npu.set_rng_state(torch.zeros(3)), "16 bytes")


def threads_have_devices_of_their_own() -> None:
    errors = []

    def work(index: int) -> None:
        try:
            torch.npu.set_device(index)
            module = nn.Linear(64, 64).npu()
            optimizer = torch.optim.SGD(module.parameters(), 0.1)
            for _ in range(20):
                optimizer.zero_grad()
                module(torch.randn(8, 64, device="npu")).sum().backward()
                optimizer.step()
            assert module.weight.device.index == index
        except Exception as error:  # noqa: BLE001  whatever the thread met
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
