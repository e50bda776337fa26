"""Facts about the installed torch, read from its files: torch is not imported."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from npu_notebook.errors import DeviceError

_PACKAGE = "torch"
_REINSTALL = "Reinstall torch: pip install --force-reinstall torch."


@dataclass(frozen=True, slots=True)
class TorchInstall:
    """The torch that ``import torch`` would find in this interpreter.

    Parameters
    ----------
    version : str
        For example ``"2.13.0+cpu"``.
    git_version : str
        Revision torch was built from, empty if its build did not record one.
    cuda : str or None
        CUDA version it was built for, None for a build without CUDA.
    root : Path
        The package directory.
    """

    version: str
    git_version: str
    cuda: str | None
    root: Path


def find_torch() -> TorchInstall | None:
    """Return the installed torch, or None if there is none.

    Raises
    ------
    DeviceError
        If torch is there but does not say which version it is.
    """
    # find_spec of a top-level package finds it without running any of its code.
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0])
    version_file = root / "version.py"
    try:
        constants = _constants(version_file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError) as error:
        raise DeviceError(
            _PACKAGE, f"cannot read {version_file} ({error})", _REINSTALL
        ) from error
    version = constants.get("__version__")
    if version is None:
        raise DeviceError(_PACKAGE, f"{version_file} names no version", _REINSTALL)
    return TorchInstall(
        version=version,
        git_version=constants.get("git_version") or "",
        cuda=constants.get("cuda"),
        root=root,
    )


def _constants(source: str) -> dict[str, str | None]:
    """Return the string (or None) constants a module assigns at its top level."""
    found: dict[str, str | None] = {}
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=v)):
                value = v
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=v)):
                value = v
            case _:
                continue
        if value is None or isinstance(value, str):
            found[name] = value
    return found
