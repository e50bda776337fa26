"""Tells when a variable that the notebook sets does not reach the running ranks.

The rule: ranks have the notebook's environment as it was at ``%npu_cluster start``,
and what ``--env`` adds. Later changes stay in the notebook.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Read when a process group is formed, not later.
# Source: torch.distributed's page "Common environment variables" for GLOO_* and
# NCCL_*; CANN's environment variable reference for HCCL_*.
GROUP_PREFIXES = ("HCCL_", "GLOO_", "NCCL_")

# Set by front ends and shells in the course of things.
_IGNORED = frozenset({"COLUMNS", "LINES", "_", "PWD", "OLDPWD", "SHLVL"})


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that differ, with their new value, None for removed."""
    names = sorted((before.keys() | now.keys()) - _IGNORED)
    return {name: now.get(name) for name in names if before.get(name) != now.get(name)}


def explain(changes: Mapping[str, str | None]) -> list[str]:
    """Return one sentence per kind of change; values are never repeated."""
    if not changes:
        return []
    sentences: list[str] = []
    plain = [name for name in changes if not name.startswith(GROUP_PREFIXES)]
    of_group = [name for name in changes if name.startswith(GROUP_PREFIXES)]
    if plain:
        sentences.append(
            f"The running ranks do not get {_listed(plain)}: they have the notebook's "
            f"environment as it was at start. `%spmd %env {plain[0]}=...` sets it on "
            f"them now, `%npu_cluster start --env {plain[0]}=...` starts again with it."
        )
    if of_group:
        sentences.append(
            f"{_listed(of_group)} is read only when the process group is formed: "
            f"`%npu_cluster start --env {of_group[0]}=...` starts again with it."
        )
    return sentences


class EnvironmentWatch:
    """Compares the notebook's environment with that of the last start."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self.begin()

    def begin(self) -> None:
        """Remember the environment: a cluster starts now."""
        self._known = dict(os.environ)

    def news(self) -> list[str]:
        """Return sentences about what changed since the last call or start."""
        now = dict(os.environ)
        changes = changed(self._known, now)
        self._known = now
        return explain(changes)


def _listed(names: list[str]) -> str:
    return ", ".join(names)
