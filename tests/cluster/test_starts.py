"""Starts that meet each other, are given up, or are ended from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from npu_notebook import Cluster, runtime, starting
from npu_notebook.errors import ConfigError
from npu_notebook.messages import ClusterState

if TYPE_CHECKING:
    from types import FrameType

START = """
from npu_notebook import Cluster
with Cluster.start(1, device="none") as cluster:
    print(cluster.name, flush=True)
    input()
"""


def test_two_starts_at_the_same_moment_get_two_names():
    both = [
        subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    names = {one.stdout.readline().strip() for one in both}
    for one in both:
        one.communicate("\n", timeout=30)
    assert len(names) == 2
    assert "" not in names
    assert [one.returncode for one in both] == [0, 0]


@pytest.mark.parametrize("after_s", [0.05, 0.4])
def test_a_start_that_is_interrupted_leaves_nothing(after_s: float):
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  the alarm may come at once
            signal.setitimer(signal.ITIMER_REAL, after_s)
            Cluster.start(1, device="none", name="given-up").run("while True: pass")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not runtime.ClusterPaths("given-up").directory.exists()
    running = [one.connection.name for one in runtime.list_clusters()]
    assert "given-up" not in running


def test_a_cluster_that_cannot_be_joined_can_still_be_ended():
    cluster = Cluster.start(2, device="none", name="other-version")
    connection = cluster.session.connection
    controller = psutil.Process(connection.controller_pid)
    processes = [controller, *controller.children(recursive=True)]
    starting.end_controller(connection, 20.0)
    assert not [one for one in processes if one.is_running()]
    cluster.stop()


def test_a_cluster_is_ready_as_soon_as_its_restart_returns():
    with Cluster.start(2, device="none", name="restarted") as cluster:
        cluster.restart([1])
        assert cluster.fact.state is ClusterState.READY


def test_a_host_that_the_launcher_cannot_reach_is_refused_before_anything_starts():
    with pytest.raises(ConfigError) as caught:
        Cluster.start(2, device="none", name="far", hosts="elsewhere:2")
    assert "'local' does not reach elsewhere" in str(caught.value)
    assert not runtime.ClusterPaths("far").directory.exists()
