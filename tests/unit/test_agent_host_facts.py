"""What is read about this host and its processes."""

import os
import re
import socket
import subprocess
import sys

from npu_notebook.telemetry import host


def test_a_process_is_described_with_name_and_user_while_it_lives():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        text = host.describe_process(process.pid)
        process.communicate(b"\n")
    assert re.fullmatch(rf"pid {process.pid} \(python[\d.]*, user \S+\)", text)
    assert host.describe_process(process.pid) == f"pid {process.pid}"


def test_the_holder_of_a_port_is_found_and_a_free_port_has_none():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert f"pid {os.getpid()} " in host.find_port_holder(port)
    assert host.find_port_holder(port) == ""


def test_descendants_are_listed_parents_first_and_without_zombies():
    program = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1) as process:
        while len(found := host.list_descendants(os.getpid())) < 2:
            assert process.poll() is None
        assert [one.ppid() for one in found] == [os.getpid(), process.pid]
        process.communicate(b"\n")
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert host.list_descendants(os.getpid()) == []


def test_the_address_is_one_of_this_host():
    with socket.socket() as probe:
        probe.bind((host.primary_address(), 0))


def test_the_processors_are_those_this_process_may_use():
    assert host.cpu_count() == len(os.sched_getaffinity(0))
