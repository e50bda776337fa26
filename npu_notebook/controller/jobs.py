"""The order of work: each rank does what it was given first, first.

A job (a cell, a push, a pull) begins when all its ranks are free, and holds them until
it has ended on all of them. So cells that share ranks never overlap, a push that was
typed after a cell is seen by the next cell only, and process groups can be formed
between any two jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from npu_notebook.messages import RankState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npu_notebook.controller.board import Board
    from npu_notebook.messages import ErrorInfo


class Job(Protocol):
    """Work on some ranks. Made by `Cells` and `Transfers`, called by `Jobs`."""

    key: str
    ranks: tuple[int, ...]

    @property
    def running(self) -> list[int]:
        """Ranks that have not answered yet."""
        ...

    def begin(self) -> None:
        """Send the commands; all ranks are free."""
        ...

    def lose(self, rank: int, error: ErrorInfo) -> None:
        """Go on without a rank that is gone; the job has begun."""
        ...

    def refuse(self, errors: dict[int, ErrorInfo]) -> None:
        """End without having begun; ``errors`` says why for each rank."""
        ...


class Jobs:
    """The queue of all jobs of a cluster."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._waiting: list[Job] = []
        self._active: dict[str, Job] = {}
        self.blocked: Callable[[], bool] = lambda: False
        """True while nothing may begin, because a process group is to be formed."""
        self.on_added: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._active)

    @property
    def active(self) -> list[Job]:
        """Jobs that have begun."""
        return list(self._active.values())

    @property
    def waiting(self) -> list[Job]:
        """Jobs that have not begun, in order."""
        return list(self._waiting)

    def add(self, job: Job) -> None:
        """Append a job; `dispatch` begins it."""
        self._waiting.append(job)
        self.on_added()

    def finish(self, job: Job) -> None:
        """Set the ranks of a job free."""
        self._active.pop(job.key, None)

    def dispatch(self) -> None:
        """Begin every job whose ranks are free and not wanted by an earlier one."""
        if not self._waiting or self.blocked():
            return
        taken = {rank for job in self._active.values() for rank in job.ranks}
        left: list[Job] = []
        for job in self._waiting:
            if taken.isdisjoint(job.ranks) and self._all_free(job.ranks):
                self._active[job.key] = job
                job.begin()
            else:
                left.append(job)
            taken.update(job.ranks)
        self._waiting = left

    def _all_free(self, ranks: Iterable[int]) -> bool:
        records = self._board.records(ranks)
        return all(r.state is RankState.IDLE and not r.leaving for r in records)

    def lose(self, rank: int, error: ErrorInfo) -> None:
        """Tell the jobs of a rank that its process is gone."""
        for job in self.active:
            if rank in job.ranks:
                job.lose(rank, error)
        self.refuse_waiting({rank: error})

    def refuse_waiting(self, errors: dict[int, ErrorInfo]) -> None:
        """End the jobs that have not begun and want one of these ranks."""
        refused = [
            job for job in self._waiting if not errors.keys().isdisjoint(job.ranks)
        ]
        self._waiting = [job for job in self._waiting if job not in refused]
        for job in refused:
            job.refuse({rank: errors[rank] for rank in job.ranks if rank in errors})

    def withdraw(self, job: Job) -> None:
        """Take out a job that has not begun."""
        self._waiting.remove(job)

    def clear(self) -> None:
        """Forget all jobs; whoever made them ends them."""
        self._waiting.clear()
