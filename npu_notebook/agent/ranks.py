"""Which rank is which process: start, exit and end of the ranks of one host."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from npu_notebook.agent.birth import RankBirth, make_birth
from npu_notebook.agent.ending import RANK_MARK, Ending
from npu_notebook.agent.logs import open_log, read_tail
from npu_notebook.agent.spawn import spawn
from npu_notebook.messages import (
    AgentNotice,
    AgentReport,
    RankExited,
    RankSpawned,
    RankSpec,
)

if TYPE_CHECKING:
    import subprocess

    from npu_notebook.agent.locks import DeviceLocks
    from npu_notebook.agent.template import Birth
    from npu_notebook.agent.template_process import TemplateProcess
    from npu_notebook.devices.provider import DeviceProvider

Report: TypeAlias = Callable[[AgentReport], None]
# Grace for what a rank left behind when it ended by itself.
_LEFTOVER_GRACE_S = 1.0
_COULD_NOT_START = 1


@dataclass(slots=True)
class RankProcess:
    """One process of one rank; ``returncode`` None while it is not reaped."""

    spec: RankSpec
    mark: str
    log_start: int
    pid: int = 0
    popen: subprocess.Popen[bytes] | None = None
    returncode: int | None = None


@dataclass(slots=True)
class _Farewell:
    """An `Ending` and the ranks whose exit is reported when it is done."""

    ending: Ending
    waiting: list[RankProcess] = field(default_factory=list)


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
        self._farewells: list[_Farewell] = []

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
            return any(
                one.pid == pid and self._set_returncode(one, returncode)
                for farewell in self._farewells
                for one in farewell.waiting
            )
        self._set_returncode(process, returncode)
        self._tell_exit(process)
        ending = Ending({pid: process.mark}, now_s + _LEFTOVER_GRACE_S)
        self._farewells.append(_Farewell(ending))
        return True

    def _set_returncode(self, process: RankProcess, returncode: int) -> bool:
        process.returncode = returncode
        if process.popen is not None:
            process.popen.returncode = returncode
        return True

    def _tell_exit(self, process: RankProcess) -> None:
        assert process.returncode is not None
        self._report(
            RankExited(
                host=self._host,
                rank=process.spec.rank,
                incarnation=process.spec.incarnation,
                pid=process.pid,
                returncode=process.returncode,
                stderr_tail=read_tail(process.spec.log_path, process.log_start),
            )
        )

    def end(self, ranks: Iterable[int] | None, grace_s: float, now_s: float) -> None:
        """End ranks (None: all); their exits are reported when nothing is left."""
        wanted = None if ranks is None else set(ranks)
        chosen = [
            process
            for process in self._living.values()
            if wanted is None or process.spec.rank in wanted
        ]
        if not chosen and wanted is not None:
            return
        for process in chosen:
            del self._living[process.pid]
        marks = {process.pid: process.mark for process in chosen}
        self._farewells.append(_Farewell(Ending(marks, now_s + grace_s), chosen))

    def advance(self, now_s: float, spared: Iterable[int]) -> None:
        """Go on with what is being ended.

        Parameters
        ----------
        now_s : float
            `time.monotonic`.
        spared : iterable of int
            The agent's own children that are no ranks.
        """
        spared = tuple(spared)
        for farewell in list(self._farewells):
            ending = farewell.ending
            if not ending.done:
                ending.advance(now_s, self._marks_beside(farewell), spared)
            if ending.done:
                self._finish(farewell)

    def _marks_beside(self, farewell: _Farewell) -> dict[int, str]:
        marks = {pid: process.mark for pid, process in self._living.items()}
        for other in self._farewells:
            if other is not farewell:
                marks |= other.ending.targets
        return marks

    def _finish(self, farewell: _Farewell) -> None:
        """Report the exits; a rank that is not reaped yet keeps the farewell."""
        for process in list(farewell.waiting):
            if process.returncode is not None:
                farewell.waiting.remove(process)
                self._tell_exit(process)
        survivors = farewell.ending.survivors
        if survivors:
            text = f"could not end {', '.join(survivors)} on {self._host}"
            remedy = "it waits in the kernel or belongs to another user"
            self._report(
                AgentNotice(host=self._host, text=f"{text}: {remedy}", level="error")
            )
        if not farewell.waiting or survivors:
            self._farewells.remove(farewell)
