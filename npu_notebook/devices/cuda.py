"""NVIDIA GPUs: CUDA and NCCL."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from npu_notebook.devices.provider import Inventory, ProviderFacts
from npu_notebook.devices.tools import holder, run_tool
from npu_notebook.devices.torch_install import find_torch
from npu_notebook.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable


class CudaProvider:
    """Ranks on NVIDIA GPUs, one device each."""

    facts = ProviderFacts(
        name="cuda",
        device_type="cuda",
        backend="cpu:gloo,cuda:nccl",
        # CUDA cannot start in a forked process once its parent has used it.
        forkable=False,
        label="NVIDIA GPU",
    )

    def discover(self) -> Inventory:
        """Ask nvidia-smi which GPUs there are and who computes on them."""
        listing, failure = run_tool("nvidia-smi", "-L")
        gpus = parse_gpus(listing)
        if not gpus:
            why = failure or "nvidia-smi lists none"
            return Inventory(0, (), f"No NVIDIA GPU was found on this host ({why}).")
        torch = find_torch()
        if torch is None or torch.cuda is None:
            has = f"torch {torch.version}" if torch else "no torch"
            return Inventory(
                count=0,
                names=(),
                reason=f"This host has {len(gpus)} NVIDIA GPUs, but this Python has "
                f"{has} without CUDA: install a torch built for CUDA.",
            )
        visible = _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if not visible:
            return Inventory(
                count=0,
                names=(),
                reason=f"This host has {len(gpus)} NVIDIA GPUs, but "
                "CUDA_VISIBLE_DEVICES hides them all.",
            )
        uses, _ = run_tool(
            "nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"
        )
        return Inventory(
            count=len(visible),
            names=tuple(gpus[index][0] for index in visible),
            reason="",
            holders=tuple(_holders(uses, gpus)),
        )

    def prepare(self, report: Callable[[str], None]) -> None:
        """Do nothing: torch brings its own compiled parts."""

    def environment(self, local_rank: int) -> dict[str, str]:  # noqa: ARG002 - seam
        """Keep other device packages out; let NCCL errors reach Python.

        Notes
        -----
        ``TORCH_NCCL_ASYNC_ERROR_HANDLING`` is 3 by default, which ends the process
        after an NCCL error; 2 only cleans up. Source: torch 2.13.0,
        ``ProcessGroupNCCL.hpp``.
        """
        return {
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get(
                "TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"
            ),
        }

    def bind(self, local_rank: int) -> str:
        """Take GPU `local_rank`.

        Raises
        ------
        DeviceError
            If torch cannot use it.
        """
        import torch

        device = f"cuda:{local_rank}"
        count = torch.cuda.device_count()
        if local_rank >= count:
            problem = f"torch {torch.__version__} sees {count} GPUs"
            remedy = (
                "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or start fewer ranks."
            )
            raise DeviceError(device, problem, remedy)
        try:
            torch.cuda.set_device(local_rank)
        except RuntimeError as error:
            problem = f"it cannot be opened ({str(error).strip().splitlines()[0]})"
            remedy = "See who holds it with `nvidia-smi`, or start on other devices."
            raise DeviceError(device, problem, remedy) from error
        return device


def parse_gpus(listing: str) -> list[tuple[str, str]]:
    """Return name and UUID of each GPU from ``nvidia-smi -L``, in its order."""
    pattern = re.compile(r"^GPU \d+: (.+?) \(UUID: (\S+)\)$", re.MULTILINE)
    return [(match[1], match[2]) for match in pattern.finditer(listing)]


def _visible(gpus: list[tuple[str, str]], setting: str | None) -> list[int]:
    """Return the indices ``CUDA_VISIBLE_DEVICES`` leaves visible.

    It holds indices or beginnings of UUIDs; what follows the first bad entry is not
    visible. Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    if setting is None:
        return list(range(len(gpus)))
    indices: list[int] = []
    for text in (part.strip() for part in setting.split(",")):
        if text.isdecimal() and int(text) < len(gpus):
            indices.append(int(text))
            continue
        matches = [i for i, gpu in enumerate(gpus) if text and gpu[1].startswith(text)]
        if len(matches) != 1:
            break
        indices.append(matches[0])
    return indices


def _holders(uses: str, gpus: list[tuple[str, str]]) -> list[str]:
    numbers = {uuid: index for index, (_, uuid) in enumerate(gpus)}
    found: list[str] = []
    for line in uses.splitlines():
        uuid, _, pid = (part.strip() for part in line.partition(","))
        if uuid in numbers and pid.isdecimal():
            found.append(holder(f"GPU {numbers[uuid]}", int(pid)))
    return found
