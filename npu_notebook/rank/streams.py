"""``sys.stdout`` and ``sys.stderr`` of a rank."""

from __future__ import annotations

import codecs
import io
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from npu_notebook.rank.output import Output, StreamName

_FILE_DESCRIPTORS = {"stdout": 1, "stderr": 2}
_NAMES: tuple[StreamName, ...] = ("stdout", "stderr")


class TextStream(io.TextIOBase):
    """A text stream that lives as long as the rank.

    It is never replaced, so a logging handler made in one cell writes into whichever
    cell logs through it later. Closing or detaching it does nothing: the rank needs it.
    """

    def __init__(self, name: StreamName, output: Output) -> None:
        self._stream: StreamName = name
        self._output = output
        self._buffer = _ByteStream(self)
        self.write = output.writer(name)  # type: ignore[method-assign]  # see there
        self.name = f"<{name}>"
        self.mode = "w"

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True
    write_through = False

    @property
    def buffer(self) -> io.BufferedIOBase:
        """The same stream for bytes."""
        return self._buffer

    def flush(self) -> None:
        """Keep the order with what C code and child processes write next."""
        self._output.look_at_pipes()

    def fileno(self) -> int:
        """Return 1 or 2: a child process that is given it prints into the same cell."""
        return _FILE_DESCRIPTORS[self._stream]

    def isatty(self) -> bool:
        """Return False."""
        return False

    def readable(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Do nothing."""

    @property
    def closed(self) -> bool:
        """False."""
        return False

    def reconfigure(self, **_options: Any) -> None:  # noqa: ANN401  as in TextIOWrapper
        """Accept what scripts say about encoding and buffering, and change nothing."""


class _ByteStream(io.BufferedIOBase):
    """What ``sys.stdout.buffer`` is: UTF-8 bytes into the text stream."""

    def __init__(self, text_stream: TextStream) -> None:
        self._text_stream = text_stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self.raw = self

    def write(self, data: Buffer) -> int:
        """Take bytes; a character may come in two calls."""
        view = memoryview(data)
        self._text_stream.write(self._decoder.decode(view))
        return view.nbytes

    def flush(self) -> None:
        """Flush the text stream."""
        self._text_stream.flush()

    def fileno(self) -> int:
        """Return 1 or 2."""
        return self._text_stream.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Do nothing."""


_ours: dict[str, TextStream] = {}


def take_over(output: Output) -> None:
    """Replace ``sys.stdout`` and ``sys.stderr``, and what they were at the start."""
    for name in _NAMES:
        stream = TextStream(name, output)
        _ours[name] = stream
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def mend() -> None:
    """Put ours back where an earlier cell has left nothing that can be written to.

    A stream that a cell has put there on purpose, a file for example, stays.
    """
    for name, stream in _ours.items():
        found = getattr(sys, name, None)
        if found is not stream and (
            not hasattr(found, "write") or getattr(found, "closed", False)
        ):
            setattr(sys, name, stream)
