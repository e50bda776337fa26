"""Sentences of the controller that need thought, such as how a process ended."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from npu_notebook.messages import ErrorInfo
from npu_notebook.topology import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOST = "RankLostError"
"""Kind of the error of a rank that is gone."""
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
    return ErrorInfo(kind=LOST, message=message)


def not_run_error(cause: str) -> ErrorInfo:
    """Return the error of a rank that was well but did not run the cell."""
    return ErrorInfo(kind="CellNotRun", message=f"not run: {cause}")


def not_run_because_of(errors: Mapping[int, ErrorInfo]) -> ErrorInfo:
    """Return the error of ranks that were well but did not run something.

    Examples
    --------
    >>> not_run_because_of({2: lost_error(2, "a", 7, "exited with code 1")}).message
    'not run: rank 2 is lost'
    """
    first = next(iter(errors.values()))
    if first.kind != LOST:
        return first
    verb = "is" if len(errors) == 1 else "are"
    return not_run_error(f"{name_ranks(errors)} {verb} lost")


def cancelled_error() -> ErrorInfo:
    """Return the error of a cell that was interrupted while it waited its turn."""
    return ErrorInfo(
        kind="KeyboardInterrupt", message="cancelled before it ran", interrupted=True
    )


def summarize(error: ErrorInfo) -> str:
    """Write an error on one line."""
    first = error.message.strip().splitlines()
    return f"{error.kind}: {first[0]}" if first else error.kind
