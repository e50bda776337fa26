"""A cell that runs or has run on the ranks, as the user holds it."""

from __future__ import annotations

import queue
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from npu_notebook import messages
from npu_notebook.errors import CellError, ConfigError, LinkError, RankLostError
from npu_notebook.failures import describe_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from npu_notebook.messages import RankOutcome, Update
    from npu_notebook.session import Arrivals, Session

Show: TypeAlias = "Callable[[Update | None], None]"
"""Called with each update of a cell, and with None about every 50 ms meanwhile."""

TICK_S = 0.05
SECOND_THOUGHT_S = 1.0
"""How long ranks get to obey a second Stop: only a Stop after that costs variables.
Three in a row are the impatience of one, and the rank may be in a long native call."""

_INSIST, _END = 2, 3


class CellResult:
    """How a cell ended, rank by rank.

    Attributes
    ----------
    cell_id : str
        The cell.
    outcomes : tuple of RankOutcome
        One per rank of the cell, in rank order.
    values : list
        The last expression's value by rank; empty unless it was asked for.
    """

    def __init__(
        self, cell_id: str, outcomes: tuple[RankOutcome, ...], values: list[Any]
    ) -> None:
        self.cell_id = cell_id
        self.outcomes = outcomes
        self.values = values

    def __repr__(self) -> str:
        ranks = len(self.outcomes)
        return f"<CellResult {self.cell_id}: done on {ranks} ranks>"


class CellHandle:
    """A cell that was submitted and may still run.

    Attributes
    ----------
    cell_id : str
        The cell.
    ranks : tuple of int
        Where it runs.
    """

    def __init__(
        self,
        session: Session,
        cell: messages.SubmitCell,
        pull: Callable[[str, tuple[int, ...]], list[Any]],
    ) -> None:
        self.cell_id = cell.cell_id
        self.ranks = cell.ranks
        self._cell = cell
        self._session = session
        self._pull = pull
        self._arrivals: Arrivals = session.expect(cell.cell_id)
        self._finished: messages.CellFinished | None = None
        self._refused: ConfigError | None = None
        self._values: list[Any] | None = None
        session.send(cell)

    @property
    def done(self) -> bool:
        """Whether the cell has ended on all its ranks and its updates were read."""
        return self._finished is not None

    def updates(self, timeout_s: float | None = None) -> Iterator[Update | None]:
        """Yield what arrives until the cell has ended; None when nothing does.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds after which to yield None.

        Raises
        ------
        LinkError
            If the cluster ends before the cell.
        ConfigError
            If the controller cannot take the cell: it is starting, say.
        """
        while self._finished is None:
            if self._refused is not None:
                raise self._refused
            try:
                arrived = self._arrivals.get(timeout=timeout_s)
            except queue.Empty:
                yield None
                continue
            if isinstance(arrived, LinkError):
                raise arrived
            if isinstance(arrived.update, messages.RequestDone):
                refusal = arrived.update
                self._refused = ConfigError(refusal.problem, refusal.remedy)
                continue
            if isinstance(arrived.update, messages.CellFinished):
                self._finished = arrived.update
                # The queue stays: threads of the cell may print later.
            yield arrived.update

    def late_updates(self) -> list[Update]:
        """Return what arrived after the end, such as prints of the cell's threads."""
        late: list[Update] = []
        while True:
            try:
                arrived = self._arrivals.get_nowait()
            except queue.Empty:
                return late
            if isinstance(arrived, LinkError):
                return late
            late.append(arrived.update)

    def forget(self) -> None:
        """Send what threads of the cell print from now on to `Session.on_late`."""
        self._session.forget(self.cell_id)

    def wait(self, timeout_s: float | None = None) -> CellResult:
        """Wait for the end.

        Raises
        ------
        CellError
            If the cell failed on a rank.
        TimeoutError
            If it has not ended after ``timeout_s`` seconds; it goes on running.
        LinkError
            If the cluster ends first.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        for _ in self.updates(timeout_s and TICK_S):
            if end_s is not None and time.monotonic() > end_s:
                message = f"{self.cell_id} has not ended after {timeout_s:g} s"
                raise TimeoutError(message)
        return self.outcome()

    def outcome(self) -> CellResult:
        """Return how the cell ended, once `done`.

        Raises
        ------
        CellError
            If the cell failed on a rank.
        RankLostError
            If a rank's process ended: a `CellError` too.
        """
        if self._finished is None:
            return self.wait()
        error = self.failure()
        if error is not None:
            raise error
        if self._cell.want_value and self._values is None:
            self._values = self._pull(f"_npu_value_{self.cell_id}", self.ranks)
        return CellResult(self.cell_id, self._finished.outcomes, self._values or [])

    def failure(self) -> CellError | None:
        """Return how an ended cell failed, None if it did not; fetches no value."""
        outcomes = self._finished.outcomes if self._finished else ()
        lost = any(one.lost for one in outcomes)
        if not lost and all(one.error is None for one in outcomes):
            return None
        fact = self._session.fact
        logs = {rank.rank: rank.log_path for rank in fact.ranks} if fact else {}
        timed_out = self._finished is not None and self._finished.timed_out
        summary, text = describe_failure(
            outcomes, logs, timed_out, self._cell.timeout_s
        )
        kind = RankLostError if lost else CellError
        return kind(self.cell_id, outcomes, summary, text)

    def result(self, timeout_s: float | None = None) -> list[Any]:
        """Wait for the end and return the last expression's value by rank."""
        return self.wait(timeout_s).values

    def cancel(self, level: int = 1) -> None:
        """Stop the cell: 1 asks, 2 insists, 3 ends the ranks that still run it."""
        self._session.send(messages.InterruptCell(level=level, cell_id=self.cell_id))


@contextmanager
def stop_button(handle: CellHandle) -> Iterator[None]:
    """While a cell runs, Ctrl-C goes to the ranks, once stronger each time.

    A handler instead of catching `KeyboardInterrupt`: the exception could surface in
    the middle of a view and lose output.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    level = 0
    insisted_s = 0.0

    def escalate(_number: int, _frame: FrameType | None) -> None:
        nonlocal level, insisted_s
        now_s = time.monotonic()
        if level < _INSIST:
            level += 1
            insisted_s = now_s
        elif now_s - insisted_s >= SECOND_THOUGHT_S:
            level = _END
        else:
            return
        handle.cancel(level)

    before = signal.signal(signal.SIGINT, escalate)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
