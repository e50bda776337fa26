"""Runtime folders: private, short, and cleaned of what crashed clusters left."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from npu_notebook import runtime
from npu_notebook.errors import ConfigError, LinkError


@pytest.fixture(autouse=True)
def roots(tmp_path, monkeypatch):
    monkeypatch.setenv("NPU_NOTEBOOK_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("NPU_NOTEBOOK_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def connection(name: str, pid: int, start_s: float) -> runtime.Connection:
    return runtime.Connection(
        name=name,
        endpoint=runtime.ClusterPaths(name).endpoint,
        host=socket.gethostname(),
        user="me",
        controller_pid=pid,
        controller_start_s=start_s,
        created_s=0.0,
        protocol_version=1,
        package_version="0",
        python="3",
    )


def publish(name: str, pid: int, start_s: float) -> runtime.ClusterPaths:
    paths = runtime.ClusterPaths(name)
    paths.create()
    runtime.write_connection(paths, connection(name, pid, start_s))
    return paths


def test_folders_and_files_are_readable_by_their_owner_only(roots):
    paths = publish("one", os.getpid(), 1.0)
    for folder in (paths.directory, paths.logs, paths.spool, roots / "run"):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert paths.connection_file.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_read_is_closed_to_them(roots):
    (roots / "run").mkdir(mode=0o755)
    runtime.runtime_root()
    assert (roots / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a" * 33, "ä", "a b"])
def test_a_name_that_cannot_be_a_folder_is_refused(name):
    with pytest.raises(ConfigError, match="cannot be the name of a cluster"):
        runtime.ClusterPaths(name)


def test_a_path_too_long_for_a_socket_is_refused(roots, monkeypatch):
    monkeypatch.setenv("NPU_NOTEBOOK_RUNTIME_DIR", str(roots / ("d" * 100)))
    with pytest.raises(ConfigError, match="longer than 107 bytes"):
        runtime.ClusterPaths("c").create()


def test_a_runtime_folder_that_is_a_file_is_refused(roots):
    (roots / "run").write_text("")
    with pytest.raises(ConfigError, match="NPU_NOTEBOOK_RUNTIME_DIR"):
        runtime.runtime_root()


def test_a_runtime_folder_of_somebody_else_is_refused(roots):
    if os.getuid() != 0:
        pytest.skip("only root can make a folder of another user")
    (roots / "run").mkdir()
    os.chown(roots / "run", 12345, 12345)
    with pytest.raises(ConfigError, match="is not a folder of user"):
        runtime.runtime_root()


def test_a_live_cluster_is_listed_and_kept():
    start_s = runtime.process_start_s(os.getpid())
    paths = publish("live", os.getpid(), start_s)
    assert runtime.remove_stale() == []
    assert [entry.alive for entry in runtime.list_clusters()] == [True]
    assert paths.connection_file.exists()
    assert runtime.read_connection("live").controller_pid == os.getpid()


def test_a_dead_cluster_is_told_from_a_process_that_got_its_pid():
    paths = publish("dead", os.getpid(), 1.0)
    with pytest.raises(LinkError, match="is dead"):
        runtime.read_connection("dead")
    assert runtime.remove_stale() == ["dead"]
    assert not paths.directory.exists()


def test_a_zombie_counts_as_dead():
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert runtime.process_start_s(child.pid) is None
    child.wait()


def test_an_unknown_cluster_names_those_that_run():
    publish("other", os.getpid(), runtime.process_start_s(os.getpid()))
    with pytest.raises(LinkError, match="Running: other"):
        runtime.read_connection("mine")


def test_a_broken_connection_file_is_named():
    paths = publish("broken", os.getpid(), 1.0)
    paths.connection_file.write_text("{")
    with pytest.raises(LinkError, match="cannot be read"):
        runtime.read_connection("broken")


def test_two_processes_of_this_host_share_memory():
    code = "from npu_notebook.runtime import memory_key; print(memory_key())"
    other = subprocess.check_output([sys.executable, "-c", code], cwd=Path.cwd())
    assert other.decode().strip() == runtime.memory_key()


def test_what_a_broken_connection_file_advises_works():
    broken = publish("broken", os.getpid(), 1.0)
    broken.connection_file.write_text("{")
    held = publish("held", os.getpid(), 1.0)
    held.connection_file.write_text("{")
    with held.lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("77")
        lock.flush()
        assert runtime.remove_stale() == ["broken"]
        with pytest.raises(LinkError, match="Its controller runs: `kill 77` ends it"):
            runtime.read_connection("held")
    assert not broken.directory.exists()
    assert held.directory.exists()  # a controller holds that name


def test_a_process_is_known_again_after_the_clock_was_set(monkeypatch):
    start_s = runtime.process_start_s(os.getpid())
    # What psutil adds to the time since the boot moves with the clock.
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: 12_345.0)
    assert runtime.process_start_s(os.getpid()) == start_s


def test_processes_that_start_clusters_wait_for_each_other():
    code = """
import sys
from npu_notebook import runtime
print("waiting", flush=True)
with runtime.one_start_at_a_time():
    print("inside", flush=True)
"""
    with runtime.one_start_at_a_time():
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert other.stdout.readline() == b"waiting\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.3)
    assert other.communicate(timeout=20)[0] == b"inside\n"
