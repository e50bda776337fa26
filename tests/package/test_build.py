"""The built package works in an environment that never saw the repository.

The wheel is built from the sdist, so that what the sdist lacks is missed here.
"""

import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "npu_notebook"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder with the sdist and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT])
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Path:
    """The bin folder of a new environment with the wheel in it.

    Dependencies are borrowed from this one: its site-packages come last, and `.pth`
    files in them (that of the editable install, too) are not read there.
    """
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--no-input"]
    run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel])
    site = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    borrowed = Path(site.strip()) / "zz_borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def run(command: list[str | Path], **options) -> str:
    """Run a command outside the repository and return what it prints."""
    done = subprocess.run(
        command, cwd="/", text=True, capture_output=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def sources() -> set[str]:
    files = [path for path in PACKAGE.rglob("*") if path.is_file()]
    return {
        path.relative_to(ROOT).as_posix()
        for path in files
        if "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if name.startswith("npu_notebook/")}
    assert inside == sources()
    assert any(name.endswith(".cpp") for name in inside)
    rest = {name for name in names - inside if ".dist-info/" not in name}
    assert {name.split("/", 1)[1] for name in rest} == {
        f"data/share/jupyter/kernels/npu_notebook/{name}"
        for name in ("kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg")
    }


def test_the_sdist_holds_what_is_needed_to_build_and_test(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert sources() <= names
    assert {"LICENSE", "Makefile", "constraints.txt", "pyproject.toml"} <= names
    assert {"tests/conftest.py", "kernelspec/kernel.json", "docs/conf.py"} <= names


def test_the_import_loads_neither_torch_nor_ipython(installed):
    script = (
        "import sys, npu_notebook\n"
        "print(npu_notebook.__file__, *({'torch', 'IPython'} & set(sys.modules)))"
    )
    path, *loaded = run([installed / "python", "-c", script]).split()
    assert path.startswith(str(installed.parent))
    assert loaded == []


def test_jupyter_finds_the_kernel(installed):
    command = [installed / "python", "-m", "jupyter_client.kernelspecapp", "list"]
    specs = json.loads(run([*command, "--json"]))["kernelspecs"]
    assert specs["npu_notebook"]["resource_dir"].startswith(str(installed.parent))
    assert specs["npu_notebook"]["spec"]["display_name"] == "NPU Cluster (Python 3)"


def test_the_command_runs(installed):
    text = run([installed / "npu-notebook", "--help"])
    assert "list" in text
    assert "stop" in text


def test_the_installed_package_runs_a_cluster(installed, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from npu_notebook import Cluster\n"
        "with Cluster.start(num_ranks=2, device='none') as cluster:\n"
        "    cluster.run('print(rank + 40)')\n"
    )
    text = run([installed / "python", script])
    assert "40" in text
    assert "41" in text
