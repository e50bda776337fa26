"""Show a cell's output in a plain Python program: labelled lines on stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from npu_notebook import messages

if TYPE_CHECKING:
    from npu_notebook.cells import Show
    from npu_notebook.messages import Update


def print_update() -> Show:
    """Return a function that prints the updates of one cell as they come."""
    open_lines: dict[tuple[int, str], str] = {}

    def show(update: Update | None) -> None:
        match update:
            case messages.StreamText(rank=rank, stream=stream, text=text):
                whole = open_lines.pop((rank, stream), "") + text
                *lines, rest = whole.split("\n")
                for line in lines:
                    _write(rank, stream, line)
                if rest:
                    open_lines[rank, stream] = rest
            case messages.DisplayOutput(rank=rank, data=data):
                _write(rank, "stdout", str(data.get("text/plain", "")))
            case messages.Notice(text=text):
                _write(None, "stderr", text)
            case messages.CellFinished(outcomes=outcomes):
                for (rank, stream), rest in sorted(open_lines.items()):
                    _write(rank, stream, rest)
                for one in outcomes:
                    if one.hidden_lines:
                        _write(one.rank, "stderr", hidden(one))
            case _:
                pass

    return show


def hidden(outcome: messages.RankOutcome) -> str:
    """Return the sentence about output that was not shown."""
    return f"{outcome.hidden_lines:,} lines hidden, full text in {outcome.spool_path}"


def _write(rank: int | None, stream: str, line: str) -> None:
    target = sys.stderr if stream == "stderr" else sys.stdout
    target.write(f"[{rank}] {line}\n" if rank is not None else f"{line}\n")
    target.flush()
