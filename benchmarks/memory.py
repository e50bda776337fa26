"""Private memory of a rank beyond ``import torch``, and what an idle cluster costs."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.figures import Figure
from benchmarks.workplace import own_folders
from npu_notebook import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterable

NUM_RANKS = 8
_BARE = "import torch, sys; print('up', flush=True); sys.stdin.read()"


def measure(*, quick: bool) -> list[Figure]:
    """Start 8 ranks and read the kernel's books about each process (Linux)."""
    num_ranks = 2 if quick else NUM_RANKS
    window_s = 1.0 if quick else 20.0
    bare = _bare_torch_mb()
    with own_folders(), Cluster.start(num_ranks=num_ranks, device="cpu") as cluster:
        cluster.run("x = 1")
        ranks = [fact.pid for fact in cluster.fact.ranks if fact.pid is not None]
        everyone = _processes(cluster)
        private = tuple(_private_mb(pid) for pid in ranks)
        shared_out = sum(_proportional_mb(pid) for pid in ranks)
        whole = sum(_proportional_mb(process.pid) for process in everyone)
        idle_percent, gloo_percent = _busy_percent(everyone, window_s)
    return [
        Figure(
            what="private memory of one forked rank",
            unit="MB",
            ours=private,
            reference=bare,
            reference_name="bare `import torch` process",
            limit=25,
            limit_of="value",
            note="A forked rank shares torch with its template, so the goal is held "
            "against all of its private memory.",
        ),
        Figure(
            what=f"all {num_ranks} forked ranks, proportional set size",
            unit="MB",
            ours=(shared_out,),
            limit=400,
            limit_of="value",
            note="A page shared by n processes counts 1/n for each.",
        ),
        Figure(
            what=f"whole cluster of {num_ranks} ranks: controller, agent, template, "
            "store, ranks",
            unit="MB",
            ours=(whole,),
        ),
        Figure(
            what=f"idle CPU of the cluster of {num_ranks} ranks, percent of a core",
            unit="%",
            ours=(idle_percent,),
            limit=1,
            limit_of="value",
            note=f"{len(everyone)} processes watched for {window_s:g} s.",
        ),
        Figure(
            what="of it, threads of gloo, which poll 100 times a second",
            unit="%",
            ours=(gloo_percent,),
            note="A thread of torch's, one in each rank, also under torchrun.",
        ),
    ]


def _bare_torch_mb() -> tuple[float, ...]:
    with subprocess.Popen(
        [sys.executable, "-c", _BARE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        if process.stdout is None or not process.stdout.readline():
            message = "a process that only imports torch did not come up"
            raise RuntimeError(message)
        private = _private_mb(process.pid)
        process.communicate()
    return (private,)


def _processes(cluster: Cluster) -> list[psutil.Process]:
    """Return the controller and all below it, and ranks wherever they hang."""
    controller = psutil.Process(cluster.session.connection.controller_pid)
    found = {process.pid: process for process in controller.children(recursive=True)}
    for fact in cluster.fact.ranks:
        if fact.pid is not None:
            found.setdefault(fact.pid, psutil.Process(fact.pid))
    return [controller, *found.values()]


def _busy_percent(
    processes: Iterable[psutil.Process], window_s: float
) -> tuple[float, float]:
    """Return what all threads used in the next seconds, and gloo's among them."""
    processes = list(processes)
    before = _cpu_ns(processes)
    threading.Event().wait(window_s)  # the window itself, nothing to wait for
    after = _cpu_ns(processes)
    used = {thread: ns - before.get(thread, 0) for thread, ns in after.items()}
    gloo = sum(ns for (_, name), ns in used.items() if name.startswith("gloo"))
    return sum(used.values()) / window_s / 1e7, gloo / window_s / 1e7


def _cpu_ns(processes: Iterable[psutil.Process]) -> dict[tuple[str, str], int]:
    """Return the CPU time of each thread so far, by its number and name.

    Notes
    -----
    ``/proc/PID/stat`` counts in ticks of 10 ms, too coarse for an idle process; the
    first field of ``schedstat`` is nanoseconds on the CPU, by thread.
    Source: Linux, Documentation/scheduler/sched-stats.rst.
    """
    used: dict[tuple[str, str], int] = {}
    for process in processes:
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            try:
                name = (thread / "comm").read_text().strip()
                spent = int((thread / "schedstat").read_text().split()[0])
            except FileNotFoundError:  # the thread has just ended
                continue
            used[thread.name, name] = spent
    return used


def _private_mb(pid: int) -> float:
    rollup = _rollup_kb(pid)
    return (rollup["Private_Clean"] + rollup["Private_Dirty"]) * 1024 / 1e6


def _proportional_mb(pid: int) -> float:
    return _rollup_kb(pid)["Pss"] * 1024 / 1e6


def _rollup_kb(pid: int) -> dict[str, int]:
    """Return the sums over all mappings of a process, in KiB.

    Source: proc(5), /proc/pid/smaps_rollup.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}
