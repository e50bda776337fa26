"""The agent's side of the TCPStore process: bind, start, notice that it answers."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import msgspec

from npu_notebook.agent import store
from npu_notebook.agent.birth import base_environment
from npu_notebook.agent.spawn import spawn
from npu_notebook.agent.template import Birth
from npu_notebook.agent.template_process import TemplateProcess, template_environment

if TYPE_CHECKING:
    import socket
    import subprocess


class StoreProcess:
    """One TCPStore process.

    Parameters
    ----------
    address : str
        The interface it listens on.
    port : int
        0 takes a free one.
    template : TemplateProcess or None
        Forked from it, or started by exec where there is none.

    Attributes
    ----------
    pid, port : int
        The process, and where it listens.
    alive : bool
        False once it is reaped.

    Raises
    ------
    OSError
        If the port cannot be had or the process cannot be started.
    """

    def __init__(
        self, address: str, port: int, template: TemplateProcess | None
    ) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        self.alive = True
        with store.bind(address, port) as listener:
            self.port = listener.getsockname()[1]
            self._ready_fd, theirs = os.pipe()
            try:
                if template is not None:
                    self.pid = self._fork(address, listener, theirs, template)
                else:
                    self.pid = self._spawn(address, listener, theirs)
            except OSError:
                os.close(self._ready_fd)
                raise
            finally:
                os.close(theirs)

    def _fork(
        self,
        address: str,
        listener: socket.socket,
        ready_fd: int,
        template: TemplateProcess,
    ) -> int:
        argument = store.StoreBirth(address=address, port=self.port)
        birth = Birth(
            name="npu store",
            program=store.PROGRAM,
            argument=msgspec.json.encode(argument),
            env=template_environment(base_environment()),
            cwd="/",
            log_path="",
        )
        (pid,) = template.fork([birth], [listener.fileno(), ready_fd])
        return pid

    def _spawn(self, address: str, listener: socket.socket, ready_fd: int) -> int:
        argument = store.StoreBirth(
            address=address,
            port=self.port,
            listen_fd=listener.fileno(),
            ready_fd=ready_fd,
        )
        self._popen = spawn(
            [sys.executable, "-P", "-m", store.__name__],
            template_environment(base_environment()),
            "",
            stdin=msgspec.json.encode(argument),
            fds=[listener.fileno(), ready_fd],
        )
        return self._popen.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when the store answers or failed."""
        return self._ready_fd

    def read_ready(self) -> str:
        """Return "" if the store answers, else why it does not."""
        text = os.read(self._ready_fd, 4096).decode(errors="replace")
        return "" if text == "ok" else text or "the TCPStore process ended at once"

    def reaped(self, returncode: int) -> None:
        """Take note that the agent's loop has reaped the process."""
        self.alive = False
        if self._popen is not None:
            self._popen.returncode = returncode

    def end(self) -> None:
        """Kill it and stop listening for its answer."""
        os.close(self._ready_fd)
        if self.alive:  # not reaped, so the pid is still its own
            os.kill(self.pid, signal.SIGKILL)
        if self._popen is not None and self._popen.returncode is None:
            self._popen.returncode = -signal.SIGKILL  # the loop reaps, not Popen
