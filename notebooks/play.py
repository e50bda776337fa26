"""Execute a notebook and print what its cells show, while they show it.

    python notebooks/play.py notebooks/02-train-ddp.ipynb

Ends with 1 if a cell fails. The notebook's file is not changed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

if TYPE_CHECKING:
    from nbformat import NotebookNode


REDRAW_EVERY_S = 10.0
"""How often a changing display is printed where lines cannot be taken back."""


class Player(NotebookClient):
    """A notebook client that prints outputs and headings as they come."""

    _cell: int | None = None
    _lines: tuple[str, ...] = ()
    _redrawn_s = 0.0

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Do what nbclient does, then print what it changed on screen."""
        try:
            return super().process_message(msg, cell, cell_index)
        finally:
            state = msg["content"].get("execution_state")
            self._show(cell, cell_index, is_over=state == "idle")

    def _show(self, cell: NotebookNode, cell_index: int, *, is_over: bool) -> None:
        if self._cell != cell_index:
            self._cell, self._lines = cell_index, ()
            for heading in headings_before(self.nb, cell_index):
                print(f"\n{heading}\n", flush=True)
        lines = tuple(line for out in cell.outputs for line in text_of(out))
        pairs = zip(self._lines, lines, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        old = self._lines[same:]
        if old and can_take_back(old):
            print(f"\x1b[{len(old)}A\x1b[J", end="")
        elif old:
            now_s = time.monotonic()
            if not is_over and now_s - self._redrawn_s < REDRAW_EVERY_S:
                return
            self._redrawn_s = now_s
        for line in lines[same:]:
            print(line, flush=True)
        self._lines = lines


def can_take_back(lines: tuple[str, ...]) -> bool:
    """Return whether printed lines can be overwritten: each fills one row."""
    columns = shutil.get_terminal_size().columns
    return sys.stdout.isatty() and max(map(len, lines)) < columns


def text_of(output: NotebookNode) -> list[str]:
    """Return the lines of one output that a terminal can show."""
    if output.output_type == "stream":
        text: str = output.text
    elif output.output_type == "error":
        text = "\n".join(output.traceback)
    else:
        text = output.data.get("text/plain", "")
    # A carriage return takes back what stands before it in its line.
    return [line.rsplit("\r", 1)[-1] for line in text.rstrip("\r\n").split("\n")]


def headings_before(notebook: NotebookNode, cell_index: int) -> list[str]:
    """Return the headings of the markdown cells right before a code cell."""
    headings: list[str] = []
    for cell in reversed(notebook.cells[:cell_index]):
        if cell.cell_type != "markdown":
            break
        lines = [line for line in cell.source.splitlines() if line.startswith("#")]
        headings = lines + headings
    return headings


def main() -> int:
    """Play the notebook named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path)
    path: Path = parser.parse_args().notebook
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    begin_s = time.monotonic()
    try:
        Player(notebook, timeout=None, resources=resources).execute()
    except CellExecutionError:
        print(f"\n{path}: a cell failed, see above", file=sys.stderr)
        return 1
    print(f"\n{path}: every cell ran, in {time.monotonic() - begin_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
