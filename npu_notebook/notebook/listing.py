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
