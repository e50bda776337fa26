"""Arrays and tensors travel both ways and stay whole (H18, H51)."""

import numpy as np
import pytest
import torch

from npu_notebook import Cluster, DataError
from tests.cases.notebook import Notebook, each


@pytest.mark.parametrize("length", [10, 1_000_000])
def test_h18_a_pushed_array_can_be_written_to_on_every_rank(
    shared_notebook: Notebook, length: int
):
    notebook = shared_notebook
    notebook.must(f"import numpy as np\na = sent = np.zeros({length})\n%push a")
    notebook.must("%%spmd\na += rank\na.sort()\na[0] = 7")
    assert notebook.value("[float(sent.sum()), float(sent[0])]") == [0.0, 0.0]
    notebook.must("%pull a")
    assert notebook.value("[[float(one[0]), float(one[-1])] for one in a]") == [
        [7.0, 0.0],
        [7.0, 1.0],
        [7.0, 2.0],
        [7.0, 3.0],
    ]
    notebook.must("a[0][:] = 9")  # what was pulled is ours to write
    assert notebook.must("%spmd print(a[0])").by_rank == each("7.0")
    assert notebook.value("len(a[0])") == length


def test_h18_an_array_pushed_from_a_program_stays_as_it_was(shared_cluster: Cluster):
    sent = np.arange(300_000.0)
    shared_cluster["a"] = sent
    shared_cluster.run("a += rank\na[::-1].sort()\na[0] = 7")
    assert np.array_equal(sent, np.arange(300_000.0))
    for rank, pulled in enumerate(shared_cluster["a"]):
        assert pulled[0] == 7
        assert pulled[1] == 299_998 + rank
        pulled[0] = 1


def test_h51_tensors_arrive_by_rank_or_are_refused_by_name(shared_cluster: Cluster):
    cluster = shared_cluster
    cluster.run(
        "import threading, torch\n"
        "half = torch.full((3,), rank + 0.5, dtype=torch.bfloat16)\n"
        "grad = torch.full((2,), float(rank), requires_grad=True)\n"
        "meta = torch.empty(4, device='meta')\n"
        "state = torch.nn.Linear(2, 1).state_dict()\n"
        "lock = threading.Lock()\n"
        "if rank == 0:\n    alone = 'here'\n"
    )
    for rank, half in enumerate(cluster.pull("half")):
        assert half.dtype == torch.bfloat16
        assert half.tolist() == [rank + 0.5] * 3
        assert half.device == torch.device("cpu")
    for rank, grad in enumerate(cluster.pull("grad")):
        assert grad.requires_grad
        assert grad.tolist() == [float(rank)] * 2
    for state in cluster.pull("state"):
        assert {name: tuple(part.shape) for name, part in state.items()} == {
            "weight": (1, 2),
            "bias": (1,),
        }
    with pytest.raises(DataError, match=r"'meta'.*meta"):
        cluster.pull("meta")
    with pytest.raises(DataError, match=r"'alone'.*rank\(s\) 1-3"):
        cluster.pull("alone")
    assert cluster.pull("alone", ranks=0) == ["here"]
    with pytest.raises(DataError, match=r"'lock'.*cannot be sent.*lock"):
        cluster.pull("lock")
    free = cluster.run("lock.acquire(blocking=False)", want_value=True)
    assert free.values == [True] * 4
