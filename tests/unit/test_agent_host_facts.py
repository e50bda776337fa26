"""What is read about this host and its processes."""

import os
import re
import socket
import subprocess
import sys

import psutil

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
    run = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}])"
    program = run.format(run.format("input()"))
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1) as process:
        while len(found := host.list_descendants(process.pid)) < 2:
            assert process.poll() is None
        assert [one.ppid() for one in found] == [process.pid, found[0].pid]
        process.communicate(b"\n")
    # Named, because Popen reaps what has ended when it is let go of.
    waits = "import subprocess; child = subprocess.Popen(['true']); input()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=-1) as process:
        while psutil.Process(process.pid).children() == []:
            assert process.poll() is None
        (child,) = psutil.Process(process.pid).children()
        while child.status() != psutil.STATUS_ZOMBIE:
            assert process.poll() is None
        assert host.list_descendants(process.pid) == []
        process.communicate(b"\n")


def test_the_address_is_one_of_this_host():
    with socket.socket() as probe:
        probe.bind((host.primary_address(), 0))


def test_the_processors_are_those_this_process_may_use():
    assert host.cpu_count() == len(os.sched_getaffinity(0))
