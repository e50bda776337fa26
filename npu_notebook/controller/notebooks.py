"""Notebooks come, go and vanish; without any the cluster lingers, then ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller.events import ForgetNotebook, WatchNotebook
from npu_notebook.controller.records import NotebookRecord
from npu_notebook.controller.versions import find_notebook_conflict
from npu_notebook.messages import PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.cells import Cells
    from npu_notebook.controller.interrupts import Interrupts
    from npu_notebook.wire import Payload, Peer

_SILENCE_S = 30.0
"""After this long without a word a notebook that cannot be watched counts as gone."""
_INSIST_S = 5.0
_GIVE_UP_S = 10.0
"""With ``--linger 0`` a cell that nobody watches gets this long to end."""
_KEPT_NOTICES = 50


class Notebooks:
    """Who is attached, and what happens when nobody is."""

    def __init__(self, board: Board, cells: Cells, interrupts: Interrupts) -> None:
        self._board = board
        self._cells = cells
        self._interrupts = interrupts
        self._alone_since_s: float | None = None
        self._ever_joined = False
        self._level = 0
        self._progress: list[messages.Notice] = []
        # Silent for long, but perhaps only asleep, such as a suspended laptop's.
        self._asleep: dict[str, NotebookRecord] = {}
        self.on_linger_over: Callable[[str], None] = lambda _reason: None
        self.on_left: Callable[[Peer], None] = lambda _peer: None
        self.on_joined: Callable[[Peer], None] = lambda _peer: None
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.JoinNotebook: self._on_join,
            messages.LeaveNotebook: self._on_leave,
            messages.NotebookAlive: self._on_alive,
            messages.AskState: self._on_ask,
            messages.AgentNotice: self._on_agent_notice,
        }

    def open(self) -> None:
        """Begin to count the time without a notebook."""
        self._alone_since_s = self._board.now_s

    def _on_join(
        self, peer: Peer, message: messages.JoinNotebook, _payload: Payload
    ) -> None:
        board = self._board
        around = board.around
        refused = find_notebook_conflict(message, around.package_version, around.python)
        board.notebooks[peer.name] = NotebookRecord(peer, message, board.now_s)
        fact = board.fact()
        welcome = messages.Welcome(
            protocol_version=PROTOCOL_VERSION,
            package_version=around.package_version,
            fact=fact,
            refused=refused,
        )
        board.answer(peer, welcome)
        if refused:
            del board.notebooks[peer.name]
            return
        missed = not (board.started and self._ever_joined)
        self._alone_since_s = None
        self._ever_joined = True
        self._level = 0
        board.act(WatchNotebook(peer, message))
        if missed:
            for notice in self._progress:
                board.answer(peer, notice)
        board.answer(peer, messages.StateChanged(fact=fact))
        self.on_joined(peer)

    def knows(self, peer: Peer, message: messages.ToController) -> bool:
        """Return whether a message may be heard: notebooks must have joined."""
        if peer.kind != "notebook" or isinstance(message, messages.JoinNotebook):
            return True
        record = self._asleep.pop(peer.name, None)
        if record is not None:
            self._board.notebooks[peer.name] = record
            self._alone_since_s = None
        return peer.name in self._board.notebooks

    def note_watched(self, peer: Peer) -> None:
        """Take a notebook's silence for nothing from now on."""
        record = self._board.notebooks.get(peer.name)
        if record is not None:
            record.watched = True

    def _on_leave(
        self, peer: Peer, _message: messages.LeaveNotebook, _payload: Payload
    ) -> None:
        self.remove(peer)

    def remove(self, peer: Peer) -> None:
        """Forget a notebook that left or vanished."""
        board = self._board
        self._asleep.pop(peer.name, None)
        record = board.notebooks.get(peer.name)
        if record is None:
            return
        board.act(ForgetNotebook(record.peer))
        del board.notebooks[peer.name]
        self.on_left(record.peer)
        if not board.notebooks:
            self._alone_since_s = board.now_s

    def _on_alive(
        self, peer: Peer, _message: messages.NotebookAlive, _payload: Payload
    ) -> None:
        record = self._board.notebooks.get(peer.name)
        if record is not None:
            record.heard_s = self._board.now_s

    def _on_ask(
        self, peer: Peer, message: messages.AskState, _payload: Payload
    ) -> None:
        answer = messages.StateAnswer(
            request_id=message.request_id, fact=self._board.fact()
        )
        self._board.answer(peer, answer)

    def _on_agent_notice(
        self, peer: Peer, message: messages.AgentNotice, _payload: Payload
    ) -> None:
        if peer.kind != "agent":
            return
        text = message.text
        if len(self._board.hosts) > 1:
            text = f"{peer.name}: {text}"
        self.tell(messages.Notice(text=text, level=message.level))

    def tell(self, notice: messages.Notice) -> None:
        """Publish a notice; while the cluster starts, later notebooks get it too."""
        if not self._board.started:
            self._progress = [*self._progress[-_KEPT_NOTICES + 1 :], notice]
        self._board.publish(notice)

    # Time

    def due_s(self) -> float:
        """Return when `on_time` has something to do; liveness is looked at anyway."""
        linger_s = self._linger_s()
        if self._alone_since_s is None or linger_s is None:
            return math.inf
        due_s = self._alone_since_s + linger_s
        if self._cells.any_running and self._board.now_s >= due_s:
            return math.inf  # the end of the cell is an event of its own
        return due_s

    def _linger_s(self) -> float | None:
        linger_s = self._board.spec.linger_s
        if linger_s is None:
            return None
        if not (self._board.started and self._ever_joined):
            # The notebook that is starting it may be slow to join.
            return max(linger_s, self._board.spec.start_timeout_s)
        return linger_s

    def on_time(self) -> None:
        """End the cluster when nobody has been there for the linger time."""
        linger_s = self._linger_s()
        if self._alone_since_s is None or linger_s is None:
            return
        alone_s = self._board.now_s - self._alone_since_s
        if alone_s < linger_s:
            return
        if not self._cells.any_running:
            self.on_linger_over(f"no notebook was attached for {linger_s:g} s")
        elif self._board.spec.linger_s == 0:
            self._end_unwatched_cells(alone_s)

    def _end_unwatched_cells(self, alone_s: float) -> None:
        # The user asked that nothing outlives the notebook; ask before killing.
        if alone_s >= _GIVE_UP_S:
            self.on_linger_over("its notebook is gone and --linger 0 was given")
        elif self._level == 0 or (self._level == 1 and alone_s >= _INSIST_S):
            self._level += 1
            self._interrupts.interrupt_all(self._level)

    def drop_silent(self) -> None:
        """Forget notebooks that have not been heard of for long."""
        for record in list(self._board.notebooks.values()):
            silent_s = self._board.now_s - record.heard_s
            if not record.watched and silent_s > _SILENCE_S:
                self.remove(record.peer)
                self._asleep[record.peer.name] = record
