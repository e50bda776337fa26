"""A start that odd surroundings do not disturb (H23, H25, H26)."""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from npu_notebook import Cluster, ConfigError, runtime
from tests.cases.notebook import Notebook, each

START_CPU = "%npu_cluster start -n 2 --device cpu"
SUM = (
    "%%spmd\nimport torch, torch.distributed as dist\n"
    "t = torch.ones(1) * (rank + 1)\ndist.all_reduce(t)\nt.item()"
)


def test_h23_half_a_set_of_slurm_variables_is_ignored_in_one_line(
    open_notebook: Callable[..., Notebook],
):
    notebook = open_notebook(SLURM_JOB_ID="1", SLURM_NTASKS="8")
    began_s = time.monotonic()
    start = notebook.must("%npu_cluster start -n 4 --device cpu")
    assert time.monotonic() - began_s < 40
    assert len([line for line in start.lines if "Slurm" in line]) == 1
    assert "Ignored the Slurm variables of job 1" in start.text
    cell = notebook.must(
        "%%spmd\nimport os\nprint(world_size, os.environ['WORLD_SIZE'])"
    )
    assert cell.by_rank == each("4 4")


def test_h23_variables_left_over_from_another_job_do_no_harm(
    open_notebook: Callable[..., Notebook],
):
    left_over = {
        "RANK": "5",
        "LOCAL_RANK": "5",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "host.invalid",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "old",
    }
    notebook = open_notebook(**left_over)
    notebook.must(START_CPU)
    cell = notebook.must(
        "%%spmd\nimport os\n"
        "[os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')]"
    )
    assert sorted(cell.lines) == ["[0] ['0', '0', '2']", "[1] ['1', '1', '2']"]
    assert notebook.must(SUM).by_rank == each("3.0", num_ranks=2)


def test_h25_ranks_are_fresh_processes_and_the_notebook_opens_no_device(
    open_notebook: Callable[..., Notebook],
):
    notebook = open_notebook()
    notebook.must(
        "import threading\nFLAG = 1\nstay = threading.Event()\n"
        "threading.Thread(target=stay.wait, daemon=True).start()"
    )
    notebook.must(START_CPU)
    cell = notebook.must("%%spmd\nimport os\n('FLAG' in globals(), os.getppid())")
    flags = re.findall(r"\((True|False), (\d+)\)", cell.text)
    assert {flag for flag, _ in flags} == {"False"}
    assert str(notebook.pid) not in {parent for _, parent in flags}
    loaded = notebook.value(
        "[m for m in ('torch', 'torch_npu') if m in __import__('sys').modules]"
    )
    assert loaded == []


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Listen on 29500, or on another port when that one is taken already."""
    with socket.socket() as listener:
        try:
            listener.bind(("", 29500))
        except OSError:
            listener.bind(("", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.usefixtures("taken_port")
def test_h26_two_notebooks_start_beside_a_listener_on_the_usual_port(
    open_notebook: Callable[..., Notebook],
):
    first, second = open_notebook("first"), open_notebook("second")
    first.must(START_CPU)
    second.must(START_CPU)
    ports = []
    for number, notebook in enumerate((first, second)):
        notebook.must(f"%spmd mine = {number}")
        assert notebook.must(SUM).by_rank == each("3.0", num_ranks=2)
        cell = notebook.must(
            "%%spmd\nimport os\nprint(mine, os.environ['MASTER_PORT'])"
        )
        line = cell.by_rank[0][0]
        assert cell.by_rank == each(line, num_ranks=2)
        assert line.startswith(f"{number} ")
        ports.append(line.split()[-1])
    assert len({*ports, "29500"}) == 3


def test_h26_a_forced_port_that_is_taken_is_named_with_its_holder(taken_port: int):
    began_s = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        Cluster.start(num_ranks=2, device="cpu", name="beside", port=taken_port)
    assert time.monotonic() - began_s < 5
    assert str(taken_port) in str(caught.value)
    assert f"pid {os.getpid()} " in str(caught.value)
    assert "beside" not in {one.connection.name for one in runtime.list_clusters()}


def test_h26_a_forced_port_that_is_free_is_used():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Cluster.start(num_ranks=2, device="cpu", port=port) as cluster:
        found = cluster.run("import os\nos.environ['MASTER_PORT']", want_value=True)
        assert found.values == [str(port)] * 2
