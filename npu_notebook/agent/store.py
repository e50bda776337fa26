"""The TCPStore: a small process of its own, so that any rank may die.

The agent binds the listening socket and hands it over, so the store listens on that
one address and port and nowhere else: `torch.distributed.TCPStore` by itself listens
on every interface.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import msgspec

from npu_notebook.telemetry.host import find_port_holder

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

PROGRAM = "npu_notebook.agent.store:serve"
LISTEN_FD = 3
READY_FD = 4
_BACKLOG = 1024


class StoreBirth(msgspec.Struct, frozen=True, kw_only=True):
    """What the store's process must know; the descriptors are open in it."""

    address: str
    port: int
    listen_fd: int = LISTEN_FD
    ready_fd: int = READY_FD


def bind(address: str, port: int) -> socket.socket:
    """Return a listening socket on one interface; port 0 takes a free one.

    Raises
    ------
    OSError
        If the port is taken or the address is not of this host; the text says which,
        and who holds the port where that can be known.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        holder = find_port_holder(port) if port else ""
        taken = f" (held by {holder})" if holder else ""
        message = f"port {port} on {address} cannot be used: {error.strerror}{taken}"
        raise OSError(message) from error
    return listener


def serve(argument: bytes) -> int:
    """Run the store until this process is killed; say ``ok`` when it answers."""
    birth = msgspec.json.decode(argument, type=StoreBirth)
    with os.fdopen(birth.ready_fd, "w") as ready:
        try:
            store = _open(birth)
        except Exception as error:
            ready.write(f"the TCPStore did not start: {error}")
            raise
        ready.write("ok")
    signal.pause()  # the store's own threads do the work until the agent kills us
    return 0 if store.port else 1


def _open(birth: StoreBirth) -> TCPStore:
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(
        birth.address,
        birth.port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=birth.listen_fd,
    )


if __name__ == "__main__":
    sys.exit(serve(sys.stdin.buffer.read()))
