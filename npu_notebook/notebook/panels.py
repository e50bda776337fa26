"""Live lines (progress bars) of ranks: one display that is redrawn in place.

A panel stays where it was opened and keeps the final lines. A rank that has printed
something since, or already has a finished line in the panel, opens the next one, so
that what a rank wrote stays in order.
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npu_notebook.folding import label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npu_notebook.folding import LiveEnd
    from npu_notebook.notebook.sink import Sink

MAX_LIVE_CHARS = 400
"""An unfinished line is redrawn ten times a second: its end has to do."""


@dataclass(slots=True)
class _Panel:
    display_id: str
    opened: int
    lines: dict[int, str] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    drawn: str | None = None


class Panels:
    """All live lines of one cell."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._panels: list[_Panel] = []
        self._moment = 0
        self._printed: dict[int, int] = {}

    def note_printed(self, ranks: Iterable[int]) -> None:
        """Remember that these ranks have put something below the panel."""
        self._moment += 1
        self._printed.update(dict.fromkeys(ranks, self._moment))

    def hide(self) -> None:
        """Make room for a line: panels stay where they are."""

    def reset(self) -> None:
        """Forget all panels: the cell's output was cleared."""
        self._panels.clear()

    def draw(self, live: Mapping[int, str], ends: Iterable[LiveEnd]) -> None:
        """Show the live lines as they are now and fix those that have ended."""
        for end in ends:
            panel = self._panel(end.rank)
            panel.lines[end.rank] = end.text
            panel.live.discard(end.rank)
        for rank, text in live.items():
            panel = self._panel(rank)
            panel.live.add(rank)
            panel.lines[rank] = _shortened(text)
        for panel in self._panels:
            self._draw(panel)
        self._panels = [
            panel
            for number, panel in enumerate(self._panels)
            if panel.live or number == len(self._panels) - 1
        ]

    def _panel(self, rank: int) -> _Panel:
        for panel in self._panels:
            if rank in panel.live:
                return panel
        last = self._panels[-1] if self._panels else None
        if (
            last is None
            or rank in last.lines
            or self._printed.get(rank, -1) > last.opened
        ):
            last = _Panel(f"npu-live-{uuid.uuid4().hex[:12]}", self._moment)
            self._panels.append(last)
        return last

    def _draw(self, panel: _Panel) -> None:
        text = "\n".join(_folded(panel.lines))
        if text == panel.drawn:
            return
        data = {"text/plain": text}
        update = panel.drawn is not None
        self._sink.display(data, None, panel.display_id, update=update)
        panel.drawn = text


def _folded(lines: Mapping[int, str]) -> list[str]:
    ranks: dict[str, list[int]] = {}
    for rank in sorted(lines):
        ranks.setdefault(lines[rank], []).append(rank)
    return [
        label(same) + part for text, same in ranks.items() for part in text.split("\n")
    ]


def _shortened(text: str) -> str:
    return "\n".join(
        line if len(line) <= MAX_LIVE_CHARS else "…" + line[-MAX_LIVE_CHARS:]
        for line in text.split("\n")
    )


class TerminalLines:
    """The same for a terminal: one live line at most, at the bottom.

    When several ranks have one, none is drawn; their final states are printed.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._drawn = ""

    def note_printed(self, ranks: Iterable[int]) -> None:
        """Do nothing: a terminal has one place only."""

    def hide(self) -> None:
        """Take the live line away, to print something."""
        if self._drawn:
            self._sink.stream("stdout", "\r\x1b[K")
            self._drawn = ""

    def reset(self) -> None:
        """Take the live line away."""
        self.hide()

    def draw(self, live: Mapping[int, str], ends: Iterable[LiveEnd]) -> None:
        """Show the live line as it is now and print those that have ended."""
        for end in ends:
            self.hide()
            lines = _folded({end.rank: end.text})
            self._sink.stream("stdout", "".join(f"{line}\n" for line in lines))
        lines = _folded({rank: _shortened(text) for rank, text in live.items()})
        if len(lines) != 1 or not sys.stdout.isatty():
            self.hide()
        elif lines[0] != self._drawn:
            self.hide()
            self._sink.stream("stdout", lines[0])
            self._drawn = lines[0]
