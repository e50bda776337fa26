"""The agent of this host, as a child of the controller."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from npu_notebook.errors import LaunchError
from npu_notebook.launchers import HostExit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npu_notebook.topology import HostSpec

_TAIL_NBYTES = 4096


class LocalLauncher:
    """Start the agent in a session of its own, so that no terminal's Ctrl-C reaches it.

    The agent is told the controller's pid and ends by itself when that process is
    gone, however it went.
    """

    def __init__(self) -> None:
        self._agents: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def launch(self, host: HostSpec, command: Sequence[str], log_path: Path) -> None:
        """Start the agent; see `npu_notebook.launchers.Launcher`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            log_fd = os.open(log_path, flags, 0o600)
            try:
                process = subprocess.Popen(  # noqa: S603  the controller's own words
                    [*command, "--controller-pid", str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=log_fd,
                    stderr=log_fd,
                    start_new_session=True,
                )
            finally:
                os.close(log_fd)
        except OSError as error:
            what = f"the agent on {host.name}"
            raise LaunchError(what, str(error), log_path=str(log_path)) from error
        self._agents[host.name] = (process, log_path)

    def poll(self) -> list[HostExit]:
        """Return the agents that have ended since the last call."""
        exits: list[HostExit] = []
        for host, (process, log_path) in list(self._agents.items()):
            returncode = process.poll()
            if returncode is not None:
                del self._agents[host]
                exits.append(HostExit(host, returncode, _read_tail(log_path)))
        return exits

    def end(self, grace_s: float) -> None:
        """Ask the agents to end, which end their ranks first; kill what stays."""
        for process, _log_path in self._agents.values():
            process.terminate()
        for process, _log_path in self._agents.values():
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _read_tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_NBYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
