"""A place of its own for a benchmark's files, sockets and clusters."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def own_folders() -> Iterator[Path]:
    """Give this process and its children an empty home for clusters, then remove it.

    The user's clusters, settings and logs are neither seen nor touched.
    """
    # The paths of sockets must be short: no folder below a long TMPDIR.
    with tempfile.TemporaryDirectory(prefix="nb-", dir="/tmp") as name:
        folder = Path(name)
        changes = {
            "NPU_NOTEBOOK_RUNTIME_DIR": str(folder / "run"),
            "NPU_NOTEBOOK_STATE_DIR": str(folder / "state"),
            "NPU_NOTEBOOK_CONFIG": str(folder / "no-settings.toml"),
        }
        before = {key: os.environ.get(key) for key in changes}
        os.environ.update(changes)
        try:
            yield folder
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value
