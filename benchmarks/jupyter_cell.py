"""``x = 1`` as a ``%%spmd`` cell on 4 ranks, and as a plain cell of a plain kernel."""

from __future__ import annotations

import os

from benchmarks.figures import Figure
from benchmarks.kernel import Kernel, start_with_cluster
from benchmarks.workplace import own_folders

NUM_RANKS = 4
_PLAIN = "x = 1"
_CELLS = {
    f"`x = 1` as a %%spmd cell, {NUM_RANKS} ranks, Jupyter's protocol": (
        "%%spmd\nx = 1",
        1.25,
    ),
    "the same on 2 of the ranks": ("%%spmd --ranks 0-1\nx = 1", None),
    "`x = 1` as a plain cell beside a cluster": (_PLAIN, None),
}
_WARM_UP_CELLS = 20


def measure(*, quick: bool) -> list[Figure]:
    """Run each cell in turns with a plain kernel's, through Jupyter's protocol.

    Two cells never follow each other in one kernel: it still tidies up after the first
    when the second comes.
    """
    rounds = 3 if quick else 200
    ours: dict[str, list[float]] = {what: [] for what in _CELLS}
    plain: dict[str, list[float]] = {what: [] for what in _CELLS}
    with (
        own_folders() as folder,
        Kernel(folder) as reference,
        start_with_cluster(folder, num_ranks=NUM_RANKS, device="cpu") as kernel,
    ):
        for number in range(rounds + _WARM_UP_CELLS):
            for what, (code, _) in _CELLS.items():
                taken = reference.run(_PLAIN).elapsed_s, kernel.run(code).elapsed_s
                if number >= _WARM_UP_CELLS:
                    plain[what].append(taken[0] * 1e3)
                    ours[what].append(taken[1] * 1e3)
    return [
        Figure(
            what=what,
            unit="ms",
            ours=tuple(ours[what]),
            reference=tuple(plain[what]),
            reference_name="plain ipykernel",
            limit=limit,
            note=f"This machine has {os.cpu_count()} cores for the ranks, the "
            "controller and the notebook."
            if limit
            else "",
        )
        for what, (_, limit) in _CELLS.items()
    ]
