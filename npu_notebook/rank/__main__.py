"""Start of a rank that is not forked: read its `RankBirth` as JSON from stdin."""

from __future__ import annotations

import os
import sys

from npu_notebook.rank.worker import run_rank


def main() -> int:
    """Read stdin to its end, leave /dev/null there, and be the rank."""
    birth_json = sys.stdin.buffer.read()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return run_rank(birth_json)


if __name__ == "__main__":
    # The interpreter's own end would wait for threads of user code and of gloo.
    os._exit(main())
