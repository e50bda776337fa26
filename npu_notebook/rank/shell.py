"""A cell on a rank: IPython's shell without a terminal, a history or a kernel.

torch must be imported before this module (`npu_notebook.rank.worker` sees to that):
torch_npu turns its task queue off when it finds itself in an interactive session.
"""

from __future__ import annotations

import asyncio
import os
import sys
import types
import warnings
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from IPython.core.autocall import ExitAutocall
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from IPython.core.usage import default_banner as _unused  # noqa: F401
from traitlets import Type, observe
from traitlets.config import Config

from npu_notebook.rank.commands import run_command
from npu_notebook.rank.display import CellDisplayHook, CellDisplayPublisher

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.rank.display import Reporter
