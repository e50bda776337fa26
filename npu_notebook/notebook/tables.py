"""Clusters and ranks as tables: text for every front end, HTML where it is shown."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from npu_notebook.messages import ClusterFact, ClusterState, RankFact, RankState
from npu_notebook.topology import format_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

_GREEN, _AMBER, _RED, _GREY = "#2e7d32", "#b26a00", "#c62828", "#757575"
_COLOURS = {
    RankState.IDLE: _GREEN,
    RankState.RUNNING: _GREEN,
    RankState.INTERRUPTING: _AMBER,
    RankState.UNRESPONSIVE: _AMBER,
    RankState.LOST: _RED,
    RankState.ENDED: _GREY,
}
RANK_HEADS = ("rank", "host", "pid", "device", "state", "doing")


class Table:
    """Rows under heads, for `IPython.display.display`.

    Parameters
    ----------
    title : str
        One line above the table.
    heads : sequence of str
        Column names.
    rows : sequence of sequences of str
        The cells.
    colours : sequence of str, optional
        Colour of each row's state, as CSS, "" for none.
    """

    def __init__(
        self,
        title: str,
        heads: Sequence[str],
        rows: Sequence[Sequence[str]],
        colours: Sequence[str] = (),
    ) -> None:
        self.title = title
        self.heads = heads
        self.rows = rows
        self.colours = colours

    def __repr__(self) -> str:
        return as_text(self.title, self.heads, self.rows)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.bundle()

    def bundle(self) -> dict[str, str]:
        """Return text and HTML."""
        return {"text/plain": repr(self), "text/html": self._as_html()}

    def _as_html(self) -> str:
        heads = "".join(f"<th>{html.escape(head)}</th>" for head in self.heads)
        body: list[str] = []
        for number, row in enumerate(self.rows):
            colour = self.colours[number] if number < len(self.colours) else ""
            mark = f' style="border-left:4px solid {colour}"' if colour else ""
            cells = "".join(
                f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row
            )
            body.append(f"<tr{mark}>{cells}</tr>")
        table = f"<table><tr>{heads}</tr>{''.join(body)}</table>"
        return f"<div><div>{html.escape(self.title)}</div>{table}</div>"


def as_text(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of aligned columns under its title."""
    if not rows:
        return title
    widths = [
        max(len(line[column]) for line in (heads, *rows))
        for column in range(len(heads))
    ]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in (heads, *rows)
    ]
    return "\n".join([title, *(line.rstrip() for line in lines)])


def cluster_table(fact: ClusterFact, title: str = "") -> Table:
    """Return one row per rank; the title says what the cluster is."""
    ranks = sorted(fact.ranks, key=lambda rank: rank.rank)
    return Table(
        title or f"{describe(fact)}, {fact.state}, up {duration(fact.age_s)}",
        RANK_HEADS,
        [rank_row(rank, fact) for rank in ranks],
        [_COLOURS.get(rank.state, "") for rank in ranks],
    )


def rank_row(rank: RankFact, fact: ClusterFact) -> tuple[str, ...]:
    """Return the cells of one rank; what is not known is a dash."""
    device = rank.device or "-"
    if fact.provider == "simulated" and rank.device and "simulated" not in device:
        device = f"{device} (simulated)"
    pid = "-" if rank.pid is None else str(rank.pid)
    doing = rank.doing or "-"
    return (str(rank.rank), rank.host, pid, device, str(rank.state), doing)


def describe(fact: ClusterFact) -> str:
    """Return ``cluster 'x': 4 ranks on simulated NPU, hccl``."""
    plural = "" if fact.world_size == 1 else "s"
    what = f" on {fact.label}" if fact.label else " without a device"
    backend = f", {fact.backend}" if fact.backend else ""
    return f"cluster '{fact.name}': {fact.world_size} rank{plural}{what}{backend}"


def advice(fact: ClusterFact) -> str:
    """Return what to do about lost or silent ranks, "" when all is well."""
    lost = [rank.rank for rank in fact.ranks if rank.state is RankState.LOST]
    silent = [rank.rank for rank in fact.ranks if rank.state is RankState.UNRESPONSIVE]
    sentences: list[str] = []
    if lost:
        words = format_ranks(lost)
        sentences.append(
            f"Lost: rank(s) {words}. `%npu_cluster restart --ranks {words}` replaces "
            "them; the other ranks keep their variables."
        )
    if silent:
        words = format_ranks(silent)
        sentences.append(
            f"Silent but alive: rank(s) {words}. `%npu_cluster interrupt` asks, "
            f"`%npu_cluster restart --ranks {words}` replaces them."
        )
    if fact.state is ClusterState.ENDED:
        sentences.append("It has ended; `%npu_cluster start` makes a new one.")
    return "\n".join(sentences)


def duration(age_s: float) -> str:
    """Return a time as a person says it.

    Examples
    --------
    >>> duration(5), duration(125), duration(7300)
    ('5 s', '2 min', '2 h 1 min')
    """
    minutes, rest_s = divmod(int(age_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{rest_s} s"
