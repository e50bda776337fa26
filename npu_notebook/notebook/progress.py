"""The view of a start or restart: one display that tells which ranks are up."""

from __future__ import annotations

import html
import sys
import time
import uuid
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.messages import RankState
from npu_notebook.notebook.tables import cluster_table, describe
from npu_notebook.topology import format_ranks

if TYPE_CHECKING:
    from npu_notebook.messages import ClusterFact, Update
    from npu_notebook.notebook.sink import Sink

DRAW_EVERY_S = 0.5
STEPS_S = (1, 5)
"""The seconds shown count one by one at first; from `PATIENT_S` on in larger steps."""

PATIENT_S = 15
_ERASE = "\r\x1b[K"
_UP = (RankState.JOINED, RankState.FORMING, RankState.IDLE, RankState.RUNNING)


class StartView:
    """Redraws one display while a cluster starts, and leaves a table in its place.

    Parameters
    ----------
    sink : Sink
        Output area of the cell that starts it.
    what : str
        ``"Starting"`` or ``"Restarting"``.
    """

    def __init__(self, sink: Sink, what: str) -> None:
        self._sink = sink
        self._what = what
        self._began_s = time.monotonic()
        self._display_id = f"npu-start-{uuid.uuid4().hex[:12]}"
        self._notices: list[str] = []
        self._fact: ClusterFact | None = None
        self._drawn_s: float | None = None
        self._is_shown = False
        self._text = ""

    def show(self, update: Update | None) -> None:
        """Take one update of the start, or the passing of time."""
        match update:
            case messages.Notice(text=text):
                self._notices.append(text)
                if not self._sink.can_update:
                    self._print(text)
                self._drawn_s = None
            case messages.StateChanged(fact=fact):
                self._fact = fact
            case _:
                pass
        now_s = time.monotonic()
        if self._drawn_s is None or now_s - self._drawn_s >= DRAW_EVERY_S:
            self._draw(self._progress())
            self._drawn_s = now_s

    def finish(self, fact: ClusterFact) -> None:
        """Leave the table of ranks."""
        elapsed_s = time.monotonic() - self._began_s
        done = "ready" if self._what == "Starting" else "restarted"
        title = f"{describe(fact)}, {done} after {elapsed_s:.1f} s"
        table = cluster_table(fact, title)
        if not self._sink.can_update:
            self._print(repr(table))
            return
        bundle = table.bundle()
        lines = "\n".join(self._notices)
        if lines:
            bundle["text/plain"] = f"{lines}\n{bundle['text/plain']}"
            bundle["text/html"] = f"{as_pre(lines)}{bundle['text/html']}"
        self._show(bundle)

    def fail(self) -> None:
        """Leave what was seen up to the failure; the error says the rest."""
        self._draw(f"{self._progress()} - failed")
        if not self._sink.can_update and sys.stdout.isatty():
            self._sink.stream("stdout", "\n")

    def _progress(self) -> str:
        elapsed_s = int(time.monotonic() - self._began_s)
        elapsed_s -= elapsed_s % STEPS_S[elapsed_s >= PATIENT_S]
        fact = self._fact
        if fact is None or not fact.ranks:
            return f"{self._what} the cluster, {elapsed_s} s"
        up = [rank.rank for rank in fact.ranks if rank.state in _UP]
        words = f"{len(up)} of {len(fact.ranks)} ranks up"
        missing = [rank.rank for rank in fact.ranks if rank.state not in _UP]
        if up and missing:
            words += f", waiting for {format_ranks(missing)}"
        elif not missing:
            words += ", forming their group"
        return f"{self._what} {describe(fact)}: {words}, {elapsed_s} s"

    def _print(self, text: str) -> None:
        erase = _ERASE if sys.stdout.isatty() else ""
        self._sink.stream("stdout", f"{erase}{text}\n")

    def _draw(self, line: str) -> None:
        if self._sink.can_update:
            text = "\n".join([*self._notices, line])
            if text == self._text:
                return
            self._text = text
            self._show({"text/plain": text, "text/html": as_pre(text)})
        elif sys.stdout.isatty():
            self._sink.stream("stdout", f"{_ERASE}{line}")

    def _show(self, data: dict[str, str]) -> None:
        self._sink.display(data, None, self._display_id, update=self._is_shown)
        self._is_shown = True


def as_pre(text: str) -> str:
    """Return lines as HTML that looks like text output."""
    return f'<pre style="margin:0">{html.escape(text)}</pre>'
