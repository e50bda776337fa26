"""Turns what many ranks print into few labelled lines.

Equal lines of several ranks become one; a line that is redrawn (a progress bar) stays
one *live line* of its rank. The order within a rank is kept and nothing is lost. Pure:
time comes in as ``now_s``, seconds of any clock that does not run backwards.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from npu_notebook.screen import Screen
from npu_notebook.topology import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

WAIT_S = 0.1
"""How long a line waits for other ranks to say the same."""

MAX_WAIT_S = 0.4
"""The same on a machine where ranks are seen to say equal lines further apart."""

LIVE_AFTER_S = 0.3
"""Age at which an unfinished line is shown before its end has come."""

FLOOD_CHARS = 4_096
FLOOD_LIVE_AFTER_S = 2.0
"""The same when the line began in a text this long: most likely it was only cut."""

KEPT_MISSED = 64

RICH = "rich"
"""The kind of a `Piece` whose text is the key of a rich output."""


class Piece(NamedTuple):
    """One line (or rich output) and all ranks that said it at the same point."""

    ranks: tuple[int, ...]
    kind: str
    text: str


class LiveEnd(NamedTuple):
    """The final state of a live line that had been shown."""

    rank: int
    text: str


@dataclass(slots=True)
class _Rank:
    queue: deque[tuple[str, str]] = field(default_factory=deque)
    arrivals_s: deque[float] = field(default_factory=deque)
    screens: dict[str, Screen] = field(default_factory=dict)
    began_s: dict[str, float] = field(default_factory=dict)
    changed_s: dict[str, float] = field(default_factory=dict)
    live_after_s: dict[str, float] = field(default_factory=dict)
    shown: str = ""


class _Patience:
    """How long to wait for other ranks; learns how far apart they are."""

    def __init__(self) -> None:
        self.wait_s = WAIT_S
        self._missed: dict[tuple[str, str], float] = {}

    def note_missed(self, item: tuple[str, str], now_s: float) -> None:
        """Remember a line that not all ranks have said yet, the newest ones only."""
        self._missed.pop(item, None)
        self._missed[item] = now_s
        if len(self._missed) > KEPT_MISSED:
            del self._missed[next(iter(self._missed))]

    def learn(self, item: tuple[str, str], now_s: float) -> None:
        """Wait longer from now on if this line comes just too late to be folded."""
        if now_s - self._missed.pop(item, float("-inf")) < MAX_WAIT_S:
            self.wait_s = min(MAX_WAIT_S, self.wait_s * 2)


class Folder:
    """Queues per rank, and the rules by which their heads become pieces.

    Parameters
    ----------
    ranks : iterable of int
        The ranks of the cell; a line is held back for `WAIT_S`, at most `MAX_WAIT_S`,
        for those of them that have said nothing yet.

    Notes
    -----
    A long class: queues, live lines and time decide together what comes next.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks: dict[int, _Rank] = {rank: _Rank() for rank in ranks}
        self._heads: dict[tuple[str, str], list[int]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._num_filled = 0
        self._ends: list[LiveEnd] = []
        self._patience = _Patience()

    @property
    def is_empty(self) -> bool:
        """Whether every line that was fed has been taken."""
        return not self._heads and not self._ends

    def feed_text(self, rank: int, stream: str, text: str, now_s: float) -> None:
        """Take text as it came from one stream of one rank."""
        one = self._ranks.setdefault(rank, _Rank())
        self._settle_others(rank, one, stream, now_s)
        screen = one.screens.get(stream)
        if screen is None:
            screen = one.screens[stream] = Screen()
        if screen.is_empty:
            one.began_s[stream] = now_s
        one.changed_s[stream] = now_s
        flood = len(text) >= FLOOD_CHARS
        one.live_after_s[stream] = FLOOD_LIVE_AFTER_S if flood else LIVE_AFTER_S
        text = text.replace("\r\n", "\n")
        was_block = screen.is_block
        if screen.is_plain and not ("\r" in text or "\x1b" in text or "\b" in text):
            lines = screen.feed_plain(text)
        else:
            lines = screen.feed(text)
        if lines:
            one.began_s[stream] = now_s
            self._finish_lines(rank, stream, lines, now_s, was_block=was_block)

    def feed_rich(self, rank: int, key: str, now_s: float) -> None:
        """Take one rich output; equal ``key`` means equal content."""
        one = self._ranks.setdefault(rank, _Rank())
        self._settle_others(rank, one, "", now_s)
        self._push(rank, [(RICH, key)], now_s)

    def finish(self, now_s: float) -> None:
        """End all unfinished lines: the cell has ended."""
        for rank, one in self._ranks.items():
            for stream, screen in one.screens.items():
                was_block = screen.is_block
                lines = screen.finish()
                self._finish_lines(rank, stream, lines, now_s, was_block=was_block)

    def take(
        self, now_s: float, max_chars: int | None = None, *, everything: bool = False
    ) -> list[Piece]:
        """Return the pieces that need wait no longer, in order.

        Parameters
        ----------
        now_s : float
            The time.
        max_chars : int, optional
            Stop after about this much text; the rest comes with the next call.
        everything : bool
            Wait for nobody.
        """
        self._settle_old(now_s)
        pieces: list[Piece] = []
        room = max_chars
        while self._heads and (room is None or room > 0):
            chosen = self._choose(now_s, everything=everything)
            if not chosen:
                break
            for item in chosen:
                ranks = self._pop(item)
                pieces.append(Piece(ranks, *item))
                if len(ranks) < len(self._ranks):
                    self._patience.note_missed(item, now_s)
                if room is not None:
                    room -= len(item[1]) + 1
                    if room <= 0:
                        break
        return pieces

    def live(self, now_s: float) -> dict[int, str]:
        """Return the live lines to show now, at most one (block) per rank."""
        shown: dict[int, str] = {}
        for rank, one in self._ranks.items():
            if not one.shown and not one.queue:
                one.shown = self._to_show(one, now_s)
            if one.shown:
                text = one.screens[one.shown].peek()
                if text:
                    shown[rank] = text
        return shown

    def take_ends(self) -> list[LiveEnd]:
        """Return the final states of live lines that ended since the last call."""
        ends, self._ends = self._ends, []
        return ends

    def due_s(self) -> float | None:
        """Return when `take` or `live` may have something new, None for never."""
        times: list[float] = []
        for one in self._ranks.values():
            if one.queue:
                times.append(one.arrivals_s[0] + self._patience.wait_s)
            for stream, screen in one.screens.items():
                if not screen.is_empty and (screen.row > 0 or not one.shown):
                    times.append(
                        one.changed_s[stream] + LIVE_AFTER_S
                        if screen.row > 0
                        else one.began_s[stream] + one.live_after_s[stream]
                    )
        return min(times, default=None)

    def _to_show(self, one: _Rank, now_s: float) -> str:
        for stream, screen in one.screens.items():
            if screen.is_empty or (screen.row > 0 and not screen.is_block):
                continue
            age_s = now_s - one.began_s[stream]
            if screen.is_redrawn or age_s >= one.live_after_s[stream]:
                return stream
        return ""

    def _settle_others(self, rank: int, one: _Rank, stream: str, now_s: float) -> None:
        # What a rank wrote before must not come behind what it writes now.
        for other, screen in one.screens.items():
            if other != stream and screen.row > 0 and not screen.is_block:
                self._finish_lines(rank, other, screen.settle(), now_s)

    def _settle_old(self, now_s: float) -> None:
        for rank, one in self._ranks.items():
            for stream, screen in one.screens.items():
                old = now_s - one.changed_s[stream] >= LIVE_AFTER_S
                if screen.row > 0 and old:
                    was_block = screen.is_block
                    lines = screen.settle()
                    self._finish_lines(rank, stream, lines, now_s, was_block=was_block)

    def _finish_lines(
        self,
        rank: int,
        stream: str,
        lines: list[str],
        now_s: float,
        *,
        was_block: bool = False,
    ) -> None:
        one = self._ranks[rank]
        if lines and one.shown == stream:
            count = len(lines) if was_block else 1
            self._ends.append(LiveEnd(rank, "\n".join(lines[:count])))
            one.shown = ""
            lines = lines[count:]
        if lines:
            self._push(rank, list(zip(repeat(stream), lines)), now_s)

    def _push(self, rank: int, items: list[tuple[str, str]], now_s: float) -> None:
        one = self._ranks[rank]
        if not one.queue:
            self._heads.setdefault(items[0], []).append(rank)
            self._num_filled += 1
        one.queue.extend(items)
        one.arrivals_s.extend(repeat(now_s, len(items)))
        counts = self._counts
        self._patience.learn(items[0], now_s)
        for item in items:
            counts[item] = counts.get(item, 0) + 1

    def _choose(self, now_s: float, *, everything: bool) -> list[tuple[str, str]]:
        """Return the heads to come next, by rank.

        Those that some rank has further down wait for it, unless all are such.
        """
        ready = everything or self._num_filled == len(self._ranks)
        heads = [
            (ranks[0], item)
            for item, ranks in self._heads.items()
            if ready or self._has_waited(ranks, now_s)
        ]
        if len(heads) > 1:
            counts = self._counts
            best = [one for one in heads if counts[one[1]] == len(self._heads[one[1]])]
            heads = sorted(best) or heads[:1]
        return [item for _, item in heads]

    def _has_waited(self, ranks: list[int], now_s: float) -> bool:
        return any(
            now_s - self._ranks[rank].arrivals_s[0] >= self._patience.wait_s
            for rank in ranks
        )

    def _pop(self, item: tuple[str, str]) -> tuple[int, ...]:
        ranks = self._heads.pop(item)
        left = self._counts[item] - len(ranks)
        if left:
            self._counts[item] = left
        else:
            del self._counts[item]
        for rank in ranks:
            one = self._ranks[rank]
            one.queue.popleft()
            one.arrivals_s.popleft()
            if one.queue:
                self._heads.setdefault(one.queue[0], []).append(rank)
            else:
                self._num_filled -= 1
        return (ranks[0],) if len(ranks) == 1 else tuple(sorted(ranks))


def label(ranks: Iterable[int]) -> str:
    """Return what stands before a line.

    Examples
    --------
    >>> label([0, 1, 2, 3]), label([2])
    ('[0-3] ', '[2] ')
    """
    return f"[{format_ranks(ranks)}] "
