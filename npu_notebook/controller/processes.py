"""Processes that belong to the controller: adopt what agents leave behind, end it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

# Source: linux/prctl.h.
_PR_SET_CHILD_SUBREAPER = 36
_KILL_WAIT_S = 3.0


def adopt_orphans() -> None:
    """Become the parent of whatever our descendants leave behind (Linux).

    Notes
    -----
    Without it the ranks of an agent that was killed would belong to init, and nobody
    would know that they are ours. Source: prctl(2), PR_SET_CHILD_SUBREAPER.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        log.warning("orphans cannot be adopted: %s", os.strerror(ctypes.get_errno()))


class Children:
    """The controller's own children: those of the launcher, and orphans."""

    def __init__(self) -> None:
        self._launched: set[int] = set()

    def note_launched(self) -> None:
        """Count the children that are there now as the launcher's."""
        self._launched |= {process.pid for process in _own_children()}

    def reap_orphans(self) -> None:
        """Collect adopted children that have ended, after the launcher its own.

        Notes
        -----
        The kernel is asked which child has ended: looking through all processes of the
        machine, as `psutil` does, would cost milliseconds each time.
        """
        if sys.platform != "linux":
            return  # nothing is adopted there
        look_only = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, look_only):
                if ended.si_pid in self._launched:
                    return  # between two looks of the launcher
                os.waitpid(ended.si_pid, os.WNOHANG)

    def end_orphans(self) -> None:
        """Kill adopted children with all they started."""
        self._kill(self._orphans())

    def end_all(self) -> None:
        """Kill every child with all it started."""
        self._kill(_own_children())

    def _orphans(self) -> list[psutil.Process]:
        return [one for one in _own_children() if one.pid not in self._launched]

    def _kill(self, roots: Iterable[psutil.Process]) -> None:
        doomed: list[psutil.Process] = []
        for root in roots:
            with contextlib.suppress(psutil.NoSuchProcess):
                doomed += [root, *root.children(recursive=True)]
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                words = " ".join(process.cmdline())
                log.warning("killing left-over process %d: %s", process.pid, words)
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(doomed, timeout=_KILL_WAIT_S)


def _own_children() -> list[psutil.Process]:
    return psutil.Process().children()
