"""A notebook's conversation with the controller: join, route answers, notice its death.

The link thread reads; whoever waits for a cell or a request has a queue of its own.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import npu_notebook
from npu_notebook import bulk, messages, runtime, wire
from npu_notebook.errors import LinkError
from npu_notebook.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.messages import ClusterFact, Message, Update

_CHECK_CONTROLLER_EVERY_S = 2.0
_JOIN_TIMEOUT_S = 20.0


class Arrived(NamedTuple):
    """An update with its bulk frames."""

    update: Update
    payload: list[Any]


Arrivals: TypeAlias = "queue.SimpleQueue[Arrived | LinkError]"


class Session:
    """One notebook attached to one cluster.

    Parameters
    ----------
    connection : Connection
        From the cluster's connection file.
    title : str
        What other notebooks read about this one.
    """

    def __init__(self, connection: runtime.Connection, title: str = "") -> None:
        self.connection = connection
        self.fact: ClusterFact | None = None
        self.ended: LinkError | None = None
        self.events: Arrivals = queue.SimpleQueue()
        """State changes, notices of no cell, `StartFailed` and `ClusterEnded`."""
        self.on_notice: Callable[[messages.Notice], None] | None = None
        self.on_late: Callable[[Update], None] | None = None
        """Gets, in the link thread, what threads of a finished cell still print."""
        self._title = title
        self._waiting: dict[str, Arrivals] = {}
        self._lock = threading.Lock()
        self._link: Link[Update] = Link(
            connection.endpoint,
            wire.notebook_identity(),
            read=wire.read_update,
            on_message=self._route,
            on_tick=self._check_controller,
            tick_s=_CHECK_CONTROLLER_EVERY_S,
        )

    def open(self) -> None:
        """Join the cluster.

        Raises
        ------
        LinkError
            If the controller refuses (another version) or does not answer.
        """
        arrivals = self.expect("welcome")
        self._link.start()
        self.send(
            messages.JoinNotebook(
                protocol_version=messages.PROTOCOL_VERSION,
                package_version=npu_notebook.__version__,
                python=runtime.python_version(),
                host=socket.gethostname(),
                pid=os.getpid(),
                process_start_s=runtime.process_start_s(os.getpid()) or 0.0,
                memory_key=runtime.memory_key(),
                title=self._title,
            )
        )
        try:
            welcome, _ = self.next_of(arrivals, _JOIN_TIMEOUT_S)
        except LinkError:
            self._link.close(0.0)
            raise
        self.forget("welcome")
        if isinstance(welcome, messages.Welcome) and welcome.refused:
            self._link.close(0.0)
            remedy = "Stop that cluster with `npu-notebook stop` and start it again."
            raise LinkError(self.connection.name, welcome.refused, remedy)

    def close(self, farewell: Message | None = None) -> None:
        """Send a last message and end the link."""
        if farewell is not None:
            self._link.send(farewell)
        self._link.close()
        self._end(
            "this notebook has left it", "Attach again with `%npu_cluster attach`."
        )

    def send(self, message: Message, payload: wire.Payload = ()) -> None:
        """Send to the controller.

        Raises
        ------
        LinkError
            If the cluster has ended.
        """
        if self.ended is not None:
            raise self.ended
        self._link.send(message, payload)

    def expect(self, key: str) -> Arrivals:
        """Open a queue for everything about a cell or a request."""
        arrivals: Arrivals = queue.SimpleQueue()
        with self._lock:
            if self.ended is not None:
                raise self.ended
            self._waiting[key] = arrivals
        return arrivals

    def forget(self, key: str) -> None:
        """Close the queue of a cell or a request; what waits in it is given up."""
        with self._lock:
            arrivals = self._waiting.pop(key, None)
        while arrivals is not None and not arrivals.empty():
            arrived = arrivals.get()
            if isinstance(arrived, Arrived):
                _give_up(arrived.update)

    def next_of(self, arrivals: Arrivals, timeout_s: float | None = None) -> Arrived:
        """Wait for the next update of a queue.

        Raises
        ------
        LinkError
            If the cluster ends first, or ``timeout_s`` seconds pass.
        """
        arrived = poll(arrivals, timeout_s)
        if arrived is None:
            problem = f"the controller has not answered for {timeout_s:g} s"
            remedy = "See `npu-notebook list`, or its log with `npu-notebook logs`."
            raise LinkError(self.connection.name, problem, remedy)
        return arrived

    def _route(self, update: Update, payload: list[Any]) -> None:
        arrived = Arrived(update, payload)
        match update:
            case messages.Welcome(fact=fact):
                self.fact = fact
                self._deliver("welcome", arrived)
            case messages.StateChanged(fact=fact):
                self.fact = fact
                self.events.put(arrived)
            case messages.Notice(cell_id=""):
                self._tell(update)
            case messages.StartFailed():
                self.events.put(arrived)
            case messages.ClusterEnded(reason=reason):
                self.events.put(arrived)
                self._end(f"it has ended ({reason})", "`%npu_cluster start` makes one.")
            case (
                messages.BulkChunk(transfer_id=key)
                | messages.BulkCredit(transfer_id=key)
            ):
                self._deliver(key, arrived)
            case (
                messages.RequestDone(request_id=key)
                | messages.StateAnswer(request_id=key)
                | messages.PulledValues(request_id=key)
            ):
                self._deliver(key, arrived)
            case messages.CollectivesRecorded():
                self.events.put(arrived)
            case _:
                if not self._deliver(update.cell_id, arrived) and self.on_late:
                    self.on_late(update)

    def _deliver(self, key: str, arrived: Arrived) -> bool:
        with self._lock:
            arrivals = self._waiting.get(key)
            if arrivals is not None:
                arrivals.put(arrived)
                return True
        _give_up(arrived.update)
        return False

    def _tell(self, notice: messages.Notice) -> None:
        self.events.put(Arrived(notice, []))
        if self.on_notice is not None:
            self.on_notice(notice)

    def _check_controller(self) -> None:
        self._link.send(messages.NotebookAlive())
        if not runtime.is_alive(self.connection):
            pid = self.connection.controller_pid
            problem = f"its controller (pid {pid}) has died"
            remedy = (
                "The ranks end by themselves; `%npu_cluster start` makes a new one."
            )
            self._end(problem, remedy)

    def _end(self, problem: str, remedy: str) -> None:
        error = LinkError(self.connection.name, problem, remedy)
        with self._lock:
            if self.ended is not None:
                return
            self.ended = error
            waiting = list(self._waiting.values())
        for arrivals in [*waiting, self.events]:
            arrivals.put(error)


def poll(arrivals: Arrivals, timeout_s: float | None) -> Arrived | None:
    """Return the next update of a queue, None after ``timeout_s`` seconds without one.

    Raises
    ------
    LinkError
        If the cluster has ended.
    """
    try:
        arrived = arrivals.get(timeout=timeout_s)
    except queue.Empty:
        return None
    if isinstance(arrived, LinkError):
        raise arrived
    return arrived


def _give_up(update: Update) -> None:
    """Remove what came along with an answer that nobody waits for any more."""
    if isinstance(update, messages.PulledValues):
        bulk.remove_region(update.layout)


def new_id(kind: str) -> str:
    """Return a name for a cell or a request that no other notebook gives."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"
