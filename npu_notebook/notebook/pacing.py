"""Keeps a notebook's output below what Jupyter's server lets pass.

The server drops, without a word to the kernel, what exceeds 1,000 messages or 1 MB of
stream text per second, averaged over 3 s. Whoever asks here first is never dropped.
Source: jupyter_server, ``services/kernels/connection/channels.py``
(``iopub_msg_rate_limit``, ``iopub_data_rate_limit``, ``rate_limit_window``).
"""

from __future__ import annotations

import threading
from collections import deque

WINDOW_S = 3.3
"""A little longer than the server's 3 s: its clock and ours do not start together."""

MAX_NBYTES = 2_400_000
MAX_MESSAGES = 2_400
_HEADER_NBYTES = 600


class Pacer:
    """What all cells of one kernel together have sent lately; used from any thread."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, int]] = deque()
        self._nbytes = 0
        self._lock = threading.Lock()

    def room(self, now_s: float) -> int:
        """Return how many bytes may be sent now; 0 when it has to wait."""
        with self._lock:
            self._forget(now_s)
            if len(self._sent) >= MAX_MESSAGES:
                return 0
            return max(0, MAX_NBYTES - self._nbytes)

    def spend(self, now_s: float, text: str) -> None:
        """Record that ``text`` was sent as one message."""
        nbytes = json_nbytes(text) + _HEADER_NBYTES
        with self._lock:
            self._sent.append((now_s, nbytes))
            self._nbytes += nbytes

    def _forget(self, now_s: float) -> None:
        while self._sent and self._sent[0][0] <= now_s - WINDOW_S:
            self._nbytes -= self._sent.popleft()[1]


def json_nbytes(text: str) -> int:
    r"""Return about how many bytes a text has inside a message.

    Examples
    --------
    >>> json_nbytes("a\n")
    3
    """
    nbytes = len(text) if text.isascii() else len(text.encode(errors="replace"))
    escaped = text.count("\n") + text.count('"') + text.count("\\") + text.count("\t")
    return nbytes + escaped + 5 * text.count("\x1b")
