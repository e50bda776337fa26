"""Everything a rank prints, in one order, joined and sent to the controller.

Python text is left here by `streams.TextStream`, what child processes and C code
write to file descriptors 1 and 2 comes through `pipes.CellPipes`. One thread sends
what has gathered about every 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

from npu_notebook.messages import StreamText
from npu_notebook.rank.pipes import CellPipes

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.messages import RankReport
    from npu_notebook.rank.attribution import Attribution
    from npu_notebook.rank.interrupts import Interrupts

StreamName: TypeAlias = Literal["stdout", "stderr"]

_JOIN_S = 0.02
_JOIN_NCHARS = 65_536
_MESSAGE_NCHARS = 1 << 20
# A child process takes longer than this to start and end: between two prints that
# are closer than this, none can have written something that belongs in between.
_CLOSE_NS = 200_000
# A cell that prints without end must not fill the memory of rank and controller.
_BURST_NCHARS = 64 << 20
_SUSTAINED_NCHARS_PER_S = 50 << 20
_FILE_DESCRIPTORS: dict[StreamName, int] = {"stdout": 1, "stderr": 2}


class Output:
    """The text of one rank on its way to the controller.

    Parameters
    ----------
    rank : int
        Sender of the reports.
    send : callable
        Takes a report, from any thread.
    attribution : Attribution
        Tells which cell a piece of text belongs to.
    interrupts : Interrupts
        Held back while text is moved, so that none is lost.
    log_fd : int
        Where text goes that belongs to no cell.
    """

    def __init__(
        self,
        rank: int,
        send: Callable[[RankReport], None],
        attribution: Attribution,
        interrupts: Interrupts,
        log_fd: int,
    ) -> None:
        self._rank = rank
        self._send = send
        self._attribution = attribution
        self._interrupts = interrupts
        self._log_fd = log_fd
        self._pieces: deque[tuple[str, StreamName, str]] = deque()
        self._nchars = 0
        self._last_ns = 0
        self._woken = False
        self._lock = threading.RLock()  # a __del__ may print while we hold it
        self._pipes = CellPipes(self._take_from_pipe)
        self._allowance = _Allowance()
        self._child = _ChildLines()
        self._libc = ctypes.CDLL(None)
        self.in_child = False

    def start(self) -> None:
        """Start the thread that reads pipes and sends what has gathered."""
        threading.Thread(target=self._serve, name="output", daemon=True).start()
        os.register_at_fork(after_in_child=self._become_child)

    def writer(self, stream: StreamName) -> Callable[[str], int]:
        """Return the ``write`` of a stream.

        A closure, because it runs 80,000 times for 20,000 printed lines.
        """
        current = self._attribution.current
        append = self._pieces.append
        clock_ns = time.monotonic_ns

        def write(text: str) -> int:
            """Take text; it is sent a moment later."""
            nchars = len(text)
            if type(text) is not str or not nchars or self.in_child:
                return self._write_rarely(stream, text)
            cell_id = current() or self._attribution.cell_id()
            now_ns = clock_ns()
            if now_ns - self._last_ns > _CLOSE_NS and text != "\n":
                self._drain_pipes()  # not between the two writes of one print()
            self._last_ns = now_ns
            append((cell_id, stream, text))
            self._nchars += nchars
            if self._nchars >= _JOIN_NCHARS:
                self._allowance.take(self._nchars)
                self.flush()
            elif not self._woken:
                self._woken = True
                self._pipes.wake()
            return nchars

        return write

    def _write_rarely(self, stream: StreamName, text: object) -> int:
        if not isinstance(text, str):
            message = f"write() argument must be str, not {type(text).__name__}"
            raise TypeError(message)
        if text and self.in_child:
            self._child.add(stream, text)
        elif text:
            self.writer(stream)(str(text))  # a subclass of str
        return len(text)

    def look_at_pipes(self) -> None:
        """Let the next text wait for what lies in the pipes (after a ``flush()``)."""
        self._last_ns = 0
        if self.in_child:
            self._child.flush()

    def begin_cell(self, cell_id: str) -> None:
        """Give the cell pipes of its own. Call it in the main thread."""
        self._attribution.begin(cell_id)
        with self._interrupts.shielded(), self._lock:
            self._pipes.renew(cell_id)

    def end_cell(self) -> None:
        """Send all that the cell has written up to now."""
        # C code buffers by itself; os.dup2 has put our pipe under its stdout.
        self._libc.fflush(None)
        self._drain_pipes()
        self.flush()

    def flush(self, *, hold_unfinished: bool = False) -> bool:
        """Send what has gathered.

        Parameters
        ----------
        hold_unfinished : bool
            Keep a last line without its end for the next time, so that a line does
            not arrive in two halves.

        Returns
        -------
        bool
            Whether something was kept.
        """
        with self._interrupts.shielded(), self._lock:
            pieces = self._take_all()
            kept = hold_unfinished and bool(pieces) and not pieces[-1][2].endswith("\n")
            if kept:
                self._hold(pieces)
            for cell_id, stream, text in _join(pieces):
                self._publish(cell_id, stream, text)
        return kept

    def _take_all(self) -> list[tuple[str, StreamName, str]]:
        self._nchars = 0
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._pieces.popleft())
        return taken

    def _hold(self, pieces: list[tuple[str, StreamName, str]]) -> None:
        cell_id, stream, _ = pieces[-1]
        held: list[str] = []
        while pieces and pieces[-1][:2] == (cell_id, stream):
            head, newline, tail = pieces.pop()[2].rpartition("\n")
            held.append(tail)
            if newline:
                pieces.append((cell_id, stream, head + newline))
                break
        text = "".join(reversed(held))
        self._pieces.appendleft((cell_id, stream, text))
        self._nchars += len(text)

    def _publish(self, cell_id: str, stream: StreamName, text: str) -> None:
        if not cell_id:
            os.write(self._log_fd, text.encode("utf-8", "backslashreplace"))
            return
        if not text.isascii():
            # A lone surrogate has no place on the wire; \udcff still tells what it was.
            text = text.encode("utf-8", "backslashreplace").decode()
        for start in range(0, len(text), _MESSAGE_NCHARS):
            part = text[start : start + _MESSAGE_NCHARS]
            self._send(
                StreamText(cell_id=cell_id, rank=self._rank, stream=stream, text=part)
            )

    def _take_from_pipe(self, cell_id: str, stream: StreamName, text: str) -> None:
        self._pieces.append((cell_id, stream, text))
        self._nchars += len(text)

    def _drain_pipes(self) -> None:
        with self._interrupts.shielded(), self._lock:
            self._pipes.drain()

    def _serve(self) -> None:
        """Run in the output thread: pipes as they fill, text every 20 ms."""
        flush_at_s: float | None = None
        held = False
        while True:
            now_s = time.monotonic()
            timeout_s = None if flush_at_s is None else max(0.0, flush_at_s - now_s)
            ready = self._pipes.wait(timeout_s)
            if ready:
                with self._lock:
                    self._pipes.read(ready)
                if self._nchars >= _JOIN_NCHARS:
                    self._allowance.take(
                        self._nchars
                    )  # the child waits for the pipe then
                    self.flush()
            now_s = time.monotonic()
            if flush_at_s is None:
                flush_at_s = now_s + _JOIN_S
            elif now_s >= flush_at_s:
                held = self.flush(hold_unfinished=not held)
                self._woken = False
                # What was added while the flag was still up has not woken us.
                flush_at_s = now_s + _JOIN_S if self._pieces else None

    def _become_child(self) -> None:
        """In a forked child: what the parent had gathered is the parent's to send."""
        self.in_child = True
        self._lock = threading.RLock()
        self._pieces.clear()


class _ChildLines:
    """How a forked child prints: whole lines, so that those of several do not mix."""

    def __init__(self) -> None:
        self._lines: dict[StreamName, str] = {"stdout": "", "stderr": ""}

    def add(self, stream: StreamName, text: str) -> None:
        self._lines[stream] += text
        if "\n" in text or "\r" in text:
            self._write(stream)

    def flush(self) -> None:
        for stream in self._lines:
            self._write(stream)

    def _write(self, stream: StreamName) -> None:
        data = self._lines[stream].encode("utf-8", "backslashreplace")
        self._lines[stream] = ""
        while data:
            data = data[os.write(_FILE_DESCRIPTORS[stream], data) :]


class _Allowance:
    """How much may be printed: a burst at once, then so much a second."""

    def __init__(self) -> None:
        self._nchars = float(_BURST_NCHARS)
        self._since_s = time.monotonic()

    def take(self, nchars: int) -> None:
        """Wait until ``nchars`` more are allowed."""
        now_s = time.monotonic()
        gained = (now_s - self._since_s) * _SUSTAINED_NCHARS_PER_S
        self._nchars = min(self._nchars + gained, _BURST_NCHARS) - nchars
        self._since_s = now_s
        if self._nchars < 0:
            threading.Event().wait(-self._nchars / _SUSTAINED_NCHARS_PER_S)


def _join(
    pieces: list[tuple[str, StreamName, str]],
) -> list[tuple[str, StreamName, str]]:
    joined: list[tuple[str, StreamName, str]] = []
    texts: list[str] = []
    last: tuple[str, StreamName] | None = None
    for cell_id, stream, text in pieces:
        if last != (cell_id, stream):
            if last is not None:
                joined.append((*last, "".join(texts)))
            last, texts = (cell_id, stream), []
        texts.append(text)
    if last is not None:
        joined.append((*last, "".join(texts)))
    return joined
