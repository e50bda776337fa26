"""Puts the outcomes of a failed cell into words: one block per distinct error.

Pure: outcomes in, text out. `npu_notebook.cluster` makes a `CellError` of it.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from npu_notebook.topology import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npu_notebook.messages import ErrorInfo, FrameFact, RankOutcome

MAX_BLOCKS = 8
"""Distinct errors shown with their traceback; the rest get one line each."""

MAX_MESSAGES = 8
MAX_MESSAGE_CHARS = 240
# "rank 2 (a, pid 77) ended by signal 9": several of them are said in one.
_LOST = re.compile(r"rank \d+ \((?P<place>[^)]*)\) (?P<how>.+)")
_PLURAL = re.compile(r"\A(was|is)(?= )| its (?=host)| it (?=could)")
# The line of dashes above IPython's tracebacks; ours have their own headline.
_RULER = re.compile(r"\A\s*(?:\x1b\[[\d;]*m)*-{10,}(?:\x1b\[[\d;]*m)*\n")
_ExitKey: TypeAlias = "tuple[int, str, str]"  # code, place, message
# What the controller says of a rank that somebody has restarted: it is there again.
_REPLACED = "was replaced by a restart"
_OTHERS_KEEP = "; the other ranks keep their variables"
_RED = "\x1b[1;31m"
_RESET = "\x1b[0m"


@dataclass(slots=True)
class _Group:
    """Ranks that met the same error, with the error of the lowest one."""

    error: ErrorInfo
    ranks: list[int] = field(default_factory=list)
    messages: dict[str, list[int]] = field(default_factory=dict)

    def add(self, rank: int, error: ErrorInfo) -> None:
        self.ranks.append(rank)
        self.messages.setdefault(_first_line(error.message), []).append(rank)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ``"rank 3"`` or ``"ranks 0-2,5"``."""
    known = sorted(ranks)
    return f"rank{'' if len(known) == 1 else 's'} {format_ranks(known)}"


def describe_failure(
    outcomes: tuple[RankOutcome, ...],
    log_paths: Mapping[int, str],
    timed_out: bool,  # noqa: FBT001 - one of four facts, given in this order
    timeout_s: float | None,
) -> tuple[str, str]:
    """Put the failed outcomes of one cell into words.

    Errors are the same when their type and the lines they passed are the same; if
    their messages differ, the messages are listed.

    Parameters
    ----------
    outcomes : tuple of RankOutcome
        One per rank of the cell, failed or not.
    log_paths : mapping of int to str
        Log file of each rank, as far as known.
    timed_out : bool
        Whether the cell was stopped because it ran longer than ``timeout_s``.
    timeout_s : float or None
        The cell's limit in seconds.

    Returns
    -------
    summary : str
        One line per distinct error, without tracebacks.
    traceback_text : str
        The same with one traceback per distinct error. Coloured when the ranks'
        tracebacks are.
    """
    groups, lost, exits, stopped = _sort(outcomes)
    summary = _lost_lines(lost, log_paths)
    blocks = list(summary)
    for number, group in enumerate(groups):
        summary.append(_headline(group))
        blocks.append(_block(group) if number < MAX_BLOCKS else _headline(group))
    if len(groups) > MAX_BLOCKS:
        blocks.append(
            f"Only the first {MAX_BLOCKS} of {len(groups)} distinct errors are shown "
            "with a traceback; `outcomes` of this CellError has the one of every rank."
        )
    exit_lines = _exit_lines(exits)
    stop_lines = _stop_lines(stopped, timeout_s if timed_out else None)
    summary += [*exit_lines, *stop_lines]
    blocks += [*exit_lines, *stop_lines]
    if exits:
        blocks += _log_lines([outcome.rank for outcome in outcomes], log_paths)
    return "\n".join(summary), "\n".join(blocks)


def _sort(
    outcomes: Sequence[RankOutcome],
) -> tuple[
    list[_Group],
    list[RankOutcome],
    dict[_ExitKey, list[int]],
    dict[str, list[int]],
]:
    groups: dict[tuple[object, ...], _Group] = {}
    lost: list[RankOutcome] = []
    exits: dict[_ExitKey, list[int]] = {}
    stopped: dict[str, list[int]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.rank):
        error = outcome.error
        if outcome.lost:
            lost.append(outcome)
        elif error is None:
            continue
        elif error.exit_code is not None:
            place = _place(error.frames)
            key = (error.exit_code, place, _exit_message(error))
            exits.setdefault(key, []).append(outcome.rank)
        elif error.interrupted:
            stopped.setdefault(_place(error.frames), []).append(outcome.rank)
        else:
            group = groups.setdefault(_sameness(error), _Group(error))
            group.add(outcome.rank, error)
    return list(groups.values()), lost, exits, stopped


def _sameness(error: ErrorInfo) -> tuple[object, ...]:
    # Without frames (a SyntaxError, say) only the message tells errors apart.
    if not error.frames:
        return (error.kind, error.message)
    lines = tuple((frame.file, frame.line, frame.function) for frame in error.frames)
    return (error.kind, *lines)


def _place(frames: Sequence[FrameFact]) -> str:
    """Return `` at line 2`` for a cell, `` at line 7 of train.py`` for a file."""
    if not frames:
        return ""
    last = frames[-1]
    if posixpath.isabs(last.file) or last.file.endswith(".py"):
        return f" at line {last.line} of {last.file}"
    return f" at line {last.line}"


def _first_line(message: str) -> str:
    first, _, rest = message.strip().partition("\n")
    if len(first) > MAX_MESSAGE_CHARS:
        return first[: MAX_MESSAGE_CHARS - 1] + "…"
    return f"{first} …" if rest.strip() else first


def _headline(group: _Group) -> str:
    head = f"{name_ranks(group.ranks)}: {group.error.kind}"
    first, *others = group.messages
    if first:
        head += f": {first}"
    if others:
        plural = "" if len(others) == 1 else "s"
        head += f" (and {len(others)} other message{plural})"
    return head


def _block(group: _Group) -> str:
    coloured = "\x1b" in group.error.traceback
    head = _headline(group)
    parts = [f"{_RED}{head}{_RESET}" if coloured else head]
    if len(group.messages) > 1:
        for message, ranks in list(group.messages.items())[:MAX_MESSAGES]:
            parts.append(f"  {name_ranks(ranks)}: {message}")
        hidden = len(group.messages) - MAX_MESSAGES
        if hidden > 0:
            parts.append(f"  and {hidden} more")
    if group.error.traceback.strip():
        parts.append(_RULER.sub("", group.error.traceback).strip("\n"))
    return "\n".join(parts) + "\n"


def _lost_lines(lost: Sequence[RankOutcome], log_paths: Mapping[int, str]) -> list[str]:
    if not lost:
        return []
    ends: dict[str, list[int]] = {}
    places: dict[int, str] = {}
    for outcome in lost:
        message = "" if outcome.error is None else _first_line(outcome.error.message)
        match = _LOST.fullmatch(message)
        how = match["how"] if match else f"lost: {message}" if message else "lost"
        places[outcome.rank] = match["place"] if match else ""
        ends.setdefault(how.rstrip("."), []).append(outcome.rank)
    words: list[str] = []
    for how, ranks in ends.items():
        place = "; ".join(places[rank] for rank in ranks if places[rank])
        where = f" ({place})" if place else " is" if len(ranks) == 1 else " are"
        if len(ranks) > 1:
            how = _PLURAL.sub(_make_plural, how)  # noqa: PLW2901  the same words
        words.append(f"{name_ranks(ranks)}{where} {how}")
    ranks = [outcome.rank for outcome in lost]
    logs = _join_paths([log_paths[rank] for rank in ranks if log_paths.get(rank)])
    gone = sorted(set(ranks).difference(ends.get(_REPLACED, ())))
    remedy = ""
    if gone:
        remedy = (
            f" Run `%npu_cluster restart --ranks {format_ranks(gone)}` to replace "
            + ("it" if len(gone) == 1 else "them")
            + ("" if log_paths.keys() == set(ranks) else _OTHERS_KEEP)
            + "."
        )
    return ["; ".join(words) + "." + remedy + (f" Log: {logs}" if logs else "")]


def _make_plural(match: re.Match[str]) -> str:
    return {"was": "were", "is": "are", " it ": " they "}.get(match[0], " their ")


def _exit_lines(exits: Mapping[_ExitKey, list[int]]) -> list[str]:
    return [
        f"{name_ranks(ranks)} called exit with code {code}{place}{said}; "
        "the rank's process goes on and keeps its variables."
        for (code, place, said), ranks in exits.items()
    ]


def _exit_message(error: ErrorInfo) -> str:
    """Return what `sys.exit` was given when it is no number: Python would print it."""
    message = error.message.strip()
    return "" if message in ("", "None", str(error.exit_code)) else f": {message}"


def _stop_lines(stopped: Mapping[str, list[int]], timeout_s: float | None) -> list[str]:
    if not stopped:
        return []
    places: dict[str, str] = {
        place: name_ranks(ranks) for place, ranks in stopped.items()
    }
    where = "; ".join(f"{ranks}{place}" for place, ranks in places.items())
    if timeout_s is None:
        return [f"Interrupted: {where}. Variables are kept."]
    return [
        f"Stopped after {timeout_s:g} s, the limit given for this cell: {where}. "
        "Variables are kept."
    ]


def _log_lines(ranks: Sequence[int], log_paths: Mapping[int, str]) -> list[str]:
    known = [log_paths[rank] for rank in sorted(ranks) if log_paths.get(rank)]
    return [f"Logs of the ranks: {_join_paths(known)}"] if known else []


def _join_paths(paths: Sequence[str]) -> str:
    """Return the paths, their common folder written once."""
    if len(paths) <= 1:
        return "".join(paths)
    folders = {posixpath.dirname(path) for path in paths}
    if len(folders) > 1:
        return ", ".join(paths)
    names = [posixpath.basename(path) for path in paths]
    return f"{folders.pop()}/ ({', '.join(names)})"
