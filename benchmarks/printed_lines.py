"""4 ranks print 20,000 lines each, and a plain kernel prints the same 80,000."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from benchmarks.figures import Figure
from benchmarks.kernel import CellRun, Kernel, start_with_cluster
from benchmarks.workplace import own_folders

NUM_RANKS = 4
NUM_LINES = 20_000
_STDERR_LINES = 2_500
_STDERR_LINE_NBYTES = 80
_CELL = """\
import sys
for line in range({num_lines}):
    print("out of rank", {rank}, "line", line)
for line in range({stderr_lines}):
    print(f"err of rank {{{rank}}} line {{line}}".ljust({width}, "."), file=sys.stderr)
"""
_LINE = re.compile(r"(out|err) of rank (\d+) line (\d+)")
_TAGS = re.compile(r"<[^>]*>|\x1b\[[0-9;]*m")


def measure(*, quick: bool) -> list[Figure]:
    """Take the two in turns through Jupyter's protocol and count the lines."""
    scale = 50 if quick else 1
    rounds = 1 if quick else 7
    num_lines, stderr_lines = NUM_LINES // scale, _STDERR_LINES // scale
    words = {
        "num_lines": num_lines,
        "stderr_lines": stderr_lines,
        "width": _STDERR_LINE_NBYTES - 1,
    }
    loop = "".join(
        f"    {line}\n" for line in _CELL.format(rank="rank", **words).splitlines()
    )
    plain_cell = f"for rank in range({NUM_RANKS}):\n{loop}"
    spmd_cell = "%%spmd\n" + _CELL.format(rank="rank", **words)
    plain: list[CellRun] = []
    ours: list[CellRun] = []
    with (
        own_folders() as folder,
        Kernel(folder) as reference,
        start_with_cluster(folder, num_ranks=NUM_RANKS, device="cpu") as kernel,
    ):
        for number in range(rounds + 1):
            plain_run, our_run = reference.run(plain_cell), kernel.run(spmd_cell)
            if number > 0 or quick:
                plain.append(plain_run)
                ours.append(our_run)
    lost = [count_lost(run, num_lines, stderr_lines) for run in ours]
    return _figures(plain, ours, lost, num_lines)


def _figures(
    plain: list[CellRun], ours: list[CellRun], lost: list[int], num_lines: int
) -> list[Figure]:
    rate = max(len(run.outputs) / run.elapsed_s for run in ours)
    return [
        Figure(
            what=f"{NUM_RANKS} ranks x {num_lines:,} lines and 200 kB of stderr each",
            unit="s",
            ours=tuple(run.elapsed_s for run in ours),
            reference=tuple(run.elapsed_s for run in plain),
            reference_name="the same lines from a plain ipykernel",
            limit=1.5,
            note=f"At most {rate:,.0f} output messages per second; Jupyter's server "
            "drops output above 1,000.",
        ),
        Figure(
            what="lines lost, doubled, altered or out of order within a rank",
            unit="lines",
            ours=tuple(float(count) for count in lost),
            limit=0,
            limit_of="value",
        ),
        Figure(
            what="output in Jupyter's messages",
            unit="MB",
            ours=tuple(run.nbytes / 1e6 for run in ours),
            reference=tuple(run.nbytes / 1e6 for run in plain),
            reference_name="plain ipykernel",
        ),
    ]


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
