"""What other users of this host can reach of a running cluster: nothing."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from npu_notebook import bulk, runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_notebook import Cluster

NOBODY = 65_534
as_another_user = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can be another user as well"
)

# Another user's program: tries each deed on a path and says what came of it.
PROBE = f"""
import json, os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})

def connect(path):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)

def read(path):
    with open(path, "rb") as file:
        file.read(1)

def write(path):
    with open(path, "r+b"):
        pass

deeds = {{"connect": connect, "read": read, "write": write, "list": os.listdir}}
outcomes = []
for deed, path in json.loads(sys.argv[1]):
    try:
        deeds[deed](path)
    except OSError as error:
        outcomes.append(type(error).__name__)
    else:
        outcomes.append("done")
print(json.dumps(outcomes))
"""


def attempt(deeds: list[tuple[str, Path]]) -> dict[tuple[str, Path], str]:
    """Return what each deed leads to when another user tries it."""
    words = json.dumps([(deed, str(path)) for deed, path in deeds])
    command = [sys.executable, "-c", PROBE, words]
    answer = subprocess.run(command, capture_output=True, check=True, cwd="/")
    return dict(zip(deeds, json.loads(answer.stdout), strict=True))


def refused(outcomes: dict[tuple[str, Path], str]) -> bool:
    return set(outcomes.values()) == {"PermissionError"}


def processes(cluster: Cluster) -> list[psutil.Process]:
    controller = psutil.Process(cluster.session.connection.controller_pid)
    return [controller, *controller.children(recursive=True)]


@pytest.fixture
def open_doors(shared_cluster: Cluster) -> Iterator[runtime.ClusterPaths]:
    """Open the folders around the cluster, so that only its files guard themselves."""
    paths = runtime.ClusterPaths(shared_cluster.name)
    folders = [paths.directory, paths.directory.parent]
    for folder in folders:
        folder.chmod(0o755)
    yield paths
    for folder in folders:
        folder.chmod(0o700)


@as_another_user
def test_another_user_can_neither_connect_nor_read_nor_list(shared_cluster: Cluster):
    shared_cluster.run("print(rank)")
    paths = runtime.ClusterPaths(shared_cluster.name)
    files = [paths.connection_file, paths.spec_file, paths.lock_file]
    files += [path for path in paths.logs.iterdir() if path.is_file()]
    folders = [paths.directory, paths.directory.parent, paths.logs, paths.spool]
    deeds = [("connect", paths.socket)]
    deeds += [(deed, file) for file in files for deed in ("read", "write")]
    deeds += [("list", folder) for folder in folders]
    outcomes = attempt(deeds)
    assert refused(outcomes), outcomes
    # The probe itself works: what is open to all is open to it.
    everybodys = attempt([("read", Path("/proc/version")), ("list", Path("/"))])
    assert set(everybodys.values()) == {"done"}


@as_another_user
def test_socket_and_keys_stay_closed_even_in_an_open_folder(
    open_doors: runtime.ClusterPaths,
):
    assert attempt([("list", open_doors.directory)]).popitem()[1] == "done"
    outcomes = attempt(
        [
            ("connect", open_doors.socket),
            ("read", open_doors.connection_file),
            ("read", open_doors.spec_file),
        ]
    )
    assert refused(outcomes), outcomes
    assert open_doors.socket.stat().st_mode & 0o777 == 0o600


@as_another_user
def test_another_user_sees_no_variable_and_no_environment(shared_cluster: Cluster):
    folder = bulk.shared_memory_dir()
    region = bulk.region_path(folder, shared_cluster.name, "probe")
    layout = bulk.pack({"x": b"secret" * 20_000}).write(region)
    try:
        deeds: list[tuple[str, Path]] = [("read", region), ("write", region)]
        for process in processes(shared_cluster):
            deeds.append(("read", Path(f"/proc/{process.pid}/environ")))
            deeds.append(("read", Path(f"/proc/{process.pid}/mem")))
        outcomes = attempt(deeds)
        assert refused(outcomes), outcomes
    finally:
        bulk.remove_region(layout)


def test_every_port_of_a_cluster_is_on_the_loopback_interface(shared_cluster: Cluster):
    code = """
import torch
import torch.distributed as dist
dist.all_reduce(torch.ones(1))
pair = dist.new_group([0, 1])
dist.barrier()
"""
    shared_cluster.run(code)
    listening = [
        one.laddr
        for process in processes(shared_cluster)
        for one in process.net_connections(kind="inet")
        if one.status == psutil.CONN_LISTEN or one.type.name == "SOCK_DGRAM"
    ]
    # The store, and gloo on each rank; the controller and the agent have none.
    assert len(listening) >= 1 + shared_cluster.world_size
    addresses = [ipaddress.ip_address(one.ip) for one in listening]
    assert all(address.is_loopback for address in addresses), listening


def test_no_key_and_no_code_is_in_a_command_line(shared_cluster: Cluster):
    shared_cluster.run("word_of_the_user = 'hunter2'")
    connection = shared_cluster.session.connection
    for process in processes(shared_cluster):
        words = " ".join(process.cmdline())
        assert "hunter2" not in words
        for key in (connection.curve_public, connection.curve_secret):
            assert not key or key not in words
