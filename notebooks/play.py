"""Execute a notebook and print what its cells show, while they show it.

    python notebooks/play.py notebooks/02-train-ddp.ipynb

Ends with 1 if a cell fails. The notebook's file is not changed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

if TYPE_CHECKING:
    from nbformat import NotebookNode


class Player(NotebookClient):
    """A notebook client that prints outputs and headings as they come."""

    _shown_cell: int | None = None
    _shown_lines: tuple[str, ...] = ()

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Do what nbclient does, then print what it changed on screen."""
        try:
            return super().process_message(msg, cell, cell_index)
        finally:
            self._show(cell, cell_index)

    def _show(self, cell: NotebookNode, cell_index: int) -> None:
        if self._shown_cell != cell_index:
            self._shown_cell, self._shown_lines = cell_index, ()
            for heading in headings_before(self.nb, cell_index):
                print(f"\n{heading}\n", flush=True)
        lines = tuple(line for out in cell.outputs for line in text_of(out))
        # An output that is redrawn, as progress is, is printed from where it differs.
        same = 0
        for old, new in zip(self._shown_lines, lines, strict=False):
            if old != new:
                break
            same += 1
        for line in lines[same:]:
            print(line, flush=True)
        self._shown_lines = lines


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
