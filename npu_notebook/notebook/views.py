"""The view of one running cell: what its ranks say, labelled, folded and paced."""

from __future__ import annotations

import json
import posixpath
import threading
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from npu_notebook import messages
from npu_notebook.folding import RICH, Folder, Piece, label
from npu_notebook.notebook.blocks import (
    BLOCK_CHARS,
    Blocks,
    count_lines,
    labelled,
    split,
)
from npu_notebook.notebook.panels import Panels, TerminalLines
from npu_notebook.topology import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npu_notebook.messages import DisplayOutput, RankOutcome, Update
    from npu_notebook.notebook.pacing import Pacer
    from npu_notebook.notebook.sink import Sink

EMIT_EVERY_S = 0.05
BLOCK_EVERY_S = 1.0
"""How often long output is shown: fewer and larger blocks draw faster."""

DRAW_EVERY_S = 0.1
MESSAGE_CHARS = 100_000
"""Text of one message; several fit into what the pacer allows."""

MAX_HIDDEN = 8
"""Above this many ranks with hidden output their folder is named, not each file."""

MAX_RUNS = 60
"""Above this many changes between stdout and stderr in one batch, each stream of the
batch is sent in one piece: one message per line would take minutes under the limit."""


class TextView:
    """Shows the updates of one cell in the output area of that cell.

    Parameters
    ----------
    sink : Sink
        The cell's output area.
    ranks : sequence of int
        The ranks the cell runs on.
    pacer : Pacer or None
        Shared by all cells of a kernel; None where nobody drops output.
    quiet : bool
        Show notices and nothing else.

    Notes
    -----
    Used from one thread at a time. `show` wants to be called at least every 50 ms
    while the cell runs, with None when nothing has arrived.
    """

    def __init__(
        self,
        sink: Sink,
        ranks: Sequence[int],
        pacer: Pacer | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        self._sink = sink
        self._ranks = tuple(ranks)
        self._pacer = pacer
        self._quiet = quiet
        self._folder = Folder(ranks)
        self._panels = Panels(sink) if sink.can_update else TerminalLines(sink)
        self._rich = RichOutputs(sink, self._ranks)
        self._blocks = Blocks(sink)
        self._emitted_s = 0.0
        self._drawn_s = 0.0
        self._has_text = False
        self._ended = False

    def show(self, update: Update | None) -> None:
        """Take one update of the cell, or the passing of time."""
        now_s = time.monotonic()
        match update:
            case messages.StreamText(rank=rank, stream=stream, text=text):
                if not self._quiet:
                    self._has_text = True
                    self._folder.feed_text(rank, stream, text, now_s)
            case messages.DisplayOutput():
                if not self._quiet:
                    self._has_text = True
                    key = self._rich.key(update)
                    self._folder.feed_rich(update.rank, key, now_s)
            case messages.Notice(text=text, level=level):
                self._drain()
                self.note(text, level=level)
            case messages.CellFinished(outcomes=outcomes):
                self.finish(outcomes)
                return
            case _:
                pass
        if self._ended:
            self._drain()
        elif self._has_text and now_s - self._emitted_s >= self._emit_every_s:
            self._emit(now_s, everything=False)

    def finish(self, outcomes: Iterable[RankOutcome] = ()) -> None:
        """Show all that is left, at the pace the front end can take."""
        self._ended = True
        hidden: Counter[int] = Counter()
        outcomes = tuple(outcomes)
        if self._has_text:
            self._folder.finish(time.monotonic())
            hidden = self._hide(outcomes)
            self._drain()
        if not self._quiet:
            for sentence in hidden_sentences(outcomes, hidden):
                self.note(sentence)

    @property
    def _emit_every_s(self) -> float:
        return BLOCK_EVERY_S if self._blocks.begun else EMIT_EVERY_S

    def _hide(self, outcomes: Iterable[RankOutcome]) -> Counter[int]:
        """Take back what stands in files and is too long for the page.

        That is the output of ranks that exceeded their cap, and of ranks that the user
        has stopped: nobody wants to wait until all of it is drawn.
        """
        capped = {
            one.rank
            for one in outcomes
            if one.spool_path and (one.hidden_lines or _is_stopped(one))
        }
        if not capped or not self._blocks.begun:
            return Counter()
        waiting = self._folder.take(time.monotonic(), everything=True)
        kept, dropped = split(waiting, capped)
        self._send(kept, time.monotonic())
        return self._blocks.take_back(capped) + count_lines(dropped)

    def note(self, text: str, *, level: str = "info") -> None:
        """Show a sentence of ours, without a label."""
        self._panels.hide()
        stream = "stdout" if level == "info" else "stderr"
        self._sink.stream(stream, f"{text}\n")
        self._panels.note_printed(self._ranks)

    def _drain(self) -> None:
        pause = threading.Event()
        while True:
            self._emit(time.monotonic(), everything=True)
            if self._folder.is_empty:
                return
            pause.wait(EMIT_EVERY_S)

    def _emit(self, now_s: float, *, everything: bool) -> None:
        while True:
            most = BLOCK_CHARS if self._blocks.begun else MESSAGE_CHARS
            room = most if self._pacer is None else self._pacer.room(now_s)
            if room <= 0:
                break
            chars = min(room, most)
            pieces = self._folder.take(now_s, chars, everything=everything)
            if not pieces:
                break
            self._send(pieces, now_s)
            self._emitted_s = now_s
        if everything or now_s - self._drawn_s >= DRAW_EVERY_S:
            live = {} if everything else self._folder.live(now_s)
            ends = self._folder.take_ends()
            self._panels.draw(live, ends)
            self._drawn_s = now_s

    def _send(self, pieces: list[Piece], now_s: float) -> None:
        self._panels.hide()
        texts: list[Piece] = []
        for piece in pieces:
            if piece.kind != RICH:
                texts.append(piece)
                continue
            output = self._rich.take(piece.text)
            if output.kind != "clear" and is_plain(output):
                texts.append(Piece(piece.ranks, "stdout", _indented(piece, output)))
                continue
            self._send_text(texts, now_s)
            texts = []
            self._send_rich(piece, output, now_s)
        self._send_text(texts, now_s)
        self._panels.note_printed({rank for piece in pieces for rank in piece.ranks})

    def _send_text(self, pieces: list[Piece], now_s: float) -> None:
        if self._blocks.begun:
            text = labelled(pieces)
            if self._blocks.take(pieces, text):
                self._spend(text, now_s)
                return
        runs: list[tuple[str, list[Piece]]] = []
        for piece in pieces:
            if not runs or runs[-1][0] != piece.kind:
                runs.append((piece.kind, []))
            runs[-1][1].append(piece)
        if len(runs) > MAX_RUNS:
            merged: dict[str, list[Piece]] = {}
            for kind, part in runs:
                merged.setdefault(kind, []).extend(part)
            runs = list(merged.items())
        for kind, part in runs:
            self._stream(kind, labelled(part), now_s)

    def _send_rich(self, piece: Piece, output: DisplayOutput, now_s: float) -> None:
        if output.kind == "clear":
            if self._rich.clear(piece.ranks, wait=output.wait):
                self._panels.reset()
                self._blocks.forget()
            return
        if output.kind != "update":
            self._stream("stdout", label(piece.ranks).rstrip() + "\n", now_s)
        self._rich.display(piece.ranks, output)

    def _stream(self, name: str, text: str, now_s: float) -> None:
        self._sink.stream(name, text)
        self._blocks.note_streamed(text)
        self._spend(text, now_s)

    def _spend(self, text: str, now_s: float) -> None:
        if self._pacer is not None:
            self._pacer.spend(now_s, text)


class RichOutputs:
    """Displays of ranks (HTML, figures, values), found again by id or key."""

    def __init__(self, sink: Sink, ranks: tuple[int, ...]) -> None:
        self._sink = sink
        self._all = ranks
        self._outputs: dict[str, DisplayOutput] = {}
        self._shown: dict[tuple[int, ...], list[str]] = {}
        self._reusable: list[str] = []

    def key(self, output: DisplayOutput) -> str:
        """Keep an output; return a text that is equal for equal outputs."""
        # Displays with an id may be changed later, each rank's by itself.
        own = output.rank if output.display_id else ""
        facts = [output.kind, own, output.display_id, output.wait, output.data]
        key = json.dumps(facts, sort_keys=True, default=repr)
        self._outputs[key] = output
        return key

    def take(self, key: str) -> DisplayOutput:
        """Return a kept output."""
        return self._outputs[key]

    def display(self, ranks: tuple[int, ...], output: DisplayOutput) -> None:
        """Show an output, or change what it changes."""
        if output.display_id:
            display_id = f"npu-{output.rank}-{output.display_id}"
            update = output.kind == "update"
        else:
            update = bool(self._reusable)
            display_id = (
                self._reusable.pop(0) if update else f"npu-{uuid.uuid4().hex[:12]}"
            )
        self._shown.setdefault(ranks, []).append(display_id)
        data: dict[str, Any] = dict(output.data)
        if set(data) == {"text/plain"}:
            data["text/plain"] = label(ranks) + str(data["text/plain"])
        self._sink.display(data, output.metadata, display_id, update=update)

    def clear(self, ranks: tuple[int, ...], *, wait: bool) -> bool:
        """Obey `clear_output` of some ranks; return whether all output went.

        When only some ranks clear, their displays go and the other ranks' stay.
        """
        if set(ranks) >= set(self._all):
            self._sink.clear(wait=wait)
            self._shown.clear()
            return True
        for owners in [owners for owners in self._shown if set(owners) <= set(ranks)]:
            ids = self._shown.pop(owners)
            if wait:
                self._reusable += ids
                continue
            for display_id in ids:
                self._sink.display({"text/plain": ""}, None, display_id, update=True)
        return False


def is_plain(output: DisplayOutput) -> bool:
    """Return whether an output is nothing but text that will not change."""
    return set(output.data) == {"text/plain"} and not output.display_id


def _indented(piece: Piece, output: DisplayOutput) -> str:
    """Return the text, its further lines standing below the first."""
    indent = "\n" + " " * len(label(piece.ranks))
    return str(output.data["text/plain"]).replace("\n", indent)


def _is_stopped(outcome: RankOutcome) -> bool:
    return outcome.error is not None and outcome.error.interrupted


def hidden_sentences(
    outcomes: Iterable[RankOutcome], taken_back: Counter[int]
) -> list[str]:
    """Return what a person reads about output that is not on screen.

    ``taken_back`` counts lines by rank that were on screen and are no longer.
    """
    hidden = [
        one
        for one in outcomes
        if one.spool_path and one.hidden_lines + taken_back[one.rank]
    ]
    if len(hidden) <= MAX_HIDDEN:
        return [
            f"{one.hidden_lines + taken_back[one.rank]:,} lines of rank {one.rank} "
            f"hidden, full text in {one.spool_path}"
            for one in hidden
        ]
    count = sum(one.hidden_lines + taken_back[one.rank] for one in hidden)
    ranks = format_ranks(one.rank for one in hidden)
    folder = posixpath.dirname(hidden[0].spool_path)
    return [f"{count:,} lines of ranks {ranks} hidden, full text in {folder}/"]
