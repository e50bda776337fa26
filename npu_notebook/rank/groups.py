"""The process group of a rank: formed with the cluster, found by training scripts."""

from __future__ import annotations

import datetime as dt
import os
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import Backend, PrefixStore, Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.messages import FormGroup

_ALREADY = (
    "the cluster has already made the process group of its {world_size} ranks with "
    "backend {backend!r}, and {difference}. Leave that argument out, or call "
    "torch.distributed.destroy_process_group() first"
)


class Groups:
    """Form the default group of each epoch and answer ``init_process_group``.

    Parameters
    ----------
    rank : int
        This rank.
    backend : str
        What the provider wants; a mapping such as ``"cpu:gloo,npu:hccl"`` reduces CPU
        tensors too, which a group of the device's own backend refuses.
    device : torch.device
        Where the probe is reduced.
    """

    def __init__(self, rank: int, backend: str, device: torch.device) -> None:
        self._rank = rank
        self._backend = backend
        self._device = device
        self._form: FormGroup | None = None
        self._store: Store | None = None
        self._attempts = 0
        self._original_init = dist.init_process_group

    def install(self) -> None:
        """Put ourselves where training scripts ask for a group."""
        _replace("init_process_group", self._init_process_group)
        _replace("get_backend", _named_by_device(dist.get_backend))

    def form(self, command: FormGroup) -> None:
        """Leave any group, form the one of this epoch and check it with one sum.

        Raises
        ------
        RuntimeError
            If the ranks do not meet in time or the sum is wrong.
        """
        if dist.is_initialized():
            dist.destroy_process_group()
        timeout = dt.timedelta(seconds=command.timeout_s)
        os.environ["MASTER_ADDR"] = command.master_address
        os.environ["MASTER_PORT"] = str(command.master_port)
        client = TCPStore(
            command.master_address,
            command.master_port,
            is_master=False,
            timeout=timeout,
        )
        self._form = command
        self._store = PrefixStore(f"epoch-{command.epoch}", client)
        self._attempts = 0
        try:
            self._make(self._backend, timeout)
            self._probe(command.world_size)
        except RuntimeError as error:
            message = (
                f"rank {self._rank} could not form the process group of "
                f"{command.world_size} ranks within {command.timeout_s:g} s: {error}"
            )
            raise RuntimeError(message) from error

    def present(self) -> bool:
        """Return whether the default group exists, or none was ever formed."""
        return self._form is None or dist.is_initialized()

    def _make(self, backend: str | None, timeout: dt.timedelta | None) -> None:
        assert self._form is not None
        assert self._store is not None
        self._attempts += 1
        # Part of the group's name in the store, left counted up by a failed attempt:
        # ranks that have counted differently would never meet.
        # Source: torch 2.13.0, distributed_c10d._process_group_name.
        distributed_c10d._world.group_count = 0  # noqa: SLF001  there is no public way
        self._original_init(
            backend,
            store=PrefixStore(f"group-{self._attempts}", self._store),
            rank=self._rank,
            world_size=self._form.world_size,
            timeout=timeout,
        )
        seat(dist.group.WORLD)

    def _probe(self, world_size: int) -> None:
        value = torch.full((1,), float(self._rank + 1), device=self._device)
        dist.all_reduce(value)
        expected = world_size * (world_size + 1) / 2
        if value.item() != expected:
            message = (
                f"the first all_reduce over {world_size} ranks on {self._device} gave "
                f"{value.item()} instead of {expected}"
            )
            raise RuntimeError(message)

    def _init_process_group(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: dt.timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Store | None = None,
        *others: Any,  # noqa: ANN401  group_name, pg_options, device_id
        **more: Any,  # noqa: ANN401  as above, and what later releases add
    ) -> None:
        """Join the group the cluster has made, or make it again after a destroy."""
        own = self._form is None or store is not None or not _is_ours(init_method)
        if own and not dist.is_initialized():
            self._original_init(
                backend, init_method, timeout, world_size, rank, store, *others, **more
            )
            seat(dist.group.WORLD)
            return
        assert self._form is not None
        difference = self._difference(backend, init_method, world_size, rank, store)
        if difference:
            message = _ALREADY.format(
                world_size=self._form.world_size,
                backend=self._backend,
                difference=difference,
            )
            raise RuntimeError(message)
        if not dist.is_initialized():
            self._make(self._backend, timeout)

    def _difference(
        self,
        backend: str | None,
        init_method: str | None,
        world_size: int,
        rank: int,
        store: Store | None,
    ) -> str:
        """Return in what the call does not agree with the cluster, "" if it does."""
        assert self._form is not None
        if backend is not None and backend.lower() not in _names(self._backend):
            return f"backend={backend!r} was asked for"
        if store is not None:
            return "a store was given"
        if not _is_ours(init_method):
            return f"init_method={init_method!r} was asked for"
        if world_size not in (-1, self._form.world_size):
            return f"world_size={world_size} was asked for"
        if rank not in (-1, self._rank):
            return f"rank={rank} was asked for on rank {self._rank}"
        return ""


def seat(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """Take note of a new default group.

    Every default group passes here, formed by the cluster or by user code: the place
    where groups get wrapped. Subgroups are made by torch's
    ``_new_process_group_helper``.
    """
    if group is not None and len(group._device_types) > 1:  # noqa: SLF001  no public way
        _name_default_backend(group)
    return group


def _name_default_backend(group: dist.ProcessGroup) -> None:
    """Say which backend speaks for a group that has one per device type.

    torch means to do this and compares "HCCL" with "hccl", so that leaving the group
    prints a warning about hooks.
    Source: torch 2.13.0, distributed_c10d._new_process_group_helper.
    """
    for device in group._device_types:  # noqa: SLF001  as above
        name = Backend.default_device_backend_map.get(device.type, "")
        kind = Backend.backend_type_map.get(name)
        if kind == dist.ProcessGroup.BackendType.CUSTOM:
            group._set_default_backend(kind)  # noqa: SLF001  as above


def _is_ours(init_method: str | None) -> bool:
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return init_method in (None, "", "env://", f"tcp://{address}")


def _names(backend: str) -> set[str]:
    """Return what a script may call a backend.

    Examples
    --------
    >>> sorted(_names("cpu:gloo,npu:hccl"))
    ['cpu:gloo,npu:hccl', 'gloo', 'hccl', 'npu:hccl,cpu:gloo']
    """
    parts = backend.lower().split(",")
    return {
        ",".join(parts),
        ",".join(reversed(parts)),
        *(part.rpartition(":")[2] for part in parts),
    }


def _named_by_device(original: Callable[..., str]) -> Callable[..., str]:
    """Answer ``get_backend()`` as scripts expect: "hccl", not "cpu:gloo,npu:hccl"."""

    @wraps(original)
    def get_backend(group: dist.ProcessGroup | None = None) -> str:
        name = original(group)
        for part in name.split(","):
            device, colon, backend = part.partition(":")
            if colon and device != "cpu":
                return Backend(backend)
        return name

    return get_backend


def _replace(name: str, function: Callable[..., Any]) -> None:
    for module in (dist, distributed_c10d):
        setattr(module, name, function)
