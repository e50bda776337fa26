"""Keep the one TCPStore of a cluster, on the host of rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook.agent.store_process import StoreProcess
from npu_notebook.messages import AgentNotice, StartStore, StoreStarted

if TYPE_CHECKING:
    from npu_notebook.agent.farewells import Report
    from npu_notebook.agent.loop import Loop
    from npu_notebook.agent.template_process import TemplateProcess


class StoreKeeper:
    """The store of an agent, if it has one.

    Parameters
    ----------
    host : str
        Name of this host in the cluster.
    loop : Loop
        The agent's.
    report : callable
        Sends a report to the controller.
    """

    def __init__(self, host: str, loop: Loop, report: Report) -> None:
        self._host = host
        self._loop = loop
        self._report = report
        self._store: StoreProcess | None = None
        # How the store was started that has answered: what replaces it if it dies.
        self._answered: tuple[StartStore, TemplateProcess | None] | None = None
        self._asked: tuple[StartStore, TemplateProcess | None] | None = None
        # What to start when the process of that pid has left the port.
        self._waiting: tuple[int, StartStore, TemplateProcess | None] | None = None

    @property
    def pid(self) -> int | None:
        """The store's process, None if none runs."""
        store = self._store
        return store.pid if store is not None and store.alive else None

    def start(self, command: StartStore, template: TemplateProcess | None) -> None:
        """Start a store; one that runs is ended first. Answered by `StoreStarted`."""
        pid = self.pid
        self.end()
        if pid is not None:
            self._waiting = (pid, command, template)
            return
        try:
            self._store = StoreProcess(command.address, command.port, template)
        except OSError as error:
            self._tell(command.port, str(error))
            return
        self._asked = (command, template)
        self._loop.watch(self._store, self._on_ready)

    def _on_ready(self) -> None:
        assert self._store is not None
        self._loop.forget(self._store)
        problem = self._store.read_ready()
        if not problem:
            self._answered = self._asked
        self._tell(self._store.port, problem)

    def _tell(self, port: int, problem: str) -> None:
        self._report(StoreStarted(host=self._host, port=port, problem=problem))

    def reaped(self, pid: int, returncode: int) -> None:
        """Take note of an exit status, which may be another process's."""
        if self._waiting is not None and self._waiting[0] == pid:
            _pid, command, template = self._waiting
            self._waiting = None
            self.start(command, template)
        elif self._store is not None and self._store.pid == pid:
            self._store.reaped(returncode)
            self._replace(f"{pid} on {self._host} ended with status {returncode}")

    def _replace(self, what: str) -> None:
        """Start a new store on the port of one that has died."""
        if self._store is None or self._answered is None:
            return  # `_on_ready` tells why it did not start
        command, template = self._answered
        port = self._store.port
        self.end()  # also forgets how: a replacement that does not answer is the last
        usable = template is not None and template.ready and not template.problem
        try:
            self._store = StoreProcess(
                command.address, port, template if usable else None
            )
        except OSError as error:
            text = (
                f"the TCPStore process {what}: process groups cannot be formed again "
                f"({error}); stop the cluster and start a new one"
            )
            self._report(AgentNotice(host=self._host, text=text, level="error"))
            return
        self._asked = (command, template)
        self._loop.watch(self._store, self._on_ready)
        text = (
            f"the TCPStore process {what}; another took its place. Collectives go on; "
            "before new groups are made, `%npu_cluster restart`"
        )
        self._report(AgentNotice(host=self._host, text=text, level="warning"))

    def forget_waiting(self) -> None:
        """Start nothing any more."""
        self._waiting = None

    def end(self) -> None:
        """Kill the store, if any."""
        if self._store is not None:
            self._loop.forget(self._store)
            self._store.end()
            self._store = None
            self._answered = None
