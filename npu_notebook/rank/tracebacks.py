"""Make an exception of a cell into text, without our frames, and let go of it."""

from __future__ import annotations

import gc
import linecache
import logging
import sys
import sysconfig
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import IPython
from IPython.core.error import UsageError

import npu_notebook
from npu_notebook.messages import ErrorInfo, FrameFact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from IPython.core.interactiveshell import InteractiveShell

log = logging.getLogger("npu_notebook.rank")

_INTERNAL = tuple(
    f"{Path(package.__file__ or '').parent}/" for package in (IPython, npu_notebook)
)
_LIBRARY = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")
)
_MAX_NCHARS = 64 << 10
_MAX_FRAMES = 40  # of a recursion without end: half from each side


def settle(shell: InteractiveShell, error: BaseException) -> ErrorInfo:
    """Describe an exception and let go of every variable that it keeps alive."""
    traces = [one.__traceback__ for one in _chain(error)]
    try:
        for one in _chain(error):
            one.__traceback__ = _without_internals(one.__traceback__)
        return _describe(shell, error)
    finally:
        _release(shell, error, traces)


def _describe(shell: InteractiveShell, error: BaseException) -> ErrorInfo:
    exit_code = None
    message = _message(error)
    if isinstance(error, SystemExit):
        exit_code = _exit_code(error)
    text = _plain_text(_render(shell, error))
    if len(text) > _MAX_NCHARS:
        log.error("an error in full: %s", text)
    return ErrorInfo(
        kind=type(error).__name__,
        message=_shorten(message),
        traceback=_shorten(text),
        frames=tuple(_frames(shell, error)),
        exit_code=exit_code,
        interrupted=isinstance(error, KeyboardInterrupt),
    )


def _release(
    shell: InteractiveShell,
    error: BaseException,
    traces: list[types.TracebackType | None],
) -> None:
    for one in _chain(error):
        one.__traceback__ = None
    for trace in traces:
        traceback.clear_frames(trace)
        for frame, _ in traceback.walk_tb(trace):
            # Before Python 3.13 the dict made by an earlier look is brought up to date
            # by this one: it is empty then.
            frame.f_locals  # noqa: B018
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    for formatter in (shell.InteractiveTB, shell.SyntaxTB):
        for name in ("etype", "evalue", "tb", "last_syntax_error"):
            if hasattr(formatter, name):
                setattr(formatter, name, None)
    shell.last_execution_result = None
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        gc.collect()  # cycles may hold what the user needs back now


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Walk causes, contexts and groups; each exception once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _without_internals(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_INTERNAL):
            kept.append(trace)
        trace = trace.tb_next
    if len(kept) > _MAX_FRAMES:
        kept = kept[: _MAX_FRAMES // 2] + kept[-_MAX_FRAMES // 2 :]
    following: types.TracebackType | None = None
    for one in reversed(kept):
        following = types.TracebackType(
            following, one.tb_frame, one.tb_lasti, one.tb_lineno
        )
    return following


def _message(error: BaseException) -> str:
    try:
        return _plain_text(str(error))
    except BaseException:  # noqa: BLE001  __str__ of any user class
        return f"<{type(error).__name__} whose text cannot be made>"


def _plain_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _shorten(text: str) -> str:
    """Return a very long text's two ends.

    Jupyter's server drops what comes in faster than it likes: a traceback of megabytes
    would not be seen at all.
    """
    hidden = len(text) - _MAX_NCHARS
    if hidden <= 0:
        return text
    half = _MAX_NCHARS // 2
    note = f"... {hidden} characters left out; the rank's log has them ..."
    return f"{text[:half]}\n{note}\n{text[-half:]}"


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _frames(shell: InteractiveShell, error: BaseException) -> Iterator[FrameFact]:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        yield FrameFact(
            file=_file_name(shell, error.filename),
            line=error.lineno,
            function="<module>",
            source=(error.text or "").strip(),
        )
        return
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if name.startswith((*_LIBRARY, "<frozen ")):
            continue
        yield FrameFact(
            file=_file_name(shell, name),
            line=line,
            function=frame.f_code.co_name,
            source=linecache.getline(name, line, frame.f_globals).strip(),
        )


def _file_name(shell: InteractiveShell, name: str) -> str:
    label = shell.compile.format_code_name(name)
    return " ".join(label) if label else name


def _render(shell: InteractiveShell, error: BaseException) -> str:
    if isinstance(error, UsageError):
        return f"UsageError: {error}"
    if any(isinstance(one, BaseExceptionGroup) for one in _chain(error)):
        return _render_plainly(shell, error)
    kind, trace = type(error), error.__traceback__
    try:
        if hasattr(error, "_render_traceback_"):
            lines: Any = error._render_traceback_()
        elif isinstance(error, SyntaxError):
            elements: Any = traceback.extract_tb(trace)  # IPython's annotation is wrong
            lines = shell.SyntaxTB.structured_traceback(kind, error, elements)
        else:
            lines = shell.InteractiveTB.structured_traceback(
                kind, error, trace, tb_offset=0
            )
        return "\n".join(lines)
    except BaseException:  # noqa: BLE001  __repr__ of user objects runs here
        return _render_plainly(shell, error)


def _render_plainly(shell: InteractiveShell, error: BaseException) -> str:
    """Render as Python does: IPython cannot draw groups."""
    text = "".join(traceback.format_exception(error))
    for one in _chain(error):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            name = frame.f_code.co_filename
            label = _file_name(shell, name)
            if label != name:
                text = text.replace(f'File "{name}"', label)
    return text
