"""300 cells in one notebook: neither latency nor output nor memory may grow."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.kernel import CellRun, Kernel, start_with_cluster
from benchmarks.workplace import own_folders

NUM_RANKS = 4
NUM_CELLS = 300
_AT_EITHER_END = 10
_WARM_UP_CELLS = 5
_SPMD = "%%spmd\nx = [rank] * 100\nprint('rank', rank, 'is done')"
_PLAIN = "x = [0] * 100\nprint('rank', 0, 'is done')"
# Ten cells are few: their median moves by this much from one run to the next on a
# machine that does other things as well.
_NO_GROWTH = 1.15


def measure(*, quick: bool) -> list[Figure]:
    """Run 300 cells and hold the last 10 against the first 10."""
    cells = 25 if quick else NUM_CELLS
    with (
        own_folders() as folder,
        Kernel(folder) as reference,
        start_with_cluster(folder, num_ranks=NUM_RANKS, device="cpu") as kernel,
    ):
        for _ in range(_WARM_UP_CELLS):
            reference.run(_PLAIN)
            kernel.run(_SPMD)
        memory_mb = [_resident_mb(kernel.pid)]
        plain: list[CellRun] = []
        ours: list[CellRun] = []
        for _ in range(cells):
            plain.append(reference.run(_PLAIN))
            ours.append(kernel.run(_SPMD))
        memory_mb.append(_resident_mb(kernel.pid))
    return _figures(ours, plain, memory_mb)


def _figures(
    ours: list[CellRun], plain: list[CellRun], memory_mb: list[float]
) -> list[Figure]:
    first, last = ours[:_AT_EITHER_END], ours[-_AT_EITHER_END:]
    plain_growth = _latency(plain[-_AT_EITHER_END:]) / _latency(plain[:_AT_EITHER_END])
    return [
        Figure(
            what=f"latency of the last {_AT_EITHER_END} of {len(ours)} %%spmd cells",
            unit="ms",
            ours=tuple(run.elapsed_s * 1e3 for run in last),
            reference=tuple(run.elapsed_s * 1e3 for run in first),
            reference_name=f"first {_AT_EITHER_END} cells",
            limit=_NO_GROWTH,
            note=f"A plain ipykernel beside it went to {plain_growth:.2f} of its "
            "first cells.",
        ),
        Figure(
            what="output of the same cells",
            unit="bytes",
            ours=tuple(float(run.nbytes) for run in last),
            reference=tuple(float(run.nbytes) for run in first),
            reference_name=f"first {_AT_EITHER_END} cells",
            limit=1.02,
            note="Numbers in messages get more digits.",
        ),
        Figure(
            what="the notebook kernel's memory after them",
            unit="MB",
            ours=(memory_mb[1],),
            reference=(memory_mb[0],),
            reference_name="before them",
        ),
    ]


def _latency(runs: list[CellRun]) -> float:
    return statistics.median(run.elapsed_s for run in runs)


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    message = f"process {pid} has no resident memory"
    raise RuntimeError(message)
