"""Devices, memory, streams and tensors of torch's device type ``npu``."""

import functools
import gc
import threading
import time

import numpy as np
import torch
from torch.nn import functional

from tests.simulated.parts import raises
from tests.simulated.rank_process import Rank


def torch_device_knows_npu() -> None:
    device = torch.device("npu:0")
    assert device.type == "npu"
    assert device.index == 0


def set_device_and_current_device(rank: Rank) -> None:
    assert torch.npu.current_device() == rank.rank
    torch.npu.set_device(5)
    assert torch.npu.current_device() == 5
    torch.npu.set_device(rank.device)
    assert torch.npu.current_device() == rank.rank


def npu_method_uses_the_device_of_the_rank(rank: Rank) -> None:
    assert torch.ones(3).npu().device == rank.device


def to_and_npu_with_an_index(rank: Rank) -> None:
    assert torch.ones(3).to("npu").device == rank.device
    assert torch.ones(3).to("npu:0").device == torch.device("npu:0")
    assert torch.ones(3).npu(1).device.index == 1


def is_npu_and_device_type() -> None:
    x = torch.ones(3).npu()
    assert x.is_npu
    assert x.device.type == "npu"
    assert not x.cpu().is_npu


def factories_take_device_npu(rank: Rank) -> None:
    made = [
        torch.zeros(2, 3, device="npu"),
        torch.arange(5, device="npu"),
        torch.full((2,), 3.0, device="npu"),
        torch.rand(4, device="npu"),
        torch.randn(4, device="npu"),
        torch.randint(0, 9, (4,), device="npu"),
        torch.tensor([1, 2], device="npu"),
        torch.eye(3, device="npu"),
        torch.linspace(0, 1, 5, device="npu"),
        torch.randperm(7, device="npu"),
        torch.empty(2, device="npu"),
        torch.zeros_like(torch.ones(2, device="npu")),
        torch.as_tensor([1.0], device="npu"),
        torch.as_tensor(np.ones(3), device="npu"),
        torch.tril_indices(3, 3, device="npu"),
        torch.hann_window(8, device="npu"),
    ]
    for x in made:
        assert x.device == rank.device
    with torch.device("npu"):
        assert torch.ones(2).device == rank.device


def count_availability_name_and_properties() -> None:
    assert torch.npu.is_available()
    assert torch.npu.device_count() == 8
    assert torch.npu.get_device_name(0) == "simulated NPU"
    properties = torch.npu.get_device_properties(0)
    assert properties.name == "simulated NPU"
    assert properties.total_memory == 256 << 20


def device_context_changes_the_device_inside(rank: Rank) -> None:
    with torch.npu.device(3):
        assert torch.ones(1, device="npu").device.index == 3
    assert torch.ones(1, device="npu").device == rank.device


def an_index_that_is_not_there_raises() -> None:
    raises(RuntimeError, lambda: torch.ones(1, device="npu:99"), "index 99", "8")
    raises(RuntimeError, lambda: torch.npu.set_device(99), "index 99", "8")


def a_new_thread_starts_on_device_0(rank: Rank) -> None:
    torch.npu.set_device(5)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.npu.current_device()))
    thread.start()
    thread.join()
    torch.npu.set_device(rank.rank)
    assert seen == [0]


def synchronize_returns(rank: Rank) -> None:
    torch.npu.synchronize()
    torch.npu.synchronize(rank.rank)


def events_measure_elapsed_time() -> None:
    start = torch.npu.Event(enable_timing=True)
    end = torch.npu.Event(enable_timing=True)
    raises(RuntimeError, lambda: start.elapsed_time(end), "recorded")
    start.record()
    began_s = time.perf_counter()
    x = torch.randn(300, 300, device="npu")
    for _ in range(20):
        x = x @ x * 0.01
    elapsed_ms = (time.perf_counter() - began_s) * 1e3
    end.record()
    end.synchronize()
    assert end.query()
    assert elapsed_ms <= start.elapsed_time(end) < elapsed_ms + 500


def streams_follow_their_context() -> None:
    stream = torch.npu.Stream()
    event = torch.npu.Event()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        x = torch.ones(3, device="npu") * 2
        event.record(stream)
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert torch.npu.current_stream() != stream
    torch.npu.current_stream().wait_stream(stream)
    torch.npu.current_stream().wait_event(event)
    stream.synchronize()
    x.record_stream(torch.npu.current_stream())
    assert x.sum().item() == 6


def memory_figures_follow_the_tensors() -> None:
    gc.collect()
    before = torch.npu.memory_allocated()
    four_mib = 4 << 20
    x = torch.empty(1 << 20, device="npu")
    assert torch.npu.memory_allocated() - before == four_mib
    free, total = torch.npu.mem_get_info()
    assert total - free >= four_mib
    y = x + 1
    view = y.view(2, -1)[1]
    assert torch.npu.memory_allocated() - before == 2 * four_mib
    del x, y
    assert torch.npu.memory_allocated() - before == four_mib
    del view
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() >= before + 2 * four_mib
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == before
    assert torch.npu.memory_reserved() == before
    assert torch.npu.memory_stats()["allocated_bytes.all.current"] == before
    assert torch.npu.memory_summary().startswith("simulated NPU")


def out_of_memory_is_torchs_error_and_the_memory_is_free_again() -> None:
    gc.collect()
    before = torch.npu.memory_allocated()
    raises(
        torch.OutOfMemoryError,
        lambda: torch.empty(1 << 28, device="npu"),
        "out of memory",
        "1.00 GiB",
        "256.00 MiB",
        "simulated NPU",
    )
    x = torch.ones(40 << 20, device="npu")
    raises(torch.OutOfMemoryError, functools.partial(torch.add, x, 1), "out of memory")
    both = [x, x]
    raises(torch.OutOfMemoryError, functools.partial(torch.cat, both), "out of memory")
    del x, both
    assert torch.npu.memory_allocated() == before
    assert torch.ones(40 << 20, device="npu")[0].item() == 1


def mixing_cpu_and_npu_tensors_raises() -> None:
    x, c = torch.ones(4, 4).npu(), torch.ones(4, 4)
    raises(RuntimeError, lambda: x + c, "same device")
    raises(RuntimeError, lambda: x @ c, "device")
    raises(RuntimeError, lambda: functional.linear(x, c), "device")
    raises(RuntimeError, lambda: torch.cat([x, c]), "device")
    assert (x + torch.tensor(1.0)).sum().item() == 32


def mixing_two_npus_raises() -> None:
    x, y = torch.ones(4, device="npu:0"), torch.ones(4, device="npu:1")
    raises(RuntimeError, lambda: x + y, "same device")
    raises(RuntimeError, lambda: torch.cat([x, y]), "same device")
    number = torch.tensor(1.0, device="npu:1")
    raises(RuntimeError, lambda: x + number, "same device")


def numpy_of_an_npu_tensor_raises() -> None:
    raises(TypeError, lambda: torch.ones(2).npu().numpy(), "npu")
    raises(TypeError, lambda: np.asarray(torch.ones(2).npu()), "npu")
    assert torch.ones(2).npu().cpu().numpy().sum() == 2


def repr_names_the_device(rank: Rank) -> None:
    assert f"device='npu:{rank.rank}'" in repr(torch.ones(2).npu())
    assert "..." in str(torch.rand(1000, 1000, device="npu"))


def item_tolist_bool_and_iteration() -> None:
    x = torch.arange(3).npu()
    assert x[1].item() == 1
    assert x.tolist() == [0, 1, 2]
    assert bool((x < 3).all())
    assert [int(value) for value in x] == [0, 1, 2]
    assert len(x) == 3


def copies_between_two_npus() -> None:
    x = torch.arange(4.0, device="npu:0")
    y = x.to("npu:1", non_blocking=True)
    x.zero_()
    assert y.device.index == 1
    assert y.cpu().tolist() == [0, 1, 2, 3]


def torch_accelerator_is_the_npu(rank: Rank) -> None:
    assert torch.accelerator.current_accelerator().type == "npu"
    assert torch.accelerator.device_count() == 8
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    x = torch.ones(1024, device="npu")
    assert torch.accelerator.memory_allocated() - before == x.nbytes
    torch.accelerator.set_device_index(rank.rank)
    assert torch.get_device_module("npu") is torch.npu


def import_torch_npu_in_a_cell() -> None:
    import torch_npu

    assert torch_npu.npu.is_available()
    assert torch_npu.npu is torch.npu
    assert "simulated" in torch_npu.__version__
