"""Start a process by exec, where it cannot be forked from the template.

Run as a module it is the first thing a spawned process does: tie its life to the
agent's, then become the command given.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from npu_notebook.agent import linux
from npu_notebook.agent.logs import open_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def spawn(
    command: Sequence[str],
    env: Mapping[str, str],
    log_path: str,
    *,
    cwd: str = ".",
    stdin: bytes = b"",
    fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process of its own session that dies with this agent.

    Parameters
    ----------
    command : sequence of str
        Program (an absolute path) and arguments.
    env : mapping of str to str
        Its whole environment.
    log_path : str
        Where its stdout and stderr go (appended, mode 0600); "" is the agent's log.
    cwd : str
        Its folder.
    stdin : bytes
        What it reads from its standard input: unlike arguments, no other user can see
        it.
    fds : sequence of int
        Open files it keeps, under their numbers.

    Raises
    ------
    OSError
        If the process cannot be started.
    """
    birth = [sys.executable, "-P", "-m", __name__, str(os.getpid()), cwd, *command]
    source = os.memfd_create("npu-notebook-birth", os.MFD_CLOEXEC)
    try:
        os.write(source, stdin)
        os.lseek(source, 0, os.SEEK_SET)
        with open_log(log_path) if log_path else nullcontext() as out:
            return subprocess.Popen(  # noqa: S603  our own interpreter and module
                birth,
                stdin=source,
                stdout=out,
                stderr=out,
                env=dict(env),
                pass_fds=list(fds),
                start_new_session=True,
            )
    finally:
        os.close(source)


def main() -> None:
    """Become the command in ``argv``: agent's pid, folder, program, arguments."""
    agent_pid, cwd, program, *arguments = sys.argv[1:]
    linux.die_with_parent(int(agent_pid))
    os.chdir(cwd)
    os.execv(program, [program, *arguments])  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main()
