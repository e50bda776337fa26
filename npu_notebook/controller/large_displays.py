"""Rich outputs that are too large to show: saved, and their file named instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from npu_notebook.controller.spool_folder import SpoolFolder
    from npu_notebook.messages import DisplayOutput


class LargeDisplays:
    """Keeps notebooks small enough to open again.

    Parameters
    ----------
    folder : SpoolFolder
        Where large outputs go.
    limit_nbytes : int
        Size from which an output is large.
    """

    def __init__(self, folder: SpoolFolder, limit_nbytes: int) -> None:
        self._folder = folder
        self._limit_nbytes = limit_nbytes
        self._count = 0

    def take(self, message: DisplayOutput, cell_number: int) -> DisplayOutput:
        """Return an output, or a text that names the files it was saved to."""
        nbytes = sum(_nbytes(value) for value in message.data.values())
        if nbytes < self._limit_nbytes:
            return message
        names = [
            self._save(f"cell-{cell_number}-rank-{message.rank}", kind, value)
            for kind, value in message.data.items()
            if _nbytes(value) >= self._limit_nbytes // 2
        ]
        saved = ", ".join(name for name in names if name) or "nowhere: the disk is full"
        text = (
            f"[rich output of {nbytes / 1e6:.1f} MB is too large to show; "
            f"saved to {saved}]"
        )
        return msgspec.structs.replace(message, data={"text/plain": text}, metadata={})

    def _save(self, prefix: str, kind: str, value: object) -> str:
        self._count += 1
        ending = kind.rpartition("/")[2].partition("+")[0]
        path = self._folder.path / f"{prefix}-display-{self._count}.{ending}"
        data = value if isinstance(value, bytes) else str(value).encode()
        file = self._folder.write(path, None, data)
        if file is None:
            path.unlink(missing_ok=True)
            return ""
        self._folder.close(path, file)
        return str(path)


def _nbytes(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes)) else len(str(value))
