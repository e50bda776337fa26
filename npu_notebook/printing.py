"""Show a cell's output in a plain Python program, labelled by rank."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.folding import Folder, label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npu_notebook.messages import Update


class Printer:
    """Prints the updates of one cell as they come; equal lines of ranks once.

    Progress bars appear with their last state only: a program's output is often a
    file, where a redrawn line would fill it.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._folder = Folder(ranks)

    def __call__(self, update: Update | None) -> None:
        """Take the next update of the cell, or None when nothing came for a while."""
        now_s = time.monotonic()
        match update:
            case messages.StreamText(rank=rank, stream=stream, text=text):
                self._folder.feed_text(rank, stream, text, now_s)
            case messages.DisplayOutput(rank=rank, data=data):
                text = str(data.get("text/plain", ""))
                self._folder.feed_rich(rank, text, now_s)
            case messages.Notice(text=text):
                sys.stderr.write(f"{text}\n")
            case messages.CellFinished():
                self._finish(update, now_s)
                return
            case _:
                pass
        self._print(now_s)

    def _finish(self, update: messages.CellFinished, now_s: float) -> None:
        self._folder.finish(now_s)
        self._print(now_s, everything=True)
        for one in update.outcomes:
            if one.hidden_lines:
                sys.stderr.write(f"{label([one.rank])}{hidden(one)}\n")

    def _print(self, now_s: float, *, everything: bool = False) -> None:
        for piece in self._folder.take(now_s, everything=everything):
            target = sys.stderr if piece.kind == "stderr" else sys.stdout
            target.write(f"{label(piece.ranks)}{piece.text}\n")
        for end in self._folder.take_ends():
            sys.stdout.write(f"{label([end.rank])}{end.text}\n")
        sys.stdout.flush()


def hidden(outcome: messages.RankOutcome) -> str:
    """Return the sentence about output that was not shown."""
    where = outcome.spool_path
    kept = f"full text in {where}" if where else "not kept: the disk is full"
    return f"{outcome.hidden_lines:,} lines hidden, {kept}"
