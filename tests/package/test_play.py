"""`make quickstart` shows what a notebook shows, as it comes."""

import subprocess
import sys
from pathlib import Path

import nbformat

PLAY = Path(__file__).parents[2] / "notebooks/play.py"


def play(folder: Path, *cells: str) -> subprocess.CompletedProcess[str]:
    sources = [nbformat.v4.new_markdown_cell("# Title\n\nnot shown")]
    sources += [nbformat.v4.new_code_cell(cell) for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=sources)
    notebook.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    path = folder / "small.ipynb"
    nbformat.write(notebook, path)
    command = [sys.executable, PLAY, path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_outputs_come_in_order_and_a_redrawn_one_is_not_printed_each_time(tmp_path):
    redraw = (
        "from IPython.display import display\n"
        "d = display({'text/plain': 'a\\nb'}, raw=True, display_id=True)\n"
        "for text in ('a\\nc', 'a\\nd', 'a\\ne'):\n"
        "    d.update({'text/plain': text}, raw=True)\n"
        "'the end'"
    )
    done = play(tmp_path, "print('10%\\r20%\\nfirst')", redraw)
    shown = [line for line in done.stdout.splitlines() if line]
    assert shown[:-1] == [
        *("# Title", "20%", "first"),
        *("a", "b", "c", "e", "'the end'"),
    ]
    assert "every cell ran" in shown[-1]
    assert done.returncode == 0


def test_a_failing_cell_ends_it_and_is_seen(tmp_path):
    done = play(tmp_path, "1 / 0", "print('after')")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout
    assert "after" not in done.stdout
    assert "a cell failed" in done.stderr
