"""Every notebook of the course runs and its assertions hold."""

import json
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def own_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make Jupyter find the project's kernel, whatever else is installed."""
    spec = json.loads((ROOT / "kernelspec" / "kernel.json").read_text())
    spec["argv"][0] = sys.executable
    place = tmp_path / "jupyter" / "kernels" / "npu_notebook"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))


# The simulated NPU may have to be compiled first: minutes on a busy machine.
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("own_kernel")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_assertions_hold(path: Path, tmp_path: Path):
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=600, resources=resources)
    client.execute()
    expected = [
        "raises-exception" in cell.metadata.get("tags", ()) for cell in notebook.cells
    ]
    failed = [
        any(out.output_type == "error" for out in cell.get("outputs", ()))
        for cell in notebook.cells
    ]
    assert failed == expected  # what shall fail has failed, and nothing else


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "npu_notebook"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_there_is_a_course():
    assert len(NOTEBOOKS) >= 2
