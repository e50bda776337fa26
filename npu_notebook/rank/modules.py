"""Tells when a module beside the notebook was edited after a rank has imported it."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

_LIBRARY = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")
)

_OURS = f"{__name__.partition('.')[0]}."  # in a checkout it lies beside notebooks


class _Import(NamedTuple):
    """What was imported: a reload makes a new ``spec``, an edit another time."""

    spec: object
    modified_ns: int


class OwnModules:
    """The modules of one folder that this process has imported.

    Parameters
    ----------
    folder : str
        Where the user's own modules lie; what is installed below it does not count.

    Notes
    -----
    Looked at after every cell, so it costs one ``stat`` per module of the user and
    nothing for the thousands that torch brings.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "")  # noqa: PTH118  compared as text
        self._seen: set[str] = set()
        self._imports: dict[str, _Import] = {}
        self.edited()

    def edited(self) -> list[str]:
        """Return modules that were edited since their import; each edit once."""
        if len(self._seen) != len(sys.modules):
            self._find_new()
        found = []
        for name, known in list(self._imports.items()):
            module = sys.modules.get(name)
            now = None if module is None else _look_at(module)
            if now is None:
                del self._imports[name]
                continue
            self._imports[name] = now
            if now.spec is known.spec and now.modified_ns != known.modified_ns:
                found.append(name)
        return found

    def _find_new(self) -> None:
        for name in sys.modules.keys() - self._seen:
            module = sys.modules[name]
            file = getattr(module, "__file__", None)
            if (
                isinstance(file, str)
                and file.startswith(self._folder)
                and not file.startswith(_LIBRARY)
                and not name.startswith(_OURS)
                and (now := _look_at(module)) is not None
            ):
                self._imports[name] = now
        self._seen = set(sys.modules)


def _look_at(module: ModuleType) -> _Import | None:
    try:
        modified_ns = os.stat(module.__file__ or "").st_mtime_ns  # noqa: PTH116  a str is there
    except (OSError, AttributeError):
        return None
    return _Import(module.__spec__, modified_ns)


def explain(names: list[str]) -> str:
    """Say that imported modules were edited, and what to do.

    Examples
    --------
    >>> explain(["helper"]).partition(",")[0]
    'helper has changed since its import'
    """
    listed = ", ".join(names)
    verb, whose = ("has", "its") if len(names) == 1 else ("have", "their")
    reloads = "; ".join(f"importlib.reload({name})" for name in names)
    return (
        f"{listed} {verb} changed since {whose} import, and this rank goes on with "
        f"what it imported. `%spmd import importlib, {listed}; {reloads}` loads it "
        "anew on all ranks. `%spmd %load_ext autoreload` and then "
        "`%spmd %autoreload 2` do so for every later edit."
    )
