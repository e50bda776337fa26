"""Run the vendor's tools that list devices; each may be missing, slow or broken."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# npu-smi takes up to 5 s on a host with 16 cards.
_TIMEOUT_S = 20.0


def run_tool(
    name: str, *arguments: str, folders: tuple[str, ...] = ()
) -> tuple[str, str]:
    """Run a tool and return what it printed and why it failed.

    Parameters
    ----------
    name : str
        Name of the program, looked for on PATH.
    *arguments : str
        Its arguments.
    folders : tuple of str
        Where else it may lie.

    Returns
    -------
    tuple of str
        Its standard output, and a reason without a full stop that is empty if the tool
        ran and succeeded.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])
    program = shutil.which(name, path=path)
    if program is None:
        return "", f"{name} is not installed"
    try:
        done = subprocess.run(  # noqa: S603  the vendor's tool, fixed arguments
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return "", f"{name} did not answer within {_TIMEOUT_S:.0f} s"
    except OSError as error:
        return "", f"{name} cannot be run ({error.strerror or error})"
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        first = f": {said[0]}" if said else ""
        return done.stdout, f"{name} failed with exit code {done.returncode}{first}"
    return done.stdout, ""


def holder(device: str, pid: int) -> str:
    """Return who holds a device, for example ``"npu 2: pid 123 (python), user ada"``.

    Name and user are left out where this process may not know them (a process of
    another container).
    """
    folder = Path("/proc") / str(pid)
    try:
        name = f" ({(folder / 'comm').read_text(encoding='utf-8').strip()})"
        user = f", user {folder.owner()}"
    except (OSError, KeyError):
        return f"{device}: pid {pid}"
    return f"{device}: pid {pid}{name}{user}"
