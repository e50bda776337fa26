"""The TCPStore's process: one address, one port, and not a rank."""

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


def test_it_listens_on_loopback_alone_and_answers(with_torch):
    started = start(with_torch)
    assert started.problem == ""
    (place,) = listening(started.port)
    assert place[0] == "127.0.0.1"
    assert psutil.Process(place[1]).ppid() == with_torch.agent.pid
    assert psutil.Process(place[1]).name() == "npu store"
    subprocess.run([sys.executable, "-c", CLIENT, str(started.port)], check=True)


def test_a_port_that_is_taken_is_named_with_its_holder(with_torch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        started = start(with_torch, port)
    assert f"port {port} on 127.0.0.1 cannot be used" in started.problem
    assert f"pid {psutil.Process().pid} (" in started.problem
    assert start(with_torch).problem == ""


def test_a_forced_port_that_is_free_is_used(with_torch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert start(with_torch, port) == StoreStarted(host="here", port=port)


def test_a_second_store_replaces_the_first(with_torch):
    first = start(with_torch)
    ((_, old),) = listening(first.port)
    second = start(with_torch, first.port)
    assert second.problem == ""
    ((_, new),) = listening(first.port)
    assert new != old


def test_a_killed_store_is_noticed_and_ranks_go_on(with_torch):
    (rank,) = with_torch.start_ranks(0)
    ((_, pid),) = listening(start(with_torch).port)
    psutil.Process(pid).kill()
    notice = with_torch.expect(AgentNotice)
    assert notice.level == "error"
    assert str(pid) in notice.text
    assert is_alive(rank)


def test_it_ends_with_the_host(with_torch):
    ((_, pid),) = listening(start(with_torch).port)
    with_torch.end()
    assert not is_alive(pid)


def test_without_a_template_it_is_started_by_exec(controller):
    started = start(controller)
    assert started.problem == ""
    ((address, _pid),) = listening(started.port)
    assert address == "127.0.0.1"
    subprocess.run([sys.executable, "-c", CLIENT, str(started.port)], check=True)
