"""Launchers for tests; the controller's process loads them by entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npu_notebook.launchers import HostExit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npu_notebook.topology import HostSpec

# An "agent" that leaves a grandchild behind when it is killed.
_LEAVES_A_CHILD = """
import subprocess, sys, pathlib
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
path = pathlib.Path(sys.argv[1])
path.with_suffix(".new").write_text(str(child.pid))
path.with_suffix(".new").rename(path)
child.wait()
"""


class NoProcessLauncher:
    """Start nothing: the test is the agent."""

    def launch(self, host: HostSpec, command: Sequence[str], log_path: Path) -> None:
        pass

    def poll(self) -> list[HostExit]:
        return []

    def end(self, grace_s: float) -> None:
        pass


class LeavingLauncher:
    """Start an "agent" whose child outlives it; the test joins in its name."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, host: HostSpec, command: Sequence[str], log_path: Path) -> None:
        assert command, log_path
        words = [sys.executable, "-c", _LEAVES_A_CHILD, os.environ["CHILD_PID_FILE"]]
        self._processes[host.name] = subprocess.Popen(words)
        pid_file = Path(os.environ["CHILD_PID_FILE"]).with_suffix(".agent")
        pid_file.write_text(str(self._processes[host.name].pid))

    def poll(self) -> list[HostExit]:
        exits = []
        for host, process in list(self._processes.items()):
            if process.poll() is not None:
                del self._processes[host]
                exits.append(HostExit(host, process.returncode, "its last words"))
        return exits

    def end(self, grace_s: float) -> None:
        assert grace_s > 0
        for process in self._processes.values():
            process.kill()
            process.wait()
