"""Which cell does this line belong to: cells, threads and tasks they started.

The cell that runs is a context variable, so an asyncio task goes on printing into the
cell that made it. A thread has no context of its creator; it remembers the cell in
which it was started.
"""

from __future__ import annotations

import contextvars
import threading
from functools import wraps

_ATTRIBUTE = "_npu_notebook_cell_id"
_current: contextvars.ContextVar[str] = contextvars.ContextVar(
    "npu_notebook_cell_id", default=""
)


class Attribution:
    """Tell the cell of the calling thread or task.

    Attributes
    ----------
    running : str
        The cell the main thread runs or ran last, "" before the first.
    current : callable
        The quick answer of `cell_id`; "" where only that one knows.
    """

    def __init__(self) -> None:
        self.running = ""
        self.current = _current.get

    def begin(self, cell_id: str) -> None:
        """Attribute to ``cell_id`` from here on. Call it in the main thread."""
        self.running = cell_id
        _current.set(cell_id)

    def cell_id(self) -> str:
        """Return the cell that the caller's output belongs to, "" for none."""
        cell_id = _current.get()
        if cell_id:
            return cell_id
        # A thread that Python did not start (autograd's) works for the running cell.
        thread = threading.current_thread()
        return getattr(thread, _ATTRIBUTE, self.running)

    def follow_threads(self) -> None:
        """Make `threading.Thread.start` note the cell in the new thread."""
        original = threading.Thread.start

        @wraps(original)
        def start(thread: threading.Thread) -> None:
            setattr(thread, _ATTRIBUTE, self.cell_id())
            original(thread)

        threading.Thread.start = start  # type: ignore[method-assign, assignment]  # no other hook
