"""Facts about this host and its processes, read with psutil; nothing is changed."""

from __future__ import annotations

import os
import socket

import psutil

_VIRTUAL_INTERFACES = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel")


def cpu_count() -> int:
    """Return the number of processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def primary_address() -> str:
    """Return an IPv4 address by which other hosts may reach this one.

    The first interface, in name order, that is up and neither loopback nor made by a
    container engine; ``"127.0.0.1"`` if there is none.
    """
    states = psutil.net_if_stats()
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        state = states.get(name)
        if state is None or not state.isup or name.startswith(_VIRTUAL_INTERFACES):
            continue
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    return "127.0.0.1"


def describe_process(pid: int) -> str:
    """Return a process as a user knows it.

    Examples
    --------
    >>> describe_process(os.getpid()).startswith(f"pid {os.getpid()} (")
    True
    """
    try:
        process = psutil.Process(pid)
        return f"pid {pid} ({process.name()}, user {process.username()})"
    except psutil.Error:
        return f"pid {pid}"


def find_port_holder(port: int) -> str:
    """Return who listens on a TCP port of this host, "" if that cannot be known.

    Another user's sockets have no visible pid unless this process is root.
    """
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return ""
    for one in connections:
        if one.laddr and one.laddr.port == port and one.status == psutil.CONN_LISTEN:
            return describe_process(one.pid) if one.pid else ""
    return ""


def list_descendants(pid: int) -> list[psutil.Process]:
    """Return the processes below ``pid``, parents first; zombies are left out."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if is_running(process)]


def is_running(process: psutil.Process) -> bool:
    """Return whether this very process (not a later one of its pid) still runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
