"""What the simulated NPU does not do raises a sentence, never a wrong value."""

import importlib.util
import pickle

import pytest
import torch
import torch.multiprocessing
from torch import nn
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from npu_notebook.devices.simulated.refusals import NotSimulatedError
from npu_notebook.errors import DeviceError
from tests.simulated.parts import raises

SIMULATED = "simulated NPU"


def sparse_tensors() -> None:
    dense = torch.eye(3)
    index = torch.tensor([[0, 1]])
    for make in (
        lambda: dense.to_sparse().npu(),
        lambda: dense.npu().to_sparse(),
        lambda: dense.npu().to_sparse_csr(),
        lambda: dense.to_sparse_csr().npu(),
        lambda: torch.sparse_coo_tensor(index.npu(), torch.ones(2).npu(), (3,)),
        lambda: torch.sparse_csr_tensor(
            torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2), device="npu"
        ),
        lambda: torch.sparse.mm(dense.to_sparse(), dense.npu()),
        lambda: dense.to_sparse_csr() @ dense.npu(),
        lambda: torch.empty(2, 2, layout=torch.sparse_coo, device="npu"),
    ):
        raises(NotImplementedError, make, SIMULATED, "sparse", ".cpu()")


def gradients_of_sparse_embeddings() -> None:
    embedding = nn.Embedding(5, 3, sparse=True).npu()
    loss = embedding(torch.tensor([1, 2]).npu()).sum()
    raises(NotImplementedError, loss.backward, SIMULATED, "sparse")


def quantized_tensors() -> None:
    x = torch.ones(3)
    raises(
        NotImplementedError,
        lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).npu(),
        SIMULATED,
        "quantized",
    )
    raises(
        NotImplementedError,
        lambda: torch.quantize_per_tensor(x.npu(), 0.1, 0, torch.qint8),
        SIMULATED,
        "quantized",
    )


def nested_tensors_of_strided_layout() -> None:
    parts = [torch.ones(2, 3, device="npu"), torch.ones(4, 3, device="npu")]
    for make in (
        lambda: torch.nested.nested_tensor(parts, layout=torch.strided),
        lambda: torch.nested.as_nested_tensor(parts, layout=torch.strided),
        lambda: torch.nested.nested_tensor([[1.0, 2.0], [3.0]], device="npu"),
        lambda: torch.nested.nested_tensor([torch.ones(2)]).npu(),
    ):
        # torch itself wraps a list of numbers; then the first use raises.
        raises(NotImplementedError, lambda m=make: m() * 2, SIMULATED, "jagged")


def operators_without_a_cpu_kernel() -> None:
    x = torch.ones(1, 1, 4, 8, device="npu")
    raises(
        NotImplementedError,
        lambda: torch.ops.aten._scaled_dot_product_flash_attention(x, x, x),
        SIMULATED,
        "_scaled_dot_product_flash_attention",
    )


def inductor() -> None:
    module = nn.Linear(4, 4).npu()
    x = torch.ones(2, 4, device="npu")
    raises(Exception, lambda: torch.compile(module)(x), SIMULATED, "aot_eager")


def data_parallel() -> None:
    module = nn.DataParallel(nn.Linear(4, 4).npu(0), device_ids=[0, 1])
    x = torch.ones(4, 4, device="npu:0")
    raises(NotImplementedError, lambda: module(x), SIMULATED, "DistributedDataParallel")


def sharing_through_torch_multiprocessing() -> None:
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    for value in (torch.ones(3).npu(), nn.Parameter(torch.ones(3).npu())):
        raises(NotImplementedError, lambda v=value: queue.put(v), SIMULATED, ".cpu()")
    queue.put(torch.ones(2))
    assert queue.get().tolist() == [1, 1]


def flex_attention() -> None:
    x = torch.ones(1, 1, 16, 8, device="npu")
    raises(
        NotImplementedError,
        lambda: flex.flex_attention(x, x, x),
        SIMULATED,
        "scaled_dot_product_attention",
    )


def operators_of_torch_npu() -> None:
    import torch_npu

    for name in ("npu_fusion_attention", "npu_rms_norm", "npu_format_cast"):
        raises(AttributeError, lambda n=name: getattr(torch_npu, n), SIMULATED, name)
        assert not hasattr(torch_npu, name)
    raises(AttributeError, lambda: torch_npu.profiler, SIMULATED, "profiler")
    raises(AttributeError, lambda: torch.ops.npu.npu_rms_norm, "npu_rms_norm")


def missing_names_of_torch_npu_npu() -> None:
    for name in ("NPUGraph", "stress_detect", "memory_snapshot", "stop_device"):
        text = raises(
            AttributeError, lambda n=name: getattr(torch.npu, n), SIMULATED, name
        )
        assert text.count(". ") == 1
        assert "--device ascend" in text


def a_refusal_is_a_device_error_and_survives_pickle() -> None:
    with pytest.raises(NotSimulatedError) as caught:
        torch.npu.NPUGraph()
    assert isinstance(caught.value, DeviceError)
    assert isinstance(caught.value, AttributeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def the_stub_of_torch_npu_says_it_is_simulated() -> None:
    import torch_npu

    assert "simulated" in torch_npu.__version__
    assert torch_npu.npu.get_device_name() == "simulated NPU"
    assert importlib.util.find_spec("torch_npu") is torch_npu.__spec__


def all_results_of_attention_are_right() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 5, 8) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
        there = {
            name: value.npu() if isinstance(value, torch.Tensor) else value
            for name, value in options.items()
        }
        expected = functional.scaled_dot_product_attention(q, k, v, **options)
        found = functional.scaled_dot_product_attention(
            q.npu(), k.npu(), v.npu(), **there
        )
        torch.testing.assert_close(expected, found.cpu())
