"""start, attach, restart, stop: what makes and ends a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.display import display

from npu_notebook.cluster import Cluster
from npu_notebook.errors import NpuNotebookError
from npu_notebook.messages import Notice
from npu_notebook.notebook.commands import Command
from npu_notebook.notebook.listing import leftovers
from npu_notebook.notebook.options import Words, environment_pair, given
from npu_notebook.notebook.progress import StartView
from npu_notebook.notebook.sink import open_sink
from npu_notebook.notebook.state import suggested_name
from npu_notebook.notebook.tables import cluster_table
from npu_notebook.settings import Settings
from npu_notebook.topology import DEVICE_NAMES, parse_ranks

if TYPE_CHECKING:
    from argparse import Namespace

    from npu_notebook.notebook.state import NotebookState


def _add_start(words: Words) -> None:
    words.add_argument(
        "-n", "--num-ranks", type=int, metavar="N", help="how many ranks"
    )
    words.add_argument(
        "--device",
        metavar="KIND",
        help=f"{', '.join(DEVICE_NAMES)}; by default an Ascend NPU if there is one, "
        "simulated NPUs otherwise",
    )
    words.add_argument("--name", help="name of the cluster")
    words.add_argument(
        "--env",
        action="append",
        type=environment_pair,
        metavar="NAME=VALUE",
        help="an environment variable for the ranks; may be repeated",
    )
    words.add_argument("--cwd", metavar="FOLDER", help="where the ranks start")
    words.add_argument(
        "--linger",
        metavar="SECONDS",
        help="how long the cluster outlives its last notebook, or forever",
    )
    words.add_argument("--port", type=int, help="TCP port of the ranks' rendezvous")
    words.add_argument("--launcher", metavar="NAME", help="how hosts are reached")
    words.add_argument("--hosts", metavar="A:8,B:8", help="hosts and ranks on each")
    words.add_argument(
        "--keep", action="store_true", help="let it linger when the notebook is closed"
    )
    words.add_argument(
        "--no-config", action="store_true", help="ignore the settings file"
    )


def start(state: NotebookState, words: Namespace) -> None:
    """Start a cluster and make it the notebook's own."""
    options = given(
        words,
        "num_ranks",
        "device",
        "name",
        "cwd",
        "linger",
        "port",
        "launcher",
        "hosts",
    )
    if words.env:
        options["env"] = dict(words.env)
    if words.no_config:
        options["settings"] = Settings()
    view = StartView(open_sink(state.shell), "Starting")
    try:
        for sentence in leftovers(state.owner):
            view.show(Notice(text=sentence))
        cluster = Cluster.start(
            owner=state.owner,
            suggested_name=suggested_name(state.shell),
            on_update=view.show,
            **options,
        )
    except (NpuNotebookError, KeyboardInterrupt):
        view.fail()
        raise
    finally:
        state.drop_ended()
    state.environment.begin()
    state.adopt(cluster, keep=words.keep)
    view.finish(cluster.fact)


def _add_attach(words: Words) -> None:
    words.add_argument("name", nargs="?", help="which one, if several run")


def attach(state: NotebookState, words: Namespace) -> None:
    """Join a running cluster, its ranks and variables as they are."""
    known = None if words.name is None else state.known(words.name)
    cluster = known or Cluster.attach(words.name, title=state.owner)
    if known is None:
        # Closing this notebook ends its own clusters, not those of another one.
        others = cluster.session.connection.owner != state.owner
        state.adopt(cluster, keep=others)
    else:
        state.make_current(known)
    display(cluster_table(cluster.fact))


def _add_ranks(words: Words) -> None:
    words.add_argument("--ranks", metavar="0,2-3", help="which ranks; by default all")


def restart(state: NotebookState, words: Namespace) -> None:
    """Replace ranks by new processes."""
    cluster = state.cluster
    ranks = parse_ranks(words.ranks, cluster.world_size)
    view = StartView(open_sink(state.shell), "Restarting")
    try:
        cluster.restart(ranks, show=view.show)
    except (NpuNotebookError, KeyboardInterrupt):
        view.fail()
        raise
    view.finish(cluster.status())


def stop(state: NotebookState, words: Namespace) -> None:
    """End every process of a cluster."""
    if words.name is None:
        cluster = state.cluster
    else:
        cluster = state.known(words.name) or Cluster.attach(words.name)
    name = cluster.name
    cluster.stop()
    state.drop_ended()
    print(f"Cluster '{name}' is stopped.")  # noqa: T201  a magic's output


COMMANDS = (
    Command("start", "Start ranks, one per NPU, or simulated NPUs.", start, _add_start),
    Command(
        "attach",
        "Join a running cluster with its ranks and variables.",
        attach,
        _add_attach,
    ),
    Command(
        "restart",
        "Replace ranks by new processes and form their group again.",
        restart,
        _add_ranks,
    ),
    Command("stop", "End every process of a cluster.", stop, _add_attach),
)
