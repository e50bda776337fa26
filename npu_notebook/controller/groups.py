"""Process groups: form them when all ranks are there, and again when they must be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller import words
from npu_notebook.messages import ErrorInfo, RankState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.jobs import Jobs
    from npu_notebook.controller.records import RankRecord
    from npu_notebook.wire import Payload, Peer

_FORM_TIMEOUT_S = 120.0
_ANSWER_MARGIN_S = 10.0  # ranks give up first and say why
_CAUSE_S = 0.5
"""A rank that died fails the others' group first; its own exit tells the cause."""


class Groups:
    """The epoch of the process groups and who has formed it."""

    def __init__(self, board: Board, jobs: Jobs) -> None:
        self._board = board
        self._jobs = jobs
        self._stale = True
        self._tried = False  # forming failed; the next job is reason to try again
        self._pending: set[int] = set()
        self._errors: dict[int, ErrorInfo] = {}
        self.due_s = math.inf
        """When `on_time` has something to do."""
        self.store: tuple[str, int] | None = None
        self.on_failed: Callable[[str, ErrorInfo], None] = lambda _what, _error: None
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.GroupFormed: self._on_formed
        }

    @property
    def timeout_s(self) -> float:
        """Seconds that ranks may take to form a group."""
        return min(_FORM_TIMEOUT_S, self._board.spec.start_timeout_s)

    @property
    def formed(self) -> bool:
        """True if the ranks have the groups they should have."""
        return not (self._board.has_groups and self._stale)

    @property
    def forming(self) -> bool:
        """True while it is not known whether the groups will have formed."""
        return bool(self._pending or self._errors)

    def blocks(self) -> bool:
        """Return whether jobs must wait because groups are to be formed first."""
        if self.forming:
            return True
        if not self._stale or self._tried or not self._board.has_groups:
            return False
        # With a rank gone there is no group to wait for: cells run without.
        return not any(record.gone for record in self._board.ranks)

    def invalidate(self) -> None:
        """Form the groups again before the next job."""
        self._stale = True
        self._tried = False

    def try_again(self) -> None:
        """Try once more after a failure, because there is a new job."""
        self._tried = False

    def advance(self) -> None:
        """Form the groups if they are stale and every rank is ready for it."""
        board = self._board
        if not self._stale or board.stopping or self.forming or not board.ranks:
            return
        if not board.has_groups:
            for record in board.ranks:
                if record.state is RankState.JOINED:
                    record.move(RankState.IDLE)
                    board.changed()
            self._stale = False
            return
        if not all(_is_ready(record) for record in board.ranks):
            return
        if not self._tried and self.store and not self._jobs.active:
            self._form(*self.store)

    def _form(self, address: str, port: int) -> None:
        board = self._board
        board.epoch += 1
        for record in board.ranks:
            record.move(RankState.FORMING)
        self._pending = {record.rank for record in board.ranks}
        self._errors = {}
        self.due_s = board.now_s + self.timeout_s + _ANSWER_MARGIN_S
        command = messages.FormGroup(
            epoch=board.epoch,
            master_address=address,
            master_port=port,
            world_size=len(board.ranks),
            timeout_s=self.timeout_s,
        )
        board.send_ranks(board.ranks, command)
        board.changed()

    def _on_formed(
        self, peer: Peer, message: messages.GroupFormed, _payload: Payload
    ) -> None:
        record = self._board.rank_of(peer)
        if record is None or message.epoch != self._board.epoch:
            return
        if record.state is RankState.FORMING:
            record.move(RankState.IDLE)
            self._board.changed()
        if record.rank in self._pending:
            self._note(record, message.error)

    def lose(self, record: RankRecord, error: ErrorInfo) -> None:
        """Go on without a rank that is gone."""
        if record.rank in self._pending:
            self._note(record, error)

    def _note(self, record: RankRecord, error: ErrorInfo | None) -> None:
        self._pending.discard(record.rank)
        if error is not None:
            self._errors[record.rank] = error
            soon_s = self._board.now_s + _CAUSE_S
            self.due_s = min(self.due_s, soon_s)
        elif not self._pending and not self._errors:
            self._stale = False
            self.due_s = math.inf

    def on_time(self) -> None:
        """Give up on a group that did not form."""
        if self._board.now_s < self.due_s:
            return
        # Ranks that still try answer when their own time is over, and are free then.
        late, self._pending = self._pending, set()
        self.due_s = math.inf
        self._tried = True
        what, error = self._explain(late)
        self._errors = {}
        self.on_failed(what, error)

    def _explain(self, late: set[int]) -> tuple[str, ErrorInfo]:
        if self._errors:
            lost = [one for one in self._errors if _is_loss(self._errors[one])]
            rank = min(lost or self._errors)
            same = [
                one
                for one, error in self._errors.items()
                if words.summarize(error) == words.summarize(self._errors[rank])
            ]
            return words.name_ranks(same), self._errors[rank]
        message = (
            f"no answer within {self.timeout_s:g} s while the process group was formed"
        )
        return words.name_ranks(late), ErrorInfo(kind="TimeoutError", message=message)


def _is_ready(record: RankRecord) -> bool:
    free = record.state in (RankState.JOINED, RankState.IDLE)
    return free and not record.leaving


def _is_loss(error: ErrorInfo) -> bool:
    return error.kind == words.LOST
