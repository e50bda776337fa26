"""The TCPStore's process: one address, one port, and not a rank."""

import os
import socket
import subprocess
import sys

import psutil
import pytest

from npu_notebook.messages import AgentNotice, StartStore, StoreStarted
from tests.agent.scripted import is_alive

CLIENT = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
store.set("key", "value")
assert store.get("key") == b"value"
"""


@pytest.fixture
def with_torch(launch):
    controller = launch("cpu")
    assert controller.prepare().problem == ""
    return controller


def start(controller, port: int = 0) -> StoreStarted:
    controller.send(StartStore(address="127.0.0.1", port=port, world_size=2))
    return controller.expect(StoreStarted)


def listening(port: int) -> list[tuple[str, int]]:
    return [
        (one.laddr.ip, one.pid)
        for one in psutil.net_connections(kind="tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    ]


def test_it_listens_on_loopback_alone_answers_and_ends_with_the_host(with_torch):
    started = start(with_torch)
    assert started.problem == ""
    ((address, pid),) = listening(started.port)
    assert address == "127.0.0.1"
    assert psutil.Process(pid).ppid() == with_torch.agent.pid
    assert psutil.Process(pid).name() == "npu store"
    subprocess.run([sys.executable, "-c", CLIENT, str(started.port)], check=True)
    with_torch.end()
    assert not is_alive(pid)


def test_a_port_is_named_with_its_holder_if_taken_and_used_if_free(with_torch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = start(with_torch, port)
    assert f"port {port} on 127.0.0.1 cannot be used" in refused.problem
    assert f"pid {os.getpid()} (" in refused.problem
    assert start(with_torch, port) == StoreStarted(host="here", port=port)
    ((_, first),) = listening(port)
    assert start(with_torch, port) == StoreStarted(host="here", port=port)
    ((_, second),) = listening(port)
    assert second != first
    assert not is_alive(first)


def test_a_killed_store_is_replaced_and_ranks_go_on(with_torch):
    (rank,) = with_torch.start_ranks(0)
    port = start(with_torch).port
    for _ in range(2):
        ((_, pid),) = listening(port)
        psutil.Process(pid).kill()
        notice = with_torch.expect(AgentNotice)
        assert notice.level == "warning"
        assert str(pid) in notice.text
        assert with_torch.expect(StoreStarted) == StoreStarted(host="here", port=port)
    subprocess.run([sys.executable, "-c", CLIENT, str(port)], check=True)
    assert is_alive(rank)


def test_without_a_template_it_is_started_by_exec(controller):
    started = start(controller)
    assert started.problem == ""
    ((address, _pid),) = listening(started.port)
    assert address == "127.0.0.1"
    subprocess.run([sys.executable, "-c", CLIENT, str(started.port)], check=True)
