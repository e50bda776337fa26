"""The agent's side of the template: start it, ask it to fork, notice that it died."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from npu_notebook.agent import template
from npu_notebook.agent.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npu_notebook.agent.template import Birth

log = logging.getLogger(__name__)

# A fork takes milliseconds; a template that is silent for longer is stuck.
_FORK_TIMEOUT_S = 10.0
# Read when torch, the C libraries below it or a device are loaded: the template must
# have them, and setting them in a rank comes too late.
_READ_AT_IMPORT = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "LD_",
    "MALLOC_",
    "TORCH_",
    "PYTHON",
    "NPU_NOTEBOOK_SIMULATED_",
)
_INSTALL = (
    "Install it for this Python (`pip install 'npu-notebook[torch]'`), "
    "or choose --device none for ranks without torch."
)
_READ_LOG = "Read the agent's log; `npu-notebook bugreport` collects it."


class TemplateProcess:
    """One template process.

    Parameters
    ----------
    env : mapping of str to str
        The whole environment of the template.
    with_torch : bool
        False for ranks that need no torch.

    Attributes
    ----------
    pid : int
        Its process.
    alive : bool
        Whether it can still answer.
    busy : bool
        Whether an answer of it has yet to be read.
    problem, remedy : str
        Which import or which device failed, or how it died; "" if none.
    unsafe : str
        Why it must not fork although its imports are done; "" if it may.
    bound : str
        The provider whose device 0 is bound in it; "" if none is.
    elapsed_s : float
        Seconds its imports took; 0.0 until they are done.
    """

    def __init__(self, env: Mapping[str, str], *, with_torch: bool) -> None:
        self.with_torch = with_torch
        self.env = dict(env)
        self.alive = True
        self.busy = True
        self.problem = self.remedy = self.unsafe = ""
        self.bound = self._binding = ""
        self.elapsed_s = 0.0
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(_FORK_TIMEOUT_S)
        command = [sys.executable, "-P", "-m", "npu_notebook.agent.template"]
        command += ["--channel-fd", str(theirs.fileno()), "--agent-pid"]
        command += [str(os.getpid())] + ([] if with_torch else ["--without-torch"])
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                command,
                stdin=subprocess.DEVNULL,
                env=template_environment(env),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when it answers or dies."""
        return self._channel.fileno()

    @property
    def ready(self) -> bool:
        """Whether it can fork now."""
        return self.alive and not (self.busy or self.problem or self.unsafe)

    def serves(
        self, env: Mapping[str, str], provider: str, *, with_torch: bool
    ) -> bool:
        """Return whether it is, or will be, of use for such ranks."""
        same = _at_import(env) == _at_import(self.env)
        usable = self.alive and not self.problem and self.bound in ("", provider)
        return usable and same and with_torch == self.with_torch

    def bind(self, provider: str) -> None:
        """Have it bind device 0 of a provider; the answer makes it not busy."""
        self._binding = provider
        try:
            self._send(template.BindRequest(provider=provider))
        except OSError as error:
            self.problem, self.remedy = str(error), _READ_LOG
        else:
            self.busy = True

    def read_answer(self) -> None:
        """Take its answer to the imports or to `bind`."""
        self.busy = False
        try:
            body, _fds = template.receive(self._channel)
        except (EOFError, OSError):
            self.alive = False
            self.problem = "the template process ended before it was ready"
            self.remedy = _READ_LOG
            return
        if self._binding:
            outcome = msgspec.msgpack.decode(body, type=Outcome)
            self.problem, self.remedy = outcome.problem, outcome.remedy
            self.bound = self._binding
            return
        message = msgspec.msgpack.decode(body, type=template.Ready)
        self.problem, self.unsafe = message.problem, message.unsafe
        self.remedy = _INSTALL if self.problem else ""
        self.elapsed_s = message.elapsed_s

    def _send(self, request: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        try:
            template.send(self._channel, request, fds)
        except OSError as error:
            self.alive = False
            message = f"the template process (pid {self.pid}) is gone ({error})"
            raise OSError(message) from error

    def fork(self, births: Sequence[Birth], fds: Sequence[int] = ()) -> list[int]:
        """Fork processes; they are children of this agent when it returns.

        Raises
        ------
        OSError
            If the template refuses, is dead or does not answer; says which.
        """
        self._send(template.ForkRequest(births=tuple(births)), fds)
        try:
            body, _fds = template.receive(self._channel)
        except (EOFError, OSError) as error:
            self.alive = False
            message = f"the template process (pid {self.pid}) did not answer ({error})"
            raise OSError(message) from error
        reply = msgspec.msgpack.decode(body, type=template.ForkReply)
        if reply.problem:
            message = f"the template process (pid {self.pid}): {reply.problem}"
            raise OSError(message)
        return list(reply.pids)

    def reaped(self, returncode: int) -> None:
        """Take note that the agent's loop has reaped the process."""
        self._process.returncode = returncode
        self.alive = False

    def end(self) -> None:
        """Close the channel and kill the process; its exit status comes later."""
        self._channel.close()
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            self._process.returncode = -signal.SIGKILL  # the loop reaps, not Popen


def template_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that keeps imports from starting a thread.

    Notes
    -----
    NumPy's OpenBLAS starts its threads when it is loaded, one per processor.
    ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps ``import torch`` from loading (and failing
    in) a device package that only some ranks want.
    Source: OpenBLAS, USAGE.md, "Setting the number of threads at runtime";
    torch/__init__.py, ``_import_device_backends``.
    """
    fixed = {"OPENBLAS_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return {"OMP_NUM_THREADS": "1", **env, **fixed}


def _at_import(env: Mapping[str, str]) -> dict[str, str]:
    fixed = template_environment(env)
    return {
        name: value for name, value in fixed.items() if name.startswith(_READ_AT_IMPORT)
    }
