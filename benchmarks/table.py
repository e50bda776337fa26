"""Print figures as a table for a terminal or for Markdown."""

from __future__ import annotations

import datetime as dt
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADINGS = ("what", "ours", "reference", "ratio", "goal", "")
_VERDICTS = {True: "met", False: "MISSED", None: ""}


def render(figures: Sequence[Figure], *, markdown: bool = False) -> str:
    """Return the table, notes below it.

    Examples
    --------
    >>> print(render([Figure("push", "ms", (4.0,), (2.0,), "memcpy", limit=3.0)]))
    what  ours    reference      ratio  goal
    ----  ----    ---------      -----  ----
    push  4.0 ms  2.0 ms memcpy  2.00   ratio <= 3  met
    """
    rows = [_row(figure, number) for number, figure in _numbered(figures)]
    notes = [
        f"[{number}] {figure.note}" for number, figure in _numbered(figures) if number
    ]
    table = _markdown(rows) if markdown else _aligned(rows)
    gap = "\n\n" if markdown else "\n"
    return "\n".join([table, *(["", gap.join(notes)] if notes else [])])


def _numbered(figures: Sequence[Figure]) -> list[tuple[int, Figure]]:
    """Give the figures that have a note a number from 1, the others 0."""
    numbered = []
    count = 0
    for figure in figures:
        count += bool(figure.note)
        numbered.append((count if figure.note else 0, figure))
    return numbered


def _row(figure: Figure, number: int) -> tuple[str, ...]:
    reference = ""
    if figure.reference:
        reference = f"{_amount(figure.reference, figure.unit)} {figure.reference_name}"
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    mark = f" [{number}]" if number else ""
    return (
        figure.what + mark,
        _amount(figure.ours, figure.unit),
        reference,
        ratio,
        figure.goal,
        _VERDICTS[figure.passed],
    )


def _amount(samples: Sequence[float], unit: str) -> str:
    middle = Figure("", unit, tuple(samples)).median
    text = f"{_short(middle)} {unit}"
    if len(samples) == 1:
        return text
    low, high = spread(samples)
    return f"{text} ({_short(low)} to {_short(high)})"


def _short(value: float) -> str:
    """Return about three digits: the rest of a timing is noise."""
    if abs(value) >= 100:  # noqa: PLR2004  three digits before the point
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    ruler = tuple("-" * len(heading) for heading in _HEADINGS)
    lines = [_HEADINGS, ruler, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(_HEADINGS))]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in padded)


def _markdown(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [_HEADINGS, ("---",) * len(_HEADINGS), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Return one line about this machine, the versions, the time and the load."""
    versions = ", ".join(
        f"{name} {metadata.version(name)}"
        for name in ("torch", "ipykernel", "ipython", "pyzmq")
    )
    load = os.getloadavg()[0]
    now = dt.datetime.now(dt.UTC)
    return (
        f"{os.cpu_count()} cores ({_processor()}), {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, {versions}; "
        f"{now:%Y-%m-%d %H:%M} UTC, load {load:.2f}"
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
