"""Stop the running cell from the link's thread, and nothing but the running cell.

The link's thread sends SIGINT to the main thread; the handler, in the main thread,
raises `KeyboardInterrupt` only while a cell is armed. A signal that comes after the
end of its cell is swallowed before the next one is armed.
"""

from __future__ import annotations

import ctypes
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from npu_notebook.rank import children as processes
from npu_notebook.rank.children import ChildProcesses

if TYPE_CHECKING:
    from types import FrameType, TracebackType

Releaser: TypeAlias = Callable[[int], None]
"""Called in the link's thread with the level before SIGINT is sent; must not block."""

_INSIST = 2  # the level from which children are killed
_SYNC_S = 0.001
_PAUSE_S = 0.2


class Interrupts:
    """Which cell runs, and how it is stopped.

    Attributes
    ----------
    releasers : list of callable
        What frees the main thread when it waits in C++ code that no signal reaches.
        This is the place where blocked collectives get released; a releaser is called
        for every interrupt of a running cell and must do nothing if nothing waits.
    sent : bool
        Whether an interrupt was sent to the running cell, or to the last one.
    """

    def __init__(self) -> None:
        self.releasers: list[Releaser] = []
        self.sent = False
        self._main_ident = threading.main_thread().ident or 0
        self._lock = threading.Lock()
        self._handler = self._on_signal  # one object, so that it can be recognised
        self._waiting: set[str] = set()
        self._cancelled: set[str] = set()
        self._cell_id = ""
        self._armed = False
        self._delivered = False
        self._thrown = False
        self._cell_end = 0.0
        self._last_s: dict[int, float] = {}
        self._children: ChildProcesses | None = None
        self._shield = _Shield(self)

    def install(self) -> None:
        """Take SIGINT. Call it in the main thread."""
        signal.signal(signal.SIGINT, self._handler)

    def expect(self, cell_id: str) -> None:
        """Note a cell that waits in the inbox (link's thread)."""
        with self._lock:
            self._waiting.add(cell_id)

    def begin(self, cell_id: str) -> bool:
        """Arm a cell; False if it was interrupted while it waited."""
        # User code may have put its own handler in place in an earlier cell.
        if signal.getsignal(signal.SIGINT) is not self._handler:
            self.install()
        # Or a mask. What waited behind it finds no armed cell and is swallowed.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        children = ChildProcesses(self._cell_end)
        with self._lock:
            self._waiting.discard(cell_id)
            if cell_id in self._cancelled:
                self._cancelled.discard(cell_id)
                return False
            self._cell_id = cell_id
            self._children = children
            self._last_s.clear()
            self._delivered = self.sent = False
            self._armed = True
        return True

    def disarm(self) -> None:
        """Let no interrupt through any more; afterwards none can come late."""
        self._armed = False
        with self._lock:
            sent = self.sent
            if self._thrown:
                self._thrown = False
                _take_back_async_exception(self._main_ident)
        if sent:
            # A signal sent to this thread is delivered at the latest when it returns
            # from the kernel; the handler finds the cell disarmed.
            select.select((), (), (), _SYNC_S)

    def end(self) -> list[str]:
        """Forget the cell; wait for child processes that an interrupt is ending.

        Returns
        -------
        list of str
            Child processes that are still there, ``"sleep (pid 12)"``.
        """
        children = self._children
        survivors = children.survivors() if children is not None and self.sent else []
        with self._lock:
            self._cell_id = ""
            self._children = None
        self._cell_end = processes.now()
        return survivors

    def interrupt(self, level: int, cell_id: str | None) -> None:
        """Stop a cell (link's thread); ``cell_id`` None means the one that runs."""
        now_s = time.monotonic()
        with self._lock:
            if cell_id is not None and cell_id in self._waiting:
                self._cancelled.add(cell_id)
                return
            if not self._cell_id or cell_id not in (None, self._cell_id):
                return
            # One that follows at once is the same wish; a second exception would only
            # hit the code that is handling the first.
            if now_s - self._last_s.get(level, -_PAUSE_S) < _PAUSE_S:
                return
            self._last_s[level] = now_s
            children = self._children
            deaf = self.sent and not self._delivered
            self.sent = True
        for release in self.releasers:
            release(level)
        with self._lock:
            if self._armed and children is self._children:
                self._delivered = False
                signal.pthread_kill(self._main_ident, signal.SIGINT)
                if level >= _INSIST and deaf:
                    # User code has put SIGINT aside, by a handler or a mask.
                    self._thrown = True
                    _set_async_exception(self._main_ident, KeyboardInterrupt)
        if children is not None:
            children.stop(kill=level >= _INSIST)

    def shielded(self) -> _Shield:
        """Hold back an interrupt of the main thread while a ``with`` block runs."""
        return self._shield

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._delivered = True
        if not self._armed:
            return
        if self._shield.depth:
            self._shield.held_back = True
            return
        raise KeyboardInterrupt

    def raise_held_back(self) -> None:
        """Raise what `shielded` held back, if the cell still runs."""
        if self._armed:
            raise KeyboardInterrupt


class _Shield:
    """A reentrant block of the main thread that an interrupt may not cut in two."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.depth = 0
        self.held_back = False
        self._interrupts = interrupts
        self._main_ident = threading.main_thread().ident

    def __enter__(self) -> None:
        if threading.get_ident() == self._main_ident:
            self.depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if threading.get_ident() != self._main_ident:
            return
        self.depth -= 1
        if not self.depth and self.held_back:
            self.held_back = False
            self._interrupts.raise_held_back()


class _TakenBack(BaseException):
    """Takes the place of an exception that has not been raised yet."""


def _take_back_async_exception(thread_ident: int) -> None:
    """Let an exception set for the calling thread not be raised any more.

    Setting None would do that too, but leaves the interpreter's flag for it up for
    good: CPython 3.11 and 3.12 take it down only when they raise something, and with
    the flag up 3.11 never gets past the first line that a debugger or profiler traces.
    Source: CPython 3.11, ``ceval.c``, ``eval_frame_handle_pending``.
    """
    try:
        _set_async_exception(thread_ident, _TakenBack)
        for _ in range(1000):  # it is raised here at the latest
            pass
    except _TakenBack:
        pass


def _set_async_exception(thread_ident: int, kind: type[BaseException]) -> None:
    """Raise ``kind`` in a thread at its next bytecode, instead of one not yet raised.

    Source: https://docs.python.org/3/c-api/init.html, PyThreadState_SetAsyncExc.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_ident), ctypes.py_object(kind)
    )
