"""Every error a user of the cluster can meet; each takes facts and makes the sentence.

A failing user cell (`CellError`) and failing infrastructure (`LaunchError`,
`DeviceError`, `LinkError`) never share a class, so a caller can tell "my code is wrong"
from "the cluster is in trouble". A cell whose rank died is a class of its own,
`RankLostError`, and still a `CellError`: it has outcomes of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_notebook.messages import RankOutcome


def _tail(text: str) -> str:
    return f"\n{text.rstrip()}" if text.strip() else ""


def _log_hint(log_path: str) -> str:
    return f" Its log is {log_path}." if log_path else ""


class NpuNotebookError(Exception):
    """Base of all errors raised by `npu_notebook`."""


class ConfigError(NpuNotebookError, ValueError):
    """A word the user gave (option, rank set, name, setting) cannot be used.

    Parameters
    ----------
    problem : str
        What is wrong and where, without a full stop.
    remedy : str
        What to type instead, a whole sentence.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}"


class LaunchError(NpuNotebookError, RuntimeError):
    """A process of the cluster ended, or was refused, before the cluster was ready.

    Parameters
    ----------
    what : str
        Which process, for example ``"rank 2 on host a"`` or ``"the controller"``.
    reason : str
        Why, without a full stop.
    stderr_tail : str
        Last lines the process wrote to stderr, may be empty.
    log_path : str
        Where its whole log lies, may be empty.
    """

    def __init__(
        self, what: str, reason: str, stderr_tail: str = "", log_path: str = ""
    ) -> None:
        super().__init__(what, reason, stderr_tail, log_path)
        self.what = what
        self.reason = reason
        self.stderr_tail = stderr_tail
        self.log_path = log_path

    def __str__(self) -> str:
        return (
            f"{self.what} did not start: {self.reason}."
            f"{_log_hint(self.log_path)}{_tail(self.stderr_tail)}"
        )


class LinkError(NpuNotebookError, ConnectionError):
    """There is no (longer a) connection to the controller.

    Parameters
    ----------
    cluster : str
        Name of the cluster.
    problem : str
        What was seen, without a full stop.
    remedy : str
        What to type next, a whole sentence.
    """

    def __init__(self, cluster: str, problem: str, remedy: str) -> None:
        super().__init__(cluster, problem, remedy)
        self.cluster = cluster
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"cluster '{self.cluster}': {self.problem}. {self.remedy}"


class ProtocolError(NpuNotebookError, RuntimeError):
    """A message that cannot be read, or one from another version of the package."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}"


class DeviceError(NpuNotebookError, RuntimeError):
    """A device, its driver or the simulated NPU cannot be used.

    Parameters
    ----------
    device : str
        Which one, for example ``"simulated NPU"`` or ``"npu:3"``.
    problem : str
        What was seen, without a full stop.
    remedy : str
        What to do next, a whole sentence.
    """

    def __init__(self, device: str, problem: str, remedy: str) -> None:
        super().__init__(device, problem, remedy)
        self.device = device
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.device}: {self.problem}. {self.remedy}"


class DataError(NpuNotebookError, TypeError):
    """A variable cannot travel between the notebook and the ranks.

    Parameters
    ----------
    name : str
        The variable.
    problem : str
        Why it cannot travel, and on which ranks if that matters.
    remedy : str
        What to do instead, a whole sentence.
    """

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        super().__init__(name, problem, remedy)
        self.name = name
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"'{self.name}': {self.problem}. {self.remedy}"


class CellError(NpuNotebookError, RuntimeError):
    """A cell failed on at least one rank; the other ranks' results are kept.

    Parameters
    ----------
    cell_id : str
        The cell.
    outcomes : tuple of RankOutcome
        One per rank of the cell, in rank order, failed or not.
    summary : str
        One line per distinct error, without tracebacks.

    Notes
    -----
    The notebook shows `traceback_text` (one traceback per distinct error); ``str``
    gives the summary so that logs stay short.
    """

    def __init__(
        self,
        cell_id: str,
        outcomes: tuple[RankOutcome, ...],
        summary: str,
        traceback_text: str = "",
    ) -> None:
        super().__init__(cell_id, outcomes, summary, traceback_text)
        self.cell_id = cell_id
        self.outcomes = outcomes
        self.summary = summary
        self.traceback_text = traceback_text

    def __str__(self) -> str:
        return self.summary

    def _render_traceback_(self) -> list[str]:
        # IPython calls this instead of drawing our own frames.
        # Source: IPython.core.interactiveshell.InteractiveShell.showtraceback.
        return (self.traceback_text or self.summary).splitlines()


class RankLostError(CellError):
    """A cell could not end as it should because a rank's process had ended.

    The code of the cell need not be wrong; ``outcomes`` says which ranks are lost, how,
    and how the cell ended on the others, which keep their variables.
    """
