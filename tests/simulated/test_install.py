"""Installing the simulated NPU in a process of its own, beside other packages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from npu_notebook.devices.ascend import AscendProvider
from npu_notebook.devices.simulated import SimulatedProvider

# The first start may have to compile the library.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parent.parent.parent
BIND = (
    "from npu_notebook.devices.simulated import SimulatedProvider\n"
    "device = SimulatedProvider().bind(1)\n"
)


def run(
    code: str, *, variables: dict[str, str], folders: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run code in a new Python, as a rank that was not forked."""
    path = os.pathsep.join([*map(str, folders), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables},
    )


@pytest.fixture
def broken_torch_npu(tmp_path: Path) -> Path:
    """Put a torch_npu without CANN on the path, one that torch loads by itself."""
    package = tmp_path / "torch_npu"
    package.mkdir()
    (package / "__init__.py").write_text(
        'raise ImportError("libhccl.so: cannot open shared object file: No such file '
        'or directory")\n',
        encoding="utf-8",
    )
    metadata = tmp_path / "torch_npu-2.13.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n", encoding="utf-8"
    )
    (metadata / "entry_points.txt").write_text(
        "[torch.backends]\ntorch_npu = torch_npu:_autoload\n", encoding="utf-8"
    )
    return tmp_path


def test_a_broken_torch_npu_on_the_machine_does_not_matter(broken_torch_npu: Path):
    alone = run(
        "import torch",
        variables={"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"},
        folders=(broken_torch_npu,),
    )
    assert alone.returncode != 0
    assert "libhccl.so" in alone.stderr

    beside = run(
        f"import torch\n{BIND}"
        "import torch_npu\n"
        "assert device == 'npu:1', device\n"
        "assert (torch.ones(2).npu() + 1).tolist() == [2, 2]\n"
        "print(torch_npu.__version__)\n",
        variables=SimulatedProvider().environment(1),
        folders=(broken_torch_npu,),
    )
    assert beside.returncode == 0, beside.stderr
    assert beside.stdout.strip() == "0+simulated"


def test_a_torch_npu_without_cann_is_explained_to_ascend_ranks(broken_torch_npu: Path):
    done = run(
        "import torch\n"
        "from npu_notebook.devices.ascend import AscendProvider\n"
        "from npu_notebook.errors import DeviceError\n"
        "try: AscendProvider().bind(0)\n"
        "except DeviceError as error: print(error)\n",
        variables=AscendProvider().environment(0),
        folders=(broken_torch_npu,),
    )
    assert done.stdout.startswith(
        "npu:0: torch_npu cannot be imported: libhccl.so of CANN was not found. Run "
        "`source "
    )
    assert "--device simulated" in done.stdout


def test_a_process_ends_well_with_tensors_and_groups_alive():
    done = run(
        f"import torch\n{BIND}"
        "import torch.distributed as dist\n"
        "store = dist.HashStore()\n"
        "dist.init_process_group('cpu:gloo,npu:hccl', store=store, rank=0,"
        " world_size=1)\n"
        "module = torch.nn.Linear(4, 4).npu()\n"
        "work = dist.all_reduce(torch.ones(3).npu(), async_op=True)\n"
        "pinned = torch.ones(3).pin_memory()\n"
        "module(torch.ones(2, 4).npu()).sum().backward()\n"
        "print('done')\n",
        variables=SimulatedProvider().environment(1),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done"


def test_binding_twice_only_changes_the_device():
    done = run(
        f"import torch\n{BIND}"
        "x = torch.ones(1).npu()\n"
        "assert SimulatedProvider().bind(2) == 'npu:2'\n"
        "print(x.device, torch.ones(1).npu().device)\n",
        variables=SimulatedProvider().environment(1),
    )
    assert done.stdout.strip() == "npu:1 npu:2", done.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NPU_NOTEBOOK_SIMULATED_MEMORY": "lots"}, "ConfigError.*'lots' is no size"),
        ({"NPU_NOTEBOOK_SIMULATED_DEVICES": "1"}, "ConfigError.*1 are simulated"),
    ],
    ids=["memory", "devices"],
)
def test_a_bad_setting_is_a_config_error(variables: dict[str, str], words: str):
    done = run(
        "import torch\n"
        f"try:\n    exec({BIND!r})\n"
        "except Exception as error: print(type(error).__name__, error)\n",
        variables={**SimulatedProvider().environment(1), **variables},
    )
    assert re.match(words, done.stdout.strip())


def test_another_owner_of_the_extra_device_is_named():
    done = run(
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('mine')\n"
        "from npu_notebook.errors import DeviceError\n"
        f"try:\n    exec({BIND!r})\n"
        "except DeviceError as error: print(error)\n",
        variables=SimulatedProvider().environment(1),
    )
    assert "another package owns torch's extra device (named 'mine')" in done.stdout
