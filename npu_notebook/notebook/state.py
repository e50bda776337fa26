"""What one notebook knows: its clusters, its name, what is still to be said."""

from __future__ import annotations

import atexit
import os
import queue
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from npu_notebook import runtime
from npu_notebook.errors import CellError, ConfigError, NpuNotebookError
from npu_notebook.notebook.background import LateOutput
from npu_notebook.notebook.environment import EnvironmentWatch
from npu_notebook.notebook.pacing import Pacer
from npu_notebook.notebook.sink import KernelSink, open_sink
from npu_notebook.notebook.views import TextView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from IPython.core.interactiveshell import InteractiveShell

    from npu_notebook.cluster import Cluster
    from npu_notebook.messages import Notice

_LEAVE_TIMEOUT_S = 3.0
"""Front ends kill a kernel that has not ended 5 s after it was asked to.
Source: jupyter_client, ``KernelManager.shutdown_wait_time``."""


class NotebookState:
    """The clusters of one shell, of which one is current.

    Parameters
    ----------
    shell : InteractiveShell
        The notebook's shell: a kernel's or a terminal's.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.owner = owner_key(shell)
        self.failure: CellError | None = None
        self.auto_spmd = False
        self.environment = EnvironmentWatch()
        self._pacer = Pacer()
        self._late = LateOutput()
        self._clusters: dict[str, Cluster] = {}
        self._kept: set[str] = set()
        self._current = ""
        self._notices: queue.SimpleQueue[Notice] = queue.SimpleQueue()

    @property
    def cluster(self) -> Cluster:
        """The current cluster.

        Raises
        ------
        ConfigError
            If there is none.
        LinkError
            If it has ended.
        """
        cluster = self._clusters.get(self._current)
        if cluster is None:
            problem = "this notebook has no cluster"
            remedy = "Run `%npu_cluster start`, or `%npu_cluster attach`."
            raise ConfigError(problem, remedy)
        if cluster.session.ended is not None:
            raise cluster.session.ended
        return cluster

    @property
    def has_clusters(self) -> bool:
        """Whether the notebook is attached to any cluster."""
        return bool(self._clusters)

    @property
    def execution_count(self) -> int:
        """The number of the cell that runs now, as in ``In[n]``.

        Taken from the history: the shell's own counter is raised before the cell
        runs in some versions of IPython and behind it in others.
        Source: IPython 8.20 and 9.18, ``InteractiveShell.run_cell_async``.
        """
        history = self.shell.history_manager
        return 1 if history is None else max(1, len(history.input_hist_parsed) - 1)

    def known(self, name: str) -> Cluster | None:
        """Return a cluster this notebook is attached to, None if it is not."""
        cluster = self._clusters.get(name)
        return cluster if cluster and cluster.session.ended is None else None

    def adopt(self, cluster: Cluster, *, keep: bool = False) -> None:
        """Make a cluster the current one and call it ``cluster`` in the notebook."""
        self.drop_ended()
        self._clusters[cluster.name] = cluster
        if keep:
            self._kept.add(cluster.name)
        else:
            self._kept.discard(cluster.name)
        cluster.session.on_notice = self._notices.put
        cluster.session.on_late = self._late.put
        self.make_current(cluster)

    def make_current(self, cluster: Cluster) -> None:
        """Let the magics mean a cluster that the notebook is attached to."""
        self._current = cluster.name
        names = self.shell.user_ns
        # A variable of the user's own by that name is left alone.
        if "cluster" not in names or isinstance(names["cluster"], type(cluster)):
            names["cluster"] = cluster

    def drop_ended(self) -> None:
        """Close what is left of clusters that have ended."""
        for name, cluster in list(self._clusters.items()):
            if cluster.session.ended is not None:
                del self._clusters[name]
                cluster.stop()

    def open_view(self, ranks: Sequence[int], *, quiet: bool = False) -> TextView:
        """Return a view in the output area of the cell that runs now."""
        sink = open_sink(self.shell)
        pacer = self._pacer if isinstance(sink, KernelSink) else None
        return TextView(sink, ranks, pacer, quiet=quiet)

    def remember_view(self, cell_id: str, view: TextView) -> None:
        """Let what threads of the cell print later appear in that view."""
        self._late.remember(cell_id, view)

    def tell_news(self) -> None:
        """Print notices that belong to no cell, and forget seen state changes."""
        for cluster in self._clusters.values():
            with suppress(queue.Empty):
                while True:
                    cluster.session.events.get_nowait()
        with suppress(queue.Empty):
            while True:
                notice = self._notices.get_nowait()
                stream = "stdout" if notice.level == "info" else "stderr"
                open_sink(self.shell).stream(stream, f"{notice.text}\n")

    def leave(self, *, stop: bool) -> None:
        """Leave all clusters, in bounded time; what is kept lingers.

        Parameters
        ----------
        stop : bool
            End them (the notebook is over), or let them linger (it may come back).
        """
        clusters, self._clusters = list(self._clusters.values()), {}
        threads = [
            threading.Thread(
                target=_leave,
                args=(cluster, stop and cluster.name not in self._kept),
                daemon=True,
            )
            for cluster in clusters
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_LEAVE_TIMEOUT_S)

    def leave_at_exit(self) -> None:
        """Leave when this process ends.

        A terminal's end is the end of the work; a kernel that ends without a word
        may come back.
        """
        self.leave(stop=not hasattr(self.shell, "kernel"))

    def watch_exit(self, *, enabled: bool) -> None:
        """Register or forget `leave_at_exit`."""
        if enabled:
            atexit.register(self.leave_at_exit)
        else:
            atexit.unregister(self.leave_at_exit)


def _leave(cluster: Cluster, stop: bool) -> None:  # noqa: FBT001  a thread's argument
    # The process ends: whoever could read about a dead controller is gone.
    with suppress(NpuNotebookError, OSError):
        if stop:
            cluster.stop("its notebook was closed")
        else:
            cluster.detach("its notebook's kernel ended")


def owner_key(shell: InteractiveShell) -> str:
    """Return what names this notebook, also after its kernel was restarted.

    Source: jupyter_server puts the notebook's path into ``JPY_SESSION_NAME``; a
    kernel keeps its connection file when it is restarted.
    """
    session = os.environ.get("JPY_SESSION_NAME")
    if session:
        return session
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        from ipykernel.connect import get_connection_file

        try:
            return get_connection_file()
        except RuntimeError:  # a kernel inside another program has no file
            pass
    return f"process {os.getpid()} of {runtime.process_start_s(os.getpid()) or 0:.2f}"


def suggested_name(shell: InteractiveShell) -> str:
    """Return a cluster name made of the notebook's name, ``"cluster"`` without one."""
    paths = (
        os.environ.get("JPY_SESSION_NAME"),
        shell.user_ns.get("__vsc_ipynb_file__"),
    )
    for path in paths:
        if isinstance(path, str) and path.endswith(".ipynb"):
            words = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(path).stem).strip("-._")
            if words:
                return words[:24]
    return "cluster"
