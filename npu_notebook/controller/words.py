"""Sentences of the controller that need thought: how a process ended, what is missing."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from npu_notebook.messages import ErrorInfo
from npu_notebook.topology import format_ranks

_HINTS = {
    "SIGKILL": "often the out-of-memory killer",
    "SIGSEGV": "a crash in native code: a segmentation fault",
    "SIGBUS": "often a full shared-memory folder, see `df -h /dev/shm`",
    "SIGABRT": "native code gave up; its last words are in the log",
    "SIGFPE": "an arithmetic error in native code",
    "SIGILL": "an instruction this processor does not know",
    "SIGTERM": "something asked it to end",
}


def describe_exit(returncode: int) -> str:
    """Say how a process ended.

    Parameters
    ----------
    returncode : int
        As from `subprocess.Popen`: negative for a signal.

    Examples
    --------
    >>> describe_exit(-9)
    'ended by signal 9; often the out-of-memory killer'
    >>> describe_exit(-11)
    'ended by signal 11 (SIGSEGV); a crash in native code: a segmentation fault'
    >>> describe_exit(3)
    'exited with code 3'
    """
    if returncode >= 0:
        return f"exited with code {returncode}"
    number = -returncode
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"ended by signal {number}"
    hint = f"; {_HINTS[name]}" if name in _HINTS else ""
    # Everybody knows 9 by its number, and the sentence is the one people search for.
    shown = f"{number}" if name == "SIGKILL" else f"{number} ({name})"
    return f"ended by signal {shown}{hint}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Write ``rank 2`` or ``ranks 0-1,3``.

    Examples
    --------
    >>> name_ranks([2])
    'rank 2'
    >>> name_ranks([3, 0, 1])
    'ranks 0-1,3'
    """
    numbers = list(ranks)
    noun = "rank" if len(numbers) == 1 else "ranks"
    return f"{noun} {format_ranks(numbers)}"


def restart_hint(ranks: Iterable[int]) -> str:
    """Say what brings lost ranks back."""
    return f"`%npu_cluster restart --ranks {format_ranks(ranks)}`"


def lost_error(rank: int, host: str, pid: int | None, reason: str) -> ErrorInfo:
    """Return the error of a cell on a rank that is gone.

    Examples
    --------
    >>> lost_error(2, "a", 77, describe_exit(-9)).message
    'rank 2 (a, pid 77) ended by signal 9; often the out-of-memory killer'
    """
    where = host if pid is None else f"{host}, pid {pid}"
    message = f"rank {rank} ({where}) {reason}"
    return ErrorInfo(kind="RankLostError", message=message)


def not_run_error(cause: str) -> ErrorInfo:
    """Return the error of a rank that was well but did not run the cell."""
    return ErrorInfo(kind="CellNotRun", message=f"not run: {cause}")


def cancelled_error() -> ErrorInfo:
    """Return the error of a cell that was interrupted while it waited its turn."""
    return ErrorInfo(
        kind="KeyboardInterrupt", message="cancelled before it ran", interrupted=True
    )


def summarize(error: ErrorInfo) -> str:
    """Write an error on one line."""
    first = error.message.strip().splitlines()
    return f"{error.kind}: {first[0]}" if first else error.kind


def version_conflict(label: str, found: Sequence[tuple[str, str]]) -> str:
    """Return a sentence if not all versions are the same, else an empty string.

    Parameters
    ----------
    label : str
        What has the versions, for example ``"Python"``.
    found : sequence of (str, str)
        Who, and which version; an empty version is not known and agrees with all.

    Examples
    --------
    >>> version_conflict("torch", [("host a", "2.13.0"), ("host b", "2.14.1")])
    'host a has torch 2.13.0 and host b has torch 2.14.1'
    """
    known = [(who, version) for who, version in found if version]
    for who, version in known[1:]:
        first, expected = known[0]
        if version != expected:
            return f"{first} has {label} {expected} and {who} has {label} {version}"
    return ""


def minor_version(version: str) -> str:
    """Return ``3.11`` of ``3.11.9``: what must be equal for functions to travel."""
    return ".".join(version.split(".")[:2])


def public_version(version: str) -> str:
    """Return ``2.13.0`` of ``2.13.0+cpu``."""
    return version.partition("+")[0]
