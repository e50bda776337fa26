"""How a process becomes a rank: its log, its place and its device."""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import platform
import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from npu_notebook import messages, plugins
from npu_notebook.messages import RankSpec  # noqa: TC001  msgspec reads it

if TYPE_CHECKING:
    from npu_notebook.rank.groups import Groups


class RankBirth(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank process is started with.

    ``provider`` is ``"none"`` for ranks without torch; ``forked`` is true in a child of
    the agent's template.
    """

    endpoint: str
    provider: str
    host: str
    spec: RankSpec
    forked: bool = False


class Device(NamedTuple):
    """What a rank computes on; ``name`` is "" and ``groups`` None without torch."""

    name: str = ""
    groups: Groups | None = None

    @property
    def torch_device(self) -> object:
        """The ``torch.device``, or None without torch."""
        torch = sys.modules.get("torch")
        return torch.device(self.name) if torch and self.name else None

    @property
    def torch_version(self) -> str:
        """The version of torch, "" without it."""
        torch = sys.modules.get("torch")
        return str(torch.__version__) if torch and self.name else ""


def set_up_log(log_fd: int) -> None:
    """Let this package, and a crash of the interpreter, write into the rank's log."""
    stream = os.fdopen(os.dup(log_fd), "a", encoding="utf-8", errors="backslashreplace")
    sink = logging.StreamHandler(stream)
    sink.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    # Of this package only: user code must find the root logger without a handler.
    package = logging.getLogger("npu_notebook")
    package.handlers = [sink]
    package.propagate = False
    faulthandler.enable(stream)


def take_place(spec: RankSpec) -> None:
    """Take the environment and the folder; modules of the folder can be imported.

    Raises
    ------
    OSError
        If the folder does not exist on this host.
    """
    os.environ.update(spec.env)
    os.chdir(spec.cwd)
    sys.argv[:] = [""]
    # "" follows os.chdir in a cell, as in an interactive Python.
    if sys.path and sys.path[0] in (spec.cwd, os.getcwd()):  # noqa: PTH109  compared as text
        sys.path[0] = ""
    elif "" not in sys.path:
        sys.path.insert(0, "")


def bind_device(birth: RankBirth) -> Device:
    """Import torch and make this rank's device the current one.

    Raises
    ------
    Exception
        Whatever torch or the provider raises when the device cannot be used.
    """
    if birth.provider == "none":
        return Device()
    torch = importlib.import_module("torch")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if birth.forked and threads.isdigit():
        # The template has read the variable before this rank had its own.
        torch.set_num_threads(int(threads))
    provider = plugins.load("npu_notebook.devices", birth.provider)
    name: str = provider.bind(birth.spec.local_rank)
    from npu_notebook.rank.groups import Groups

    groups = Groups(birth.spec.rank, provider.facts.backend, torch.device(name))
    groups.install()
    return Device(name, groups)


def describe_birth(birth: RankBirth, device: Device) -> messages.RankJoined:
    """Return the report that this rank is ready."""
    return messages.RankJoined(
        rank=birth.spec.rank,
        incarnation=birth.spec.incarnation,
        host=birth.host,
        pid=os.getpid(),
        python=platform.python_version(),
        torch=device.torch_version,
        device=device.name,
        protocol_version=messages.PROTOCOL_VERSION,
    )
