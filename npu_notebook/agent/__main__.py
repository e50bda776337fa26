"""``python -m npu_notebook.agent``: the agent of one host, started by a launcher."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from npu_notebook.agent.agent import Agent, Options

_ORPHAN_TIMEOUT_S = 30.0


def main() -> int:
    """Read the command line and serve until the end."""
    parser = argparse.ArgumentParser(prog="npu_notebook.agent")
    parser.add_argument("--endpoint", required=True, help="the controller's address")
    parser.add_argument("--host", required=True, help="this host's name in the cluster")
    parser.add_argument("--warm", default="", help="device provider to expect")
    parser.add_argument("--cluster", default="", help="the cluster's name")
    parser.add_argument("--controller-pid", type=int, help="if it runs on this host")
    parser.add_argument("--orphan-timeout", type=float, metavar="SECONDS")
    words = parser.parse_args()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s agent[%(process)d] %(levelname)s %(message)s",
    )
    timeout_s = words.orphan_timeout
    if timeout_s is None:
        timeout_s = float(
            os.environ.get("NPU_NOTEBOOK_ORPHAN_TIMEOUT_S", _ORPHAN_TIMEOUT_S)
        )
    Agent(
        Options(
            endpoint=words.endpoint,
            host=words.host,
            cluster=words.cluster or _cluster_of(words.endpoint),
            warm=words.warm,
            controller_pid=words.controller_pid,
            orphan_timeout_s=timeout_s,
        )
    ).run()
    return 0


def _cluster_of(endpoint: str) -> str:
    """Return the name of the folder that a local controller's socket lies in."""
    return Path(endpoint.partition("://")[2]).parent.name or "cluster"


if __name__ == "__main__":
    sys.exit(main())
