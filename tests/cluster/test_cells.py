"""Cells on real ranks: state, selection, values, errors, timeouts, handles."""

from __future__ import annotations

import io
import os
import time
from contextlib import redirect_stdout

import pytest

from npu_notebook import CellError, ConfigError, RankLostError
from npu_notebook.messages import ClusterState, StreamText

SUM_OF_ONES = """
import torch, torch.distributed as dist
ones = torch.ones(1)
dist.all_reduce(ones)
ones.item()
"""


def said(cluster, code, **words) -> list[str]:
    """Return the lines that a plain program would print for a cell."""
    with redirect_stdout(io.StringIO()) as shown:
        cluster.run(code, **words)
    return shown.getvalue().splitlines()


def test_ranks_run_one_cell_together_and_keep_their_variables(shared_cluster):
    shared_cluster.run("x = rank * 10")
    assert said(shared_cluster, "print(x)") == ["[0] 0", "[1] 10", "[2] 20", "[3] 30"]


def test_equal_lines_are_printed_once(shared_cluster):
    assert said(shared_cluster, "print('all', world_size)") == ["[0-3] all 4"]


def test_a_collective_sums_over_all_ranks(shared_cluster):
    code = """
        import torch, torch.distributed as dist
        t = torch.ones(3) * (rank + 1)
        dist.all_reduce(t)
        t.tolist()
    """
    result = shared_cluster.run(code.replace("\n        ", "\n"), want_value=True)
    assert result.values == [[10.0] * 3] * 4


@pytest.mark.parametrize(("ranks", "asked"), [("0,2-3", (0, 2, 3)), (1, (1,))])
def test_a_cell_runs_on_the_chosen_ranks_only(shared_cluster, ranks, asked):
    result = shared_cluster.run("rank", ranks=ranks, want_value=True)
    assert result.values == list(asked)
    assert [one.rank for one in result.outcomes] == list(asked)


def test_a_rank_that_does_not_exist_is_refused_before_anything_runs(shared_cluster):
    with pytest.raises(ConfigError, match="rank 9 in '9' does not exist"):
        shared_cluster.run("never = 1", ranks="9")
    assert said(shared_cluster, "print('never' in globals())") == ["[0-3] False"]


def test_a_failing_rank_raises_one_error_and_leaves_the_others_alone(shared_cluster):
    shared_cluster.run("kept = rank")
    with pytest.raises(CellError) as caught:
        shared_cluster.run("if rank == 1:\n    raise ValueError('boom on 1')")
    error = caught.value
    assert "rank 1: ValueError: boom on 1" in str(error)
    assert "line 2" in error.traceback_text
    assert [one.rank for one in error.outcomes if one.error] == [1]
    assert shared_cluster.run("kept", want_value=True).values == [0, 1, 2, 3]


def test_a_cell_that_exceeds_its_time_is_interrupted(shared_cluster):
    began_s = time.monotonic()
    with pytest.raises(CellError, match="1 s"):
        shared_cluster.run("import time\nwhile True: time.sleep(0.1)", timeout_s=1)
    assert time.monotonic() - began_s < 10
    assert said(shared_cluster, "print('again')") == ["[0-3] again"]


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_time_that_is_none_is_refused(shared_cluster, timeout_s):
    with pytest.raises(ConfigError, match="Give seconds above 0"):
        shared_cluster.run("1", timeout_s=timeout_s)


def test_a_submitted_cell_streams_and_gives_its_values_later(shared_cluster):
    handle = shared_cluster.submit("print('hi', rank)\nrank ** 2", want_value=True)
    texts = [u.text for u in handle.updates() if isinstance(u, StreamText)]
    assert sorted(texts) == [f"hi {rank}\n" for rank in range(4)]
    assert handle.done
    assert handle.result() == [0, 1, 4, 9]


def test_waiting_too_long_for_a_handle_leaves_the_cell_running(shared_cluster):
    handle = shared_cluster.submit("import time\ntime.sleep(600)")
    with pytest.raises(TimeoutError):
        handle.wait(0.3)
    handle.cancel()
    with pytest.raises(CellError):
        handle.wait()


def test_cells_queue_in_the_order_they_were_submitted(shared_cluster):
    shared_cluster.run("order = []")
    handles = [shared_cluster.submit(f"order.append({n})") for n in range(20)]
    for handle in handles:
        handle.wait()
    assert shared_cluster.run("order", want_value=True).values == [list(range(20))] * 4


def test_two_clusters_do_not_disturb_each_other(shared_cluster):
    from npu_notebook import Cluster

    with Cluster.start(num_ranks=2, device="cpu") as other:
        assert other.name != shared_cluster.name
        other.run("mine = 'other'")
        shared_cluster.run("mine = 'first'")
        assert other.run("mine", want_value=True).values == ["other"] * 2
        other.run("import torch.distributed as d, torch\nd.all_reduce(torch.ones(1))")
    assert shared_cluster.run("mine", want_value=True).values == ["first"] * 4


def test_a_start_runs_in_fresh_processes_not_in_forks_of_the_caller(shared_cluster):
    os.environ["FLAG_OF_CALLER"] = "1"
    code = "import os\n('FLAG' in globals(), os.getppid())"
    for flag, parent in shared_cluster.run(code, want_value=True).values:
        assert flag is False
        assert parent != os.getpid()


def test_status_names_every_rank_with_host_pid_and_device(shared_cluster):
    fact = shared_cluster.status()
    assert fact.state is ClusterState.READY
    pids = shared_cluster.run("import os\nos.getpid()", want_value=True).values
    assert [one.pid for one in fact.ranks] == pids
    assert {one.device for one in fact.ranks} == {"cpu"}
    assert len({one.host for one in fact.ranks}) == 1


def test_restarting_all_ranks_gives_new_processes_that_reduce_again(cluster):
    before = cluster.run("import os\nos.getpid()", want_value=True).values
    cluster.run("x = 1")
    cluster.restart()
    after = cluster.run("import os\nos.getpid()", want_value=True).values
    assert not set(before) & set(after)
    assert cluster.run(SUM_OF_ONES, want_value=True).values == [4.0] * 4
    assert cluster.run("'x' in globals()", want_value=True).values == [False] * 4


def test_one_rank_can_be_replaced_while_the_others_keep_their_variables(cluster):
    cluster.run("x = rank")
    cluster.restart(2)
    kept = cluster.run("globals().get('x')", want_value=True).values
    assert kept == [0, 1, None, 3]
    assert cluster.run(SUM_OF_ONES, want_value=True).values == [4.0] * 4


def test_a_rank_that_dies_ends_the_cell_and_is_named(cluster):
    cluster.run("x = rank")
    with pytest.raises(RankLostError) as caught:
        cluster.run("import os, signal\nif rank == 2: os.kill(os.getpid(), 9)")
    assert "rank 2" in str(caught.value)
    assert "signal 9" in str(caught.value)
    assert cluster.status().state is ClusterState.DEGRADED
    assert cluster.run("x", ranks="0-1,3", want_value=True).values == [0, 1, 3]
    cluster.restart(2)
    assert cluster.status().state is ClusterState.READY


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"devise": "cpu"}, "start() has no argument 'devise'. Did you mean device?"),
        ({"num_ranks": "4"}, "'4' is no number of ranks"),
        ({"num_ranks": 0}, "0 ranks were asked for"),
        ({"num_ranks": True}, "True is no number of ranks"),
        ({"env": {"A=B": "1"}}, "'A=B' cannot be the name of an environment variable"),
        ({"env": {"": "1"}}, "'' cannot be the name of an environment variable"),
        ({"env": {"A": "1\0"}}, "the environment variable 'A' holds what none can"),
        ({"env": {"A": "\udcff"}}, "the environment variable 'A' holds what none can"),
        ({"device": "tpu"}, "no devices named 'tpu'"),
        ({"launcher": "rocket"}, "no launcher named 'rocket'"),
        ({"cwd": "/does/not/exist"}, "the folder /does/not/exist does not exist"),
        ({"name": "a/b"}, "'a/b' cannot be the name of a cluster"),
        ({"linger": "soon"}, "'soon' is not a time to linger"),
        ({"port": 70_000}, "70000 is not a TCP port"),
        ({"hosts": "a:0"}, "'a:0' in the host list 'a:0' is not HOST or HOST:N"),
    ],
)
def test_a_wrong_word_of_a_start_is_one_sentence_and_starts_nothing(words, sentence):
    from npu_notebook import Cluster
    from npu_notebook.runtime import list_clusters

    before = [entry.connection.name for entry in list_clusters()]
    with pytest.raises(ConfigError) as caught:
        Cluster.start(**{"device": "cpu", **words})
    assert sentence in str(caught.value)
    assert [entry.connection.name for entry in list_clusters()] == before


def test_stop_reaches_a_push_that_hangs_while_it_is_unpacked(shared_cluster):
    import threading

    from npu_notebook import DataError

    class Hangs:
        def __reduce__(self):
            return exec, ("import time\nwhile True: time.sleep(0.05)",)

    problems = []

    def push():
        try:
            shared_cluster.push({"x": Hangs()})
        except DataError as error:
            problems.append(str(error))

    pushing = threading.Thread(target=push)
    pushing.start()
    deadline_s = time.monotonic() + 30
    while pushing.is_alive() and time.monotonic() < deadline_s:
        shared_cluster.interrupt()  # the first may come before the push does
        pushing.join(0.5)
    assert not pushing.is_alive()
    assert "KeyboardInterrupt" in problems[0]
    assert said(shared_cluster, "print('again')") == ["[0-3] again"]


def test_a_rank_that_fails_while_others_wait_is_told_before_the_cell_ends(
    shared_cluster,
):
    from npu_notebook.messages import Notice

    code = "import time\nif rank == 1: 1 / 0\nwhile True: time.sleep(0.05)"
    handle = shared_cluster.submit(code)
    told = next(
        update
        for update in handle.updates()
        if isinstance(update, Notice) and "failed" in update.text
    )
    assert "rank 1 failed (ZeroDivisionError: division by zero)" in told.text
    assert "ranks 0,2-3 still run the cell" in told.text
    assert not handle.done
    handle.cancel()
    with pytest.raises(CellError, match="rank 1: ZeroDivisionError"):
        handle.wait()


def test_a_list_shows_the_ranks_and_devices_that_were_decided():
    from npu_notebook import Cluster
    from npu_notebook.runtime import read_connection

    with Cluster.start(device="cpu") as cluster:
        connection = read_connection(cluster.name)
        assert (connection.num_ranks, connection.device) == (4, "cpu")
