"""Find the threads and processes that a test leaves behind."""

import os
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path

import psutil

#: Inherited by every process a test starts, so that one is recognised even after it
#: has left our process group and been adopted by init, as a controller has.
MARK_NAME = "NPU_NOTEBOOK_TEST_RUN"
MARK = uuid.uuid4().hex

#: How long threads and processes may take to end after the test, in seconds. The
#: machines that run this are slow and shared.
GRACE_S = 10.0


def set_mark() -> None:
    """Mark this process's environment; what it starts from now on inherits it."""
    os.environ[MARK_NAME] = MARK


def marked_processes() -> set[psutil.Process]:
    """Return every process that descends from this test run, without this one.

    Runs twice a test, so it reads ``/proc`` itself: psutil takes twice as long.
    """
    mark = f"{MARK_NAME}={MARK}".encode()
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            # A zombie has no environment, but its parent is still known.
            if mark in (folder / "environ").read_bytes() or is_child(folder):
                found.add(psutil.Process(int(folder.name)))
        except (OSError, psutil.Error):  # it has ended, or belongs to someone else
            continue
    return found


def is_child(folder: Path) -> bool:
    """Return whether the process of this folder of /proc is our own child."""
    # The name, in parentheses, may hold anything. Source: proc(5), /proc/pid/stat.
    fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[1]) == os.getpid()


def leaked_threads(before: Iterable[threading.Thread]) -> list[str]:
    """Give new threads ``GRACE_S`` to end and return the names of those that stay."""
    left = []
    for thread in set(threading.enumerate()) - set(before):
        thread.join(GRACE_S)
        if thread.is_alive():
            left.append(f"thread {thread.name!r}")
    return left


def leaked_processes(before: set[psutil.Process]) -> list[str]:
    """Give new processes ``GRACE_S`` to end, kill those that stay and describe them."""
    _, alive = psutil.wait_procs(marked_processes() - before, timeout=GRACE_S)
    left = [description(process) for process in alive]
    for process in alive:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(alive, timeout=GRACE_S)
    return left


def description(process: psutil.Process) -> str:
    """Return pid, state and command line of a process that may be ending."""
    try:
        with process.oneshot():
            command = " ".join(process.cmdline())[:200] or process.name()
            return f"process {process.pid} ({process.status()}): {command}"
    except psutil.Error:
        return f"process {process.pid} (gone since)"
