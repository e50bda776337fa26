"""Push and pull with real ranks: equal, writable, all or nothing, named problems."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading

import numpy as np
import pytest
import torch

from npu_notebook import Cluster, DataError, bulk, messages


@pytest.fixture(autouse=True)
def no_region_left(shared_cluster):
    any_region = bulk.region_path(bulk.shared_memory_dir(), shared_cluster.name, "*")
    yield
    assert list(any_region.parent.glob(any_region.name)) == []


@pytest.mark.parametrize("length", [10, 1_000_000])
def test_a_pushed_array_can_be_written_and_pulls_back_by_rank(shared_cluster, length):
    sent = np.zeros(length)
    shared_cluster.push({"a": sent})
    shared_cluster.run("a += rank\na.sort()\na[0] = 7")
    pulled = shared_cluster.pull("a")
    assert [array[1] for array in pulled] == [0, 1, 2, 3]
    assert [array[0] for array in pulled] == [7] * 4
    assert sent.sum() == 0
    pulled[0][0] = 1  # ours to write


def test_tensors_of_every_kind_arrive_or_are_named(shared_cluster):
    code = """
import torch
half = torch.full((3,), float(rank), dtype=torch.bfloat16)
grad = torch.ones(2, requires_grad=True) * 2
meta = torch.empty(2, device="meta")
state = torch.nn.Linear(2, 2).state_dict()
"""
    shared_cluster.run(code)
    assert [t.tolist() for t in shared_cluster["half"]] == [
        [rank] * 3 for rank in range(4)
    ]
    assert shared_cluster["half"][0].dtype == torch.bfloat16
    assert shared_cluster["grad"][0].requires_grad
    assert set(shared_cluster["state"][0]) == {"weight", "bias"}
    with pytest.raises(DataError, match="meta"):
        shared_cluster.pull("meta")


def test_a_name_that_some_ranks_lack_is_reported_with_those_ranks(shared_cluster):
    shared_cluster.run("only_here = 1", ranks=0)
    with pytest.raises(DataError) as caught:
        shared_cluster.pull("only_here")
    assert "'only_here': is not defined on rank(s) 1-3" in str(caught.value)
    assert shared_cluster.pull("only_here", ranks=0) == [1]


@pytest.mark.parametrize("name", ["class", "None", "a b", "", 5])
def test_a_name_no_variable_can_have_is_refused(shared_cluster, name):
    with pytest.raises(DataError, match="is not a name a variable can have"):
        shared_cluster.push({"fine": 1, name: 1})


def test_what_cannot_be_pickled_is_named_and_nothing_is_half_pushed(shared_cluster):
    shared_cluster.run("fine = 'before'")
    with pytest.raises(DataError, match="'lock': cannot be sent"):
        shared_cluster.push({"fine": "after", "lock": threading.Lock()})
    assert shared_cluster["fine"] == ["before"] * 4


def test_what_one_rank_cannot_unpack_is_assigned_nowhere(shared_cluster):
    shared_cluster.run("fine = 'before'")
    with pytest.raises(DataError, match="only on rank 3"):
        shared_cluster.push({"fine": "after", "bad": RefusesOnRank3()})
    assert shared_cluster["fine"] == ["before"] * 4


class RefusesOnRank3:
    def __reduce__(self):
        check = "import os\nassert os.environ['RANK'] != '3', 'only on rank 3'"
        return exec, (check,)


def test_functions_and_classes_travel_by_value(shared_cluster):
    factor = 3

    def triple(x):
        return factor * x

    shared_cluster["triple"] = triple
    assert shared_cluster.run("triple(rank)", want_value=True).values == [0, 3, 6, 9]


def test_a_lock_on_a_rank_cannot_be_pulled_and_hurts_nothing(shared_cluster):
    shared_cluster.run("import threading\nlock = threading.Lock()")
    with pytest.raises(DataError, match="lock"):
        shared_cluster.pull("lock")
    assert shared_cluster.run("lock.locked()", want_value=True).values == [False] * 4


def test_ranks_share_one_copy_of_what_was_pushed(shared_cluster):
    nbytes = 64 << 20
    shared_cluster.push({"big": np.ones(nbytes // 8)})
    code = """
total = float(big.sum())
import re
maps = re.split(r'(?m)^(?=[0-9a-f]+-[0-9a-f]+ )', open('/proc/self/smaps').read())
entry = next(one for one in maps if '/npu-notebook-' in one)
# Pages of its own; "private" would count those that no other rank has read yet.
own_kb = int(re.search(r'Anonymous: +(\\d+)', entry)[1])
"""
    shared_cluster.run(code)
    assert shared_cluster["total"] == [nbytes / 8] * 4
    assert max(shared_cluster["own_kb"]) < 1024
    shared_cluster.run("del big")


def test_an_answer_that_nobody_waits_for_leaves_no_region(shared_cluster):
    shared_cluster.run("import numpy; big = numpy.zeros(1_000_000)")
    request = messages.PullValues(
        request_id="pull-given-up", names=("big",), ranks=(0, 1, 2, 3)
    )
    shared_cluster.session.send(request)
    # Answers come in order, so those given up are there when these are.
    assert len(shared_cluster.pull("big")) == 4


def test_a_pull_from_a_lost_rank_says_which_and_what_to_do(cluster):
    cluster.run("x = rank")
    os.kill(cluster.fact.ranks[2].pid, signal.SIGKILL)
    with pytest.raises(DataError) as caught:
        all(cluster.pull("x") for _ in iter(int, 1))  # until its end is known
    sentence = str(caught.value)
    assert sentence.startswith("'x': cannot be pulled: rank 2 (")
    assert "ended by signal 9" in sentence
    assert "Pull it from --ranks 0-1,3" in sentence
    assert "`%npu_cluster restart --ranks 2`" in sentence
    assert cluster.pull("x", ranks="0-1,3") == [0, 1, 3]


def test_a_full_shared_memory_names_the_variable_and_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NPU_NOTEBOOK_SHARED_MEMORY_DIR", str(tmp_path))
    with Cluster.start(1, device="none", name="full") as cluster:
        cluster.run("big = b'x' * 1_000_000")
        with limited_files(300_000), pytest.raises(DataError) as pushed:
            cluster.push({"big": b"x" * 1_000_000})
        limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (300_000, -1))"
        cluster.run(limit)
        with pytest.raises(DataError) as pulled:
            cluster.pull("big")
    assert str(pushed.value).startswith("'big': ")
    assert str(pulled.value).startswith("'big': on rank 0: ")
    for caught in (pushed, pulled):
        assert f"do not fit into {tmp_path}" in str(caught.value)
    assert "Make room there" in str(pulled.value)
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def limited_files(nbytes: int):
    """Let no file of this process grow beyond ``nbytes``, as a full folder would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
