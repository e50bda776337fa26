"""Where a view's output goes: the cell that started it, or a terminal.

A kernel's own ``print`` follows whatever cell runs at the moment. A `KernelSink` keeps
the request it was opened under, so output of a cell lands in that cell from any
thread, also after it has ended.
"""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from IPython.core.interactiveshell import InteractiveShell


class Sink(Protocol):
    """The output area of one cell; used by views, from one thread at a time."""

    can_update: bool
    """Whether a display can be changed in place."""

    def stream(self, name: str, text: str) -> None:
        """Append text to stdout or stderr."""
        ...

    def display(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        display_id: str = "",
        *,
        update: bool = False,
    ) -> None:
        """Show a mime bundle, or change the one shown before under ``display_id``."""
        ...

    def clear(self, *, wait: bool) -> None:
        """Remove what the cell shows, at once or when the next output comes."""
        ...


class KernelSink:
    """Output of a kernel under the request that runs now.

    The messages are made here and not by ``print`` and ``display``, because those look
    up the current request anew each time, by rules that changed between ipykernel 6
    and 7.
    Source: ipykernel 6.29.5 and 7.4.0, ``iostream.OutStream._flush`` and
    ``zmqshell.ZMQDisplayPublisher.publish``.
    """

    can_update = True

    def __init__(self, shell: InteractiveShell) -> None:
        publisher: Any = shell.display_pub
        self._session = publisher.session
        self._socket = publisher.pub_socket
        kernel_shell: Any = shell
        self._parent = kernel_shell.get_parent()
        self._flushed = False

    def stream(self, name: str, text: str) -> None:
        """Append text to stdout or stderr."""
        self._send("stream", {"name": name, "text": text}, f"stream.{name}")

    def display(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        display_id: str = "",
        *,
        update: bool = False,
    ) -> None:
        """Show a mime bundle, or change the one shown before under ``display_id``."""
        content = {
            "data": encoded(data),
            "metadata": dict(metadata or {}),
            "transient": {"display_id": display_id} if display_id else {},
        }
        kind = "update_display_data" if update else "display_data"
        self._send(kind, content, "display_data")

    def clear(self, *, wait: bool) -> None:
        """Remove what the cell shows, at once or when the next output comes."""
        self._send("clear_output", {"wait": wait}, "display_data")

    def _send(self, kind: str, content: dict[str, Any], topic: str) -> None:
        if not self._flushed:
            # What the cell itself printed before comes first.
            sys.stdout.flush()
            sys.stderr.flush()
            self._flushed = True
        self._session.send(
            self._socket, kind, content, parent=self._parent, ident=topic.encode()
        )


class PlainSink:
    """Output as plain text: IPython in a terminal, or captured output."""

    can_update = False

    def stream(self, name: str, text: str) -> None:
        """Append text to stdout or stderr."""
        target: TextIO = sys.stderr if name == "stderr" else sys.stdout
        target.write(text)
        target.flush()

    def display(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,  # noqa: ARG002  text has none
        display_id: str = "",  # noqa: ARG002  text is not found again
        *,
        update: bool = False,
    ) -> None:
        """Print the text of a mime bundle; a change of an earlier one is left out."""
        if not update:
            self.stream("stdout", f"{data.get('text/plain', '')}\n")

    def clear(self, *, wait: bool) -> None:
        """Leave a terminal's text alone: it may hold more than this cell's."""


def open_sink(shell: InteractiveShell) -> Sink:
    """Return the output area of the cell that runs now."""
    in_kernel = hasattr(shell, "get_parent") and hasattr(shell.display_pub, "session")
    # Redirected (captured) output has to go where it was redirected to.
    if in_kernel and hasattr(sys.stdout, "pub_thread"):
        return KernelSink(shell)
    return PlainSink()


def encoded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mime bundle as JSON can carry it: images in base64."""
    return {
        mime: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for mime, value in data.items()
    }
