"""From nothing to the first cell done on 4 ranks with torch and a process group."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.workplace import own_folders
from npu_notebook import Cluster

NUM_RANKS = 4
_TIMEOUT_S = 120.0
_SCRIPT = Path(__file__).with_name("all_reduce_script.py")
_FIRST_CELL = """\
import torch
import torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == world_size
x = 1
"""


def measure(*, quick: bool) -> list[Figure]:
    """Take ``torchrun``, `Cluster.start` and a restart in turns."""
    rounds = 1 if quick else 7
    times: dict[str, list[float]] = {"torchrun": [], "start": [], "restart": []}
    with own_folders() as folder:
        if not quick:
            _torchrun(folder)  # torch's files come into memory
        for _ in range(rounds):
            times["torchrun"].append(_torchrun(folder))
            start_s, restart_s = _start_and_restart()
            times["start"].append(start_s)
            times["restart"].append(restart_s)
    reference = tuple(times["torchrun"])
    name = f"torchrun --nproc-per-node {NUM_RANKS}"
    return [
        Figure(
            what=f"start to first cell done, {NUM_RANKS} ranks",
            unit="s",
            ours=tuple(times["start"]),
            reference=reference,
            reference_name=name,
            limit=0.7,
        ),
        Figure(
            what=f"restart of all {NUM_RANKS} ranks to next cell done",
            unit="s",
            ours=tuple(times["restart"]),
            reference=reference,
            reference_name=name,
            limit=0.15,
        ),
    ]


def _start_and_restart() -> tuple[float, float]:
    begin_s = time.monotonic()
    with Cluster.start(num_ranks=NUM_RANKS, device="cpu") as cluster:
        cluster.run(_FIRST_CELL)
        start_s = time.monotonic() - begin_s
        begin_s = time.monotonic()
        cluster.restart()
        cluster.run(_FIRST_CELL)
        return start_s, time.monotonic() - begin_s


def _torchrun(folder: Path) -> float:
    """Return seconds until the last rank is done; ``torchrun`` itself ends later.

    Raises
    ------
    RuntimeError
        If it fails; with what it printed.
    """
    stamps = folder / f"stamps-{time.monotonic_ns()}"
    stamps.mkdir()
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nproc-per-node", str(NUM_RANKS), "--master-port", str(_free_port())),
        *(str(_SCRIPT), str(stamps)),
    ]
    begin_s = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        message = f"torchrun ended with {done.returncode}:\n{done.stderr}"
        raise RuntimeError(message)
    return max(float(stamp.read_text()) for stamp in stamps.iterdir()) - begin_s


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
