"""``x = 1`` as a ``%%spmd`` cell on 4 ranks, and as a plain cell of a plain kernel."""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.kernel import Kernel, start_with_cluster
from benchmarks.workplace import own_folders

NUM_RANKS = 4
_PLAIN = "x = 1"
_SPMD = "%%spmd\nx = 1"
_WARM_UP_CELLS = 20


def measure(*, quick: bool) -> list[Figure]:
    """Run both in turns, each in its own kernel, through Jupyter's protocol."""
    cells = 5 if quick else 300
    plain: list[float] = []
    ours: list[float] = []
    plain_beside: list[float] = []
    with (
        own_folders() as folder,
        Kernel(folder) as reference,
        start_with_cluster(folder, num_ranks=NUM_RANKS, device="cpu") as kernel,
    ):
        for number in range(cells + _WARM_UP_CELLS):
            taken = (reference.run(_PLAIN), kernel.run(_SPMD), kernel.run(_PLAIN))
            if number >= _WARM_UP_CELLS:
                for samples, run in zip(
                    (plain, ours, plain_beside), taken, strict=True
                ):
                    samples.append(run.elapsed_s * 1e3)
    return [
        Figure(
            what=f"`x = 1` as a %%spmd cell, {NUM_RANKS} ranks, Jupyter's protocol",
            unit="ms",
            ours=tuple(ours),
            reference=tuple(plain),
            reference_name="plain ipykernel",
            limit=1.25,
        ),
        Figure(
            what="`x = 1` as a plain cell beside a cluster",
            unit="ms",
            ours=tuple(plain_beside),
            reference=tuple(plain),
            reference_name="plain ipykernel",
        ),
    ]
