"""Child processes that a cell started: find them, stop them, name those that stay."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil

_LEAVE_S = 2.0  # between SIGINT and SIGTERM
_END_S = 1.0  # between SIGTERM and naming those that stay
_LOOK_S = 0.02
_STEP_S = 0.002
_ON_LINUX = sys.platform == "linux"


def exist() -> bool:
    """Return whether this process has a child, ended ones included; one system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def now() -> float:
    """Return the time in the clock in which the kernel notes starts of processes."""
    if _ON_LINUX:
        # Source: proc_pid_stat(5), starttime: clock ticks since boot.
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * ticks_per_s)
    return time.time()


def _start(process: psutil.Process) -> float:
    if _ON_LINUX:
        text = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
        return int(text.rpartition(")")[2].split()[19])
    return process.create_time()


class ChildProcesses:
    """The processes below this one that were started since this object was made.

    Parameters
    ----------
    cell_end : float
        When the cell before ended, from `now`.
    """

    def __init__(self, cell_end: float) -> None:
        self._since = now()
        # The clock has steps of 10 ms: what the cell before has started in this step
        # must not count as ours.
        while self._since <= cell_end and exist():
            select.select((), (), (), _STEP_S)
            self._since = now()
        self._lock = threading.Lock()
        self._found: dict[int, psutil.Process] = {}
        self._escort: threading.Thread | None = None

    def stop(self, *, kill: bool) -> None:
        """Send SIGINT, or SIGKILL, to all of them; returns at once.

        Those that ignore SIGINT get SIGTERM after two seconds, from a thread.
        """
        found = self._find()
        with self._lock:
            self._found.update({process.pid: process for process in found})
            escorted = self._escort is not None and self._escort.is_alive()
        _signal(found, signal.SIGKILL if kill else signal.SIGINT)
        if found and not escorted:
            thread = threading.Thread(target=self._see_off, name="children")
            thread.daemon = True
            with self._lock:  # nobody may join it before it runs
                thread.start()
                self._escort = thread

    def survivors(self) -> list[str]:
        """Wait for the stopped ones, three seconds at most, and name the rest."""
        with self._lock:
            escort = self._escort
        if escort is not None:
            escort.join(_LEAVE_S + _END_S + 1.0)
        with self._lock:
            found = list(self._found.values())
        return [_describe(process) for process in found if _runs(process)]

    def _see_off(self) -> None:
        self._wait(_LEAVE_S)
        with self._lock:
            found = list(self._found.values())
        _signal([process for process in found if _runs(process)], signal.SIGTERM)
        self._wait(_END_S)

    def _wait(self, timeout_s: float) -> None:
        # Not psutil.wait_procs: it would take the exit status away from user code.
        end_s = time.monotonic() + timeout_s
        pause = threading.Event()
        while time.monotonic() < end_s:
            with self._lock:
                found = list(self._found.values())
            if not any(_runs(process) for process in found):
                return
            pause.wait(_LOOK_S)

    def _find(self) -> list[psutil.Process]:
        own = _of_multiprocessing()
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if process.pid not in own and _start(process) >= self._since:
                    found.append(process)
            except (OSError, psutil.Error, IndexError, ValueError):
                continue  # it has ended meanwhile
        return found


def _of_multiprocessing() -> set[int | None]:
    """Return the pids of Python's own servants, which ignore SIGINT by design."""
    return {
        getattr(resource_tracker._resource_tracker, "_pid", None),  # noqa: SLF001  no public name
        getattr(forkserver._forkserver, "_forkserver_pid", None),  # noqa: SLF001  as above
    }


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except (OSError, psutil.Error):
            continue  # it has ended meanwhile, or runs as another user


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.name()} (pid {process.pid})"
    except psutil.Error:
        return f"pid {process.pid}"
