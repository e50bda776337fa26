"""Rich output of a rank: ``display()``, figures, the value of the last expression."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from npu_notebook.messages import DisplayOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npu_notebook.messages import RankReport
    from npu_notebook.rank.attribution import Attribution
    from npu_notebook.rank.output import Output

DisplayKind: TypeAlias = Literal["display", "update", "value", "clear"]


class DisplaySender:
    """Send rich output in its place among the text of its cell.

    Parameters
    ----------
    rank : int
        Sender of the reports.
    send : callable
        Takes a report, from any thread.
    attribution, output : Attribution, Output
        Which cell it belongs to, and the text before it.
    """

    def __init__(
        self,
        rank: int,
        send: Callable[[RankReport], None],
        attribution: Attribution,
        output: Output,
    ) -> None:
        self._rank = rank
        self._send = send
        self._attribution = attribution
        self._output = output

    def publish(
        self,
        kind: DisplayKind,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        display_id: str = "",
        wait: bool = False,
    ) -> None:
        """Send one output; in a forked child only its text can be shown."""
        cell_id = self._attribution.cell_id()
        if self._output.in_child or not cell_id:
            if "text/plain" in data:
                print(data["text/plain"])  # noqa: T201  the child's own stdout
            return
        message = DisplayOutput(
            cell_id=cell_id,
            rank=self._rank,
            kind=kind,
            data={mime: _plain(value) for mime, value in data.items()},
            metadata=_plain(dict(metadata or {})),
            display_id=display_id,
            wait=wait,
        )
        self._output.flush()
        self._send(message)


def _plain(value: Any) -> Any:  # noqa: ANN401  MIME data of any object
    """Return what can travel: bytes as base64 text, the rest as JSON would have it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int | float | None):
        return value
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_unwrap))
    except (TypeError, ValueError, msgspec.MsgspecError):
        return repr(value)


def _unwrap(value: Any) -> Any:  # noqa: ANN401  as above
    return value.tolist() if hasattr(value, "tolist") else repr(value)
