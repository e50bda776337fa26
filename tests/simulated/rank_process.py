"""The ranks of the checks: ``python -m tests.simulated.rank_process WORLD ADDRESS``.

One template imports torch, runs nothing with it, and forks the ranks; so do agents.
"""

import importlib
import inspect
import itertools
import os
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Client, Connection

import torch
import torch.distributed as dist

# Shorter than the test's own limit: a rank that waits for one that failed gives up.
COLLECTIVE_TIMEOUT = timedelta(seconds=20)

_group_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Rank:
    """What a check knows about the process it runs in."""

    rank: int
    world_size: int

    @property
    def device(self) -> torch.device:
        return torch.device("npu", self.rank)


def restart_group(backend: str | None = "hccl", **options: object) -> None:
    """End the default group and make another one.

    All ranks share one store for the whole run. A prefix of its own keeps a group from
    the addresses that the group before it left there.
    """
    dist.barrier()
    dist.destroy_process_group()
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"group {next(_group_numbers)}", store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=COLLECTIVE_TIMEOUT,
        **options,
    )


def main(world_size: int, address: str) -> None:
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            serve(Rank(rank, world_size), address)
        pids.append(pid)
    # Only now: the store has a thread, and a fork would lose it.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with Client(address, "AF_UNIX") as connection:
        connection.send(("store", store.port))
        for pid in pids:
            os.waitpid(pid, 0)


def serve(rank: Rank, address: str) -> None:
    """Run checks until the test closes the connection. Never returns."""
    code = 1
    try:
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank.rank)
        with Client(address, "AF_UNIX") as connection:
            connection.send(("rank", rank.rank))
            os.environ["MASTER_PORT"] = str(connection.recv())
            bind(rank)
            answer_checks(rank, connection)
        dist.destroy_process_group()
        code = 0
    except BaseException:  # noqa: BLE001  the last frame of the process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def bind(rank: Rank) -> None:
    from npu_notebook.devices.simulated import SimulatedProvider

    torch.set_num_threads(1)
    assert SimulatedProvider().bind(rank.rank) == f"npu:{rank.rank}"
    # Rank, world size and address come from the environment, as torchrun sets it.
    dist.init_process_group("hccl", timeout=COLLECTIVE_TIMEOUT)


def answer_checks(rank: Rank, connection: Connection) -> None:
    while True:
        try:
            module, name = connection.recv()
        except EOFError:
            return
        try:
            check = getattr(importlib.import_module(module), name)
            check(*[rank] if inspect.signature(check).parameters else [])
        except BaseException:  # noqa: BLE001  whatever a check meets is reported
            connection.send(traceback.format_exc())
        else:
            connection.send("")


if __name__ == "__main__":
    # The checks import this file by its name; they shall get this module.
    sys.modules["tests.simulated.rank_process"] = sys.modules["__main__"]
    main(int(sys.argv[1]), sys.argv[2])
