"""What ranks need before they can start: the device ready, a template, the TCPStore."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from npu_notebook.agent import inventory
from npu_notebook.agent.birth import base_environment
from npu_notebook.agent.keeper import WITHOUT_DEVICE, TemplateKeeper, UseTemplate
from npu_notebook.agent.prepare import Preparation
from npu_notebook.agent.store_keeper import StoreKeeper
from npu_notebook.errors import ConfigError
from npu_notebook.messages import (
    AgentNotice,
    HostPrepared,
    PrepareHost,
    StartRanks,
    StartStore,
)

if TYPE_CHECKING:
    from npu_notebook.agent.farewells import Report
    from npu_notebook.agent.loop import Loop
    from npu_notebook.agent.ranks import Ranks
    from npu_notebook.agent.template_process import TemplateProcess

log = logging.getLogger(__name__)


class Services:
    """The processes of an agent that are no ranks, and what waits for them.

    Parameters
    ----------
    host : str
        Name of this host in the cluster.
    loop : Loop
        The agent's.
    report : callable
        Sends a report to the controller.
    ranks : Ranks
        Started from here once what they need is ready.
    """

    def __init__(self, host: str, loop: Loop, report: Report, ranks: Ranks) -> None:
        self.providers = inventory.load_providers()
        self._host = host
        self._loop = loop
        self._report = report
        self._ranks = ranks
        self._keeper = TemplateKeeper(loop)
        self._preparation: Preparation | None = None
        self._env: dict[str, str] = {}  # the cluster's own variables
        self._store = StoreKeeper(host, loop, report)

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        pids = [
            self._keeper.pid,
            self._preparation.pid if self._preparation else None,
            self._store.pid,
        ]
        return [pid for pid in pids if pid is not None]

    def warm(self, provider: str, ascend_count: int) -> None:
        """Start importing what the ranks will most probably need.

        Parameters
        ----------
        provider : str
            What the user asked for; "" lets an Ascend NPU decide.
        ascend_count : int
            Ascend NPUs of this host.
        """
        guess = provider or ("ascend" if ascend_count else "simulated")
        if self._forks(guess):
            self._want_template(guess, lambda _template: None, bind=False)

    def _forks(self, name: str) -> bool:
        if name in WITHOUT_DEVICE:
            return True
        provider = self.providers.get(name)
        return not (provider is None or isinstance(provider, ConfigError)) and (
            provider.facts.forkable
        )

    def _want_template(self, provider: str, then: UseTemplate, *, bind: bool) -> None:
        self._keeper.want(
            {**base_environment(), **self._env}, provider, then, bind=bind
        )

    def prepare(self, command: PrepareHost) -> None:
        """Make a provider ready; answered by `HostPrepared`."""
        name = command.provider
        self.stop_preparing()
        self._keeper.forget_waiting()  # an answer to an earlier command is too late
        self._env = dict(command.env)
        if name in WITHOUT_DEVICE:
            self._want_template(name, self._on_template, bind=False)
            return
        provider = self.providers.get(name)
        if provider is None or isinstance(provider, ConfigError):
            problem = provider.problem if provider else f"no devices named '{name}'"
            self._answer(problem, f"Installed: {', '.join(self.providers)}.")
            return
        if self._forks(name):  # imports go on beside the preparation
            self._want_template(name, lambda _template: None, bind=False)
        self._preparation = Preparation(name, {**base_environment(), **self._env})
        self._loop.watch(self._preparation, self._on_preparation)

    def _on_preparation(self) -> None:
        preparation = self._preparation
        assert preparation is not None
        for text in preparation.read():
            self._report(AgentNotice(host=self._host, text=text))
        outcome = preparation.outcome
        if outcome is None:
            return
        self.stop_preparing()
        if outcome.problem or not self._forks(preparation.provider):
            self._answer(outcome.problem, outcome.remedy)
        else:
            self._want_template(preparation.provider, self._on_template, bind=True)

    def _on_template(self, template: TemplateProcess) -> None:
        if template.unsafe:
            text = f"ranks start slowly: they cannot be forked, {template.unsafe}"
            self._report(AgentNotice(host=self._host, text=text, level="warning"))
        self._answer(template.problem, template.remedy)

    def _answer(self, problem: str, remedy: str) -> None:
        self._report(HostPrepared(host=self._host, problem=problem, remedy=remedy))

    def stop_preparing(self) -> None:
        """End a preparation that is going on."""
        if self._preparation is not None:
            self._loop.forget(self._preparation)
            self._preparation.end()
            self._preparation = None

    def start_ranks(self, command: StartRanks) -> None:
        """Start ranks, as soon as the template is ready if they fork."""
        if self._forks(command.provider):
            self._want_template(
                command.provider, lambda one: self._fork_ranks(command, one), bind=True
            )
        else:
            self._start_ranks(command, None)

    def _fork_ranks(self, command: StartRanks, template: TemplateProcess) -> None:
        if template.problem:
            self._ranks.refuse(command.ranks, template.problem)
        else:
            self._start_ranks(command, template if template.ready else None)

    def _start_ranks(
        self, command: StartRanks, template: TemplateProcess | None
    ) -> None:
        provider = self.providers.get(command.provider)
        if isinstance(provider, ConfigError):
            self._ranks.refuse(command.ranks, str(provider))
        else:
            self._ranks.start(command.ranks, command.endpoint, provider, template)

    def start_store(self, command: StartStore) -> None:
        """Start the TCPStore, in place of an earlier one; see `StoreStarted`."""
        template = self._keeper.warm
        usable = template is not None and template.with_torch
        self._store.start(command, template if usable else None)

    def reaped(self, pid: int, returncode: int) -> None:
        """Take note of the exit of a process that is no rank."""
        if self._preparation is not None and self._preparation.pid == pid:
            self._preparation.reaped(returncode)
        self._keeper.reaped(pid, returncode)
        self._store.reaped(pid, returncode)

    def stop_starting(self) -> None:
        """Start nothing any more; what runs goes on."""
        self.stop_preparing()
        self._keeper.forget_waiting()
        self._store.forget_waiting()

    def end(self) -> None:
        """End every process of these."""
        self.stop_starting()
        self._keeper.end()
        self._store.end()
