"""``npu-notebook`` for the terminal: list, stop, logs, clean, bugreport.

Exit codes: 0 done, 1 it could not be done (the reason is on stderr), 2 wrong words.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import npu_notebook
from npu_notebook import runtime
from npu_notebook.errors import ConfigError, LinkError, NpuNotebookError
from npu_notebook.notebook.bugreport import write_report
from npu_notebook.notebook.listing import listing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Command = Callable[[argparse.Namespace], None]

_TAIL_NBYTES = 64 * 1024
_STOP_TIMEOUT_S = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words behind ``npu-notebook``; by default those of this process.
    """
    words = _parser().parse_args(arguments)
    run: Command = words.run
    try:
        run(words)
    except NpuNotebookError as error:
        sys.stderr.write(f"npu-notebook {words.command}: {error}\n")
        return 1
    except BrokenPipeError:  # `npu-notebook logs | head`
        return 0
    except OSError as error:
        sys.stderr.write(f"npu-notebook {words.command}: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="npu-notebook", description="Look after the clusters of your notebooks."
    )
    version = f"npu-notebook {npu_notebook.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Command, purpose: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=purpose, description=purpose)
        one.set_defaults(run=run)
        return one

    add("list", _list, "Show your clusters on this host.")
    stop = add("stop", _stop, "End every process of a cluster.")
    stop.add_argument("name", nargs="*", help="which ones")
    stop.add_argument("--all", action="store_true", help="all of yours on this host")
    logs = add("logs", _logs, "Show where the logs of a cluster lie, and their ends.")
    logs.add_argument("name", nargs="?", help="running or ended; by default all")
    logs.add_argument(
        "-n", "--lines", type=int, default=20, metavar="N", help="lines of each log"
    )
    add("clean", _clean, "Remove what crashed clusters left behind.")
    report = add("bugreport", _bugreport, "Collect logs, versions and settings.")
    report.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="a .tar.gz file"
    )
    return parser


def _list(_words: argparse.Namespace) -> None:
    _say(repr(listing("npu-notebook")))


def _stop(words: argparse.Namespace) -> None:
    from npu_notebook import starting  # the other commands need no link
    from npu_notebook.cluster import Cluster

    names: list[str] = list(words.name)
    if words.all:
        entries = runtime.list_clusters()
        names = [entry.connection.name for entry in entries if entry.alive]
    elif not names:
        problem = "no cluster is named"
        raise ConfigError(problem, "Name one of `npu-notebook list`, or give --all.")
    for name in names:
        connection = runtime.read_connection(name)
        try:
            Cluster.attach(name).stop("stopped from a terminal")
        except LinkError:  # of another version, or it does not answer
            starting.end_controller(connection, _STOP_TIMEOUT_S)
        _say(f"Cluster '{name}' is stopped.")
    if not names:
        _say("No cluster runs.")


def _logs(words: argparse.Namespace) -> None:
    if words.name is None:
        folders = sorted(path for path in runtime.state_root().iterdir())
        for folder in folders:
            _say(str(folder / "logs"))
        return
    folder = runtime.ClusterPaths(words.name).logs
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    if not files:
        problem = f"there are no logs of a cluster '{words.name}' in {folder}"
        raise ConfigError(problem, "`npu-notebook logs` lists all there are.")
    for file in files:
        _say(f"==> {file} <==")
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _TAIL_NBYTES))
            lines = log.read().decode(errors="replace").splitlines()
        shown = lines[-words.lines :] if words.lines > 0 else []
        _say("\n".join(shown))


def _clean(_words: argparse.Namespace) -> None:
    with runtime.one_start_at_a_time():
        removed = runtime.remove_stale()
    _say(f"Removed: {', '.join(removed)}." if removed else "Nothing to remove.")


def _bugreport(words: argparse.Namespace) -> None:
    path = write_report(words.output)
    _say(f"Wrote {path}. It holds no keys and no values of variables, but the ranks'")
    _say("logs: look through it before you send it to anybody.")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
