"""The process group is there, and what training scripts say about it works."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from npu_notebook.messages import FormGroup, GroupFormed
from tests.rank.driving import CellRun, Desk, DrivenRank


class Pair:
    """Two ranks with a store that the test holds."""

    def __init__(self, desk: Desk, provider: str) -> None:
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        self.epoch = 0
        self.ranks = [desk.start(provider, rank, world_size=2) for rank in (0, 1)]

    def form(self, timeout_s: float = 30.0) -> list[GroupFormed]:
        self.epoch += 1
        for rank in self.ranks:
            self.send_form(rank, timeout_s)
        return [rank.receive() for rank in self.ranks]

    def send_form(self, rank: DrivenRank, timeout_s: float) -> None:
        rank.send(
            FormGroup(
                epoch=self.epoch,
                master_address="127.0.0.1",
                master_port=self.store.port,
                world_size=2,
                timeout_s=timeout_s,
            )
        )

    def run(self, code: str) -> list[CellRun]:
        cells = [rank.submit(code) for rank in self.ranks]
        runs = [rank.wait(cell) for rank, cell in zip(self.ranks, cells, strict=True)]
        assert [run.error for run in runs] == [None, None]
        return runs

    def value(self, code: str) -> list[str]:
        return [run.value for run in self.run(code)]


@pytest.fixture(scope="module")
def pair(shared_desk: Desk) -> Iterator[Pair]:
    pair = Pair(shared_desk, "cpu")
    assert [one.error for one in pair.form()] == [None, None]
    pair.run("import torch, torch.distributed as dist")
    yield pair
    del pair.store


def test_a_sum_over_the_ranks_is_right(pair: Pair):
    code = "t = torch.full((2,), rank + 1.0)\ndist.all_reduce(t)\nt.tolist()"
    assert pair.value(code) == ["[3.0, 3.0]"] * 2


@pytest.mark.parametrize(
    "call",
    [
        "dist.init_process_group()",
        "dist.init_process_group('gloo')",
        "dist.init_process_group(backend='GLOO', init_method='env://')",
        "dist.init_process_group('gloo', rank=rank, world_size=2)",
        "from torch.distributed import init_process_group as i; i('gloo')",
    ],
)
def test_an_agreeing_call_of_a_script_is_accepted(pair: Pair, call: str):
    code = f"{call}\n(dist.get_rank() == rank, dist.get_world_size())"
    assert pair.value(code) == ["(True, 2)"] * 2


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ("dist.init_process_group('mpi')", "backend='mpi'"),
        ("dist.init_process_group(world_size=3)", "world_size=3"),
        ("dist.init_process_group(init_method='tcp://h:1')", "init_method='tcp://h:1'"),
        ("dist.init_process_group(store=dist.HashStore())", "a store was given"),
    ],
)
def test_a_call_that_disagrees_says_what_differs(pair: Pair, call: str, word: str):
    error = pair.ranks[0].run(call).error
    assert error.kind == "RuntimeError"
    assert "the cluster has already made the process group of its 2 ranks" in (
        error.message
    )
    assert word in error.message


def test_a_group_that_was_left_is_reported_and_formed_again(pair: Pair):
    runs = pair.run("dist.destroy_process_group()")
    assert [run.done.group_present for run in runs] == [False, False]
    assert [one.error for one in pair.form()] == [None, None]
    runs = pair.run("dist.barrier()")
    assert [run.done.group_present for run in runs] == [True, True]


def test_a_script_may_leave_and_make_the_group_again_and_again(pair: Pair):
    code = (
        "for _ in range(3):\n"
        "    dist.destroy_process_group()\n"
        "    dist.init_process_group('gloo')\n"
        "    t = torch.ones(1); dist.all_reduce(t)\n"
        "t.item()"
    )
    assert pair.value(code) == ["2.0"] * 2
    assert [run.done.group_present for run in pair.run("dist.barrier()")] == [True] * 2


def test_subgroups_and_data_parallel_training_work(pair: Pair):
    code = (
        "sub = dist.new_group([0, 1])\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "torch.manual_seed(0)\n"
        "model = DDP(torch.nn.Linear(3, 1))\n"
        "loss = model(torch.full((4, 3), float(rank))).sum(); loss.backward()\n"
        "grads = [None, None]\n"
        "dist.all_gather_object(grads, model.module.weight.grad.tolist(), group=sub)\n"
        "grads[0] == grads[1]"
    )
    assert pair.value(code) == ["True"] * 2


def test_forming_says_who_did_not_come(desk: Desk):
    pair = Pair(desk, "cpu")
    pair.epoch = 1
    pair.send_form(pair.ranks[0], 1.0)
    formed = pair.ranks[0].receive()
    assert (formed.rank, formed.epoch) == (0, 1)
    assert formed.error is not None
    words = "rank 0 could not form the process group of 2 ranks within 1 s: "
    assert formed.error.message.startswith(words)
    pair.epoch = 2
    assert [one.error for one in pair.form()] == [None, None]
    del pair.store


def test_ranks_without_torch_have_no_group(desk: Desk):
    rank = desk.start()
    answer = rank.ask(
        FormGroup(
            epoch=1,
            master_address="127.0.0.1",
            master_port=1,
            world_size=1,
            timeout_s=1.0,
        )
    )
    assert answer.error.message == "ranks without torch have no process group"
    assert rank.run("1").done.group_present


@pytest.mark.parametrize(
    ("backend", "answer"),
    [("cpu:gloo,npu:hccl", "hccl"), ("gloo", "gloo"), ("npu:hccl,cpu:gloo", "hccl")],
)
def test_a_group_of_several_devices_is_called_as_scripts_expect(
    backend: str, answer: str
):
    from npu_notebook.rank.groups import _named_by_device

    assert _named_by_device(lambda _group: backend)() == answer
