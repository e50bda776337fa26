"""What ranks need before they can start: the device ready, a template, the TCPStore."""

from __future__ import annotations

import logging
from typing import assert_never

from npu_notebook.agent import inventory
from npu_notebook.agent.keeper import TemplateKeeper
from npu_notebook.agent.loop import Loop
from npu_notebook.agent.prepare import Outcome, Preparation
from npu_notebook.agent.ranks import Ranks, Report
from npu_notebook.agent.spawn import base_environment
from npu_notebook.agent.store_process import StoreProcess
from npu_notebook.agent.template_process import TemplateProcess
from npu_notebook.devices.provider import DeviceProvider
from npu_notebook.errors import ConfigError
from npu_notebook.messages import (
    AgentNotice,
    HostPrepared,
    PrepareHost,
    StartRanks,
    StartStore,
    StoreStarted,
)

log = logging.getLogger(__name__)

WITHOUT_TORCH = ("", "none")


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
        self._env: dict[str, str] = {}
        self._store: StoreProcess | None = None

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        own = (self._keeper.pid, self._preparation and self._preparation.pid)
        store_pid = self._store.pid if self._store else None
        return [pid for pid in (*own, store_pid) if pid is not None]

    def warm(self, provider: str, ascend_count: int) -> None:
        """Start importing what the ranks will most probably need."""
        if provider == "" and ascend_count:
            return
        if provider in ("", "none") or self._may_fork(provider):
            self._want_template(provider or "simulated", lambda _template: None)
    """

    """
