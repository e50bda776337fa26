"""Which clusters this user has here, and how to join or end each."""

from __future__ import annotations

import time

from npu_notebook import runtime
from npu_notebook.notebook.tables import Table, duration

HEADS = ("name", "user", "host", "pid", "age", "ranks", "device", "state", "commands")


def listing(command: str) -> Table:
    """Return one row per cluster.

    Parameters
    ----------
    command : str
        ``"%npu_cluster"`` or ``"npu-notebook"``: what the reader types.
    """
    rows = [_row(entry, command) for entry in runtime.list_clusters()]
    plural = "" if len(rows) == 1 else "s"
    return Table(f"{len(rows)} cluster{plural}", HEADS, rows)


def leftovers(owner: str) -> list[str]:
    """Return one sentence per running cluster whose notebook process is gone.

    Parameters
    ----------
    owner : str
        The notebook that asks; its own clusters are left out.
    """
    sentences: list[str] = []
    for entry in runtime.list_clusters():
        one = entry.connection
        if not entry.alive or one.owner == owner or not one.owner_pid:
            continue
        if runtime.process_start_s(one.owner_pid) is None:
            age = duration(max(0.0, time.time() - one.created_s))
            sentences.append(
                f"Cluster '{one.name}' (controller pid {one.controller_pid} on "
                f"{one.host}, {age} old, started by {one.owner or 'a program'}) has "
                f"lost its notebook: `%npu_cluster attach {one.name}` joins it, "
                f"`%npu_cluster stop {one.name}` ends it."
            )
    return sentences


def _row(entry: runtime.ClusterEntry, command: str) -> tuple[str, ...]:
    one = entry.connection
    if entry.alive:
        ways = f"%npu_cluster attach {one.name}  |  {command} stop {one.name}"
    else:
        ways = "npu-notebook clean"
    return (
        one.name,
        one.user,
        one.host,
        str(one.controller_pid),
        duration(max(0.0, time.time() - one.created_s)),
        "-" if one.num_ranks is None else str(one.num_ranks),
        one.device or "-",
        "running" if entry.alive else "dead",
        ways,
    )
