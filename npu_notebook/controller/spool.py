"""Output that is too long for the screen: counted, capped, and kept whole in a file.

Up to ``cap_nbytes`` per rank and cell goes to the notebook, cut at a line. The whole,
stdout and stderr in the order they were written, goes to ``cell-<n>-rank-<r>.txt``; the
file of output that was neither capped nor long is removed at the end of the cell.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from npu_notebook.controller.large_displays import LargeDisplays
from npu_notebook.controller.spool_folder import SpoolFolder
from npu_notebook.messages import DisplayOutput, Notice, RankOutcome, StreamText

if TYPE_CHECKING:
    from pathlib import Path

_BUFFER_NBYTES = 64 << 10
"""Output that stays below this never touches the disk."""
_LONG_NBYTES = 256 << 10
"""From here on the file stays although the screen was sent everything: a view that is
still busy drawing when the user stops the cell may leave the rest to the file."""
_BUDGET_NBYTES = 1 << 30
_DISPLAY_NBYTES = 10 << 20
_REMEMBERED_CELLS = 200
_REDRAWN_FACTOR = 64
"""How much more than the cap may be sent when lines are drawn over and over."""


@dataclass(slots=True)
class Shown:
    """Bytes that a stream takes up on screen.

    A line that is drawn again after a carriage return replaces what it was, so a
    progress bar may live for days below a cap that a flood meets at once.
    """

    nbytes: int = 0
    sent_nbytes: int = 0
    _open_nbytes: int = 0

    def add(self, data: bytes) -> None:
        """Count a piece that was sent."""
        self.sent_nbytes += len(data)
        if b"\r" not in data:
            self.nbytes += len(data)
            end = data.rfind(b"\n")
            self._open_nbytes = (
                (self._open_nbytes if end < 0 else 0) + len(data) - end - 1
            )
            return
        *lines, last = data.split(b"\n")
        for line in lines:
            self._draw(line.removesuffix(b"\r"))
            self.nbytes += 1
            self._open_nbytes = 0
        self._draw(last)

    def _draw(self, line: bytes) -> None:
        _, again, drawn = line.rpartition(b"\r")
        if again:
            self.nbytes -= self._open_nbytes
            self._open_nbytes = 0
        self.nbytes += len(drawn)
        self._open_nbytes += len(drawn)


@dataclass(slots=True)
class _Stream:
    """What one rank printed in one cell."""

    path: Path
    shown: Shown = field(default_factory=Shown)
    written_nbytes: int = 0
    hidden_lines: int = 0
    capped: bool = False
    closed: bool = False
    told: bool = False
    broken: bool = False
    hidden_open_line: bool = False
    pending: list[bytes] = field(default_factory=list)
    pending_nbytes: int = 0
    file: BinaryIO | None = None

    @property
    def kept(self) -> bool:
        """True if the file is worth keeping."""
        long = self.shown.sent_nbytes >= _LONG_NBYTES
        return (self.capped or long) and not self.broken


class Spool:
    """The output of all cells of a cluster.

    Parameters
    ----------
    folder : Path
        Where the files go; private to the user.
    cap_nbytes : int
        Bytes per rank and cell that go to the notebook.
    budget_nbytes : int
        Bytes of all files together; the oldest are removed first.
    display_nbytes : int
        Size from which a rich output is saved instead of shown.
    """

    def __init__(
        self,
        folder: Path,
        cap_nbytes: int,
        budget_nbytes: int = _BUDGET_NBYTES,
        display_nbytes: int = _DISPLAY_NBYTES,
    ) -> None:
        self.notices: list[Notice] = []
        """What the user should be told; whoever reads it empties it."""
        self._folder = SpoolFolder(folder, budget_nbytes, self.notices.append)
        self._cap_nbytes = cap_nbytes
        self._redrawn_nbytes = cap_nbytes * _REDRAWN_FACTOR
        self._displays = LargeDisplays(self._folder, display_nbytes)
        self._buffer_nbytes = min(_BUFFER_NBYTES, cap_nbytes)
        self._streams: dict[tuple[str, int], _Stream] = {}
        self._numbers: OrderedDict[str, int] = OrderedDict()
        # No file of an earlier cluster of this name is written over.
        self._number = self._folder.last_number()

    # Cells

    def open_cell(self, cell_id: str) -> None:
        """Begin a cell; cells are numbered from 1."""
        self._number += 1
        self._numbers[cell_id] = self._number
        if len(self._numbers) > _REMEMBERED_CELLS:
            old, _ = self._numbers.popitem(last=False)
            for key in [key for key in self._streams if key[0] == old]:
                self._close(self._streams.pop(key))

    def finish_cell(
        self, cell_id: str, outcomes: tuple[RankOutcome, ...]
    ) -> tuple[RankOutcome, ...]:
        """Close a cell's files and return its outcomes with what was hidden."""
        return tuple(self._finish(cell_id, outcome) for outcome in outcomes)

    def _finish(self, cell_id: str, outcome: RankOutcome) -> RankOutcome:
        stream = self._streams.get((cell_id, outcome.rank))
        if stream is None:
            return outcome
        self._close(stream)
        return msgspec.structs.replace(
            outcome,
            hidden_lines=stream.hidden_lines + stream.hidden_open_line,
            spool_path=str(stream.path) if stream.kept else "",
        )

    def close(self) -> None:
        """Close every file."""
        for stream in self._streams.values():
            self._close(stream)

    # Output

    def take_text(self, message: StreamText, *, watched: bool) -> StreamText | None:
        """Count and keep a piece of text; return what the notebook shall see of it.

        Parameters
        ----------
        message : StreamText
            From a rank.
        watched : bool
            False if no notebook is there to see it: it counts as hidden.
        """
        stream = self._stream(message.cell_id, message.rank)
        data = message.text.encode("utf-8", "surrogatepass")
        shown = self._show(stream, message, data) if watched else None
        if shown is None or len(shown.text) < len(message.text):
            stream.capped = True
            hidden = message.text[len(shown.text) if shown else 0 :]
            stream.hidden_lines += hidden.count("\n")
            stream.hidden_open_line = not hidden.endswith("\n")
        self._keep(stream, data)
        if stream.closed and stream.capped and not stream.told:
            self._tell_late(stream, message)
        return shown

    def _show(
        self, stream: _Stream, message: StreamText, data: bytes
    ) -> StreamText | None:
        if stream.capped or stream.shown.sent_nbytes >= self._redrawn_nbytes:
            return None
        room = max(0, self._cap_nbytes - stream.shown.nbytes)
        if len(data) <= room or (room and b"\r" in data):
            stream.shown.add(data)
            return message
        head = data[: data.rfind(b"\n", 0, room) + 1]
        stream.shown.add(head)
        if not head:
            return None
        text = head.decode("utf-8", "surrogatepass")
        return msgspec.structs.replace(message, text=text)

    def take_display(self, message: DisplayOutput) -> DisplayOutput:
        """Return a rich output, or a text that names the files it was saved to."""
        return self._displays.take(message, self._numbers.get(message.cell_id, 0))

    # Files

    def _stream(self, cell_id: str, rank: int) -> _Stream:
        key = cell_id, rank
        stream = self._streams.get(key)
        if stream is None:
            number = self._numbers.get(cell_id, 0)
            path = self._folder.path / f"cell-{number}-rank-{rank}.txt"
            stream = self._streams[key] = _Stream(path)
        return stream

    def _keep(self, stream: _Stream, data: bytes) -> None:
        if stream.broken:
            return
        stream.pending.append(data)
        stream.pending_nbytes += len(data)
        if stream.closed:
            if stream.kept:
                self._flush(stream)
                self._close_file(stream)
            else:
                stream.pending.clear()
                stream.pending_nbytes = 0
        elif stream.pending_nbytes >= self._buffer_nbytes:
            self._flush(stream)

    def _flush(self, stream: _Stream) -> None:
        data = b"".join(stream.pending)
        stream.pending.clear()
        stream.pending_nbytes = 0
        if not data:
            return
        stream.file = self._folder.write(stream.path, stream.file, data)
        stream.broken = stream.file is None
        stream.written_nbytes += len(data)

    def _close(self, stream: _Stream) -> None:
        if stream.closed:
            return
        stream.closed = True
        if stream.kept:
            self._flush(stream)
            self._close_file(stream)
            return
        stream.pending.clear()
        stream.pending_nbytes = 0
        self._close_file(stream)
        if stream.written_nbytes:
            self._folder.remove(stream.path, stream.written_nbytes)
            stream.written_nbytes = 0

    def _close_file(self, stream: _Stream) -> None:
        if stream.file is not None:
            self._folder.close(stream.path, stream.file)
            stream.file = None

    # Words

    def _tell_late(self, stream: _Stream, message: StreamText) -> None:
        stream.told = True
        text = (
            f"rank {message.rank} prints on after its cell ended, above the cap; "
            f"the rest goes to {stream.path}"
        )
        self.notices.append(Notice(text=text, cell_id=message.cell_id))
