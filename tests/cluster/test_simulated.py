"""Simulated NPUs in a cluster: pasted training code runs and warns of nothing."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from npu_notebook import CellError, Cluster

pytestmark = pytest.mark.timeout(600)  # the first start of a machine compiles


@pytest.fixture(scope="module")
def npus():
    with Cluster.start(num_ranks=2, device="simulated") as cluster:
        yield cluster


def test_every_view_says_that_the_devices_are_simulated(npus):
    assert npus.fact.label == "simulated NPU"
    code = "import torch\n(str(device), torch.npu.get_device_name())"
    assert npus.run(code, want_value=True).values == [
        ("npu:0", "simulated NPU"),
        ("npu:1", "simulated NPU"),
    ]


def test_a_pasted_training_script_runs_and_warns_of_nothing(npus):
    script = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("hccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.npu.set_device(local_rank)
model = torch.nn.Linear(4, 2).npu()
ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    ddp(torch.full((3, 4), float(local_rank)).npu()).sum().backward()
    optimizer.step()
print(dist.get_backend(), dist.get_world_size())
"""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        npus.run(script)
    assert out.getvalue() == "[0-1] hccl 2\n"
    assert err.getvalue() == ""
    weights = npus.run("model.weight.detach().cpu()", want_value=True).values
    assert weights[0].equal(weights[1])


def test_after_an_out_of_memory_error_the_memory_of_the_cell_is_free(npus):
    used = "torch.npu.memory_allocated()"
    before = npus.run(f"import torch\n{used}", want_value=True).values
    greedy = """
def fill():
    mine = [torch.empty(64 << 20, dtype=torch.uint8, device=device)]
    while True:
        mine.append(torch.empty(256 << 20, dtype=torch.uint8, device=device))
fill()
"""
    with pytest.raises(CellError, match="OutOfMemoryError"):
        npus.run(greedy)
    assert npus.run(used, want_value=True).values == before
