"""Autograd, optimizers, mixed precision, saving and loading, data loaders."""

import copy
import io
import pickle
import threading

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.simulated.parts import assert_same_parameters, mlp, train
from tests.simulated.rank_process import Rank


def backward_on_the_device_and_from_another_thread(rank: Rank) -> None:
    module = mlp().npu()
    module(torch.randn(8, 16, device="npu")).sum().backward()
    assert module[0].weight.grad.device == rank.device
    errors = []

    def work() -> None:
        try:
            torch.npu.set_device(rank.rank)
            module(torch.randn(8, 16, device="npu")).sum().backward()
        except Exception as error:  # noqa: BLE001  whatever the thread met
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors, errors


def backward_on_a_second_device_of_the_process() -> None:
    module = mlp().to("npu:7")
    module(torch.randn(8, 16, device="npu:7")).sum().backward()
    assert module[0].weight.grad.device.index == 7


def modules_move_with_npu_to_and_cpu(rank: Rank) -> None:
    module = mlp().npu()
    assert next(module.parameters()).is_npu
    module = module.cpu()
    assert not next(module.parameters()).is_npu
    module = module.to("npu")
    assert next(module.parameters()).device == rank.device
    assert isinstance(module[0].weight, nn.Parameter)


def _optimizer_equals_the_cpu(kind: type[torch.optim.Optimizer], **options) -> None:
    reference, module = mlp(), mlp().npu()
    batch = torch.randn(8, 16)
    train(reference, kind(reference.parameters(), **options), batch, max_norm=1.0)
    train(module, kind(module.parameters(), **options), batch.npu(), max_norm=1.0)
    assert_same_parameters(reference, module)


def optimizer_sgd_with_momentum() -> None:
    _optimizer_equals_the_cpu(torch.optim.SGD, lr=0.1, momentum=0.9)


def optimizer_adam_foreach() -> None:
    _optimizer_equals_the_cpu(torch.optim.Adam, foreach=True)


def optimizer_adamw_fused() -> None:
    _optimizer_equals_the_cpu(torch.optim.AdamW, fused=True)


def optimizer_adamw_by_default() -> None:
    _optimizer_equals_the_cpu(torch.optim.AdamW)


def autocast_casts_as_on_a_device() -> None:
    module, x = mlp().npu(), torch.randn(4, 16).npu()
    with torch.npu.amp.autocast():
        assert module(x).dtype == torch.float16
        assert functional.softmax(module(x), -1).dtype == torch.float32
    with torch.autocast("npu", dtype=torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    with torch.autocast(device_type="npu"):
        assert (x @ x.t()).dtype == torch.float16
    y.float().sum().backward()
    assert module[0].weight.grad.dtype == torch.float32


def grad_scaler_steps() -> None:
    for scaler in (torch.npu.amp.GradScaler(), torch.amp.GradScaler("npu")):
        module = mlp().npu()
        before = module[0].weight.detach().clone()
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.npu.amp.autocast():
                loss = module(torch.randn(4, 16).npu()).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.is_enabled()
        assert not torch.equal(before, module[0].weight)


def save_and_load_with_map_location() -> None:
    module = mlp().npu()
    file = io.BytesIO()
    torch.save({"m": module.state_dict(), "x": torch.ones(3, device="npu:1")}, file)
    for location, expected in (
        (None, "npu:1"),
        ("npu:0", "npu:0"),
        ("cpu", "cpu"),
        (torch.device("npu:2"), "npu:2"),
        ({"npu:1": "npu:3"}, "npu:3"),
    ):
        file.seek(0)
        loaded = torch.load(file, map_location=location, weights_only=True)
        assert str(loaded["x"].device) == expected
        assert loaded["x"].cpu().sum() == 3
    module.load_state_dict(loaded["m"])

    from_cpu = io.BytesIO()
    torch.save(torch.ones(2), from_cpu)
    from_cpu.seek(0)
    found = torch.load(from_cpu, map_location="npu:0", weights_only=True)
    assert found.device == torch.device("npu:0")


def deepcopy_and_pickle_keep_the_device(rank: Rank) -> None:
    x = torch.ones(3).npu()
    assert copy.deepcopy(x).device == rank.device
    assert pickle.loads(pickle.dumps(x)).device == rank.device
    assert copy.deepcopy(mlp().npu())[0].weight.device == rank.device


def data_loader_with_pinned_memory_and_workers() -> None:
    data = TensorDataset(torch.randn(32, 16), torch.randint(0, 4, (32,)))
    for num_workers in (0, 2):
        rows = 0
        for x, _ in DataLoader(
            data, 8, pin_memory=True, num_workers=num_workers, shuffle=True
        ):
            assert x.is_pinned()
            rows += len(x.to("npu", non_blocking=True))
        assert rows == 32
    assert torch.ones(2).pin_memory().is_pinned()
    assert not torch.ones(2).is_pinned()


def checkpoint_and_torch_func() -> None:
    module = mlp().npu()
    x = torch.randn(4, 16).npu().requires_grad_()
    module(x).sum().backward()
    expected = x.grad.clone()
    for use_reentrant in (False, True):
        x.grad = None
        checkpoint(module, x, use_reentrant=use_reentrant).sum().backward()
        torch.testing.assert_close(x.grad, expected)
    y = x.detach()
    assert torch.equal(torch.func.grad(lambda t: (t * t).sum())(y), 2 * y)
    rows = torch.func.vmap(lambda t: t @ t)(y)
    torch.testing.assert_close(rows, (y * y).sum(1))


def compile_with_aot_eager(rank: Rank) -> None:
    module = mlp().npu()
    x = torch.randn(2, 16).npu()
    compiled = torch.compile(module, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))
    compiled(x).sum().backward()
    assert module[0].weight.grad.device == rank.device
