"""The least a cell can cost: the same hops with bare ZeroMQ and nothing to do.

Client (DEALER) -> router process (ROUTER) -> worker processes (DEALER) and back; the
client has its answer when all workers have answered.
``python -m benchmarks.zmq_relay router ENDPOINT WORKERS`` and
``... worker ENDPOINT NUMBER`` are the processes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# As long as the messages of a cell, so that the bytes cost the same.
_BODY = b"x" * 120
_ANSWER = b"y" * 80
_END = b"end"
_READY_TIMEOUT_MS = 30_000


@contextlib.contextmanager
def open_relay(endpoint: str, num_workers: int) -> Iterator[Callable[[], float]]:
    """Start the processes; give a function that returns one round trip in seconds.

    Raises
    ------
    TimeoutError
        If the processes are not up after 30 s.
    """
    command = [sys.executable, "-m", "benchmarks.zmq_relay"]
    processes = [
        subprocess.Popen([*command, "router", endpoint, str(num_workers)]),
        *(
            subprocess.Popen([*command, "worker", endpoint, str(number)])
            for number in range(num_workers)
        ),
    ]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.IDENTITY, b"client")
    client.connect(endpoint)

    def ping() -> float:
        begin_s = time.perf_counter()
        client.send(_BODY)
        client.recv()
        return time.perf_counter() - begin_s

    try:
        # The router answers this one when all workers are there.
        client.send(_BODY)
        if not client.poll(_READY_TIMEOUT_MS):
            message = f"the ZeroMQ reference is not up after {_READY_TIMEOUT_MS} ms"
            raise TimeoutError(message)
        client.recv()
        yield ping
        client.send(_END)
        for process in processes:
            process.wait(10)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        context.destroy(linger=0)


def _route(endpoint: str, num_workers: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(endpoint)
    workers: list[bytes] = []
    is_waiting = False
    while len(workers) < num_workers or not is_waiting:
        identity, _ = router.recv_multipart()
        if identity == b"client":
            is_waiting = True
        else:
            workers.append(identity)
    body = _BODY
    while body != _END:
        for worker in workers:
            router.send_multipart([worker, body])
        for _ in workers:
            router.recv_multipart()
        router.send_multipart([b"client", _ANSWER])
        _, body = router.recv_multipart()
    for worker in workers:
        router.send_multipart([worker, _END])
    context.destroy(linger=1000)


def _work(endpoint: str, number: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, b"worker-%d" % number)
    dealer.connect(endpoint)
    dealer.send(_ANSWER)
    while dealer.recv() != _END:
        dealer.send(_ANSWER)
    context.destroy(linger=0)


if __name__ == "__main__":
    role, given_endpoint, count = sys.argv[1:]
    {"router": _route, "worker": _work}[role](given_endpoint, int(count))
