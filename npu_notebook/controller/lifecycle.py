"""All decisions of the controller: an event in, actions out.

Pure: no clock, no file, no socket. The parts (`startup`, `groups`, `cells`, ...) share
a `Board`; this class wires them together, sorts messages and minds the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from npu_notebook import messages
from npu_notebook.controller.board import Board, Reaction
from npu_notebook.controller.bulk_routes import BulkRoutes
from npu_notebook.controller.cells import Cells
from npu_notebook.controller.departures import Departures
from npu_notebook.controller.ending import Ending
from npu_notebook.controller.events import (
    Action,
    EndOrphans,
    Event,
    HostExited,
    NotebookGone,
    NotebookWatched,
    Opened,
    Reported,
    StopAsked,
    Tick,
)
from npu_notebook.controller.groups import Groups
from npu_notebook.controller.interrupts import Interrupts
from npu_notebook.controller.jobs import Jobs
from npu_notebook.controller.joining import Joining, describe_missing
from npu_notebook.controller.liveness import Liveness
from npu_notebook.controller.notebooks import Notebooks
from npu_notebook.controller.pulls import Pulls
from npu_notebook.controller.pushes import Pushes
from npu_notebook.controller.restarts import Restarts
from npu_notebook.controller.startup import Startup
from npu_notebook.messages import RankState, StartFailed

if TYPE_CHECKING:
    from npu_notebook.controller.facts import Surroundings
    from npu_notebook.topology import ClusterSpec
    from npu_notebook.wire import Peer


class Lifecycle:
    """The state machine of one cluster.

    Parameters
    ----------
    spec : ClusterSpec
        What the user asked for.
    around : Surroundings
        What cannot be known from messages.
    """

    def __init__(self, spec: ClusterSpec, around: Surroundings) -> None:
        self.board = board = Board(spec, around)
        self._jobs = Jobs(board)
        self._groups = Groups(board, self._jobs)
        self._cells = Cells(board, self._jobs)
        self._routes = BulkRoutes(board)
        self._interrupts = Interrupts(board, self._jobs, self._cells)
        self._pushes = Pushes(board, self._jobs, self._routes)
        self._pulls = Pulls(board, self._jobs, self._routes)
        self._startup = Startup(board, self._groups)
        self._joining = Joining(board, self._groups)
        self._restarts = Restarts(board, self._jobs, self._startup)
        self._departures = Departures(
            board, self._jobs, self._groups, self._startup, self._restarts
        )
        self._notebooks = Notebooks(board, self._cells, self._interrupts)
        self._liveness = Liveness(board)
        self._ending = Ending(board)
        self._connect_parts()
        self.reactions: dict[type[messages.Message], Reaction] = {}
        for part in vars(self).values():
            self.reactions.update(getattr(part, "reactions", {}))

    def _connect_parts(self) -> None:
        self._jobs.blocked = self._groups.blocks
        self._jobs.on_added = self._groups.try_again
        self._cells.on_group_lost = self._groups.invalidate
        self._groups.on_failed = self._departures.group_failed
        self._restarts.forming = lambda: self._groups.forming
        self._startup.on_failed = self._fail_start
        self._joining.on_refused = self._departures.refuse
        self._startup.tell = self._notebooks.tell
        self._departures.on_start_failed = self._fail_start
        self._notebooks.on_linger_over = self._ending.begin
        self._notebooks.on_left = self._routes.lose_notebook
        self._notebooks.on_joined = self._ending.greet
        self._ending.on_begin = self._end_all

    def handle(self, event: Event) -> list[Action]:
        """Decide what an event leads to.

        Parameters
        ----------
        event : Event
            What happened.

        Returns
        -------
        list of Action
            To be done in this order.
        """
        if self._ending.over:
            return []
        self.board.now_s = max(self.board.now_s, event.now_s)
        match event:
            case Reported():
                self._on_report(event)
            case Tick():
                self._on_tick()
            case Opened():
                self._on_opened()
            case HostExited():
                self._on_host_exited(event)
            case NotebookGone():
                self._notebooks.remove(event.notebook)
            case NotebookWatched():
                self._notebooks.note_watched(event.notebook)
            case StopAsked():
                self._ending.begin(event.reason)
            case _:
                assert_never(event)
        if not (isinstance(event, Reported) and type(event.message) in _QUIET):
            self._go_on()
        return self.board.take_actions()

    def next_due_s(self) -> float:
        """Return when a `Tick` has something to do besides looking who is silent.

        Infinity if nothing is to be done before something happens.
        """
        board = self.board
        due_s = min(
            board.publish_due_s,
            self._groups.due_s,
            self._ending.due_s,
            self._interrupts.due_s(),
            self._restarts.due_s(),
        )
        if board.stopping:
            return due_s
        due_s = min(due_s, self._notebooks.due_s())
        if not board.started:
            due_s = min(due_s, board.opened_s + board.spec.start_timeout_s)
        return due_s

    # Events

    def _on_opened(self) -> None:
        self.board.opened_s = self.board.now_s
        self._notebooks.open()
        self._startup.advance()

    def _on_report(self, event: Reported) -> None:
        peer, message = event.peer, event.message
        if not _may_send(peer, message) or not self._notebooks.knows(peer, message):
            return
        self._liveness.hear(peer)
        self.reactions[type(message)](peer, message, event.payload)

    def _on_host_exited(self, event: HostExited) -> None:
        board = self.board
        host = board.hosts.get(event.host)
        if host is None:
            return
        board.act(EndOrphans(event.host))
        self._startup.forget_host(host)
        if board.stopping:
            self._ending.lose_host(event.host)
            return
        if not board.started:
            what = f"the agent on {event.host}"
            failure = StartFailed(
                what=what,
                reason=event.reason,
                stderr_tail=event.tail,
                log_path=board.agent_log_path(event.host),
            )
            self._fail_start(failure)
            return
        self._routes.lose_host(event.host)
        self._pushes.lose_host(host)
        self._departures.lose_host(host, event.reason)

    def _on_tick(self) -> None:
        board = self.board
        self._liveness.on_time()
        self._interrupts.on_time()
        self._groups.on_time()
        self._restarts.on_time()
        self._notebooks.drop_silent()
        self._ending.on_time()
        waited_s = board.now_s - board.opened_s
        if not board.started and waited_s >= board.spec.start_timeout_s:
            missing, log_path = describe_missing(board)
            reason = f"{missing} within {board.spec.start_timeout_s:g} s"
            self._fail_start(
                StartFailed(what="the cluster", reason=reason, log_path=log_path)
            )

    def _go_on(self) -> None:
        """Do what has become possible."""
        board = self.board
        if not board.stopping:
            self._groups.advance()
            self._note_start()
            self._restarts.settle()
            self._jobs.dispatch()
            self._notebooks.on_time()
        board.publish_change()

    def _note_start(self) -> None:
        board = self.board
        if board.started or not board.ranks or not self._groups.formed:
            return
        if all(record.state is RankState.IDLE for record in board.ranks):
            board.started = True
            board.changed()
            board.publish_change(at_once=True)

    def _fail_start(self, failure: StartFailed) -> None:
        if self.board.started:
            # A host that came back for a restart could not be made ready.
            self._departures.host_failed(failure)
        else:
            self._ending.fail(failure)

    def _end_all(self, reason: str) -> None:
        self._jobs.clear()
        self._cells.end_all(reason)
        self._pushes.end_all(reason)
        self._pulls.end_all(reason)
        self._restarts.fail_all(reason)


_QUIET = frozenset(
    {
        messages.Heartbeat,
        messages.CellStarted,
        messages.StreamText,
        messages.DisplayOutput,
        messages.CollectivesRecorded,
        messages.AgentAlive,
        messages.NotebookAlive,
        messages.BulkChunk,
        messages.BulkCredit,
    }
)
"""Messages that make nothing else possible: many come, so no more is looked at."""

_FAMILIES: dict[str, frozenset[type]] = {
    "notebook": frozenset(messages.Request.__args__),
    "rank": frozenset(messages.RankReport.__args__),
    "agent": frozenset(messages.AgentReport.__args__),
}


def _may_send(peer: Peer, message: messages.ToController) -> bool:
    return type(message) in _FAMILIES[peer.kind]
