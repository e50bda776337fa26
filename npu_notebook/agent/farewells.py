"""Ranks on their way out: ended with all they started, then reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from npu_notebook.agent.ending import Ending
from npu_notebook.agent.logs import read_tail
from npu_notebook.messages import AgentNotice, AgentReport, RankExited, RankSpec

if TYPE_CHECKING:
    import subprocess

Report: TypeAlias = Callable[[AgentReport], None]


@dataclass(slots=True)
class RankProcess:
    """One process of one rank; ``returncode`` None while it is not reaped."""

    spec: RankSpec
    mark: str
    log_start: int
    pid: int = 0
    popen: subprocess.Popen[bytes] | None = None
    returncode: int | None = None

    def reaped(self, returncode: int) -> None:
        """Take note of its exit status."""
        self.returncode = returncode
        if self.popen is not None:
            self.popen.returncode = returncode

    def exit_report(self, host: str) -> RankExited:
        """Return what the controller is told of a reaped process."""
        assert self.returncode is not None
        return RankExited(
            host=host,
            rank=self.spec.rank,
            incarnation=self.spec.incarnation,
            pid=self.pid,
            returncode=self.returncode,
            stderr_tail=read_tail(self.spec.log_path, self.log_start),
        )


@dataclass(slots=True)
class _Farewell:
    """An `Ending` and the ranks whose exit is reported when it is done."""

    ending: Ending
    waiting: list[RankProcess]


class Farewells:
    """All endings that go on at the same time.

    Parameters
    ----------
    host : str
        Name of this host in the cluster.
    report : callable
        Sends a report to the controller.
    """

    def __init__(self, host: str, report: Report) -> None:
        self._host = host
        self._report = report
        self._farewells: list[_Farewell] = []

    def __bool__(self) -> bool:
        return bool(self._farewells)

    def end(self, processes: Iterable[RankProcess], deadline_s: float) -> None:
        """End living ranks; each exit is reported when nothing of them is left.

        Without any rank, what earlier ones left behind is ended.
        """
        chosen = list(processes)
        marks = {process.pid: process.mark for process in chosen}
        self._farewells.append(_Farewell(Ending(marks, deadline_s), chosen))

    def end_left_overs(self, process: RankProcess, deadline_s: float) -> None:
        """End what a rank that is dead (and reported) has left behind."""
        ending = Ending({process.pid: process.mark}, deadline_s)
        self._farewells.append(_Farewell(ending, []))

    def hurry(self, deadline_s: float) -> None:
        """Let no ending take longer than until ``deadline_s``."""
        for farewell in self._farewells:
            farewell.ending.hurry(deadline_s)

    def reaped(self, pid: int, returncode: int) -> bool:
        """Take note of an exit status; False if ``pid`` is no rank being ended."""
        for farewell in self._farewells:
            for process in farewell.waiting:
                if process.pid == pid:
                    process.reaped(returncode)
                    return True
        return False

    def advance(
        self, now_s: float, living: Mapping[int, str], spared: Iterable[int]
    ) -> None:
        """Take the next step of each.

        Parameters
        ----------
        now_s : float
            `time.monotonic`.
        living : mapping of int to str
            The ranks that go on, with their marks.
        spared : iterable of int
            The agent's own children that are no ranks.
        """
        spared = tuple(spared)
        for farewell in list(self._farewells):
            if not farewell.ending.done:
                others = dict(living)
                for other in self._farewells:
                    if other is not farewell:
                        others |= other.ending.targets
                farewell.ending.advance(now_s, others, spared)
            if farewell.ending.done:
                self._finish(farewell)

    def _finish(self, farewell: _Farewell) -> None:
        """Report the exits; a rank that is not reaped yet keeps the farewell."""
        for process in list(farewell.waiting):
            if process.returncode is not None:
                farewell.waiting.remove(process)
                self._report(process.exit_report(self._host))
        survivors = farewell.ending.survivors
        if survivors:
            text = (
                f"could not end {', '.join(survivors)} on {self._host}: it waits in "
                "the kernel or belongs to another user"
            )
            self._report(AgentNotice(host=self._host, text=text, level="error"))
        if not farewell.waiting or survivors:
            self._farewells.remove(farewell)
