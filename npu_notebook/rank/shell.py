"""A cell on a rank: IPython's shell without a terminal, a history or a kernel.

torch must be imported before this module (`npu_notebook.rank.worker` sees to that):
torch_npu turns its task queue off when it finds itself in an interactive session.
"""

from __future__ import annotations

import asyncio
import os
import types
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from IPython.core import page
from IPython.core.async_helpers import get_asyncio_loop
from IPython.core.autocall import ExitAutocall
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets import Type, observe
from traitlets.config import Config

from npu_notebook.rank import tracebacks
from npu_notebook.rank.commands import run_command
from npu_notebook.rank.displayhooks import CellDisplayHook, CellDisplayPublisher

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping

    from npu_notebook.messages import ErrorInfo
    from npu_notebook.rank.display import DisplaySender
    from npu_notebook.rank.interrupts import Interrupts


@dataclass(slots=True)
class CellResult:
    """The value of a cell's last expression, or the ``error`` it ended with."""

    value: Any = None
    error: ErrorInfo | None = None


class _Exit(ExitAutocall):
    """``exit()`` and ``quit()``: end the cell, as ``sys.exit()`` does, not the rank."""

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)

    def __repr__(self) -> str:
        return "exit() ends this cell on this rank"


class _NoProfile(ProfileDir):
    """A profile folder that is not created: ranks of many hosts may share a home."""

    @observe("location")
    def _location_changed(self, change: object) -> None:
        """Create nothing."""


class RankShell(InteractiveShell):
    """The shell of one rank: errors go to `run`, output to a `DisplaySender`.

    Attributes
    ----------
    interrupts : Interrupts
        Armed by the caller of `run`, off when an error is described.
    place : dict
        Variables that are there again after ``%reset``.
    """

    displayhook_class = Type(CellDisplayHook)
    display_pub_class = Type(CellDisplayPublisher)

    display_pub: CellDisplayPublisher
    displayhook: CellDisplayHook
    interrupts: Interrupts
    place: Mapping[str, object] = types.MappingProxyType({})
    _shown_error: BaseException | None = None

    @classmethod
    def make(
        cls, folder: str, sender: DisplaySender, interrupts: Interrupts
    ) -> RankShell:
        """Return the process's shell; ``folder`` is where it may leave files."""
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.InteractiveShell.cache_size = 0
        shell = cls.instance(
            config=config,
            ipython_dir=folder,
            profile_dir=_NoProfile(location=os.path.join(folder, "ipython")),  # noqa: PTH118  a trait wants str
            user_module=types.ModuleType("__main__"),
        )
        shell.interrupts = interrupts
        shell.display_pub.sender = sender
        shell.displayhook.sender = sender
        shell.loop_runner = shell.run_coroutine
        shell.set_hook("show_in_pager", page.as_hook(shell.show_page), 99)
        return shell

    def run(self, code: str, execution_count: int | None) -> CellResult:
        """Run a cell and return its value or its error; raises nothing of the user's.

        The caller arms interrupts before; they are off on return. An interrupt that
        comes outside the user's code comes out of here as `KeyboardInterrupt`.
        """
        if execution_count is not None:
            self.execution_count = execution_count
        self.displayhook.cell_text = code
        self._shown_error = None
        result = self.run_cell(code, store_history=False)
        self.interrupts.disarm()
        if execution_count is None:
            self.execution_count += 1
        error = result.error_before_exec or result.error_in_exec or self._shown_error
        if error is None:
            return CellResult(value=result.result)
        result.error_before_exec = result.error_in_exec = self._shown_error = None
        return CellResult(error=self.settle(error))

    def settle(self, error: BaseException) -> ErrorInfo:
        """Describe an error, with interrupts off, and let go of all it holds."""
        self.interrupts.disarm()
        return tracebacks.settle(self, error)

    def where(self, frame: types.FrameType | None) -> str:
        """Return what a running thread does, for example ``"running line 12"``.

        The innermost line of a cell counts: what the cell has called says less to a
        reader than where the cell stands.
        """
        while frame is not None:
            if self.compile.format_code_name(frame.f_code.co_filename):
                return f"running line {frame.f_lineno}"
            frame = frame.f_back
        return "running"

    def should_run_async(
        self,
        raw_cell: str,
        *,
        transformed_cell: str | None = None,
        preprocessing_exc_tuple: Any = None,  # noqa: ANN401  IPython's
    ) -> bool:
        """Return whether a cell needs an event loop.

        IPython compiles the whole cell once more to find out; without one of two words
        it cannot.
        """
        code = raw_cell if transformed_cell is None else transformed_cell
        if "await" not in code and "async" not in code:
            return False
        return bool(
            super().should_run_async(
                raw_cell,
                transformed_cell=transformed_cell,
                preprocessing_exc_tuple=preprocessing_exc_tuple,
            )
        )

    def run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401  IPython's result
        """Run a cell with a top-level ``await`` (IPython's loop runner)."""
        loop = get_asyncio_loop()
        task = loop.create_task(coroutine)
        while True:
            try:
                result = loop.run_until_complete(task)
            except KeyboardInterrupt:
                if task.done():
                    raise
                # It came while the loop waited, or inside another task.
                task.cancel()
            else:
                break
        cancelled = result.error_in_exec
        if isinstance(cancelled, asyncio.CancelledError) and self.interrupts.sent:
            stopped = KeyboardInterrupt()
            result.error_in_exec = stopped.with_traceback(cancelled.__traceback__)
        return result

    def showtraceback(self, exc_tuple: Any = None, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Note an error that a magic such as ``%run`` shows: the cell has failed."""
        error = self._get_exc_info(exc_tuple)[1]
        if self._shown_error is None:
            self._shown_error = error
        if isinstance(error, SystemExit):
            # IPython is about to warn that exit() was meant.
            warnings.filterwarnings("ignore", message="To exit: use")

    def showsyntaxerror(self, *_: object, **__: object) -> None:
        """As `showtraceback`."""
        self.showtraceback()

    def show_page(self, text: object, *_: object, **__: object) -> None:
        """Show what ``?`` has found: text or a MIME bundle (IPython's pager hook)."""
        data = text if isinstance(text, dict) else {"text/plain": str(text)}
        self.display_pub.publish(data)

    def system_piped(self, cmd: str) -> None:
        """Run ``!cmd``; its exit status is in ``_exit_code`` afterwards."""
        if cmd.rstrip().endswith("&"):
            message = (
                "`!` waits for its command, which cannot end with `&`. Use "
                "subprocess.Popen to start something in the background"
            )
            raise OSError(message)
        expanded = self.var_expand(cmd, depth=1)
        self.user_ns["_exit_code"] = run_command(expanded)

    system = system_piped

    def init_environment(self) -> None:
        """Tell programs that nobody answers a pager, and matplotlib where to draw."""
        os.environ.update(PAGER="cat", GIT_PAGER="cat", CLICOLOR="1")
        if os.environ.get("TERM", "dumb") == "dumb":
            os.environ["TERM"] = "xterm-color"
        # Its package registers with the shell when pyplot is imported, not before.
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

    def init_user_ns(self) -> None:
        """Add what a rank has besides IPython's own names."""
        super().init_user_ns()
        self.user_ns.update(self.place)

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:  # noqa: ARG002  IPython names it
        """Keep no copy of what a cell prints: IPython 9 would hold all of it for good.

        It is meant for a history in which nobody can look here.
        """
        yield

    def init_completer(self) -> None:
        """Have none: nobody types here."""

    def enable_gui(self, gui: object = None) -> None:
        """Accept ``%matplotlib inline``; there is no window to open."""

    def _exiter_default(self) -> ExitAutocall:
        return _Exit(self)
