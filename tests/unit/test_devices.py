"""Providers: what they find, what they say, and that the agent imports no torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_notebook import plugins
from npu_notebook.devices import ascend, cuda
from npu_notebook.devices.ascend import AscendProvider
from npu_notebook.devices.cpu import CpuProvider
from npu_notebook.devices.cuda import CudaProvider
from npu_notebook.devices.provider import DeviceProvider
from npu_notebook.devices.simulated import SimulatedProvider, settings
from npu_notebook.devices.tools import holder, run_tool
from npu_notebook.devices.torch_install import find_torch
from npu_notebook.errors import ConfigError

PROVIDERS = [AscendProvider, SimulatedProvider, CudaProvider, CpuProvider]


@pytest.mark.parametrize("kind", PROVIDERS, ids=lambda kind: kind.facts.name)
def test_a_provider_is_found_by_its_own_name(kind: type[DeviceProvider]):
    provider = plugins.load("npu_notebook.devices", kind.facts.name)
    assert type(provider) is kind


@pytest.mark.parametrize("kind", PROVIDERS, ids=lambda kind: kind.facts.name)
def test_no_backend_package_is_loaded_by_importing_torch(kind: type[DeviceProvider]):
    assert kind().environment(0)["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


def test_only_the_simulated_label_belongs_to_the_simulated_npu():
    labels = {kind.facts.label for kind in PROVIDERS}
    assert labels == {"simulated NPU", "Ascend NPU", "NVIDIA GPU", "CPU"}


def test_discovering_and_preparing_import_no_torch():
    code = (
        "import sys\n"
        "from npu_notebook.devices.ascend import AscendProvider\n"
        "from npu_notebook.devices.cpu import CpuProvider\n"
        "from npu_notebook.devices.cuda import CudaProvider\n"
        "from npu_notebook.devices.simulated import SimulatedProvider, build\n"
        "for kind in (AscendProvider, CpuProvider, CudaProvider, SimulatedProvider):\n"
        "    kind().discover(); kind().environment(0)\n"
        "build.is_built(build.plan())\n"
        "print([name for name in sys.modules if name.startswith('torch')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_cpu_ranks_bind_to_the_cpu():
    assert CpuProvider().discover().count == 64
    assert CpuProvider().bind(3) == "cpu"


def test_the_torch_that_is_found_is_the_torch_that_is_imported():
    found = find_torch()
    code = "import torch; print(torch.__version__, torch.version.git_version)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [found.version, found.git_version]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2GiB", 2 << 30),
        ("512 MiB", 512 << 20),
        ("1.5gb", 1_500_000_000),
        ("4096", 4096),
        (" 1KiB ", 1024),
    ],
)
def test_a_size_of_memory_is_read(text: str, nbytes: int):
    assert settings.parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "0", "2 GiBs", "9999999TiB"])
def test_a_bad_size_of_memory_is_explained(text: str):
    with pytest.raises(ConfigError, match=r"no size of memory.*Write it like 2GiB"):
        settings.parse_size(text)


def test_the_number_of_simulated_npus_follows_the_ranks_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.delenv("NPU_NOTEBOOK_SIMULATED_DEVICES", raising=False)
    assert settings.simulated_devices() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert settings.simulated_devices() == 3
    monkeypatch.setenv("NPU_NOTEBOOK_SIMULATED_DEVICES", "5")
    assert settings.simulated_devices() == 5


@pytest.mark.parametrize("number", ["0", "65", "two", "-1"])
def test_a_bad_number_of_simulated_npus_is_explained(
    monkeypatch: pytest.MonkeyPatch, number: str
):
    monkeypatch.setenv("NPU_NOTEBOOK_SIMULATED_DEVICES", number)
    with pytest.raises(ConfigError, match="Give a number from 1 to 64"):
        settings.simulated_devices()


# The texts of npu-smi follow the layouts of captures of these generations.

MAPPING_910B = """\
\tNPU ID                         Chip ID                        Chip Logic ID\
                  Chip Name
\t3                              0                              0\
                              Ascend 910B3
\t3                              1                              -\
                              Mcu
\t4                              0                              1\
                              Ascend 910B3
\t4                              1                              -\
                              Mcu
"""
MAPPING_A3 = """\
\tNPU ID      Chip ID      Chip Logic ID      Chip Phy-ID      Chip Name
\t0           0            0                  0                Ascend910
\t0           1            1                  1                Ascend910
"""
MAPPING_950 = """\
NPU ID          Slot ID          Chip ID          Chip Phy-ID          Chip Name
0               0                0                0                    xxx
"""
TABLE = """\
+---------------------------+---------------+--------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)                  |
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)         |
+===========================+===============+======================================+
| 7     910B2               | OK            | 96.0        45                       |
| 0                         | 0000:42:00.0  | 0           0    / 0                 |
+===========================+===============+======================================+
+---------------------------+---------------+--------------------------------------+
| NPU     Chip              | Process id    | Process name      | Process memory(MB)|
+===========================+===============+======================================+
| No running processes found in NPU 0                                              |
+===========================+===============+======================================+
| 1       0                 | 30496         |                   | 328              |
| 2       0                 | 22400         | python            | 21066            |
+===========================+===============+======================================+
"""


@pytest.mark.parametrize(
    ("mapping", "names"),
    [
        (MAPPING_910B, {0: "Ascend 910B3", 1: "Ascend 910B3"}),
        (MAPPING_A3, {0: "Ascend910", 1: "Ascend910"}),
        (MAPPING_950, {}),  # has no logic id: the names stay unknown
        ("There is no NPU card on this server.\n", {}),
        ("", {}),
    ],
    ids=["910b", "a3", "950", "no card", "nothing"],
)
def test_chip_names_are_read_by_logic_id(mapping: str, names: dict[int, str]):
    assert ascend.parse_names(mapping) == names


def test_processes_on_npus_are_read_without_their_names():
    assert ascend.parse_pids(TABLE) == [("1", 30496), ("2", 22400)]
    assert ascend.parse_pids("dcmi model initialized failed. ret is -8020") == []


@pytest.mark.parametrize(
    ("setting", "visible"),
    [
        (None, [0, 1, 2, 3]),
        ("1,3", [1, 3]),
        ("0,9,1", [0]),
        ("3,1", []),
        ("0,0", []),
        ("", []),
    ],
)
def test_visible_npus_are_those_torch_npu_sees(setting: str | None, visible: list[int]):
    assert ascend._visible(4, setting) == visible


def test_a_host_without_npus_says_so():
    if any(Path("/dev").glob("davinci[0-9]*")):
        pytest.skip("this host has Ascend NPUs")
    inventory = AscendProvider().discover()
    assert inventory.count == 0
    assert inventory.reason.startswith("No Ascend NPU was found on this host")


def test_ascend_ranks_keep_the_task_queue_and_survive_an_hccl_error(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "0")  # as a kernel with torch_npu leaves it
    monkeypatch.delenv("TORCH_HCCL_ASYNC_ERROR_HANDLING", raising=False)
    variables = AscendProvider().environment(0)
    assert variables["TASK_QUEUE_ENABLE"] == "1"
    assert variables["TORCH_HCCL_ASYNC_ERROR_HANDLING"] == "2"
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "2")
    assert AscendProvider().environment(0)["TASK_QUEUE_ENABLE"] == "2"


GPUS = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
"""


def test_gpus_are_read():
    name = "NVIDIA A100-SXM4-40GB"
    assert cuda.parse_gpus(GPUS) == [(name, "GPU-aaaa"), (name, "GPU-bbbb")]
    assert cuda.parse_gpus("No devices were found\n") == []


@pytest.mark.parametrize(
    ("setting", "visible"),
    [(None, [0, 1]), ("1", [1]), ("GPU-b", [1]), ("1,7,0", [1]), ("-1", []), ("", [])],
)
def test_visible_gpus_are_those_cuda_sees(setting: str | None, visible: list[int]):
    assert cuda._visible(cuda.parse_gpus(GPUS), setting) == visible


def _tool(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    (folder / "nvidia-smi").chmod(0o755)


def test_gpus_beside_a_torch_without_cuda_are_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _tool(tmp_path / "bin", f"cat <<'END'\n{GPUS}END")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    torch = find_torch()
    inventory = CudaProvider().discover()
    if torch.cuda is None:
        assert inventory.count == 0
        assert "2 NVIDIA GPUs" in inventory.reason
        assert torch.version in inventory.reason
    else:
        assert inventory.count == 2


def test_a_failing_tool_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _tool(tmp_path / "bin", "echo driver not loaded >&2; exit 9")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert run_tool("nvidia-smi", "-L") == (
        "",
        "nvidia-smi failed with exit code 9: driver not loaded",
    )
    assert run_tool("no-such-tool") == ("", "no-such-tool is not installed")
    assert "driver not loaded" in CudaProvider().discover().reason


def test_a_holder_is_named_as_far_as_it_is_known():
    named = holder("npu 2", os.getpid())
    assert named.startswith(f"npu 2: pid {os.getpid()} (")
    assert ", user " in named
    assert holder("npu 2", 2**30) == f"npu 2: pid {2**30}"
