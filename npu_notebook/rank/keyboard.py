"""``sys.stdin`` of a rank: nobody types there, and whoever asks is told so at once."""

from __future__ import annotations

import io
import sys
from typing import NoReturn

from npu_notebook.errors import NpuNotebookError


class NoKeyboardError(NpuNotebookError, RuntimeError):
    """A cell asked for an answer that nobody can type.

    No `EOFError`: ``pdb`` would take that for the user's wish to quit and hide the
    sentence.
    """

    def __str__(self) -> str:
        return (
            "ranks have no keyboard: nobody can answer input(), breakpoint() or the "
            "like. Ask in a cell of the notebook itself (`name = input()`) and send "
            "the answer with `%push name`; look at variables with print() or `%pull`"
        )


class NoKeyboard(io.TextIOBase):
    """A stream that is at its end for programs and refuses those who ask a person."""

    encoding = "utf-8"
    errors = "strict"
    newlines = None
    name = "<stdin>"
    mode = "r"

    def readline(self, _size: int = -1) -> NoReturn:  # type: ignore[override]  # never returns
        """Refuse: `input` and the debuggers come here.

        Raises
        ------
        NoKeyboardError
            Always.
        """
        raise NoKeyboardError

    def read(self, _size: int | None = -1) -> str:
        """Return "": a script that reads what was piped into it finds nothing."""
        return ""

    def __next__(self) -> NoReturn:
        """End at once, for the reason of `read`."""
        raise StopIteration

    def fileno(self) -> int:
        """Return 0, which is /dev/null: child processes find nothing there either."""
        return 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Do nothing."""


def take_away() -> None:
    """Replace ``sys.stdin``, and what it was at the start."""
    for name in ("stdin", "__stdin__"):
        setattr(sys, name, NoKeyboard())
