"""Push 100 MB to 4 ranks of this host, pull it from one, and ``memcpy`` it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.figures import Figure
from benchmarks.workplace import own_folders
from npu_notebook import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_RANKS = 4
NBYTES = 100_000_000
_CHECK = "assert x.nbytes == {nbytes} and x[0] == {first} and x[-1] == {first}"


def measure(*, quick: bool) -> list[Figure]:
    """Take copy, push and pull in turns; check that the right bytes have arrived."""
    nbytes = NBYTES // 100 if quick else NBYTES
    rounds = 2 if quick else 15
    times: dict[str, list[float]] = {
        key: [] for key in ("warm", "fresh", "push", "use", "pull")
    }
    source = np.zeros(nbytes, np.uint8)
    target = np.ones_like(source)
    pulled: list[np.ndarray] = []
    with own_folders(), _start() as cluster:
        steps: dict[str, Callable[[], object]] = {
            "warm": lambda: np.copyto(target, source),
            "push": lambda: cluster.push({"x": source}),
            "use": lambda: cluster.run("biggest = x.max()"),
            "pull": lambda: pulled.extend(cluster.pull("x", ranks=[0])),
            "fresh": lambda: bytearray(source),
        }
        for number in range(1, rounds + 2):
            source[:] = number
            for name, step in steps.items():
                elapsed_s = _timed(step)
                if number > 1:
                    times[name].append(elapsed_s * 1e3)
            cluster.run(_CHECK.format(nbytes=nbytes, first=number))
            if (pulled.pop() != source).any():
                message = "the pulled array differs from the pushed one"
                raise RuntimeError(message)
    return _figures({key: tuple(samples) for key, samples in times.items()}, nbytes)


def _start() -> Cluster:
    # Regions in shared memory are named after their cluster: a name of its own keeps
    # the benchmark apart from whatever else this user runs.
    return Cluster.start(num_ranks=NUM_RANKS, device="cpu", name=f"bench-{os.getpid()}")


def _timed(step: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    step()
    return time.perf_counter() - begin_s


def _figures(times: dict[str, tuple[float, ...]], nbytes: int) -> list[Figure]:
    size = f"{nbytes / 1e6:g} MB"
    name = f"memcpy of {size}"
    return [
        Figure(
            what=f"push {size} to {NUM_RANKS} local ranks",
            unit="ms",
            ours=times["push"],
            reference=times["warm"],
            reference_name=name,
            limit=3.0,
            note="The ranks map one copy; they read its pages when they use them: "
            "the row below.",
        ),
        Figure(
            what=f"first use after it: maximum on all {NUM_RANKS} ranks at once",
            unit="ms",
            ours=times["use"],
        ),
        Figure(
            what=f"pull {size} from one rank",
            unit="ms",
            ours=times["pull"],
            reference=times["warm"],
            reference_name=name,
            limit=4.0,
        ),
        Figure(
            what=f"for comparison: copy of {size} into new memory (bytearray)",
            unit="ms",
            ours=times["fresh"],
            reference=times["warm"],
            reference_name=name,
            note="As in shared memory, the kernel provides each page of 4 KiB first.",
        ),
    ]
