"""What a rank imports besides torch, in one place for it and the agent's template.

Importing this starts no thread and runs no torch operation, so that the template can
be forked afterwards; torch, if it is wanted, must be imported before. IPython loads
much of itself at first use: what the first traceback and the first magics need is
loaded here, before a cell can be interrupted in the middle of it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

_MODULES = (
    "IPython.core.magics",
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
    # An interrupt in the middle of such an import would leave functions of one class of
    # magics to the next one. Source: IPython 9.18, magic.py, the module-level `magics`.
    package = importlib.import_module("IPython.core.magics")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    if "torch" in sys.modules:
        importlib.import_module("npu_notebook.rank.groups")


preload()
