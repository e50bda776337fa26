"""The words of a start, checked and completed from the settings file."""

from __future__ import annotations

import os
import socket
from difflib import get_close_matches
from inspect import signature
from typing import TYPE_CHECKING

from npu_notebook import plugins
from npu_notebook.errors import ConfigError
from npu_notebook.settings import Settings, parse_linger, read_settings
from npu_notebook.topology import DEVICE_NAMES, ClusterSpec, HostSpec, parse_hosts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What a step of a Slurm job always has; a second shell in a job has only some.
# Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES".
_SLURM_STEP = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID")


def check_words(words: Iterable[str]) -> None:
    """Refuse keyword arguments that `make_spec` has not.

    Raises
    ------
    ConfigError
        Naming the word and the nearest known one.
    """
    known = sorted(signature(make_spec).parameters)
    for word in words:
        if word not in known:
            near = get_close_matches(word, known, 1) or known
            problem = f"start() has no argument '{word}'"
            raise ConfigError(problem, f"Did you mean {' or '.join(near)}?")


def make_spec(  # noqa: PLR0913  one parameter per word of `start`
    *,
    name: str,
    num_ranks: int | None = None,
    device: str | None = None,
    hosts: str | None = None,
    launcher: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    linger: float | str | None = None,
    port: int | None = None,
    owner: str = "",
    settings: Settings | None = None,
) -> ClusterSpec:
    """Check the words of a start and complete them from the settings file.

    Raises
    ------
    ConfigError
        Naming the word, what is wrong with it and what to type instead.
    """
    given = settings if settings is not None else read_settings()
    device = device if device is not None else given.device
    num_ranks = num_ranks if num_ranks is not None else given.num_ranks
    hosts = hosts if hosts is not None else given.hosts
    launcher = launcher or given.launcher or "local"
    lingering = linger if linger is not None else given.linger
    _check(device, num_ranks, launcher, port)
    defaults = ClusterSpec(name=name)
    own_host = (HostSpec(name=socket.gethostname()),)
    return ClusterSpec(
        name=name,
        num_ranks=num_ranks,
        device=device,
        hosts=_check_hosts(hosts, launcher) if hosts else own_host,
        launcher=launcher,
        env=_check_env({**given.env, **(env or {})}),
        cwd=_check_cwd(cwd),
        port=port or 0,
        linger_s=defaults.linger_s if lingering is None else parse_linger(lingering),
        orphan_timeout_s=given.orphan_timeout or defaults.orphan_timeout_s,
        start_timeout_s=given.start_timeout or defaults.start_timeout_s,
        output_cap_nbytes=given.output_cap or defaults.output_cap_nbytes,
        owner=owner,
        owner_pid=os.getpid(),
    )


def _check(
    device: str | None, num_ranks: int | None, launcher: str, port: int | None
) -> None:
    if device is not None and device not in DEVICE_NAMES:
        known = [*plugins.names("npu_notebook.devices"), "none"]
        if device not in known:
            problem = f"no devices named '{device}'"
            raise ConfigError(problem, f"Choose one of {', '.join(known)}.")
    asked: object = num_ranks
    if isinstance(asked, bool) or not isinstance(asked, int | None):
        problem = f"{num_ranks!r} is no number of ranks"
        raise ConfigError(problem, "Give a whole number, like 4.")
    if num_ranks is not None and num_ranks < 1:
        problem = f"{num_ranks} ranks were asked for"
        raise ConfigError(problem, "Ask for at least 1, like -n 4.")
    if launcher not in plugins.names("npu_notebook.launchers"):
        known = plugins.names("npu_notebook.launchers")
        problem = f"no launcher named '{launcher}'"
        raise ConfigError(problem, f"Installed: {', '.join(known)}.")
    if port is not None and not 0 <= port < 65_536:  # noqa: PLR2004  16 bits
        problem = f"{port} is not a TCP port"
        raise ConfigError(problem, "Give a number from 1 to 65535, or none.")


def _check_env(env: Mapping[str, object]) -> dict[str, str]:
    checked = {str(name): str(value) for name, value in env.items()}
    for name, value in checked.items():
        if not name or "=" in name:
            problem = f"'{name}' cannot be the name of an environment variable"
            raise ConfigError(problem, "Write --env NAME=VALUE.")
        try:
            whole = "\0" not in (name + value) and (name + value).encode()
        except UnicodeEncodeError:
            whole = False
        if not whole:
            problem = f"the environment variable {name!r} holds what none can hold"
            raise ConfigError(problem, "Give text without NUL and half characters.")
    return checked


def _check_hosts(words: str, launcher: str) -> tuple[HostSpec, ...]:
    hosts = parse_hosts(words)
    away = [host.name for host in hosts if host.name != socket.gethostname()]
    if launcher == "local" and away:
        problem = f"the launcher 'local' does not reach {', '.join(away)}"
        remedy = f"It starts ranks on {socket.gethostname()} only; leave --hosts out."
        raise ConfigError(problem, remedy)
    return hosts


def _check_cwd(cwd: str | None) -> str:
    folder = os.path.abspath(os.path.expanduser(cwd or "."))  # noqa: PTH100,PTH111  text for another process
    if not os.path.isdir(folder):  # noqa: PTH112  as above
        problem = f"the folder {folder} does not exist"
        raise ConfigError(problem, "Give --cwd a folder that exists.")
    return folder


def ignored_variables() -> str:
    """Return one line about half a set of Slurm variables, "" when there is none."""
    inside = "SLURM_JOB_ID" in os.environ
    if inside and not all(name in os.environ for name in _SLURM_STEP):
        job = os.environ["SLURM_JOB_ID"]
        return (
            f"Ignored the Slurm variables of job {job}: this is no step of it. "
            "The ranks start on this host."
        )
    return ""
