"""status, list, interrupt, traceback: what runs now, and what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.display import display

from npu_notebook.errors import ConfigError
from npu_notebook.failures import name_ranks
from npu_notebook.notebook.commands import Command
from npu_notebook.notebook.listing import listing
from npu_notebook.notebook.tables import advice, cluster_table
from npu_notebook.topology import parse_ranks

if TYPE_CHECKING:
    from argparse import Namespace

    from npu_notebook.notebook.options import Words
    from npu_notebook.notebook.state import NotebookState


def status(state: NotebookState, _words: Namespace) -> None:
    """Show every rank: where it is and what it does."""
    fact = state.cluster.status()
    display(cluster_table(fact))
    if advice(fact):
        print(advice(fact))  # noqa: T201  a magic's output


def list_clusters(_state: NotebookState, _words: Namespace) -> None:
    """Show this user's clusters on this host."""
    display(listing("%npu_cluster"))


def _add_level(words: Words) -> None:
    words.add_argument(
        "--level",
        type=int,
        choices=(1, 2, 3),
        default=1,
        help="1 asks, 2 insists and kills child processes, 3 ends the ranks",
    )


def interrupt(state: NotebookState, words: Namespace) -> None:
    """Stop the cells that run; variables are kept."""
    state.cluster.interrupt(words.level)


def _add_ranks(words: Words) -> None:
    words.add_argument("--ranks", metavar="0,2-3", help="which ranks; by default all")


def show_traceback(state: NotebookState, words: Namespace) -> None:
    """Show the last failed cell's whole traceback of each rank."""
    failure = state.failure
    if failure is None:
        problem = "no cell of this notebook has failed"
        raise ConfigError(problem, "Run a cell with `%%spmd` first.")
    world_size = max(one.rank for one in failure.outcomes) + 1
    ranks = parse_ranks(words.ranks, world_size)
    for one in failure.outcomes:
        if one.rank in ranks:
            text = "no error" if one.error is None else one.error.traceback
            head = name_ranks([one.rank])
            message = "" if one.error is None else f" {one.error.message}"
            print(f"{head}:\n{text or message}")  # noqa: T201  a magic's output


COMMANDS = (
    Command("status", "Show every rank and what it does.", status),
    Command("list", "Show your clusters on this host.", list_clusters),
    Command(
        "interrupt",
        "Stop the cells that run; variables are kept.",
        interrupt,
        _add_level,
    ),
    Command(
        "traceback",
        "Show each rank's traceback of the last failed cell.",
        show_traceback,
        _add_ranks,
    ),
)
