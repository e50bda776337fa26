"""What this host is and has: the facts an agent tells when it joins."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from npu_notebook import bulk, plugins, runtime
from npu_notebook.devices.torch_install import find_torch
from npu_notebook.errors import ConfigError, DeviceError
from npu_notebook.messages import DeviceInventory, HostFact
from npu_notebook.telemetry import host as host_telemetry

if TYPE_CHECKING:
    from npu_notebook.agent.locks import DeviceLocks
    from npu_notebook.devices.provider import DeviceProvider

log = logging.getLogger(__name__)


def load_providers() -> dict[str, DeviceProvider | ConfigError]:
    """Return every installed provider, or why it cannot be loaded, by name."""
    found: dict[str, DeviceProvider | ConfigError] = {}
    for name in plugins.names("npu_notebook.devices"):
        try:
            found[name] = plugins.load("npu_notebook.devices", name)
        except ConfigError as error:
            log.warning("%s", error)
            found[name] = error
    return found


def take_inventory(
    name: str, provider: DeviceProvider | ConfigError, locks: DeviceLocks
) -> DeviceInventory:
    """Return what a provider finds, and which of it other clusters hold."""
    if isinstance(provider, ConfigError):
        return DeviceInventory(provider=name, count=0, reason=provider.problem)
    try:
        found = provider.discover()
        holders = found.holders
        if found.count and not provider.facts.forkable:
            holders += locks.list_holders(name, found.count)
    except Exception as error:
        log.exception("provider %s", name)
        reason = f"looking for {name} devices failed ({type(error).__name__}: {error})"
        return DeviceInventory(provider=name, count=0, reason=reason)
    return DeviceInventory(
        provider=name,
        count=found.count,
        names=found.names,
        reason=found.reason,
        holders=holders,
    )


def describe_host(name: str, inventories: tuple[DeviceInventory, ...]) -> HostFact:
    """Return the facts of this host; torch's version is read, torch not imported."""
    return HostFact(
        name=name,
        address=host_telemetry.primary_address(),
        agent_pid=os.getpid(),
        memory_key=runtime.memory_key(),
        python=runtime.python_version(),
        torch=_torch_version(),
        cpu_count=host_telemetry.cpu_count(),
        inventories=inventories,
        shared_memory_dir=str(bulk.shared_memory_dir()),
    )


def _torch_version() -> str:
    try:
        install = find_torch()
    except DeviceError as error:
        log.warning("%s", error)
        return ""
    return install.version if install else ""
