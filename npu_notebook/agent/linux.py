"""The few calls of the Linux kernel that Python has no name for."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

# Source: linux/prctl.h.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends.

    Without it a process that a rank left behind would belong to init, and nobody
    could tell any more that it was ours.
    Source: prctl(2), PR_SET_CHILD_SUBREAPER.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process as soon as its parent is gone.

    Raises
    ------
    ProcessLookupError
        If the parent is gone already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise ProcessLookupError(parent_pid)


def set_process_name(name: str) -> None:
    """Set what ``ps -o comm`` and ``top`` show; the kernel keeps 15 bytes."""
    if sys.platform == "linux":
        buffer = ctypes.create_string_buffer(name.encode()[:15])
        _libc().prctl(_PR_SET_NAME, buffer, 0, 0, 0)


def count_threads() -> int:
    """Return the number of threads of this process, those of C libraries included."""
    return len(list(Path("/proc/self/task").iterdir()))


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
