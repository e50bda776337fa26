"""Cells that run behind the notebook: ``--no-block``, and prints of their threads."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from npu_notebook.cells import TICK_S
from npu_notebook.errors import NpuNotebookError
from npu_notebook.topology import format_ranks

if TYPE_CHECKING:
    from npu_notebook.cells import CellHandle, CellResult
    from npu_notebook.messages import Update
    from npu_notebook.notebook.views import TextView

_KEPT_VIEWS = 64
_IDLE_S = 1.0


class BackgroundCell:
    """A cell that runs while the notebook goes on; its output appears where it began.

    Attributes
    ----------
    cell_id : str
        The cell.
    ranks : tuple of int
        Where it runs.
    """

    def __init__(self, handle: CellHandle, view: TextView) -> None:
        self.cell_id = handle.cell_id
        self.ranks = handle.ranks
        self._handle = handle
        self._view = view
        self._ended = threading.Event()
        self._lost: NpuNotebookError | None = None
        threading.Thread(
            target=self._follow, name=f"npu-notebook {self.cell_id}", daemon=True
        ).start()

    @property
    def done(self) -> bool:
        """Whether the cell has ended on all its ranks and its output is shown."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> CellResult:
        """Wait for the end.

        Raises
        ------
        CellError
            If the cell failed on a rank.
        TimeoutError
            If it has not ended after ``timeout_s`` seconds; it goes on running.
        LinkError
            If the cluster ended first.
        ConfigError
            If the controller could not take the cell.
        """
        if not self._ended.wait(timeout_s):
            message = f"{self.cell_id} has not ended after {timeout_s:g} s"
            raise TimeoutError(message)
        if self._lost is not None:
            raise self._lost
        return self._handle.outcome()

    def result(self, timeout_s: float | None = None) -> list[Any]:
        """Wait for the end and return the last expression's value by rank."""
        return self.wait(timeout_s).values

    def cancel(self, level: int = 1) -> None:
        """Stop the cell: 1 asks, 2 insists, 3 ends the ranks that still run it."""
        if not self.done:
            self._handle.cancel(level)

    def __repr__(self) -> str:
        state = "ended" if self.done else "running"
        return (
            f"<{self.cell_id}: {state} on ranks {format_ranks(self.ranks)}; "
            "wait(), result(), cancel()>"
        )

    def _follow(self) -> None:
        try:
            for update in self._handle.updates(TICK_S):
                self._view.show(update)
            self._show_failure()
        except NpuNotebookError as error:  # the cluster ended, or refused the cell
            self._lost = error
            self._view.finish()
            self._view.note(str(error), level="error")
        finally:
            self._handle.forget()
            self._ended.set()

    def _show_failure(self) -> None:
        error = self._handle.failure()
        if error is not None:
            # Nobody may ever wait for it: the cell that began it has to say so.
            self._view.note(error.traceback_text or error.summary, level="error")


class LateOutput:
    """Shows what threads of ended cells print, in the cell that started them.

    A thread lives only while there is something to show.
    """

    def __init__(self) -> None:
        self._views: OrderedDict[str, TextView] = OrderedDict()
        self._arrived: queue.SimpleQueue[Update] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def remember(self, cell_id: str, view: TextView) -> None:
        """Keep the view of a cell, of the newest cells only."""
        with self._lock:
            self._views[cell_id] = view
            while len(self._views) > _KEPT_VIEWS:
                self._views.popitem(last=False)

    def put(self, update: Update) -> None:
        """Take an update of an ended cell; called in a link thread."""
        self._arrived.put(update)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._show_all, name="npu-notebook late output", daemon=True
                )
                self._thread.start()

    def _show_all(self) -> None:
        shown: set[TextView] = set()
        while True:
            try:
                update = self._arrived.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._arrived.empty():
                        self._thread = None
                        break
                continue
            with self._lock:
                view = self._views.get(getattr(update, "cell_id", ""))
            if view is not None:
                view.show(update)
                shown.add(view)
        for view in shown:
            view.finish()
