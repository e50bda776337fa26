"""The magics: each reads its words and makes one call of `Cluster`."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from IPython.core.magic import (
    Magics,
    cell_magic,
    line_cell_magic,
    line_magic,
    magics_class,
    no_var_expand,
)

from npu_notebook.errors import CellError, ConfigError, NpuNotebookError
from npu_notebook.notebook import commands
from npu_notebook.notebook.background import BackgroundCell
from npu_notebook.notebook.options import (
    HelpAsked,
    Words,
    nearest,
    seconds,
    split,
    variable,
)
from npu_notebook.topology import parse_ranks

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from npu_notebook.notebook.state import NotebookState

_RANKS_HELP = "which ranks, like 0,2-3; by default all"


@contextmanager
def plain_errors() -> Iterator[None]:
    """Show our errors as one sentence, without our frames, and help as text."""
    try:
        yield
    except HelpAsked as asked:
        sys.stdout.write(asked.text.rstrip() + "\n")
    except CellError:
        raise  # draws itself
    except NpuNotebookError as error:
        lines = f"{type(error).__name__}: {error}".splitlines()
        # IPython asks the exception for its own drawing.
        # Source: IPython.core.interactiveshell.InteractiveShell.showtraceback.
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
        raise


@cache
def spmd_words(name: str) -> Words:
    """Return the options of ``%%spmd``."""
    words = Words(name, "Run code on all ranks, or on some.")
    words.add_argument("--ranks", metavar="0,2-3", help=_RANKS_HELP)
    words.add_argument(
        "--timeout", type=seconds, metavar="S", help="stop the code after S seconds"
    )
    words.add_argument(
        "--no-block", action="store_true", help="go on at once, return a handle"
    )
    words.add_argument("--quiet", action="store_true", help="show no output")
    words.add_argument(
        "--out", type=variable, metavar="NAME", help="last value by rank, as a list"
    )
    return words


@cache
def push_words() -> Words:
    """Return the options of ``%push``."""
    words = Words("%push", "Copy variables of the notebook to the ranks.")
    words.add_argument("names", nargs="+", type=variable, metavar="NAME")
    words.add_argument("--ranks", metavar="0,2-3", help=_RANKS_HELP)
    return words


@cache
def pull_words() -> Words:
    """Return the options of ``%pull``."""
    words = Words("%pull", "Copy variables of the ranks to the notebook.")
    words.add_argument("names", nargs="+", type=variable, metavar="NAME")
    words.add_argument("--ranks", metavar="0,2-3", help=_RANKS_HELP)
    words.add_argument(
        "--into", type=variable, metavar="NAME", help="what to call it in the notebook"
    )
    return words


@magics_class
class ClusterMagics(Magics):
    """Everything a notebook says to its cluster."""

    def __init__(self, state: NotebookState) -> None:
        super().__init__(state.shell)
        self._state = state

    @no_var_expand
    @line_magic
    def npu_cluster(self, line: str) -> object:
        """Start, watch and stop a cluster of NPUs.

        %npu_cluster start [-n N] [--device KIND] [--name NAME] [--env NAME=VALUE] ...
        %npu_cluster status | list | attach [NAME] | stop [NAME]
        %npu_cluster restart [--ranks 0,2-3] | interrupt [--level 1] | traceback

        %npu_cluster alone lists all subcommands; --help behind one shows its options.
        """
        with plain_errors():
            return commands.perform(self._state, split(line, commands.MAGIC))

    @no_var_expand
    @line_cell_magic
    def spmd(self, line: str, cell: str | None = None) -> BackgroundCell | None:
        """Run a cell (or the rest of the line) on all ranks at once.

        %%spmd [--ranks 0,2-3] [--timeout S] [--no-block] [--quiet] [--out NAME]

        --ranks     which ranks, like 0,2-3; by default all
        --timeout   stop the code after S seconds
        --no-block  go on at once; the value is a handle: wait(), result(), cancel()
        --quiet     show no output
        --out       put the last expression's value into NAME, a list by rank

        The code is an IPython cell: magics, !commands, await and display() work.
        Nothing in it is filled in by the notebook: {x} and $x arrive as they are.
        Stop interrupts all ranks; their variables are kept.
        """
        with plain_errors():
            if cell is None:
                words, code = spmd_words("%spmd").read_front(line)
                if not code:
                    problem = "%spmd has no code behind its options"
                    raise ConfigError(problem, "Write it like `%spmd print(rank)`.")
            else:
                words, code = spmd_words("%%spmd").read(line), cell
            return self._run(words, code)

    @no_var_expand
    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run a cell in the notebook while %autospmd is on.

        %%local stands alone on the first line.
        """
        with plain_errors():
            if line.strip():
                problem = f"%%local takes no options, but got '{line.strip()}'"
                raise ConfigError(problem, "Leave its line otherwise empty.")
        self._state.shell.run_cell(cell)

    @no_var_expand
    @line_magic
    def autospmd(self, line: str) -> None:
        """Make every plain cell run on all ranks, as if it began with %%spmd.

        %autospmd on | off

        Cells that begin with %%local or another cell magic run in the notebook
        (%%time and %%timeit go to the ranks), and so do the lines %npu_cluster,
        %push, %pull, %spmd, %autospmd and %load_ext, wherever they stand.
        It counts from the next cell on.
        """
        with plain_errors():
            word = line.strip()
            if word not in ("on", "off"):
                problem = f"%autospmd takes on or off, but got '{word}'"
                raise ConfigError(problem, "Type `%autospmd on`.")
            self._state.auto_spmd = word == "on"

    @no_var_expand
    @line_magic
    def push(self, line: str) -> None:
        """Copy variables of the notebook to the ranks, to all of them or none.

        %push x y [--ranks 0,2-3]
        """
        with plain_errors():
            words = push_words().read(line)
            names = self._state.shell.user_ns
            for name in words.names:
                if name not in names:
                    raise _unknown(name, names)
            values = {name: names[name] for name in words.names}
            self._state.cluster.push(values, ranks=words.ranks)

    @no_var_expand
    @line_magic
    def pull(self, line: str) -> None:
        """Copy variables of the ranks to the notebook.

        %pull loss [--ranks 0,2-3] [--into NAME]

        The variable becomes a list by rank; with --ranks naming a single rank, that
        rank's value.
        """
        with plain_errors():
            words = pull_words().read(line)
            if words.into and len(words.names) > 1:
                problem = (
                    f"--into names one variable, but {len(words.names)} are pulled"
                )
                raise ConfigError(problem, "Pull them one by one.")
            cluster = self._state.cluster
            ranks = parse_ranks(words.ranks, cluster.world_size)
            pulled: dict[str, Any] = {}
            for name in words.names:
                values = cluster.pull(name, ranks=ranks)
                single = words.ranks is not None and len(ranks) == 1
                pulled[words.into or name] = values[0] if single else values
            self._state.shell.user_ns.update(pulled)

    def _run(self, words: Namespace, code: str) -> BackgroundCell | None:
        state = self._state
        cluster = state.cluster
        if words.no_block and words.out:
            problem = "--out and --no-block do not go together"
            raise ConfigError(problem, "Use result() of the handle instead.")
        ranks = parse_ranks(words.ranks, cluster.world_size)
        view = state.open_view(ranks, quiet=words.quiet)
        options: dict[str, Any] = {
            "ranks": ranks,
            "timeout_s": words.timeout,
            "execution_count": state.execution_count,
            "want_value": bool(words.out or words.no_block),
        }
        if words.no_block:
            handle = cluster.submit(code, **options)
            state.remember_view(handle.cell_id, view)
            return BackgroundCell(handle, view)
        try:
            result = cluster.run(code, show=view.show, **options)
        except CellError as error:
            state.failure = error
            state.remember_view(error.cell_id, view)
            raise
        state.remember_view(result.cell_id, view)
        if words.out:
            state.shell.user_ns[words.out] = result.values
        return None


def _unknown(name: str, names: dict[str, Any]) -> ConfigError:
    problem = f"%push: the notebook has no variable '{name}'"
    near = nearest(name, [known for known in names if not known.startswith("_")])
    remedy = (
        f"Did you mean {near}?" if near else "Assign it in a cell of its own first."
    )
    return ConfigError(problem, remedy)
