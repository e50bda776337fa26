"""Cost of the simulated NPU against plain CPU tensors over gloo, in the same run.

    python benchmarks/simulated_npu.py [--ranks 2] [--rounds 15]

Each line is measured on both devices in turn, round by round, so that other load on
the machine meets both alike; the table shows medians over the rounds and their ratio.
Single operations are measured in CPU time of the thread, collectives and training
steps in wall time. One thread per rank, as the cluster starts ranks.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]
    Clock = Callable[[], float]

DEVICES = ("cpu", "npu")


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table.

    Parameters
    ----------
    name : str
        What is measured.
    make : callable
        Given a device, returns the call to measure.
    calls : int
        Calls per round.
    together : bool
        True if all ranks take part; measured in wall time then.
    """

    name: str
    make: Callable[[str], Call]
    calls: int
    together: bool = False


def median_seconds(case: Case, rounds: int) -> dict[str, float]:
    """Return the median time of one call in seconds, by device."""
    calls = {device: case.make(device) for device in DEVICES}
    clock: Clock = time.perf_counter if case.together else time.thread_time
    times_s: dict[str, list[float]] = {device: [] for device in DEVICES}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for device, call in calls.items():
            if case.together:
                dist.barrier()
            started_s = clock()
            for _ in range(case.calls):
                call()
            times_s[device].append((clock() - started_s) / case.calls)
    return {device: statistics.median(times_s[device]) for device in DEVICES}


def operation(function: Callable[..., object], *shapes: tuple[int, ...]) -> Case:
    """Return a case for a function of random tensors; named and sized by the caller."""

    def make(device: str) -> Call:
        tensors = [torch.randn(*shape, device=device) for shape in shapes]
        return lambda: function(*tensors)

    return Case("", make, 1)


def local_cases() -> list[Case]:
    """Return the cases that one rank measures alone."""

    def named(name: str, calls: int, case: Case) -> Case:
        return Case(name, case.make, calls)

    def copy_in(device: str) -> Call:
        source = torch.ones(1 << 20)
        return lambda: source.to(device, copy=True)

    def fill(device: str) -> Call:
        return lambda: torch.empty(1000, device=device)

    def view(x: torch.Tensor) -> torch.Tensor:
        return x.view(10, 100)

    def add_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(y)

    small, large, square = (1000,), (1 << 20,), (512, 512)
    images, kernels = (8, 16, 32, 32), (16, 16, 3, 3)
    return [
        named("add, 1,000 floats", 2000, operation(torch.add, small, small)),
        named("add_, 1,000 floats", 2000, operation(add_in_place, small, small)),
        named("view", 2000, operation(view, small)),
        Case("empty, 1,000 floats", fill, 2000),
        named("add, 1,048,576 floats", 20, operation(torch.add, large, large)),
        named("matmul, 512 x 512", 3, operation(torch.mm, square, square)),
        named("conv2d, 8x16x32x32", 5, operation(torch.conv2d, images, kernels)),
        Case("copy to the device, 4 MiB", copy_in, 20),
    ]


def all_reduce(name: str, numel: int, calls: int) -> Case:
    """Return the case of one all_reduce of float32."""

    def make(device: str) -> Call:
        x = torch.ones(numel, device=device)
        return lambda: dist.all_reduce(x)

    return Case(name, make, calls, together=True)


def ddp_step(name: str, width: tuple[int, int], batch: int, calls: int) -> Case:
    """Return the case of one training step: DDP, AdamW, a network of three layers."""
    inputs, hidden = width

    def make(device: str) -> Call:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 10),
        ).to(device)
        ids = None if device == "cpu" else [torch.npu.current_device()]
        module = DistributedDataParallel(net, device_ids=ids)
        optimizer = torch.optim.AdamW(module.parameters())
        x = torch.randn(batch, inputs, device=device)
        y = torch.randint(0, 10, (batch,), device=device)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()

        return step

    return Case(name, make, calls, together=True)


def group_cases() -> list[Case]:
    """Return the cases in which all ranks take part."""
    return [
        all_reduce("all_reduce, 4 B", 1, 50),
        all_reduce("all_reduce, 1 MiB", 1 << 18, 10),
        all_reduce("all_reduce, 64 MiB", 1 << 24, 1),
        ddp_step("DDP step, 64-64-64-10, batch 32", (64, 64), 32, 10),
        ddp_step("DDP step, 784-1024-1024-10, batch 64", (784, 1024), 64, 2),
    ]


def readable(seconds: float) -> str:
    """Return a time in microseconds or milliseconds."""
    milliseconds = seconds * 1e3
    return (
        f"{milliseconds * 1e3:.1f} us" if milliseconds < 1 else f"{milliseconds:.2f} ms"
    )


def show_heading(ranks: int, rounds: int, bind_s: float) -> None:
    """Print where and when this was measured, and the head of the table."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, "
        f"load {load}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"{ranks} ranks, {rounds} rounds. Installing the simulated NPU in a rank, "
        f"library compiled: {bind_s:.3f} s.\n"
    )
    print("| what | CPU, gloo | simulated NPU, hccl | ratio |")
    print("|---|---|---|---|", flush=True)


def measure(rank: int, ranks: int, rounds: int, folder: str) -> None:
    """Run every case in one rank process; rank 0 prints."""
    from npu_notebook.devices.simulated import SimulatedProvider

    torch.set_num_threads(1)
    started_s = time.perf_counter()
    SimulatedProvider().bind(rank)
    bind_s = time.perf_counter() - started_s
    store = dist.FileStore(str(Path(folder) / "store"), ranks)
    dist.init_process_group(
        SimulatedProvider.facts.backend, store=store, rank=rank, world_size=ranks
    )
    if rank == 0:
        show_heading(ranks, rounds, bind_s)
    for case in (*local_cases(), *group_cases()):
        medians_s = median_seconds(case, rounds)
        ratio = medians_s["npu"] / medians_s["cpu"]
        if rank == 0:
            cells = [case.name, *(readable(medians_s[d]) for d in DEVICES)]
            print(f"| {' | '.join(cells)} | {ratio:.2f} |", flush=True)
        dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Start the ranks and wait for them; return 0 if all of them ended well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    os.environ["LOCAL_WORLD_SIZE"] = str(arguments.ranks)

    from npu_notebook.devices.simulated import SimulatedProvider

    SimulatedProvider().prepare(print)
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(arguments.ranks):
            pid = os.fork()  # torch is imported and has run nothing yet
            if pid == 0:
                try:
                    measure(rank, arguments.ranks, arguments.rounds, folder)
                finally:
                    sys.stdout.flush()
                    os._exit(0 if sys.exc_info()[0] is None else 1)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
