"""Long output of a cell: blocks that stand for themselves and can be taken back.

A front end joins consecutive stream messages and draws the whole again for each, which
freezes a page from about a megabyte on. So only the first part of a cell's text is a
stream; what follows quickly comes in displays of its own, each drawn once. If a rank
then exceeds the cap, its lines in those blocks are taken off the page again: its file
has them all, and the saved notebook stays small.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

from npu_notebook.folding import RICH, label

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from npu_notebook.folding import Piece
    from npu_notebook.notebook.sink import Sink

HEAD_CHARS = 100_000
"""Text of a cell that is an ordinary stream."""

MIN_BLOCK_CHARS = 32_000
"""Less than this at once is a stream as before: front ends show some 50 displays."""

BLOCK_CHARS = 200_000
"""Text of one block at most."""


class Blocks:
    """The long output of one cell.

    Parameters
    ----------
    sink : Sink
        The cell's output area.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._streamed_chars = 0
        self._blocks: list[tuple[str, list[Piece]]] = []

    @property
    def begun(self) -> bool:
        """Whether text that comes quickly now belongs into blocks."""
        return self._sink.can_update and self._streamed_chars >= HEAD_CHARS

    def note_streamed(self, text: str) -> None:
        """Count text that was a stream."""
        self._streamed_chars += len(text)

    def take(self, pieces: list[Piece], text: str) -> bool:
        """Show text as a block; False if it had better be a stream."""
        if not self.begun or len(text) < MIN_BLOCK_CHARS:
            return False
        display_id = f"npu-block-{uuid.uuid4().hex[:12]}"
        self._sink.display({"text/plain": text.rstrip("\n")}, None, display_id)
        self._blocks.append((display_id, pieces))
        return True

    def take_back(self, ranks: Collection[int]) -> Counter[int]:
        """Take the lines of ``ranks`` off the page; return how many of each rank."""
        hidden: Counter[int] = Counter()
        for display_id, pieces in self._blocks:
            kept, dropped = split(pieces, ranks)
            hidden.update(count_lines(dropped))
            if dropped:
                data = {"text/plain": labelled(kept).rstrip("\n")}
                self._sink.display(data, None, display_id, update=True)
        self._blocks = []
        return hidden

    def forget(self) -> None:
        """Begin anew: the cell's output was cleared."""
        self._blocks = []
        self._streamed_chars = 0


def split(
    pieces: Iterable[Piece], ranks: Collection[int]
) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces that stay, and the lines that only ``ranks`` said."""
    kept: list[Piece] = []
    dropped: list[Piece] = []
    for piece in pieces:
        only = piece.kind != RICH and all(rank in ranks for rank in piece.ranks)
        (dropped if only else kept).append(piece)
    return kept, dropped


def count_lines(pieces: Iterable[Piece]) -> Counter[int]:
    """Return how many lines each rank has said."""
    return Counter(rank for piece in pieces for rank in piece.ranks)


def labelled(pieces: Sequence[Piece]) -> str:
    """Return lines with the ranks in front."""
    heads: dict[tuple[int, ...], str] = {}
    lines: list[str] = []
    for ranks, _, text in pieces:
        head = heads.get(ranks)
        if head is None:
            head = heads[ranks] = label(ranks)
        lines.append(f"{head}{text}\n")
    return "".join(lines)
