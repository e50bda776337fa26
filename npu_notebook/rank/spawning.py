"""``multiprocessing`` with start method *spawn*, for functions typed in a cell.

A spawned process imports what it runs, and what was typed in a cell cannot be
imported. So functions and classes of ``__main__`` travel by value to spawned processes
and are put into their ``__main__``. On the way back, and between forked processes,
they travel by name as always: only so are they the same objects.
"""

from __future__ import annotations

import pickle
import sys
from functools import reduce
from multiprocessing import context, process
from multiprocessing.context import ForkServerProcess, SpawnProcess
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

import cloudpickle

_MAIN = "__main__"


def install() -> None:
    """Teach the pickler of ``multiprocessing`` to send what was typed in a cell."""
    # The C pickler looks for this method on its class.
    # Source: https://docs.python.org/3/library/pickle.html, reducer_override.
    ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign, assignment]  # see above


def _reduce(_pickler: ForkingPickler, value: Any) -> Any:  # noqa: ANN401  pickle's own protocol
    if not _is_typed(value) or not _may_be_read_by_spawned():
        return NotImplemented
    return load_typed, (value.__qualname__, cloudpickle.dumps(value))


def _may_be_read_by_spawned() -> bool:
    if context.get_spawning_popen() is not None:
        return True
    children = process._children  # type: ignore[attr-defined]  # noqa: SLF001  active_children() would reap them
    return any(isinstance(one, SpawnProcess | ForkServerProcess) for one in children)


def load_typed(name: str, data: bytes) -> Any:  # noqa: ANN401  a function or class
    """Return what was typed in a cell as ``name``; runs in any process.

    Parameters
    ----------
    name : str
        Its ``__qualname__``.
    data : bytes
        It, by value.
    """
    main = sys.modules[_MAIN]
    if "npu_notebook.rank.worker" in sys.modules:  # the rank itself, or forked from it
        try:
            return reduce(getattr, name.split("."), main)
        except AttributeError:
            pass
    value = pickle.loads(data)  # noqa: S301  from the process that started this one
    _settle(value, main, set())
    return value


def _settle(value: Any, main: object, seen: set[int]) -> None:  # noqa: ANN401  as above
    """Put a function or class, and those it uses, into ``__main__`` by their names."""
    if id(value) in seen or not _is_typed(value):
        return
    seen.add(id(value))
    if value.__qualname__.isidentifier():
        setattr(main, value.__qualname__, value)
    parts = vars(value) if isinstance(value, type) else value.__globals__
    for part in list(parts.values()):
        _settle(part, main, seen)


def _is_typed(value: object) -> bool:
    return (
        isinstance(value, FunctionType | type)
        and getattr(value, "__module__", None) == _MAIN
    )
