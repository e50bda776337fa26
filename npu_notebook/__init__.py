"""One notebook drives every NPU of one or many hosts.

``import npu_notebook`` is cheap: it imports neither torch nor IPython. `Cluster` and
the errors are loaded when first used; ``%load_ext npu_notebook`` adds the magics.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from npu_notebook.cells import CellHandle, CellResult
    from npu_notebook.cluster import Cluster
    from npu_notebook.errors import (
        CellError,
        ConfigError,
        DataError,
        DeviceError,
        LaunchError,
        LinkError,
        NpuNotebookError,
        RankLostError,
    )

__version__ = "0.1.0"

_HOMES = {
    "Cluster": "npu_notebook.cluster",
    "CellHandle": "npu_notebook.cells",
    "CellResult": "npu_notebook.cells",
    "CellError": "npu_notebook.errors",
    "ConfigError": "npu_notebook.errors",
    "DataError": "npu_notebook.errors",
    "DeviceError": "npu_notebook.errors",
    "LaunchError": "npu_notebook.errors",
    "LinkError": "npu_notebook.errors",
    "NpuNotebookError": "npu_notebook.errors",
    "RankLostError": "npu_notebook.errors",
}

__all__ = [
    "CellError",
    "CellHandle",
    "CellResult",
    "Cluster",
    "ConfigError",
    "DataError",
    "DeviceError",
    "LaunchError",
    "LinkError",
    "NpuNotebookError",
    "RankLostError",
    "__version__",
    "load_ipython_extension",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  any public name
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'npu_notebook' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magics; IPython calls this for ``%load_ext npu_notebook``."""
    from npu_notebook.notebook import extension

    extension.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics away; IPython calls this for ``%unload_ext npu_notebook``."""
    from npu_notebook.notebook import extension

    extension.unload(shell)
