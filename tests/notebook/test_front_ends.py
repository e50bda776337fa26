"""The magics without our kernel: a terminal, nbclient and papermill."""

import os
import sys
from pathlib import Path

import nbformat
import papermill
import pexpect
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from npu_notebook import runtime

START = "%npu_cluster start -n 2 --device none --name {}"


def running() -> set[str]:
    return {one.connection.name for one in runtime.list_clusters() if one.alive}


class Terminal:
    """IPython as a person types into it."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "IPYTHONDIR": str(folder), "TERM": "xterm"}
        self.process = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"],
            env=environment,
            encoding="utf-8",
            timeout=50,
            dimensions=(40, 200),
        )
        self.number = 1
        self._prompt()

    def run(self, line: str) -> str:
        """Type a line and return what it printed."""
        self.process.sendline(line)
        return self.output()

    def output(self) -> str:
        """Return what was printed until the next prompt."""
        self.number += 1
        before = self._prompt()
        return before.partition("\r\n")[2].replace("\r\n", "\n")

    def _prompt(self) -> str:
        self.process.expect_exact(f"In [{self.number}]: ")
        before: str = self.process.before or ""
        return before

    def leave(self) -> None:
        """Type exit and wait for the end."""
        self.process.sendline("exit")
        self.process.expect(pexpect.EOF)
        self.process.close()


def test_a_terminal_has_the_same_magics_and_its_end_ends_the_cluster(tmp_path: Path):
    terminal = Terminal(tmp_path)
    terminal.run("%load_ext npu_notebook")
    started = terminal.run(START.format("terminal"))
    assert "Starting" in started  # the progress, redrawn in its line
    assert "ready after" in started
    assert terminal.run("%spmd print('hi', rank)").split("\n")[:2] == [
        "[0] hi 0",
        "[1] hi 1",
    ]
    assert "ranks 0-1: ZeroDivisionError" in terminal.run("%spmd 1/0")

    terminal.process.sendline(
        "%spmd print('runs', flush=True); __import__('time').sleep(60)"
    )
    terminal.process.expect(r"\[[01](-1)?\] runs")
    terminal.process.sendintr()
    assert "Interrupted: ranks 0-1" in terminal.output()
    assert "] 'still here'" in terminal.run("%spmd 'still here'")

    bar = "%spmd --ranks 1 import sys; [sys.stderr.write(f'\\r{n}') for n in range(3)]"
    assert "[1] 2" in terminal.run(f"{bar} and None")
    assert "terminal" in running()
    terminal.leave()
    assert "terminal" not in running()


def small_notebook(name: str) -> nbformat.NotebookNode:
    sources = [
        "value = 1",
        f"%load_ext npu_notebook\n{START.format(name)}",
        "%push value",
        "%%spmd\nprint('value', value)",
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[0].metadata["tags"] = ["parameters"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    return notebook


def said(text: str) -> set[str]:
    """Return the ways two ranks can say the same: together, or one much later."""
    return {f"[{ranks}] {text}" for ranks in ("0-1", "0", "1")} | {""}


def test_nbclient_runs_it_and_leaves_nothing(tmp_path: Path):
    notebook = small_notebook("nbclient")
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=50, resources=resources).execute()
    assert set(notebook.cells[-1].outputs[0].text.split("\n")) <= said("value 1")
    # The start was redrawn in place: one output, a table.
    assert len(notebook.cells[1].outputs) == 1
    assert "<table>" in notebook.cells[1].outputs[0].data["text/html"]
    assert "nbclient" not in running()


def test_papermill_runs_it_with_parameters(tmp_path: Path):
    nbformat.write(small_notebook("papermill"), tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb",
        tmp_path / "out.ipynb",
        parameters={"value": 42},
        cwd=tmp_path,
        progress_bar=False,
    )
    assert set(done.cells[-1].outputs[0].text.split("\n")) <= said("value 42")
    assert "papermill" not in running()


def test_a_failing_cell_stops_the_notebook(tmp_path: Path):
    notebook = small_notebook("failing")
    notebook.cells.append(nbformat.v4.new_code_cell("%spmd 1/0"))
    notebook.cells.append(nbformat.v4.new_code_cell("print('never')"))
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=50, resources=resources)
    with pytest.raises(CellExecutionError, match="ranks 0-1: ZeroDivisionError"):
        client.execute()
    assert notebook.cells[-1].outputs == []
