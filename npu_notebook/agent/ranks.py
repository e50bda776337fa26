"""Which rank is which process: start, exit and end of the ranks of one host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from npu_notebook.agent.birth import RankBirth, make_birth
from npu_notebook.agent.ending import RANK_MARK
from npu_notebook.agent.farewells import Farewells, RankProcess
from npu_notebook.agent.logs import open_log
from npu_notebook.agent.spawn import spawn
from npu_notebook.messages import RankExited, RankSpawned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npu_notebook.agent.farewells import Report
    from npu_notebook.agent.locks import DeviceLocks
    from npu_notebook.agent.template import Birth
    from npu_notebook.agent.template_process import TemplateProcess
    from npu_notebook.devices.provider import DeviceProvider
    from npu_notebook.messages import RankSpec

# Grace for what a rank left behind when it ended by itself.
_LEFTOVER_GRACE_S = 1.0
_COULD_NOT_START = 1


class Ranks:
    """The rank processes of this host.

    Parameters
    ----------
    host : str
        Name of this host in the cluster.
    report : callable
        Sends a report to the controller.
    locks : DeviceLocks
        Devices of this host.
    """

    def __init__(self, host: str, report: Report, locks: DeviceLocks) -> None:
        self._host = host
        self._report = report
        self._locks = locks
        self._living: dict[int, RankProcess] = {}  # by pid
        self._farewells = Farewells(host, report)

    @property
    def is_ending(self) -> bool:
        """Whether `advance` has something to do."""
        return bool(self._farewells)

    def start(
        self,
        specs: Iterable[RankSpec],
        endpoint: str,
        provider: DeviceProvider | None,
        template: TemplateProcess | None,
    ) -> None:
        """Start ranks, forked from ``template`` or, without one, by exec.

        Each is reported as spawned, or as exited with the reason.
        """
        births: list[tuple[RankProcess, Birth]] = []
        for spec in specs:
            birth = make_birth(
                RankBirth(
                    endpoint=endpoint,
                    provider=provider.facts.name if provider else "none",
                    host=self._host,
                    spec=spec,
                    forked=template is not None,
                ),
                provider,
            )
            try:
                self._take_device(spec, provider)
                with open_log(spec.log_path) as file:
                    log_start = file.tell()
            except OSError as error:
                self._could_not_start(spec, str(error))
                continue
            births.append((RankProcess(spec, birth.env[RANK_MARK], log_start), birth))
        if template is not None:
            self._fork(births, template)
        else:
            self._spawn(births)

    def _take_device(self, spec: RankSpec, provider: DeviceProvider | None) -> None:
        # Real devices have a driver behind them, which is also why they never fork.
        if provider is None or provider.facts.forkable:
            return
        taken = self._locks.take(provider.facts.name, spec.local_rank)
        if taken:
            message = f"{taken}; stop that cluster or choose other devices"
            raise OSError(message)

    def _fork(
        self, births: list[tuple[RankProcess, Birth]], template: TemplateProcess
    ) -> None:
        try:
            pids = template.fork([birth for _process, birth in births])
        except OSError as error:
            self.refuse([process.spec for process, _birth in births], str(error))
            return
        for (process, _birth), pid in zip(births, pids, strict=True):
            self._started(process, pid)

    def _spawn(self, births: list[tuple[RankProcess, Birth]]) -> None:
        command = [sys.executable, "-m", "npu_notebook.rank"]
        for process, birth in births:
            try:
                process.popen = spawn(
                    command,
                    birth.env,
                    birth.log_path,
                    cwd=birth.cwd,
                    stdin=birth.argument,
                )
            except OSError as error:
                self._could_not_start(process.spec, str(error))
                continue
            self._started(process, process.popen.pid)

    def _started(self, process: RankProcess, pid: int) -> None:
        process.pid = pid
        self._living[pid] = process
        self._report(
            RankSpawned(
                host=self._host,
                rank=process.spec.rank,
                incarnation=process.spec.incarnation,
                pid=pid,
            )
        )

    def refuse(self, specs: Iterable[RankSpec], reason: str) -> None:
        """Report ranks as exited that cannot be started."""
        for spec in specs:
            self._could_not_start(spec, reason)

    def _could_not_start(self, spec: RankSpec, reason: str) -> None:
        self._report(
            RankExited(
                host=self._host,
                rank=spec.rank,
                incarnation=spec.incarnation,
                pid=0,
                returncode=_COULD_NOT_START,
                stderr_tail=f"rank {spec.rank} on {self._host}: {reason}",
            )
        )

    def reaped(self, pid: int, returncode: int, now_s: float) -> bool:
        """Take note of an exit status; False if ``pid`` is no rank."""
        process = self._living.pop(pid, None)
        if process is None:
            return self._farewells.reaped(pid, returncode)
        process.reaped(returncode)
        self._report(process.exit_report(self._host))
        self._farewells.end_left_overs(process, now_s + _LEFTOVER_GRACE_S)
        return True

    def end(self, ranks: Iterable[int], grace_s: float, now_s: float) -> None:
        """End ranks; their exits are reported when nothing of them is left."""
        wanted = set(ranks)
        living = list(self._living.values())
        chosen = [process for process in living if process.spec.rank in wanted]
        for process in chosen:
            del self._living[process.pid]
        if chosen:
            self._farewells.end(chosen, now_s + grace_s)

    def end_all(self, grace_s: float, now_s: float) -> None:
        """End every rank, and what any rank has left behind."""
        self._farewells.hurry(now_s + grace_s)
        self._farewells.end(self._living.values(), now_s + grace_s)
        self._living.clear()

    def advance(self, now_s: float, spared: Iterable[int]) -> None:
        """Go on with what is being ended.

        Parameters
        ----------
        now_s : float
            `time.monotonic`.
        spared : iterable of int
            The agent's own children that are no ranks.
        """
        living = {pid: process.mark for pid, process in self._living.items()}
        self._farewells.advance(now_s, living, spared)
