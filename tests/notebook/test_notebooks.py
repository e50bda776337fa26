"""Every notebook of the course runs and its assertions hold."""

import json
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def install_kernel(folder: Path) -> KernelSpecManager:
    """Return a manager that knows the project's kernel, whatever is installed."""
    spec = json.loads((ROOT / "kernelspec" / "kernel.json").read_text())
    spec["argv"][0] = sys.executable
    place = folder / "npu_notebook"
    place.mkdir()
    (place / "kernel.json").write_text(json.dumps(spec))
    return KernelSpecManager(kernel_dirs=[str(folder)])


# The simulated NPU may have to be compiled first: minutes on a busy machine.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_assertions_hold(path: Path, tmp_path: Path):
    notebook = nbformat.read(path, as_version=4)
    manager = KernelManager(
        kernel_name="npu_notebook", kernel_spec_manager=install_kernel(tmp_path)
    )
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=600,
        resources={"metadata": {"path": str(tmp_path)}},
    )
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
