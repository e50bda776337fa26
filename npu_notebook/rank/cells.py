"""One cell after the other: run it, stop it if asked, report how it ended."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npu_notebook.messages import CellDone, ErrorInfo, RunCell
from npu_notebook.rank import streams
from npu_notebook.rank.modules import OwnModules, explain
from npu_notebook.rank.shell import CellResult

if TYPE_CHECKING:
    from npu_notebook.rank.groups import Groups
    from npu_notebook.rank.interrupts import Interrupts
    from npu_notebook.rank.output import Output
    from npu_notebook.rank.shell import RankShell
    from npu_notebook.rank.values import Values

log = logging.getLogger("npu_notebook.rank")

_NEVER_RAN = ErrorInfo(
    kind="KeyboardInterrupt", message="interrupted before it began", interrupted=True
)

_AUTORELOAD = {"autoreload", "IPython.extensions.autoreload"}


class Cells:
    """Run cells in the main thread.

    Parameters
    ----------
    rank : int
        Sender of the report.
    shell, output, interrupts, values : RankShell, Output, Interrupts, Values
        Where a cell runs, what it prints, how it is stopped, where its value is kept.
    groups : Groups or None
        None for ranks without torch.

    Attributes
    ----------
    running : str
        The cell that runs now, "" if none does.
    """

    def __init__(
        self,
        rank: int,
        shell: RankShell,
        output: Output,
        interrupts: Interrupts,
        values: Values,
        groups: Groups | None,
    ) -> None:
        self.running = ""
        self._rank = rank
        self._shell = shell
        self._output = output
        self._interrupts = interrupts
        self._values = values
        self._groups = groups
        self._tell = output.writer("stderr")  # sys.stderr may be the user's
        self._modules = OwnModules(str(Path.cwd()))
        self._pid = os.getpid()

    def run(self, command: RunCell) -> CellDone:
        """Run a cell and return how it ended; all it has written is sent by then."""
        start_ns = time.monotonic_ns()
        try:
            result = self._execute(command)
        except KeyboardInterrupt as interrupt:  # it came in our own lines around it
            result = CellResult(error=self._shell.settle(interrupt))
        except BaseException as problem:
            # A cell can break what IPython needs; that costs the cell, not the rank.
            log.exception("a cell ended outside the user's code")
            result = CellResult(error=self._shell.settle(problem))
        self._leave_if_forked(result)
        error = self._after_interrupt(result.error)
        self._tell_of_edits()
        self.running = ""
        self._output.end_cell()
        if command.want_value and error is None:
            self._values.keep_result(command.cell_id, result.value)
        return CellDone(
            cell_id=command.cell_id,
            rank=self._rank,
            elapsed_ns=time.monotonic_ns() - start_ns,
            error=error,
            group_present=self._groups is None or self._groups.present(),
        )

    def _execute(self, command: RunCell) -> CellResult:
        if not self._interrupts.begin(command.cell_id):
            return CellResult(error=_NEVER_RAN)
        self.running = command.cell_id
        self._output.begin_cell(command.cell_id)
        streams.mend()
        return self._shell.run(command.code, command.execution_count)

    def _leave_if_forked(self, result: CellResult) -> None:
        """End a child process that the cell has forked and let run to its end."""
        if os.getpid() == self._pid:
            return
        if result.error is not None:
            sys.stderr.write(f"{result.error.traceback}\n")
        sys.stdout.flush()
        os._exit(1 if result.error else 0)

    def _tell_of_edits(self) -> None:
        edited = self._modules.edited()
        if not edited:
            return
        extensions = self._shell.extension_manager
        # This one takes edits over without making a new module of it.
        if extensions is None or not _AUTORELOAD & extensions.loaded:
            self._tell(f"{explain(edited)}\n")

    def _after_interrupt(self, error: ErrorInfo | None) -> ErrorInfo | None:
        """Mark an error that an interrupt caused; name child processes that stay."""
        sent = self._interrupts.sent
        survivors = self._interrupts.end()
        if survivors:
            text = f"still running: {', '.join(survivors)}"
            if error is None:
                self._tell(f"{text}\n")
            else:
                message = f"{error.message}; {text}" if error.message else text
                error = msgspec.structs.replace(error, message=message)
        if error is not None and sent:
            error = msgspec.structs.replace(error, interrupted=True)
        return error
