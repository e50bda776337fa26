"""Ranks, helpers and kernels that die or are ended leave nothing (H04 to H07)."""

import getpass
import re
import socket
import time
from collections.abc import Callable

import psutil
import pytest

from npu_notebook import CellError, Cluster, runtime
from npu_notebook.messages import RankState
from tests.cases.conftest import START
from tests.cases.notebook import Notebook, each
from tests.cases.processes import alive, cluster_processes

LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4))
loader = DataLoader(data, batch_size=8, num_workers=2, persistent_workers=True)
batches = iter(loader)
len(next(batches)[0])
"""


def test_h04_data_loader_workers_end_with_the_cluster_and_a_new_start_works():
    with Cluster.start(num_ranks=2, device="cpu", name="loading") as cluster:
        result = cluster.run(LOADER, want_value=True)
        assert result.values == [8, 8]
        ranks = [one.pid for one in cluster.fact.ranks]
        workers = [
            child.pid for pid in ranks for child in psutil.Process(pid).children()
        ]
        assert len(workers) == 4
        everything = cluster_processes(cluster)
        assert set(ranks) | set(workers) <= set(everything)
        cluster.stop()
        assert alive(everything, within_s=5) == []
    assert "loading" not in {one.connection.name for one in runtime.list_clusters()}
    with Cluster.start(num_ranks=2, device="cpu", name="loading") as again:
        assert again.run(LOADER, want_value=True).values == [8, 8]


def sleeping(notebook: Notebook) -> list[int]:
    """Begin a long cell on a notebook's ranks and return the cluster's processes."""
    cell = notebook.begin("%%spmd\nimport time\nprint('asleep')\ntime.sleep(600)")
    notebook.until(lambda: cell.all_said("asleep"))
    (connection,) = clusters_of(notebook)
    controller = psutil.Process(connection.controller_pid)
    return [controller.pid, *(one.pid for one in controller.children(recursive=True))]


def clusters_of(notebook: Notebook) -> list[runtime.Connection]:
    """Return what a kernel has started and has not ended."""
    found = [one.connection for one in runtime.list_clusters()]
    return [one for one in found if one.owner_pid == notebook.pid]


def test_h05_without_linger_a_killed_kernel_takes_all_along(
    open_notebook: Callable[..., Notebook],
):
    notebook = open_notebook()
    notebook.must(f"{START} --linger 0")
    processes = sleeping(notebook)
    assert len(processes) >= 6  # controller, agent, four ranks
    notebook.kill()
    assert alive(processes, within_s=30) == []
    assert clusters_of(notebook) == []


def test_h05_a_killed_kernel_leaves_ranks_that_a_fresh_one_finds_and_rescues(
    open_notebook: Callable[..., Notebook],
):
    first = open_notebook("first")
    first.must(START)
    first.must("%%spmd\nprecious = rank * 11")
    processes = sleeping(first)
    first.kill()

    fresh = open_notebook("fresh")
    fresh.must(f"{START} --name mine")  # at once, beside the leftover
    assert fresh.must("%spmd print('mine')").by_rank == each("mine")
    (left,) = clusters_of(first)
    (row,) = [
        line
        for line in fresh.must("%npu_cluster list").lines
        if str(left.controller_pid) in line
    ]
    for word in (left.name, getpass.getuser(), socket.gethostname(), "running"):
        assert word in row
    assert re.search(r"\d+ (s|min)\b", row)
    assert f"%npu_cluster attach {left.name}" in row
    assert f"%npu_cluster stop {left.name}" in row

    fresh.must("%npu_cluster stop")
    assert alive(processes, within_s=0) == processes  # it touches only its own
    fresh.must(f"%npu_cluster attach {left.name}")
    fresh.must("%npu_cluster interrupt")
    assert sorted(fresh.must("%spmd print(precious)").lines) == [
        "[0] 0",
        "[1] 11",
        "[2] 22",
        "[3] 33",
    ]
    fresh.must(f"%npu_cluster stop {left.name}")
    assert alive(processes, within_s=5) == []


DEATHS = [
    ("SIGKILL", r"ended by signal 9; often the out-of-memory killer"),
    ("SIGSEGV", r"ended by signal 11 \(SIGSEGV\); .*segmentation fault"),
]


@pytest.mark.parametrize(("signal_name", "words"), DEATHS)
def test_h06_a_rank_that_the_system_kills_is_named_and_can_be_replaced(
    open_notebook: Callable[..., Notebook], signal_name: str, words: str
):
    notebook = open_notebook()
    notebook.must("%npu_cluster start -n 4 --device cpu")
    notebook.must("%%spmd --out pids\nimport os\nx = rank\nos.getpid()")
    pids = notebook.value("pids")
    began_s = time.monotonic()
    cell = notebook.run(
        "%%spmd\nimport os, signal\n"
        f"if rank == 2:\n    os.kill(os.getpid(), signal.{signal_name})\n"
        "print('others go on')"
    )
    assert cell.ended_s - began_s < 5
    host = re.escape(socket.gethostname())
    assert re.search(rf"rank 2 \({host}, pid {pids[2]}\) {words}", cell.error)
    went_on = [rank for rank, said in cell.by_rank.items() if "others go on" in said]
    assert sorted(went_on) == [0, 1, 3]
    assert "%npu_cluster restart --ranks 2" in cell.error
    status = notebook.must("%npu_cluster status").text
    assert status.count("idle") == 3
    assert status.count("lost") >= 1
    restarted = notebook.must("%npu_cluster restart --ranks 2").text
    assert "rank 2 was replaced: its variables are gone" in restarted
    assert "the other ranks kept theirs" in restarted
    cell = notebook.must("%spmd print(globals().get('x'))")
    assert sorted(cell.lines) == ["[0] 0", "[1] 1", "[2] None", "[3] 3"]
    cell = notebook.must(
        "%%spmd\nimport torch, torch.distributed as dist\n"
        "t = torch.ones(1)\ndist.all_reduce(t)\nt.item()"
    )
    assert cell.by_rank == each("4.0")


def test_h06_from_a_program_too_the_others_keep_their_variables():
    with Cluster.start(num_ranks=3, device="none") as cluster:
        cluster.run("x = rank")
        with pytest.raises(CellError, match=r"rank 1 .*ended by signal 9"):
            cluster.run("import os\nif rank == 1: os.kill(os.getpid(), 9)")
        states = [one.state for one in cluster.status().ranks]
        assert states == [RankState.IDLE, RankState.LOST, RankState.IDLE]
        assert cluster.run("x", ranks="0,2", want_value=True).values == [0, 2]


CHILDREN = """%%spmd
import multiprocessing as mp
def say():
    print("child of", rank)
for how in ("fork", "spawn"):
    p = mp.get_context(how).Process(target=say)
    p.start(); p.join(20)
    print(how, p.exitcode)"""


@pytest.mark.timeout(120)
def test_h07_a_child_process_that_prints_hurts_no_rank(notebook: Notebook):
    notebook.must("%%spmd --out pids\nimport os\nos.getpid()")
    cell = notebook.must(CHILDREN)
    assert cell.all_said("fork 0")
    assert "pickle" not in cell.text.lower()
    spoken = [line for line in cell.lines if "child of" in line]
    of_fork = [f"[{rank}] child of {rank}" for rank in range(4)]
    if cell.all_said("spawn 0"):
        assert sorted(spoken) == sorted(of_fork * 2)
    else:
        assert sorted(spoken) == of_fork
        assert "cannot be spawned" in cell.text
        assert "file" in cell.text
    again = notebook.must("%spmd print(os.getpid())")
    assert sorted(again.lines) == [
        f"[{rank}] {pid}" for rank, pid in enumerate(notebook.value("pids"))
    ]
