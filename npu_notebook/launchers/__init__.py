"""How an agent gets onto each host: the seam, and one module per way beside it.

`local` is here; others (ssh, Slurm, MPI) are added by an entry point of the group
``npu_notebook.launchers`` and loaded by `npu_notebook.plugins`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npu_notebook.topology import HostSpec


@dataclass(frozen=True, slots=True)
class HostExit:
    """The agent of a host has ended, or never started.

    Parameters
    ----------
    host : str
        Name of the host.
    returncode : int
        Exit status, negative for a signal.
    reason : str
        What is known beyond that, for example the last lines of its log; may be empty.
    """

    host: str
    returncode: int
    reason: str = ""


class Launcher(Protocol):
    """Get an agent onto each host, watch it, end it.

    Runs in the controller process, in its one thread, and knows no messages. One
    object per cluster, made without arguments.
    """

    def launch(self, host: HostSpec, command: Sequence[str], log_path: Path) -> None:
        """Start the agent of one host; return as soon as the process is requested.

        Parameters
        ----------
        host : HostSpec
            Where.
        command : sequence of str
            The agent's command line, its interpreter first.
        log_path : Path
            File for its stdout and stderr.

        Raises
        ------
        LaunchError
            If it cannot even be requested.
        """
        ...

    def poll(self) -> list[HostExit]:
        """Return the agents that have ended since the last call; never waits."""
        ...

    def end(self, grace_s: float) -> None:
        """Ask agents that still run to end; kill them after ``grace_s`` seconds."""
        ...
