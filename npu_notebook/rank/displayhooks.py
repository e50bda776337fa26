"""IPython's side of rich output: what ``display()`` and a last expression call."""

from __future__ import annotations

import sys
import tokenize
from typing import TYPE_CHECKING, Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

if TYPE_CHECKING:
    from npu_notebook.rank.display import DisplaySender


class CellDisplayPublisher(DisplayPublisher):
    """``display()``, ``update_display`` and ``clear_output`` of a cell."""

    sender: DisplaySender

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *_source: object,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_others: object,
    ) -> None:
        """Send a MIME bundle."""
        self._validate_data(data, metadata)
        self.sender.publish(
            "update" if update else "display",
            data,
            metadata,
            display_id=str((transient or {}).get("display_id", "")),
        )

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002  IPython's signature
        """Ask the notebook to clear what this rank has shown."""
        self.sender.publish("clear", {}, wait=wait)


class CellDisplayHook(DisplayHook):
    """The value of a cell's last expression.

    Unlike in a terminal no ``Out`` is kept: it would keep every tensor that was looked
    at alive. ``_`` is the last value.
    """

    sender: DisplaySender
    cell_text = ""

    def __call__(self, result: Any = None) -> None:  # noqa: ANN401  any value
        """Show the value, unless it is None or the cell ends with ``;``."""
        self.check_for_underscore()
        self.fill_exec_result(result)
        if result is None or self.quiet():
            return
        sys.stdout.flush()
        data, metadata = self.compute_format_data(result)
        self.update_user_ns(result)
        if data:
            self.sender.publish("value", data, metadata)

    def quiet(self) -> bool:
        """Return whether the last expression ends with a semicolon."""
        last_line = self.cell_text.rstrip().rpartition("\n")[2]
        if ";" not in last_line:
            return False
        try:
            return bool(self.semicolon_at_end_of_expression(self.cell_text))
        except (tokenize.TokenError, SyntaxError):  # a cell with magics is no Python
            return last_line.endswith(";")

    def update_user_ns(self, result: Any) -> None:  # noqa: ANN401  any value
        """Set ``_`` unless user code has made it its own."""
        assert self.shell is not None
        namespace = self.shell.user_ns
        if "_" not in namespace or namespace["_"] is self._:
            self._ = result
            namespace["_"] = result
