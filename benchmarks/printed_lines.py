"""4 ranks print 20,000 lines each, and a plain kernel prints the same 80,000."""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict

from benchmarks.figures import Figure
from benchmarks.kernel import CellRun, Kernel, start_with_cluster
from benchmarks.workplace import own_folders

NUM_RANKS = 4
NUM_LINES = 20_000
_REST_S = 3.5
_STDERR_LINES = 2_500
_STDERR_LINE_NBYTES = 80
_CELL = """\
import sys
for line in range({num_lines}):
    print(f"out{{rank}}:{{line}}{tail}")
for line in range({stderr_lines}):
    print(f"err{{rank}}:{{line}}:".ljust({width}, "."), file=sys.stderr)
"""
# What a line has besides its rank and number, and the goal. The long ones are more
# than Jupyter's server lets pass in 3 s: our cell waits, a plain one would lose lines.
_TAILS: dict[str, tuple[str, float | None]] = {
    "short": ("", 1.5),
    "long": (" and fourteen", None),
}
_LINE = re.compile(r"(out|err)(\d+):(\d+)")
_TAGS = re.compile(r"<[^>]*>|\x1b\[[0-9;]*m")


def measure(*, quick: bool) -> list[Figure]:
    """Take the two in turns through Jupyter's protocol and count the lines."""
    scale = 50 if quick else 1
    rounds = 1 if quick else 5
    num_lines, stderr_lines = NUM_LINES // scale, _STDERR_LINES // scale
    plain: dict[str, list[CellRun]] = {name: [] for name in _TAILS}
    ours: dict[str, list[CellRun]] = {name: [] for name in _TAILS}
    with (
        own_folders() as folder,
        Kernel(folder) as reference,
        start_with_cluster(folder, num_ranks=NUM_RANKS, device="cpu") as kernel,
    ):
        for number in range(rounds + 1):
            for name, (tail, _) in _TAILS.items():
                cell = _CELL.format(
                    num_lines=num_lines,
                    stderr_lines=stderr_lines,
                    width=_STDERR_LINE_NBYTES - 1,
                    tail=tail,
                )
                plain_run = reference.run(_for_all_ranks(cell))
                # Jupyter's server counts what came in the last 3 s: begin with nothing.
                threading.Event().wait(0 if quick else _REST_S)
                taken = plain_run, kernel.run(_spmd(cell))
                if number > 0 or quick:
                    plain[name].append(taken[0])
                    ours[name].append(taken[1])
    figures: list[Figure] = []
    for name in _TAILS:
        figures += _figures(name, plain[name], ours[name], num_lines)
    runs = [run for name in _TAILS for run in ours[name]]
    return [*figures, _loss(runs, num_lines, stderr_lines)]


def _spmd(cell: str) -> str:
    return f"%%spmd\n{cell}"


def _for_all_ranks(cell: str) -> str:
    body = "".join(f"    {line}\n" for line in cell.splitlines())
    return f"for rank in range({NUM_RANKS}):\n{body}"


def _figures(
    name: str, plain: list[CellRun], ours: list[CellRun], num_lines: int
) -> list[Figure]:
    what = f"{NUM_RANKS} ranks x {num_lines:,} {name} lines, 200 kB of stderr each"
    messages = max(len(run.outputs) / run.elapsed_s for run in ours)
    rates = [
        max(run.nbytes / run.elapsed_s for run in runs) / 1e6 for runs in (ours, plain)
    ]
    return [
        Figure(
            what=what,
            unit="s",
            ours=tuple(run.elapsed_s for run in ours),
            reference=tuple(run.elapsed_s for run in plain),
            reference_name="the same from a plain ipykernel",
            limit=_TAILS[name][1],
            note=f"{ours[0].nbytes / 1e6:.1f} MB in at most {messages:.0f} messages "
            f"and {rates[0]:.2f} MB per second; the plain kernel {rates[1]:.2f} MB per "
            "second. Jupyter's server drops what exceeds 1,000 messages or 1 MB per "
            "second over 3 s.",
        )
    ]


def _loss(runs: list[CellRun], num_lines: int, stderr_lines: int) -> Figure:
    return Figure(
        what="lines lost, doubled or out of order within a rank",
        unit="lines",
        ours=tuple(float(count_lost(run, num_lines, stderr_lines)) for run in runs),
        limit=0,
        limit_of="value",
    )


def count_lost(run: CellRun, num_lines: int, stderr_lines: int) -> int:
    """Return how many of the lines are missing, doubled or out of order.

    Each line is looked for with its own rank and number, whatever the view puts
    around it; stdout and stderr are separate orders.
    """
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for text in _shown_texts(run):
        for kind, rank, line in _LINE.findall(_TAGS.sub("", text)):
            found[kind, int(rank)].append(int(line))
    lost = 0
    for kind, wanted in (("out", num_lines), ("err", stderr_lines)):
        for rank in range(NUM_RANKS):
            lines = found[kind, rank]
            extra = Counter(lines) - Counter(range(wanted))
            missing = wanted - len(set(lines) & set(range(wanted)))
            lost += missing + extra.total() + (lines != sorted(lines))
    return lost


def _shown_texts(run: CellRun) -> list[str]:
    """Return what a person sees at the end, from top to bottom.

    Text joins the output above it if that is the same stream, and a display stays
    where it was first shown however often it is updated, as in JupyterLab.
    """
    shown: list[list[str]] = []
    last_stream = ""
    displays: dict[str, list[str]] = {}
    for message in run.outputs:
        content = message["content"]
        if message["msg_type"] == "stream":
            if content["name"] != last_stream:
                shown.append([])
            shown[-1].append(content["text"])
            last_stream = content["name"]
            continue
        display_id = content.get("transient", {}).get("display_id", "")
        text = content["data"].get("text/html") or content["data"]["text/plain"]
        if message["msg_type"] == "update_display_data":
            displays[display_id][:] = [text]
        else:
            displays[display_id] = [text]
            shown.append(displays[display_id])
            last_stream = ""
    return ["".join(parts) for parts in shown]
