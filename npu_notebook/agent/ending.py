"""End ranks with everything they started, and nothing else.

A rank's own process is asked first (SIGTERM). What it started is found three ways,
because each can fail alone: it is below the rank in the process tree, it is in the
rank's session, or it carries the rank's mark in its environment. Whatever a rank left
behind belongs to the agent since (`linux.adopt_orphans`), so nothing escapes.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil

from npu_notebook.telemetry.host import (
    describe_process,
    is_running,
    list_descendants,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RANK_MARK = "NPU_NOTEBOOK_RANK_MARK"
"""Variable in a rank's environment by which what it started is recognised."""
# Time for what a rank left behind between SIGTERM and SIGKILL.
_LEFTOVER_GRACE_S = 1.0
# A killed process that is still there after this waits in the kernel (a device, NFS).
_GIVE_UP_S = 15.0


_OURS = 0  # stands for the agent's own children, where a rank's pid would stand


class Owner:
    """Says which rank a descendant of the agent belongs to.

    Parameters
    ----------
    marks : mapping of int to str
        Mark of each rank's process by pid, of dead ranks too.
    spared : iterable of int
        The agent's own children that are no ranks, such as the template.
    """

    def __init__(self, marks: Mapping[int, str], spared: Iterable[int]) -> None:
        self._pids = {mark: pid for pid, mark in marks.items()}
        self._known = {pid: pid for pid in marks} | dict.fromkeys(spared, _OURS)

    def find(self, process: psutil.Process) -> int | None:
        """Return the pid of the rank's process, 0 for the agent's own, else None.

        Call it for parents before their children.
        """
        if process.pid not in self._known:
            owner = self._look(process)
            if owner is None:
                return None
            self._known[process.pid] = owner
        return self._known[process.pid]

    def _look(self, process: psutil.Process) -> int | None:
        try:
            above = self._known.get(process.ppid())
            if above is not None:
                return above
            session = os.getsid(process.pid)
            if session in self._known:
                return self._known[session]
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
    deadline_s : float
        `time.monotonic` at which SIGTERM becomes SIGKILL.

    Attributes
    ----------
    done : bool
        Nothing is left.
    survivors : tuple of str
        Processes that could not be ended, described for the user.
    """

    def __init__(self, targets: Mapping[int, str], deadline_s: float) -> None:
        self.targets = dict(targets)
        self.done = False
        self.survivors: tuple[str, ...] = ()
        self._deadline_s = deadline_s
        self._give_up_s = deadline_s + _GIVE_UP_S
        self._asked: set[int] = set()
        self._found: dict[int, psutil.Process] = {}

    def hurry(self, deadline_s: float) -> None:
        """Bring the time of SIGKILL forward, never back."""
        self._deadline_s = min(self._deadline_s, deadline_s)
        self._give_up_s = min(self._give_up_s, deadline_s + _GIVE_UP_S)

    def advance(
        self, now_s: float, others: Mapping[int, str], spared: Iterable[int]
    ) -> None:
        """Look what is left and take the next step; call it about every 50 ms.

        Parameters
        ----------
        now_s : float
            `time.monotonic`.
        others : mapping of int to str
            The ranks that go on, or are ended by another `Ending`, with their marks.
        spared : iterable of int
            The agent's own children that are no ranks.
        """
        left = self._list_left(others, spared)
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

    def _list_left(
        self, others: Mapping[int, str], spared: Iterable[int]
    ) -> list[psutil.Process]:
        """Return what belongs to the targets; once found it stays found."""
        owner = Owner({**others, **self.targets}, spared)
        for process in list_descendants(os.getpid()):
            rank_pid = owner.find(process)
            # Without a living rank every stranger below the agent is a left-over.
            if rank_pid in self.targets or (rank_pid is None and not others):
                self._found[process.pid] = process
        self._found = {
            pid: process for pid, process in self._found.items() if is_running(process)
        }
        return list(self._found.values())


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # gone, or it became another user's: named if it survives
