"""Compile the simulated NPU once per torch build and user; torch is not imported.

A library is only ever loaded if it carries the key of exactly this torch, Python and
source: one built for another torch loads without complaint and then crashes, because
the layout of torch's C++ classes differs between releases.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from npu_notebook.devices.torch_install import TorchInstall, find_torch
from npu_notebook.errors import DeviceError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODULE_NAME = "_simulated_npu"
DEVICE = "simulated NPU"
_CPU_INSTEAD = "start with `--device cpu`"
_SOURCES = Path(__file__).parent / "csrc"
_MAIN_SOURCE = "simulated_npu.cpp"
# -O1: -O2 costs a third more time and gains nothing, the work is done in torch.
_FLAGS = (
    "-std=c++20",
    "-O1",
    "-g0",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    f"-DTORCH_EXTENSION_NAME={MODULE_NAME}",
    "-DTORCH_API_INCLUDE_EXTENSION_H",
    "-DUSE_DISTRIBUTED",
    "-DUSE_C10D_GLOO",
)
_LIBRARIES = ("-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10")
_PROGRESS_S = 10.0
_MARKER = b"npu-notebook-build-key="
_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compile for this interpreter and where the result belongs."""

    torch: TorchInstall
    key: str
    folder: Path

    @property
    def library(self) -> Path:
        """Return the path of the compiled library."""
        return self.folder / (MODULE_NAME + _config("EXT_SUFFIX"))


def _config(name: str) -> str:
    return str(sysconfig.get_config_var(name) or "")


def cache_root() -> Path:
    """Return the folder of all builds of this user."""
    override = os.environ.get("NPU_NOTEBOOK_CACHE_DIR")
    if override:
        return Path(override).expanduser() / "simulated"
    base = os.environ.get("XDG_CACHE_HOME")
    caches = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return caches / "npu-notebook" / "simulated"


def plan() -> Plan:
    """Return the plan for this interpreter.

    Raises
    ------
    DeviceError
        If torch is not installed.
    """
    torch = find_torch()
    if torch is None:
        problem = "torch is not installed in this Python"
        raise DeviceError(DEVICE, problem, "Install it: pip install torch.")
    sources = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        sources.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    ingredients = {
        "torch": torch.version,
        "torch_revision": torch.git_version,
        "python": _config("SOABI"),
        "platform": [sys.platform, platform.machine()],
        "source": sources.hexdigest(),
        "flags": [*_FLAGS, *_LIBRARIES],
    }
    text = json.dumps(ingredients, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Plan(torch=torch, key=key, folder=cache_root() / key)


def is_built(wanted: Plan) -> bool:
    """Return True if the library is there and carries the key of `wanted`."""
    try:
        content = wanted.library.read_bytes()
    except OSError:
        return False
    return _MARKER + wanted.key.encode() + b"\0" in content


def ensure_built(report: Callable[[str], None]) -> Path:
    """Return the library of this torch build, compiled now if it is missing.

    Two processes that start together compile once: the second one waits.

    Parameters
    ----------
    report : callable
        Called with one line of progress at a time.

    Raises
    ------
    DeviceError
        If there is no compiler, the cache cannot be written, or compiling fails.
    """
    wanted = plan()
    if is_built(wanted):
        return wanted.library
    with _cache_errors(wanted):
        wanted.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (wanted.folder / "lock").open("w", encoding="utf-8")
    with lock:
        _wait_for(lock, report)
        # Another process may have built it while this one waited.
        if not is_built(wanted):
            _compile(wanted, report)
    return wanted.library


@contextmanager
def _cache_errors(wanted: Plan) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"cannot write its cache {wanted.folder} ({error.strerror or error})"
        remedy = (
            "Free space or set NPU_NOTEBOOK_CACHE_DIR to a folder you can write, or "
            f"{_CPU_INSTEAD}."
        )
        raise DeviceError(DEVICE, problem, remedy) from error


def _wait_for(lock: TextIO, report: Callable[[str], None]) -> None:
    # The kernel drops the lock of a process that dies, so it cannot go stale.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report("Another process is compiling the simulated NPU; waiting for it.")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _compile(wanted: Plan, report: Callable[[str], None]) -> None:
    compiler = _find_compiler()
    _require_headers(wanted.torch)
    report(
        f"Compiling the simulated NPU for torch {wanted.torch.version} with "
        f"{compiler[0]}: once per torch build, about a minute."
    )
    with _cache_errors(wanted):
        scratch = tempfile.TemporaryDirectory(
            dir=wanted.folder, prefix="build-", ignore_cleanup_errors=True
        )
    with scratch as folder:
        made = Path(folder) / wanted.library.name
        started_s = time.monotonic()
        code, output = _run(_command(compiler, wanted, made), folder, report)
        with _cache_errors(wanted):
            if code != 0 or not made.is_file():
                raise _compile_error(wanted, compiler, code, output)
            made.replace(wanted.library)  # atomic: nobody ever sees half a library
        elapsed_s = time.monotonic() - started_s
    if not is_built(wanted):
        problem = f"{compiler[0]} made a library without the build key {wanted.key}"
        remedy = f"Set CXX to another C++ compiler, or {_CPU_INSTEAD}."
        raise DeviceError(DEVICE, problem, remedy)
    report(f"Compiled the simulated NPU in {elapsed_s:.0f} s ({wanted.library}).")


def _find_compiler() -> list[str]:
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            problem = f"CXX names {chosen[0]!r}, which is no program on this machine"
            remedy = f"Correct or unset CXX, or {_CPU_INSTEAD}."
            raise DeviceError(DEVICE, problem, remedy)
        return chosen
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found is not None:
            return [found]
    problem = "it must be compiled once, and there is no C++ compiler on PATH"
    remedy = (
        "Install one (c++, g++ or clang++; Debian and Ubuntu: apt install g++), or "
        f"{_CPU_INSTEAD}."
    )
    raise DeviceError(DEVICE, problem, remedy)


def _python_include() -> Path:
    return Path(sysconfig.get_paths()["include"])


def _require_headers(torch: TorchInstall) -> None:
    python_header = _python_include() / "Python.h"
    if not python_header.is_file():
        problem = f"it must be compiled once, and {python_header} is missing"
        remedy = (
            "Install Python's headers (Debian and Ubuntu: apt install python3-dev), or "
            f"{_CPU_INSTEAD}."
        )
        raise DeviceError(DEVICE, problem, remedy)
    torch_header = torch.root / "include" / "torch" / "library.h"
    if not torch_header.is_file():
        problem = f"torch {torch.version} has no C++ headers ({torch_header})"
        remedy = f"Install torch from a wheel, or {_CPU_INSTEAD}."
        raise DeviceError(DEVICE, problem, remedy)


def _command(compiler: list[str], wanted: Plan, made: Path) -> list[str]:
    include = wanted.torch.root / "include"
    libraries = wanted.torch.root / "lib"
    return [
        *compiler,
        *_FLAGS,
        f"-DSIMULATED_NPU_KEY={wanted.key}",
        f"-I{_python_include()}",
        f"-I{include}",
        f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}",
        str(_SOURCES / _MAIN_SOURCE),
        "-o",
        str(made),
        f"-L{libraries}",
        *_LIBRARIES,
    ]


def _run(
    command: list[str], scratch: str, report: Callable[[str], None]
) -> tuple[int, str]:
    """Run the compiler; return its exit code and everything it printed."""
    started_s = time.monotonic()
    with subprocess.Popen(  # noqa: S603  the compiler the user has or names
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "TMPDIR": scratch, "LC_ALL": "C.UTF-8"},
    ) as process:
        try:
            while True:
                try:
                    output, _ = process.communicate(timeout=_PROGRESS_S)
                except subprocess.TimeoutExpired:
                    elapsed_s = time.monotonic() - started_s
                    report(f"Compiling the simulated NPU: {elapsed_s:.0f} s so far.")
                else:
                    return process.returncode, output
        finally:
            # After Ctrl-C or a failing report(): neither the compiler nor the programs
            # it started may stay behind.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)


def _compile_error(
    wanted: Plan, compiler: list[str], code: int, output: str
) -> DeviceError:
    if "No space left on device" in output:
        problem = f"the disk of its cache {wanted.folder} was full while it compiled"
        remedy = (
            "Free space or set NPU_NOTEBOOK_CACHE_DIR to a folder on another disk, or "
            f"{_CPU_INSTEAD}."
        )
        return DeviceError(DEVICE, problem, remedy)
    log = wanted.folder / "build.log"
    log.write_text(output, encoding="utf-8")
    lines = output.strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()]
    shown = "\n".join((errors or lines)[:_TAIL_LINES])
    reason = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
    problem = f"{compiler[0]} cannot compile it for torch {wanted.torch.version}"
    remedy = (
        f"Its whole output is in {log}. Try another compiler (CXX=clang++), or "
        f"{_CPU_INSTEAD}.\n{shown}"
    )
    return DeviceError(DEVICE, f"{problem} ({reason})", remedy)
