"""Collects what a person needs to help: logs, versions, settings; no secrets.

Of variables only the names are written. In logs every known secret (keys of the
connection, values given with ``--env``, variables called like passwords) is blanked.
"""

from __future__ import annotations

import io
import os
import platform
import re
import sys
import tarfile
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import msgspec

from npu_notebook import runtime
from npu_notebook.errors import ConfigError
from npu_notebook.settings import read_settings, settings_file

_LOG_NBYTES = 512 * 1024
_PACKAGES = (
    "npu-notebook",
    "torch",
    "torch_npu",
    "ipython",
    "ipykernel",
    "jupyter_client",
    "jupyterlab",
    "notebook",
    "pyzmq",
    "msgspec",
    "cloudpickle",
    "psutil",
    "numpy",
)
_NAMED = re.compile(
    r"^(NPU_NOTEBOOK|ASCEND|HCCL|GLOO|NCCL|TORCH|SLURM|OMP|CUDA|JPY|JUPYTER|XDG|PYTHON)"
)
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
_ENV_IN_LOG = re.compile(r"env=\{[^}]*\}")
_MIN_SECRET_CHARS = 6
_SAFE_FACTS = (
    "name",
    "host",
    "controller_pid",
    "created_s",
    "protocol_version",
    "package_version",
    "python",
    "num_ranks",
    "device",
)


def write_report(path: Path | None) -> Path:
    """Write the report as a ``.tar.gz`` file, readable by this user only.

    Parameters
    ----------
    path : Path or None
        Where; by default a new file in the current folder.

    Raises
    ------
    ConfigError
        If it cannot be written.
    """
    if path is None:
        path = Path(f"npu-notebook-report-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    texts = {
        "versions.txt": versions(),
        "variables.txt": variable_names(),
        "settings.txt": _settings(),
        "clusters.json": clusters(),
        **logs(),
    }
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with (
            os.fdopen(fd, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as tar,
        ):
            for name, text in texts.items():
                _add(tar, f"npu-notebook-report/{name}", text)
    except OSError as error:
        problem = f"the report {path} cannot be written ({error.strerror})"
        raise ConfigError(problem, "Give another file with --output.") from error
    return path.absolute()


def versions() -> str:
    """Return the versions of everything that matters; nothing is imported for it."""
    lines = [f"python {sys.version}", f"platform {platform.platform()}"]
    lines.append(f"cpus {os.cpu_count()}")
    for package in _PACKAGES:
        try:
            lines.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{package} not installed")
    return "\n".join(lines)


def variable_names() -> str:
    """Return the names of the environment variables that matter, no values."""
    return "\n".join(sorted(name for name in os.environ if _NAMED.match(name)))


def clusters() -> str:
    """Return the facts of all connections but keys, addresses and owners."""
    facts = [
        {name: getattr(entry.connection, name) for name in _SAFE_FACTS}
        | {"alive": entry.alive}
        for entry in runtime.list_clusters()
    ]
    return msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()


def logs() -> dict[str, str]:
    """Return the ends of all logs by their name in the report, secrets blanked."""
    secrets = known_secrets()
    found: dict[str, str] = {}
    for folder in sorted(runtime.state_root().glob("*/logs")):
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            with file.open("rb") as log:
                log.seek(max(0, file.stat().st_size - _LOG_NBYTES))
                text = log.read().decode(errors="replace")
            found[f"logs/{folder.parent.name}/{file.name}"] = blank(text, secrets)
    return found


def known_secrets() -> set[str]:
    """Return the texts that must not be in a report."""
    secrets = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    for entry in runtime.list_clusters():
        secrets |= {entry.connection.curve_public, entry.connection.curve_secret}
        try:
            spec = runtime.read_spec(runtime.ClusterPaths(entry.connection.name))
        except (OSError, msgspec.DecodeError):
            continue  # it is ending right now
        secrets |= set(spec.env.values())
    with suppress(ConfigError):  # `_settings` says so
        secrets |= set(read_settings().env.values())
    return {secret for secret in secrets if len(secret) >= _MIN_SECRET_CHARS}


def blank(text: str, secrets: set[str]) -> str:
    """Return the text without the secrets and without dumped variables."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "<removed>")
    return _ENV_IN_LOG.sub("env={<removed>}", text)


def _settings() -> str:
    lines = [f"file {settings_file()}"]
    try:
        settings = read_settings()
    except ConfigError as error:
        return "\n".join([*lines, str(error)])
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        lines.append(f"{name} = {sorted(value) if name == 'env' else value!r}")
    return "\n".join(lines)


def _add(tar: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o600
    info.mtime = int(time.time())
    tar.addfile(info, io.BytesIO(data))
