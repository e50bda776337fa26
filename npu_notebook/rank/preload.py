"""What a rank imports besides torch, in one place for the agent's template.

Importing this starts no thread and runs no torch operation, so that the template can
be forked afterwards; torch, if it is wanted, must be imported before. IPython loads
much of itself at first use: what the first traceback and the first magics need is
loaded here, or every rank would load it by itself.
"""

from __future__ import annotations

import importlib
import sys

_MODULES = (
    "IPython.core.magics.execution",
    "IPython.core.magics.namespace",
    "IPython.core.magics.osm",
    "IPython.core.magics.packaging",
    "IPython.core.magics.script",
    "IPython.core.ultratb",
    "asyncio",
    "multiprocessing.popen_fork",
    "multiprocessing.popen_spawn_posix",
    "multiprocessing.queues",
    "npu_notebook.rank.cells",
    "npu_notebook.rank.packages",
    "npu_notebook.rank.values",
    "npu_notebook.rank.worker",
    "pygments.formatters.terminal256",
    "pygments.lexers.python",
    "pygments.styles.default",
    "stack_data",
)


def preload() -> None:
    """Import all of it; what an older IPython does not have is left out."""
    for name in _MODULES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("npu_notebook"):
                raise
    if "torch" in sys.modules:
        importlib.import_module("npu_notebook.rank.groups")


preload()
