"""``cluster.run("pass")`` on 4 ranks, and a ZeroMQ ping-pong through the same hops."""

from __future__ import annotations

import time

from benchmarks.figures import Figure
from benchmarks.workplace import own_folders
from benchmarks.zmq_relay import open_relay
from npu_notebook import Cluster

NUM_RANKS = 4
_WARM_UP_CELLS = 20


def measure(*, quick: bool) -> list[Figure]:
    """Take the two in turns, from this process and without Jupyter."""
    cells = 5 if quick else 1000
    ours: list[float] = []
    relayed: list[float] = []
    with (
        own_folders() as folder,
        Cluster.start(num_ranks=NUM_RANKS, device="cpu") as cluster,
        open_relay(f"ipc://{folder}/relay", NUM_RANKS) as ping,
    ):
        for number in range(cells + _WARM_UP_CELLS):
            relayed_s = ping()
            begin_s = time.perf_counter()
            cluster.run("pass")
            ours_s = time.perf_counter() - begin_s
            if number >= _WARM_UP_CELLS:
                relayed.append(relayed_s * 1e3)
                ours.append(ours_s * 1e3)
    return [
        Figure(
            what=f'`cluster.run("pass")`, {NUM_RANKS} ranks, without Jupyter',
            unit="ms",
            ours=tuple(ours),
            reference=tuple(relayed),
            reference_name="ZeroMQ ping-pong",
            limit=4.0,
        )
    ]
