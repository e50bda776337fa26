"""Interrupts by people and by time: ask, insist, and only then end a rank by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.cells import Cell
from npu_notebook.controller.records import WORKING, Leaving
from npu_notebook.messages import RankState

if TYPE_CHECKING:
    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.cells import Cells
    from npu_notebook.controller.jobs import Jobs
    from npu_notebook.controller.records import RankRecord
    from npu_notebook.wire import Payload, Peer

TELL_FAILED_S = 3.0
"""From a rank's failure to the notice that others still run the cell."""
ESCALATE_S = 5.0
"""From a cell's deadline to the second interrupt, and on to the advice."""


class Interrupts:
    """Stops cells; see `InterruptCell` for the levels."""

    def __init__(self, board: Board, jobs: Jobs, cells: Cells) -> None:
        self._board = board
        self._jobs = jobs
        self._cells = cells
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.InterruptCell: self._on_interrupt
        }

    def due_s(self) -> float:
        """Return when `on_time` has something to do."""
        if not self._cells.any_timed:
            return math.inf
        return min(cell.deadline_s for cell in self._cells.all)

    def _on_interrupt(
        self, _peer: Peer, message: messages.InterruptCell, _payload: Payload
    ) -> None:
        # With nothing running, what waits (for a process group, say) is what to stop.
        idle = message.cell_id is None and not self._jobs.active
        for job in self._jobs.waiting:
            if isinstance(job, Cell) and (idle or job.key == message.cell_id):
                self._jobs.withdraw(job)
                errors = {rank: words.cancelled_error() for rank in job.ranks}
                job.refuse(errors)
        for job in self._jobs.active:
            if message.cell_id in (None, job.key):
                if isinstance(job, Cell):
                    # What its timeout has tried already need not be tried again.
                    done = job.level if job.timed_out else 0
                    self.interrupt(job, min(3, max(message.level, done + 1)))
                else:
                    self._interrupt_transfer(job.running, message.level)

    def _interrupt_transfer(self, ranks: list[int], level: int) -> None:
        # Unpickling runs user code, which may never end.
        records = [
            record
            for record in self._board.records(ranks)
            if record.state is RankState.IDLE and not record.leaving
        ]
        if level >= 3 and records:  # noqa: PLR2004  the levels are named in InterruptCell
            self._end_ranks("", records)
            return
        command = messages.InterruptRank(level=level, cell_id=None)
        self._board.send_ranks(records, command)

    def interrupt_all(self, level: int) -> None:
        """Interrupt every cell that runs, and drop those that wait."""
        for job in self._jobs.waiting:
            if isinstance(job, Cell):
                self._jobs.withdraw(job)
                job.refuse({rank: words.cancelled_error() for rank in job.ranks})
        for job in self._jobs.active:
            if isinstance(job, Cell):
                self.interrupt(job, level)

    def interrupt(self, cell: Cell, level: int) -> None:
        """Interrupt one cell on the ranks where it still runs."""
        records = [
            record
            for record in self._board.records(cell.running)
            if record.state in WORKING and record.leaving is Leaving.NO
        ]
        if not records:
            return
        cell.level = max(cell.level, level)
        ranks = [record.rank for record in records]
        if level >= 3:  # noqa: PLR2004  the levels are named in InterruptCell
            self._end_ranks(cell.key, records)
            return
        for record in records:
            if record.state is RankState.RUNNING:
                record.move(RankState.INTERRUPTING)
        command = messages.InterruptRank(level=level, cell_id=cell.key)
        self._board.send_ranks(records, command)
        if level == 2:  # noqa: PLR2004  as above
            text = (
                f"{words.name_ranks(ranks)} did not stop yet: interrupting again and "
                "killing the child processes that the cell started there"
            )
            self._board.notice(text, "warning", cell.key)
        self._board.changed()

    def _end_ranks(self, cell_id: str, records: list[RankRecord]) -> None:
        ranks = [record.rank for record in records]
        text = (
            f"{words.name_ranks(ranks)} cannot be interrupted: ending the process, its "
            f"variables are lost; {words.restart_hint(ranks)} brings it back"
        )
        if len(ranks) > 1:
            text = (
                f"{words.name_ranks(ranks)} cannot be interrupted: ending the "
                f"processes, their variables are lost; {words.restart_hint(ranks)} "
                "brings them back"
            )
        self._board.notice(text, "warning", cell_id)
        self._board.end_ranks(records, Leaving.INTERRUPT)

    def on_time(self) -> None:
        """Interrupt cells whose time is over, and insist after `ESCALATE_S`."""
        for cell in self._cells.all:
            failed_s = math.inf if cell.failed_s is None else cell.failed_s
            if self._board.now_s >= failed_s + TELL_FAILED_S:
                cell.failed_s = math.inf
                self._tell_failed(cell)
            if self._board.now_s >= cell.deadline_s:
                self._pass_deadline(cell)

    def _tell_failed(self, cell: Cell) -> None:
        """Say what the cell's own end would say too late if the others wait."""
        failed = [one for one in cell.outcomes.values() if one.error is not None]
        error = failed[0].error
        if error is None or error.interrupted:
            return
        text = (
            f"{words.name_ranks(one.rank for one in failed)} failed "
            f"({words.summarize(error)}) and {words.name_ranks(cell.running)} still "
            "run the cell: if they wait in a collective for what will not come, Stop "
            "ends it"
        )
        self._board.notice(text, "warning", cell.key)

    def _pass_deadline(self, cell: Cell) -> None:
        ranks = words.name_ranks(cell.running)
        if not cell.timed_out:
            cell.timed_out = True
            cell.deadline_s = self._board.now_s + ESCALATE_S
            text = (
                f"the cell is over its timeout of {cell.submit.timeout_s:g} s and "
                f"still runs on {ranks}: interrupting it there"
            )
            self._board.notice(text, "warning", cell.key)
            self.interrupt(cell, 1)
        elif cell.level < 2:  # noqa: PLR2004  the levels are named in InterruptCell
            cell.deadline_s = self._board.now_s + ESCALATE_S
            self.interrupt(cell, 2)
        else:
            cell.deadline_s = math.inf
            text = (
                f"the cell still runs on {ranks} after two interrupts; "
                "the next Stop ends the process there, and its variables are lost"
            )
            self._board.notice(text, "warning", cell.key)
