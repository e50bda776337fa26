"""End ranks with everything they started, and nothing else.

A rank's own process is asked first (SIGTERM). What it started is found three ways,
because each can fail alone: it is below the rank in the process tree, it is in the
rank's session, or it carries the rank's mark in its environment. Whatever a rank left
behind belongs to the agent since (`linux.adopt_orphans`), so nothing escapes.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Mapping

import psutil

from npu_notebook.telemetry.host import (
    describe_process,
    is_running,
    list_descendants,
)

log = logging.getLogger(__name__)

RANK_MARK = "NPU_NOTEBOOK_RANK_MARK"
"""Variable in a rank's environment by which what it started is recognised."""
# Time for what a rank left behind between SIGTERM and SIGKILL.
_LEFTOVER_GRACE_S = 1.0
# A killed process that is still there after this waits in the kernel (a device, NFS).
_GIVE_UP_S = 15.0


class Owner:
    """Says which rank a descendant of the agent belongs to.

    Parameters
    ----------
    marks : mapping of int to str
        Mark of each rank's process by pid, of dead ranks too.
    """

    def __init__(self, marks: Mapping[int, str]) -> None:
        self._marks = dict(marks)
        self._pids = {mark: pid for pid, mark in marks.items()}
        self._known: dict[int, int | None] = {}

    def find(self, process: psutil.Process, parent_pid: int) -> int | None:
        """Return the pid of the rank's process, None if no rank started it."""
        if process.pid not in self._known:
            self._known[process.pid] = self._look(process, parent_pid)
        return self._known[process.pid]

    def _look(self, process: psutil.Process, parent_pid: int) -> int | None:
        if process.pid in self._marks:
            return process.pid
        above = self._known.get(parent_pid)
        if above is not None:
            return above
        try:
            session = os.getsid(process.pid)
            if session in self._marks:
                return session
            return self._pids.get(process.environ().get(RANK_MARK, ""))
        except (OSError, psutil.Error):
            return None  # gone meanwhile, or another user's (it runs a setuid program)


class Ending:
    """The end of some ranks, advanced by the agent's loop until `done`.

    Parameters
    ----------
    targets : mapping of int to str
        Processes of the ranks to end and their marks; dead ones count for what they
        left behind.
    others : mapping of int to str
        The ranks that go on.
    spared : iterable of int
        The agent's own children, which are no ranks.
    deadline_s : float
        `time.monotonic` at which SIGTERM becomes SIGKILL.

    Attributes
    ----------
    done : bool
        Nothing is left.
    survivors : tuple of str
        Processes that could not be ended, described for the user.
    """

    def __init__(
        self,
        targets: Mapping[int, str],
        others: Mapping[int, str],
        spared: Iterable[int],
        deadline_s: float,
    ) -> None:
        self.targets = dict(targets)
        self.done = False
        self.survivors: tuple[str, ...] = ()
        self._others = dict(others)
        self._spared = frozenset(spared)
        self._deadline_s = deadline_s
        self._give_up_s = deadline_s + _GIVE_UP_S
        self._asked: set[int] = set()
        self._found: dict[int, psutil.Process] = {}

    def advance(self, now_s: float) -> None:
        """Look what is left and take the next step; call it about every 50 ms."""
        left = self._list_left()
        ranks = [process for process in left if process.pid in self.targets]
        if not left:
            self.done = True
        elif now_s >= self._give_up_s:
            self.survivors = tuple(describe_process(process.pid) for process in left)
            self.done = True
        elif now_s >= self._deadline_s:
            _signal(left, signal.SIGKILL)
        elif ranks:
            self._ask(ranks)
        else:
            self._ask(left)
            self._deadline_s = min(self._deadline_s, now_s + _LEFTOVER_GRACE_S)

    def _ask(self, processes: list[psutil.Process]) -> None:
        new = [process for process in processes if process.pid not in self._asked]
        self._asked.update(process.pid for process in new)
        _signal(new, signal.SIGTERM)

    def _list_left(self) -> list[psutil.Process]:
        """Return what belongs to the targets, once found still ours when orphaned."""
        owner = Owner({**self._others, **self.targets})
        for process in list_descendants(os.getpid()):
            try:
                parent_pid = process.ppid()
            except psutil.Error:
                continue
            if process.pid in self._spared:
                continue
            rank_pid = owner.find(process, parent_pid)
            # Without a living rank every stranger below the agent is a left-over.
            if rank_pid in self.targets or (rank_pid is None and not self._others):
                self._found[process.pid] = process
        self._found = {
            pid: process for pid, process in self._found.items() if is_running(process)
        }
        return list(self._found.values())


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            log.warning("may not signal %s", describe_process(process.pid))
