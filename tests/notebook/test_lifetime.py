"""The cluster when its notebook starts again, is closed, or restarts its kernel."""

import threading
import time
from collections.abc import Callable

from npu_notebook import runtime
from tests.cases.notebook import PATIENCE_S, Notebook
from tests.notebook.conftest import START


def running() -> set[str]:
    return {one.connection.name for one in runtime.list_clusters() if one.alive}


def becomes(names: set[str], timeout_s: float) -> bool:
    pause = threading.Event()
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if running() & names == set():
            return True
        pause.wait(0.1)
    return False


def restart(notebook: Notebook) -> None:
    """Restart the kernel as a front end's button does."""
    notebook._manager.restart_kernel()
    notebook._client.wait_for_ready(timeout=PATIENCE_S)


def test_starting_again_replaces_the_notebooks_own_cluster_and_says_so(
    notebook: Notebook,
):
    name = notebook.value("cluster.name")
    again = notebook.must(f"{START}")
    assert f"Replacing this notebook's earlier cluster '{name}'" in again.text
    assert notebook.value("cluster.name") == name
    assert notebook.must("%spmd --ranks 3 rank").lines == ["[3] 3"]


def who(notebook: Notebook) -> dict[int | str, list[str]]:
    return notebook.must("%spmd who").by_rank


def test_two_clusters_of_one_notebook_and_the_way_between_them(notebook: Notebook):
    first = notebook.value("cluster.name")
    notebook.must("%spmd --quiet who = 'first'")
    notebook.must("%npu_cluster start -n 2 --device none --name second")
    notebook.must("%spmd --quiet who = 'second'")
    assert who(notebook) == {0: ["'second'"], 1: ["'second'"]}
    notebook.must(f"%npu_cluster attach {first}")
    assert who(notebook) == {rank: ["'first'"] for rank in range(4)}
    notebook.must("%npu_cluster stop second")
    assert who(notebook) == {rank: ["'first'"] for rank in range(4)}
    assert "second" not in running()


def test_closing_the_notebook_ends_its_cluster(open_notebook: Callable[..., Notebook]):
    notebook = open_notebook("closed")
    notebook.must(f"{START} --name closed")
    assert "closed" in running()
    notebook.close()
    assert becomes({"closed"}, 10)


def test_keep_lets_it_linger_for_its_time(open_notebook: Callable[..., Notebook]):
    notebook = open_notebook("keeper")
    notebook.must(f"{START} --name kept --keep --linger 4")
    notebook.close()
    assert "kept" in running()
    assert becomes({"kept"}, 30)


def test_a_restart_of_the_kernel_loses_nothing(open_notebook: Callable[..., Notebook]):
    notebook = open_notebook("restarted")
    notebook.must(f"{START} --name survivor")
    notebook.must("%spmd x = rank * 7")
    restart(notebook)
    assert "survivor" in running()
    notebook.must("%npu_cluster attach survivor")
    notebook.must("%pull x")
    assert notebook.value("x") == [0, 7, 14, 21]
    restart(notebook)
    again = notebook.must(START)
    assert "Replacing this notebook's earlier cluster 'survivor'" in again.text
    assert "NameError" in notebook.run("%spmd x").error


def test_a_killed_kernel_leaves_a_cluster_that_the_next_notebook_is_told_of(
    open_notebook: Callable[..., Notebook],
):
    killed = open_notebook("killed")
    killed.must(f"{START} --name orphan")
    killed.must("%spmd x = rank + 40")
    killed.kill()
    fresh = open_notebook("fresh")
    started = fresh.must("%npu_cluster start -n 1 --device none")
    assert "Cluster 'orphan' (controller pid " in started.text
    assert "`%npu_cluster stop orphan` ends it" in started.text
    fresh.must("%npu_cluster attach orphan")
    fresh.must("%pull x")
    assert fresh.value("x") == [40, 41, 42, 43]
    fresh.must("%npu_cluster stop orphan")
    assert "orphan" not in running()


def test_the_cluster_is_called_like_the_notebook(open_notebook):
    notebook = open_notebook("named", JPY_SESSION_NAME="/home/me/My work (2).ipynb")
    notebook.must(START)
    assert notebook.value("cluster.name") == "My-work-2"


def test_closing_a_second_notebook_leaves_the_cluster_of_the_first(
    notebook: Notebook, open_notebook: Callable[..., Notebook]
):
    name = notebook.value("cluster.name")
    guest = open_notebook("guest")
    guest.must("%load_ext npu_notebook")
    guest.must(f"%npu_cluster attach {name}")
    guest.must("%spmd --quiet seen_by = 'guest'")
    guest.close()
    assert notebook.must("%spmd seen_by").by_rank == {
        rank: ["'guest'"] for rank in range(4)
    }
    assert name in running()
