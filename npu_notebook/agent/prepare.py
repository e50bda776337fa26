"""Prepare a host for a device provider, in a process of its own.

Building the simulated NPU takes a minute. In a child process it can be ended at any
time, and the agent's loop, which reaps every child it finds, cannot take the exit
status of a compiler away from the provider that waits for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from npu_notebook import plugins
from npu_notebook.agent import linux
from npu_notebook.agent.outcome import Outcome, attempt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npu_notebook.devices.provider import DeviceProvider


class Progress(msgspec.Struct, frozen=True, tag=True):
    """One line for the user."""

    text: str


_decoder = msgspec.json.Decoder(Progress | Outcome)


class Preparation:
    """The agent's side of one preparation.

    Attributes
    ----------
    provider : str
        Name of the provider.
    pid : int
        The process.
    outcome : Outcome or None
        None while it runs.
    """

    def __init__(self, provider: str, env: Mapping[str, str]) -> None:
        self.provider = provider
        self.outcome: Outcome | None = None
        self._text = b""
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
            [sys.executable, "-P", "-m", __name__, provider, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
        self.pid = self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is news."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> list[str]:
        """Return new lines for the user; sets `outcome` when it is over."""
        data = os.read(self.fileno(), 65_536)
        if not data:
            problem = f"preparing {self.provider} ended without an answer"
            self.outcome = self.outcome or Outcome(problem, "Start again.")
        *lines, self._text = (self._text + data).split(b"\n")
        texts: list[str] = []
        for line in lines:
            match _decoder.decode(line):
                case Progress(text=text):
                    texts.append(text)
                case Outcome() as outcome:
                    self.outcome = outcome
        return texts

    def close(self) -> None:
        """Stop listening."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def reaped(self, returncode: int) -> None:
        """Take note that the agent's loop has reaped the process."""
        self._process.returncode = returncode

    def end(self) -> None:
        """Kill it; what it started is ended as a descendant of the agent."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            self._process.returncode = -signal.SIGKILL  # the loop reaps, not Popen


def main() -> int:
    """Prepare the provider in ``argv`` and write JSON lines to stdout."""
    name, agent_pid = sys.argv[1:]
    linux.die_with_parent(int(agent_pid))
    # Whatever a compiler writes goes to the log, not between our lines.
    with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        os.dup2(2, 1)

        def tell(line: Progress | Outcome) -> None:
            answers.write(msgspec.json.encode(line) + b"\n")

        def prepare() -> None:
            provider: DeviceProvider = plugins.load("npu_notebook.devices", name)
            provider.prepare(lambda text: tell(Progress(text)))

        tell(attempt(f"preparing {name}", prepare))
    return 0


if __name__ == "__main__":
    sys.exit(main())
