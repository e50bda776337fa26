"""What ranks need before they can start: the device ready, a template, the TCPStore."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from npu_notebook.agent import inventory
from npu_notebook.agent.birth import base_environment
from npu_notebook.agent.keeper import TemplateKeeper, UseTemplate
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
    from npu_notebook.agent.loop import Loop
    from npu_notebook.agent.ranks import Ranks, Report
    from npu_notebook.agent.template_process import TemplateProcess

log = logging.getLogger(__name__)

_WITHOUT_DEVICE = ("", "none")  # ranks that need neither a device nor torch
_IMPORT_REMEDY = (
    "Install it for this Python (`pip install 'npu-notebook[torch]'`), "
    "or choose --device none for ranks without torch."
)


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
        self._unready: set[str] = set()  # parts of a preparation
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
            self._want_template(guess, lambda _template: None)

    def _forks(self, name: str) -> bool:
        if name in _WITHOUT_DEVICE:
            return True
        provider = self.providers.get(name)
        return not (provider is None or isinstance(provider, ConfigError)) and (
            provider.facts.forkable
        )

    def _want_template(self, provider: str, then: UseTemplate) -> None:
        env = {**base_environment(), **self._env}
        with_torch = provider not in _WITHOUT_DEVICE
        self._keeper.want(env, then, with_torch=with_torch)

    def prepare(self, command: PrepareHost) -> None:
        """Make a provider ready; answered by `HostPrepared`."""
        name = command.provider
        self.stop_preparing()
        self._env = dict(command.env)
        provider = self.providers.get(name)
        self._unready = {"template"} if self._forks(name) else set()
        if name not in _WITHOUT_DEVICE:
            if provider is None or isinstance(provider, ConfigError):
                problem = provider.problem if provider else f"no devices named '{name}'"
                self._answer(problem, f"Installed: {', '.join(self.providers)}.")
                return
            self._unready.add("device")
            env = {**base_environment(), **self._env}
            self._preparation = Preparation(name, env)
            self._loop.watch(self._preparation, self._on_preparation)
        if "template" in self._unready:
            self._want_template(name, self._on_template)

    def _answer(self, problem: str = "", remedy: str = "") -> None:
        self.stop_preparing()
        self._unready = set()
        self._report(HostPrepared(host=self._host, problem=problem, remedy=remedy))

    def _ready(self, part: str) -> None:
        self._unready.discard(part)
        if not self._unready:
            self._answer()

    def _on_preparation(self) -> None:
        assert self._preparation is not None
        for text in self._preparation.read():
            self._report(AgentNotice(host=self._host, text=text))
        outcome = self._preparation.outcome
        if outcome is None:
            return
        self.stop_preparing()
        if outcome.problem:
            self._answer(outcome.problem, outcome.remedy)
        else:
            self._ready("device")

    def _on_template(self, template: TemplateProcess) -> None:
        if not self._unready:
            return  # a provider's problem has been reported meanwhile
        if template.problem:
            self._answer(template.problem, _IMPORT_REMEDY)
            return
        if template.unsafe:
            text = f"ranks start slowly: they cannot be forked, {template.unsafe}"
            self._report(AgentNotice(host=self._host, text=text, level="warning"))
        self._ready("template")

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
                command.provider, lambda template: self._fork_ranks(command, template)
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
