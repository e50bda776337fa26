"""Cells: submit, run on all their ranks, interrupt, time out, end exactly once."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.controller.events import FinishCell, ForwardOutput, OpenCell
from npu_notebook.controller.records import WORKING
from npu_notebook.messages import ErrorInfo, RankOutcome, RankState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.jobs import Jobs
    from npu_notebook.wire import Payload, Peer

ESCALATE_S = 5.0
"""From a cell's deadline, or its first interrupt by us, to the next step."""
KILL_GRACE_S = 2.0
"""What a rank gets between SIGTERM and SIGKILL when the user wants it gone."""
_REMEMBERED_CELLS = 1000


class Cell:
    """One cell from its submission to its end; a `Job`."""

    def __init__(
        self, cells: Cells, notebook: Peer, submit: messages.SubmitCell
    ) -> None:
        self.key = submit.cell_id
        self.ranks = tuple(sorted(submit.ranks))
        self.notebook = notebook
        self.submit = submit
        self.outcomes: dict[int, RankOutcome] = {}
        self.deadline_s = math.inf
        self.timed_out = False
        self.failed_s: float | None = None
        """When a rank failed while others went on; inf once the user was told."""
        self.level = 0
        self._cells = cells

    @property
    def running(self) -> list[int]:
        """Ranks on which it has not ended."""
        return [rank for rank in self.ranks if rank not in self.outcomes]

    def begin(self) -> None:
        """See `Job`."""
        self._cells.begin(self)

    def lose(self, rank: int, error: ErrorInfo) -> None:
        """See `Job`."""
        if rank not in self.outcomes:
            self._cells.note(self, RankOutcome(rank=rank, error=error, lost=True))

    def refuse(self, errors: dict[int, ErrorInfo]) -> None:
        """See `Job`."""
        self._cells.refuse(self, errors)


class Cells:
    """All cells of a cluster."""

    def __init__(self, board: Board, jobs: Jobs) -> None:
        self._board = board
        self._jobs = jobs
        self._cells: dict[str, Cell] = {}
        self._timed: set[str] = set()
        # Who submitted the cells that are over: threads may go on printing.
        self._owners: OrderedDict[str, Peer] = OrderedDict()
        self.on_group_lost: Callable[[], None] = lambda: None
        board.cell_ids = lambda: tuple(self._cells)
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.SubmitCell: self._on_submit,
            messages.CellStarted: self._on_started,
            messages.StreamText: self._on_output,
            messages.DisplayOutput: self._on_output,
            messages.CellDone: self._on_done,
            messages.CollectivesRecorded: self._on_collectives,
        }

    @property
    def any_running(self) -> bool:
        """True while a cell has not ended, begun or not."""
        return bool(self._cells)

    @property
    def any_timed(self) -> bool:
        """True while a cell with a timeout runs."""
        return bool(self._timed)

    @property
    def all(self) -> list[Cell]:
        """Cells that have not ended."""
        return list(self._cells.values())

    # From notebooks

    def _on_submit(
        self, peer: Peer, message: messages.SubmitCell, _payload: Payload
    ) -> None:
        problem, remedy = self._find_problem(message)
        if problem:
            self._reject(peer, message, problem, remedy)
            return
        cell = Cell(self, peer, message)
        self._cells[cell.key] = cell
        gone = self._board.find_gone(cell.ranks)
        if gone:
            self.refuse(cell, gone)
            return
        self._jobs.add(cell)
        self._board.changed(soon=False)

    def _reject(
        self, peer: Peer, message: messages.SubmitCell, problem: str, remedy: str
    ) -> None:
        answer = messages.RequestDone(
            request_id=message.cell_id, problem=problem, remedy=remedy
        )
        self._board.answer(peer, answer)

    def _find_problem(self, message: messages.SubmitCell) -> tuple[str, str]:
        if message.cell_id in self._cells or message.cell_id in self._owners:
            return f"cell {message.cell_id} exists already", "Give each cell a new id."
        return self._board.find_problem(message.ranks)

    # From ranks

    def _on_started(
        self, peer: Peer, message: messages.CellStarted, _payload: Payload
    ) -> None:
        """Nothing to decide: a rank counts as running when the cell is sent to it."""

    def _on_output(
        self,
        peer: Peer,
        message: messages.StreamText | messages.DisplayOutput,
        _payload: Payload,
    ) -> None:
        if peer.kind != "rank" or peer.name != str(message.rank):
            return
        cell = self._cells.get(message.cell_id)
        owner = cell.notebook if cell else self._owners.get(message.cell_id)
        notebooks = self._board.notebooks
        if owner is None and notebooks:
            # Printed before any cell: whoever looks at the cluster first shows it.
            owner = next(iter(notebooks.values())).peer
        if owner is not None and owner.name not in notebooks:
            owner = None
        self._board.act(ForwardOutput(owner, message))

    def _on_done(
        self, peer: Peer, message: messages.CellDone, _payload: Payload
    ) -> None:
        record = self._board.rank_of(peer)
        cell = self._cells.get(message.cell_id)
        if record is None or cell is None or record.rank not in cell.running:
            return
        if record.state in WORKING:
            record.move(RankState.IDLE)
            record.doing = ""
        if not message.group_present:
            self.on_group_lost()
        outcome = RankOutcome(
            rank=record.rank, error=message.error, elapsed_ns=message.elapsed_ns
        )
        self.note(cell, outcome)

    def _on_collectives(
        self, _peer: Peer, message: messages.CollectivesRecorded, payload: Payload
    ) -> None:
        board = self._board
        cell_id = message.records[-1].cell_id if message.records else ""
        cell = self._cells.get(cell_id)
        owner = cell.notebook if cell else self._owners.get(cell_id)
        if owner is not None:
            board.answer(owner, message, payload)

    # The life of one cell

    def begin(self, cell: Cell) -> None:
        """Send a cell to its ranks, which are all free."""
        submit = cell.submit
        records = self._board.records(cell.ranks)
        for record in records:
            record.move(RankState.RUNNING)
        if submit.timeout_s is not None:
            self._timed.add(cell.key)
            cell.deadline_s = self._board.now_s + submit.timeout_s
        self._board.act(OpenCell(cell.key))
        command = messages.RunCell(
            cell_id=cell.key,
            code=submit.code,
            execution_count=submit.execution_count,
            want_value=submit.want_value,
        )
        self._board.send_ranks(records, command)
        self._board.changed(soon=False)

    def note(self, cell: Cell, outcome: RankOutcome) -> None:
        """Keep the outcome of one rank; the last one ends the cell."""
        cell.outcomes[outcome.rank] = outcome
        self._board.changed(soon=False)
        if not cell.running:
            self._finish(cell)
        elif outcome.error is not None and cell.failed_s is None:
            cell.failed_s = self._board.now_s

    def refuse(self, cell: Cell, errors: dict[int, ErrorInfo]) -> None:
        """End a cell that has not run: ``errors`` by rank say why."""
        others = words.not_run_because_of(errors)
        for rank in cell.ranks:
            error = errors.get(rank, others)
            lost = error.kind == words.LOST
            cell.outcomes[rank] = RankOutcome(rank=rank, error=error, lost=lost)
        self._finish(cell)

    def _finish(self, cell: Cell) -> None:
        self._cells.pop(cell.key, None)
        self._timed.discard(cell.key)
        self._jobs.finish(cell)
        self._owners[cell.key] = cell.notebook
        if len(self._owners) > _REMEMBERED_CELLS:
            self._owners.popitem(last=False)
        there = cell.notebook.name in self._board.notebooks
        outcomes = tuple(cell.outcomes[rank] for rank in cell.ranks)
        message = messages.CellFinished(
            cell_id=cell.key, outcomes=outcomes, timed_out=cell.timed_out
        )
        self._board.act(FinishCell(cell.notebook if there else None, message))
        self._board.changed(soon=False)

    def end_all(self, reason: str) -> None:
        """End every cell because the cluster ends."""
        for cell in list(self._cells.values()):
            if cell.key in {job.key for job in self._jobs.active}:
                for rank in cell.running:
                    error = ErrorInfo(kind=words.LOST, message=reason)
                    cell.lose(rank, error)
            else:
                errors = {rank: words.not_run_error(reason) for rank in cell.ranks}
                self.refuse(cell, errors)
