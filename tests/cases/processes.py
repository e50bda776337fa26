"""What the cases need to know of processes."""

import os

import psutil

from npu_notebook import Cluster
from tests import leaks


def alive(pids: list[int], within_s: float) -> list[int]:
    """Return those processes, in order, that have not ended within some seconds."""
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    gone, _ = psutil.wait_procs(processes, timeout=within_s)
    return [one.pid for one in processes if one not in gone and not is_zombie(one)]


def is_zombie(process: psutil.Process) -> bool:
    """Whether it has ended and its parent has not looked at it yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def cluster_processes(cluster: Cluster) -> list[int]:
    """Return the controller and everything below it, grandchildren included."""
    controller = psutil.Process(cluster.session.connection.controller_pid)
    return [controller.pid, *(one.pid for one in controller.children(recursive=True))]


def sleepers() -> list[int]:
    """Return the ``sleep 600`` of this test run's clusters, lowest pid first."""
    found = []
    for process in leaks.marked_processes():
        try:
            if process.name() == "sleep" and process.ppid() != os.getpid():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return sorted(process.pid for process in found if not is_zombie(process))
