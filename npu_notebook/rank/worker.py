"""The rank process: its start, its inbox and what it does with each command."""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import platform
import queue
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from npu_notebook import messages, plugins, wire
from npu_notebook.link import Link
from npu_notebook.messages import ErrorInfo, RankSpec
from npu_notebook.rank import spawning
from npu_notebook.rank.attribution import Attribution
from npu_notebook.rank.display import DisplaySender
from npu_notebook.rank.interrupts import Interrupts
from npu_notebook.rank.output import Output
from npu_notebook.rank.streams import take_over

if TYPE_CHECKING:
    from npu_notebook.rank.groups import Groups
    from npu_notebook.rank.shell import CellResult, RankShell
    from npu_notebook.rank.values import Values

log = logging.getLogger("npu_notebook.rank")

_HEARTBEAT_S = 2.0
_FAILED = 1


class RankBirth(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank process is started with.

    ``provider`` is ``"none"`` for ranks without torch; ``forked`` is true in a child of
    the agent's template.
    """

    endpoint: str
    provider: str
    host: str
    spec: RankSpec
    forked: bool = False


def run_rank(birth_json: bytes) -> int:
    """Be the rank until it is told to end; returns the exit status.

    File descriptor 0 is /dev/null at entry, 1 and 2 are the rank's log file. The
    caller ends the process with ``os._exit``.

    Parameters
    ----------
    birth_json : bytes
        A `RankBirth`.
    """
    birth = msgspec.json.decode(birth_json, type=RankBirth)
    log_fd = os.dup(1)
    _set_up_log(log_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker = Worker(birth, log_fd)
    try:
        worker.start()
    except Exception as error:  # the device's and torch's own code runs here
        log.exception("the rank cannot start")
        worker.fail(error)
        return _FAILED
    worker.serve()
    return 0


def _set_up_log(log_fd: int) -> None:
    stream = os.fdopen(os.dup(log_fd), "a", encoding="utf-8", errors="backslashreplace")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    # Of this package only: user code must find the root logger without a handler.
    package = logging.getLogger("npu_notebook")
    package.addHandler(handler)
    package.propagate = False
    faulthandler.enable(stream)


class Worker:
    """One rank: commands come in through the link's thread, the main thread obeys."""

    def __init__(self, birth: RankBirth, log_fd: int) -> None:
        self._birth = birth
        self._rank = birth.spec.rank
        self._inbox: queue.SimpleQueue[tuple[messages.RankCommand, list[Any]]] = (
            queue.SimpleQueue()
        )
        self._doing = ""
        self._cell_id = self._announced = ""
        self._main_ident = threading.get_ident()
        self._interrupts = Interrupts()
        self._attribution = Attribution()
        identity = wire.rank_identity(self._rank, birth.spec.incarnation)
        self._link = Link(
            birth.endpoint,
            identity,
            read=wire.read_rank_command,
            on_message=self._receive,
            on_tick=self._beat,
            tick_s=_HEARTBEAT_S,
        )
        self._output = Output(
            self._rank, self._link.send, self._attribution, self._interrupts, log_fd
        )
        self._display = DisplaySender(
            self._rank, self._link.send, self._attribution, self._output
        )
        self._groups: Groups | None = None
        self._shell: RankShell
        self._values: Values

    def start(self) -> None:
        """Become ready for cells and say so.

        Raises
        ------
        Exception
            Whatever torch, the device or a missing folder raises.
        """
        self._link.start()
        _take_place(self._birth.spec)
        device = self._bind_device()
        take_over(self._output)
        self._attribution.follow_threads()
        # After torch: see rank/shell.py.
        from npu_notebook.rank.packages import OncePerHost
        from npu_notebook.rank.shell import RankShell
        from npu_notebook.rank.values import Values

        folder = os.path.dirname(self._birth.spec.log_path)  # noqa: PTH120  a str is wanted
        self._shell = RankShell.make(folder, self._display, self._interrupts)
        OncePerHost(folder).install(self._shell, lambda: self._cell_id)
        spawning.install()
        self._values = Values(self._rank, self._shell.user_ns)
        self._fill_namespace(device)
        self._interrupts.install()
        self._output.start()
        self._link.send(self._joined(device))

    def fail(self, error: Exception) -> None:
        """Tell the controller why this rank cannot start."""
        info = ErrorInfo(
            kind=type(error).__name__,
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
        )
        self._link.send(
            messages.RankFailed(
                rank=self._rank, incarnation=self._birth.spec.incarnation, error=info
            )
        )
        self._link.close(flush_s=2.0)

    def serve(self) -> None:
        """Obey commands in the order they came until `EndRank`."""
        while True:
            command, payload = self._inbox.get()
            if isinstance(command, messages.EndRank):
                break
            self._obey(command, payload)
        self._output.flush()
        self._link.close(flush_s=1.0)
        atexit._run_exitfuncs()  # noqa: SLF001  os._exit, which follows, skips them

    def _obey(self, command: messages.RankCommand, payload: list[Any]) -> None:
        match command:
            case messages.RunCell():
                self._run_cell(command)
            case messages.FormGroup():
                self._form_group(command)
            case messages.StageValues():
                self._stage(command, payload)
            case messages.CommitValues(request_id=request_id):
                self._values.commit(command)
                done = messages.ValuesCommitted(request_id=request_id, rank=self._rank)
                self._link.send(done)
            case messages.SendValues():
                answer, parts = self._values.send(command)
                self._link.send(answer, parts)
            case messages.InterruptRank() | messages.EndRank():
                pass  # the first is done in the link's thread, the second in `serve`
            case _:
                assert_never(command)

    def _receive(self, command: messages.RankCommand, payload: list[Any]) -> None:
        """Take a command in the link's thread."""
        if isinstance(command, messages.InterruptRank):
            self._interrupts.interrupt(command.level, command.cell_id)
            return
        if isinstance(command, messages.RunCell):
            self._interrupts.expect(command.cell_id)
        self._inbox.put((command, payload))

    def _run_cell(self, command: messages.RunCell) -> None:
        cell_id = command.cell_id
        start_ns = time.monotonic_ns()
        try:
            result = self._execute(command)
        except KeyboardInterrupt as interrupt:  # in our own lines around the cell
            result = self._result_of(interrupt)
        error = self._after_interrupt(result.error)
        self._cell_id = ""
        self._output.end_cell()
        if command.want_value and error is None:
            self._values.keep_result(cell_id, result.value)
        done = messages.CellDone(
            cell_id=cell_id,
            rank=self._rank,
            elapsed_ns=time.monotonic_ns() - start_ns,
            error=error,
            group_present=self._groups is None or self._groups.present(),
        )
        self._link.send(done)

    def _execute(self, command: messages.RunCell) -> CellResult:
        from npu_notebook.rank.shell import CellResult

        if not self._interrupts.begin(command.cell_id):
            return CellResult(error=_NEVER_RAN)
        self._cell_id = command.cell_id
        self._output.begin_cell(command.cell_id)
        return self._shell.run(command.code, command.execution_count)

    def _result_of(self, error: BaseException) -> CellResult:
        from npu_notebook.rank.shell import CellResult

        return CellResult(error=self._shell.settle(error))

    def _after_interrupt(self, error: ErrorInfo | None) -> ErrorInfo | None:
        """Mark an error that an interrupt caused; name child processes that stay."""
        sent = self._interrupts.sent
        survivors = self._interrupts.end()
        if survivors:
            text = f"still running: {', '.join(survivors)}"
            if error is None:
                sys.stderr.write(f"{text}\n")
            else:
                message = f"{error.message}; {text}" if error.message else text
                error = msgspec.structs.replace(error, message=message)
        if error is not None and sent:
            error = msgspec.structs.replace(error, interrupted=True)
        return error

    def _form_group(self, command: messages.FormGroup) -> None:
        start_ns = time.monotonic_ns()
        error = None
        self._doing = "forming the process group"
        try:
            if self._groups is None:
                message = "ranks without torch have no process group"
                raise RuntimeError(message)  # noqa: TRY301  answered like any failure
            self._groups.form(command)
        except Exception as problem:
            log.exception("the process group of epoch %d is not formed", command.epoch)
            error = self._shell.settle(problem)
        self._doing = ""
        formed = messages.GroupFormed(
            rank=self._rank,
            epoch=command.epoch,
            elapsed_ns=time.monotonic_ns() - start_ns,
            error=error,
        )
        self._link.send(formed)

    def _stage(self, command: messages.StageValues, payload: list[Any]) -> None:
        error = None
        try:
            self._values.stage(command, payload)
        except Exception as problem:  # noqa: BLE001  __setstate__ of any user class
            error = self._shell.settle(problem)
        staged = messages.ValuesStaged(
            request_id=command.request_id, rank=self._rank, error=error
        )
        self._link.send(staged)

    def _beat(self) -> None:
        """Say that this rank lives and what it does (link's thread)."""
        cell_id = self._cell_id
        doing = self._doing
        if cell_id and cell_id != self._announced:
            # Not when it begins: most cells are over before anyone could read it, and
            # waking this thread would cost them a fifth of their time.
            self._announced = cell_id
            started = messages.CellStarted(rank=self._rank, cell_id=cell_id)
            self._link.send(started)
        if cell_id:
            doing = self._shell.where(sys._current_frames().get(self._main_ident))  # noqa: SLF001  the only way
        self._link.send(
            messages.Heartbeat(rank=self._rank, cell_id=cell_id, doing=doing)
        )

    def _bind_device(self) -> str:
        """Import torch and take this rank's device; "" for ranks without torch."""
        birth = self._birth
        if birth.provider == "none":
            return ""
        import torch

        threads = os.environ.get("OMP_NUM_THREADS", "")
        if birth.forked and threads.isdigit():
            # The template has read the variable before this rank had its own.
            torch.set_num_threads(int(threads))
        provider = plugins.load("npu_notebook.devices", birth.provider)
        device: str = provider.bind(birth.spec.local_rank)
        from npu_notebook.rank.groups import Groups

        self._groups = Groups(self._rank, provider.facts.backend, torch.device(device))
        self._groups.install()
        return device

    def _fill_namespace(self, device: str) -> None:
        torch = sys.modules.get("torch") if device else None
        self._shell.user_ns.update(
            rank=self._rank,
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            device=torch.device(device) if torch else None,
        )

    def _joined(self, device: str) -> messages.RankJoined:
        torch = sys.modules.get("torch") if device else None
        return messages.RankJoined(
            rank=self._rank,
            incarnation=self._birth.spec.incarnation,
            host=self._birth.host,
            pid=os.getpid(),
            python=platform.python_version(),
            torch=str(torch.__version__) if torch else "",
            device=device,
            protocol_version=messages.PROTOCOL_VERSION,
        )


_NEVER_RAN = ErrorInfo(
    kind="KeyboardInterrupt", message="interrupted before it began", interrupted=True
)


def _take_place(spec: RankSpec) -> None:
    """Take the environment and the folder; modules of the folder can be imported."""
    os.environ.update(spec.env)
    os.chdir(spec.cwd)
    sys.argv[:] = [""]
    # "" follows os.chdir in a cell, as in an interactive Python.
    if sys.path and sys.path[0] in (spec.cwd, os.getcwd()):  # noqa: PTH109  compared as text
        sys.path[0] = ""
    elif "" not in sys.path:
        sys.path.insert(0, "")
