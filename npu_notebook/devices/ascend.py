"""Real Ascend NPUs: torch_npu and HCCL.

Not run on hardware: what is stated here comes from the files named in the notes.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from npu_notebook.devices.provider import Inventory, ProviderFacts
from npu_notebook.devices.tools import holder, run_tool
from npu_notebook.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

_SMI_FOLDERS = ("/usr/local/bin", "/usr/local/sbin")
_SIMULATED_INSTEAD = "use simulated NPUs (--device simulated)"


class AscendProvider:
    """Ranks on Ascend NPUs, one device each."""

    facts = ProviderFacts(
        name="ascend",
        device_type="npu",
        backend="cpu:gloo,npu:hccl",
        # torch_npu refuses to start in a forked process once it was initialised.
        forkable=False,
        label="Ascend NPU",
    )

    def discover(self) -> Inventory:
        """Count the device files of the driver and ask npu-smi for names and holders.

        Notes
        -----
        ``ASCEND_RT_VISIBLE_DEVICES`` holds indices into the devices of this host or
        container, ascending; torch_npu ignores what follows the first bad entry.
        """
        files = sorted(Path("/dev").glob("davinci[0-9]*"))
        if not files:
            return Inventory(
                count=0,
                names=(),
                reason="No Ascend NPU was found on this host (there is no /dev/davinci"
                " device).",
            )
        visible = _visible(len(files), os.environ.get("ASCEND_RT_VISIBLE_DEVICES"))
        if not visible:
            return Inventory(
                count=0,
                names=(),
                reason=f"This host has {len(files)} Ascend NPUs, but "
                "ASCEND_RT_VISIBLE_DEVICES hides them all.",
            )
        if importlib.util.find_spec("torch_npu") is None:
            return Inventory(
                count=0,
                names=(),
                reason=f"This host has {len(files)} Ascend NPUs, but torch_npu is not "
                "installed in this Python: pip install the torch-npu of the same "
                "version as torch.",
            )
        mapping, _ = run_tool("npu-smi", "info", "-m", folders=_SMI_FOLDERS)
        names = parse_names(mapping)
        table, _ = run_tool("npu-smi", "info", folders=_SMI_FOLDERS)
        return Inventory(
            count=len(visible),
            names=tuple(names.get(index, "Ascend NPU") for index in visible),
            reason="",
            holders=tuple(holder(f"npu {npu}", pid) for npu, pid in parse_pids(table)),
        )

    def prepare(self, report: Callable[[str], None]) -> None:
        """Do nothing: torch_npu brings its own compiled parts."""

    def environment(self, local_rank: int) -> dict[str, str]:  # noqa: ARG002 - seam
        """Return the variables torch_npu reads while it is imported.

        Notes
        -----
        - ``bind`` imports torch_npu itself: a failing autoload breaks ``import torch``.
        - In a notebook kernel torch_npu sets ``TASK_QUEUE_ENABLE=0``, which slows down
          every process started from it; 1 is its default elsewhere.
        - ``TORCH_HCCL_ASYNC_ERROR_HANDLING`` is 1 by default, which ends the process
          on an HCCL error and loses the notebook's variables; 2 only cleans up.

        Source: torch_npu 2.13.0, ``utils/utils.py``, ``csrc/distributed``.
        """
        queue = os.environ.get("TASK_QUEUE_ENABLE", "")
        return {
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "TASK_QUEUE_ENABLE": queue if queue in {"1", "2"} else "1",
            "TORCH_HCCL_ASYNC_ERROR_HANDLING": os.environ.get(
                "TORCH_HCCL_ASYNC_ERROR_HANDLING", "2"
            ),
        }

    def bind(self, local_rank: int) -> str:
        """Import torch_npu and take device `local_rank`.

        Raises
        ------
        DeviceError
            If torch_npu cannot be imported, or there is no such device.
        """
        device = f"npu:{local_rank}"
        try:
            import torch_npu  # type: ignore[import-not-found]
        except ImportError as error:
            raise _import_error(device, error) from error
        # Child processes of a cell (`!python train.py`) shall load torch_npu by
        # themselves again.
        os.environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
        count = torch_npu.npu.device_count()
        if local_rank >= count:
            problem = f"torch_npu sees {count} NPUs"
            remedy = (
                "Check ASCEND_RT_VISIBLE_DEVICES (ascending indices from 0, no blanks) "
                "and `npu-smi info`, or start fewer ranks."
            )
            raise DeviceError(device, problem, remedy)
        try:
            torch_npu.npu.set_device(local_rank)
        except RuntimeError as error:
            problem = f"it cannot be opened ({_first_line(error)})"
            remedy = (
                "See who holds it with `npu-smi info`, or start on other devices with "
                "ASCEND_RT_VISIBLE_DEVICES."
            )
            raise DeviceError(device, problem, remedy) from error
        return device


def _visible(count: int, setting: str | None) -> list[int]:
    """Return the indices ``ASCEND_RT_VISIBLE_DEVICES`` leaves visible."""
    if setting is None:
        return list(range(count))
    indices: list[int] = []
    for text in setting.split(","):
        if not text.isdecimal() or int(text) >= count:
            break
        indices.append(int(text))
    if indices != sorted(set(indices)):
        return []
    return indices


def parse_names(mapping: str) -> dict[int, str]:
    """Return chip names by logic id from ``npu-smi info -m``.

    Rows of board controllers (``Mcu``) have no logic id and are left out; an unknown
    layout gives no names.
    """
    names: dict[int, str] = {}
    column: int | None = None
    for line in mapping.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if "Chip Logic ID" in cells:
            column = cells.index("Chip Logic ID")
        elif (
            column is not None
            and len(cells) > column + 1
            and cells[column].isdecimal()
            and cells[-1].lower() != "mcu"
        ):
            names[int(cells[column])] = cells[-1]
    return names


def parse_pids(table: str) -> list[tuple[str, int]]:
    """Return the NPU id and the process id of each running process.

    Read from the process table of ``npu-smi info``, whose columns differ in width
    between releases; process names may be empty.
    """
    found: list[tuple[str, int]] = []
    in_processes = False
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "Process id" in cells:
            in_processes = True
        elif in_processes and len(cells) >= 2 and cells[1].isdecimal():  # noqa: PLR2004
            npu = cells[0].split()
            if npu and npu[0].isdecimal():
                found.append((npu[0], int(cells[1])))
    return found


def _import_error(device: str, error: ImportError) -> DeviceError:
    text = _first_line(error)
    missing = re.search(r"(lib\w+\.so[\w.]*): cannot open shared object file", text)
    if missing is not None:
        return DeviceError(
            device,
            f"torch_npu cannot be imported: {missing[1]} of CANN was not found",
            "Run `source /usr/local/Ascend/ascend-toolkit/set_env.sh` (or cann/"
            f"set_env.sh) in the shell that starts Jupyter, or {_SIMULATED_INSTEAD}.",
        )
    return DeviceError(
        device,
        f"torch_npu cannot be imported ({text})",
        "Install the torch-npu of the same version as torch and source CANN's "
        f"set_env.sh before Jupyter starts, or {_SIMULATED_INSTEAD}.",
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
