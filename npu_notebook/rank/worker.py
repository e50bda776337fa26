"""The rank process: its inbox and what it does with each command."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, assert_never

import msgspec

from npu_notebook import messages, wire
from npu_notebook.link import Link
from npu_notebook.messages import ErrorInfo
from npu_notebook.rank import birth as births
from npu_notebook.rank import keyboard, spawning
from npu_notebook.rank.attribution import Attribution
from npu_notebook.rank.birth import Device, RankBirth
from npu_notebook.rank.display import DisplaySender
from npu_notebook.rank.interrupts import Interrupts
from npu_notebook.rank.output import Output
from npu_notebook.rank.streams import take_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npu_notebook.rank.cells import Cells
    from npu_notebook.rank.shell import RankShell
    from npu_notebook.rank.values import Values

log = logging.getLogger("npu_notebook.rank")

INTERRUPTED = ErrorInfo(
    kind="KeyboardInterrupt", message="interrupted", interrupted=True
)
_HEARTBEAT_S = 2.0
_FAILED = 1


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
    births.set_up_log(log_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker = Worker(birth, log_fd)
    try:
        worker.start()
    except Exception as error:  # the device's and torch's own code runs here
        log.exception("the rank cannot start")
        worker.fail(error)
        return _FAILED
    try:
        worker.serve()
    except BaseException:  # sys.stderr may be the user's by now; the log is ours
        log.exception("the rank ends because of this")
        raise
    return 0


class Worker:
    """One rank: commands come in through the link's thread, the main thread obeys.

    Parameters
    ----------
    birth : RankBirth
        Who it is.
    log_fd : int
        Its log file.
    """

    def __init__(self, birth: RankBirth, log_fd: int) -> None:
        self._birth = birth
        self._rank = birth.spec.rank
        self._inbox: queue.SimpleQueue[tuple[messages.RankCommand, list[Any]]] = (
            queue.SimpleQueue()
        )
        self._doing = ""
        self._announced = ""
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
        self._device = Device()
        self._shell: RankShell
        self._values: Values
        self._cells: Cells | None = None

    def start(self) -> None:
        """Become ready for cells and say so.

        Raises
        ------
        Exception
            Whatever torch, the device or a missing folder raises.
        """
        self._link.start()
        births.take_place(self._birth.spec)
        self._device = births.bind_device(self._birth)
        take_over(self._output)
        keyboard.take_away()
        self._attribution.follow_threads()
        self._make_shell()
        self._interrupts.install()
        self._output.start()
        spawning.install()
        _say_last_words(self._leave)
        self._link.send(births.describe_birth(self._birth, self._device))

    def _make_shell(self) -> None:
        # These import IPython, which must come after torch: see rank/shell.py.
        importlib.import_module("npu_notebook.rank.preload")
        from npu_notebook.rank.cells import Cells
        from npu_notebook.rank.packages import OncePerHost
        from npu_notebook.rank.shell import RankShell
        from npu_notebook.rank.values import Values

        folder = os.path.dirname(self._birth.spec.log_path)  # noqa: PTH120  a str is wanted
        send = self._link.send
        display = DisplaySender(self._rank, send, self._attribution, self._output)
        shell = RankShell.make(folder, display, self._interrupts)
        shell.place = {
            "rank": self._rank,
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "device": self._device.torch_device,
        }
        shell.user_ns.update(shell.place)
        self._shell = shell
        self._values = Values(self._rank, shell.user_ns)
        cells = Cells(
            self._rank,
            shell,
            self._output,
            self._interrupts,
            self._values,
            self._device.groups,
        )
        OncePerHost(folder).install(shell, lambda: cells.running)
        self._cells = cells

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
        atexit._run_exitfuncs()  # noqa: SLF001  os._exit, which follows, skips them
        self._leave()

    def _leave(self) -> None:
        self._output.end_cell()
        self._link.close(flush_s=1.0)

    def _obey(self, command: messages.RankCommand, payload: list[Any]) -> None:
        match command:
            case messages.RunCell():
                assert self._cells is not None
                self._link.send(self._cells.run(command))
            case messages.FormGroup():
                self._form_group(command)
            case messages.StageValues():
                self._stage(command, payload)
            case messages.CommitValues(request_id=request_id):
                replaced = self._values.commit(command)
                done = messages.ValuesCommitted(request_id=request_id, rank=self._rank)
                self._link.send(done)
                del replaced
            case messages.SendValues():
                answer, parts = self._values.interrupted(command)
                with self._interruptible(command.request_id):
                    answer, parts = self._values.send(command)
                self._link.send(answer, parts)
            case messages.InterruptRank() | messages.EndRank():
                pass  # the first is done in the link's thread, the second in `serve`
            case _:
                assert_never(command)

    @contextmanager
    def _interruptible(self, request_id: str) -> Iterator[None]:
        """Let Stop reach a class's own pickling, as if it were a cell."""
        self._interrupts.begin(request_id)
        try:
            yield
            self._interrupts.disarm()
        except KeyboardInterrupt:
            self._interrupts.disarm()
        self._interrupts.end()

    def _form_group(self, command: messages.FormGroup) -> None:
        start_ns = time.monotonic_ns()
        error = None
        self._doing = "forming the process group"
        try:
            if self._device.groups is None:
                message = "ranks without torch have no process group"
                raise RuntimeError(message)  # noqa: TRY301  answered like any failure
            self._device.groups.form(command)
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
        error: ErrorInfo | None = INTERRUPTED
        with self._interruptible(command.request_id):
            try:
                self._values.stage(command, payload)
                error = None
            except BaseException as problem:  # noqa: BLE001  __setstate__ of any class
                error = self._shell.settle(problem)
        staged = messages.ValuesStaged(
            request_id=command.request_id, rank=self._rank, error=error
        )
        self._link.send(staged)

    # In the link's thread

    def _receive(self, command: messages.RankCommand, payload: list[Any]) -> None:
        if isinstance(command, messages.InterruptRank):
            self._interrupts.interrupt(command.level, command.cell_id)
            return
        if isinstance(command, messages.RunCell):
            self._interrupts.expect(command.cell_id)
        self._inbox.put((command, payload))

    def _beat(self) -> None:
        """Say that this rank lives and what it does."""
        cell_id = self._cells.running if self._cells else ""
        doing = self._doing
        if cell_id:
            frame = sys._current_frames().get(self._main_ident)  # noqa: SLF001  the only way
            doing = self._shell.where(frame)
        if cell_id and cell_id != self._announced:
            # Not when it begins: most cells are over before anyone could read it, and
            # waking this thread would cost them a fifth of their time.
            self._announced = cell_id
            started = messages.CellStarted(rank=self._rank, cell_id=cell_id)
            self._link.send(started)
        self._link.send(
            messages.Heartbeat(rank=self._rank, cell_id=cell_id, doing=doing)
        )


def _say_last_words(leave: Callable[[], None]) -> None:
    """Send what was printed before an ``os._exit`` in user code."""
    original = os._exit
    own_pid = os.getpid()

    def exit_after_sending(status: int) -> NoReturn:
        if os.getpid() == own_pid:
            leave()
        original(status)

    os._exit = exit_after_sending  # there is no hook
