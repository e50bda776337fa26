"""A controller that does what a test says, with a real agent and real ranks."""

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import zmq

from npu_notebook import wire
from npu_notebook.launchers.local import LocalLauncher
from npu_notebook.messages import (
    AgentAlive,
    AgentJoined,
    CellDone,
    EndHost,
    HostEnded,
    HostPrepared,
    Message,
    PrepareHost,
    RankJoined,
    RankSpawned,
    RankSpec,
    RunCell,
    StartRanks,
)
from npu_notebook.topology import HostSpec

HOST = "here"
_M = TypeVar("_M", bound=Message)


class ScriptedController:
    """Speaks to one agent and its ranks over a real socket.

    ``seen`` keeps every message but heartbeats, in order of arrival.
    """

    def __init__(self, warm: str = "none", *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="npu-agent-"))
        self.endpoint = f"ipc://{self.folder}/s"
        self.log_path = self.folder / "agent.log"
        self.seen: list[Message] = []
        self.payloads: list[list[bytes]] = []
        self.incarnations: dict[int, int] = {}
        self.provider = warm
        self._context = zmq.Context()
        self._router = wire.open_router(self._context, self.endpoint, None)
        self._unread: list[tuple[Message, list[bytes]]] = []
        self.launcher = LocalLauncher()
        command = [sys.executable, "-m", "npu_notebook.agent"]
        command += ["--endpoint", self.endpoint, "--host", HOST, "--warm", warm]
        self.launcher.launch(HostSpec(name=HOST), [*command, *options], self.log_path)
        self.fact = self.expect(AgentJoined).fact
        self.agent = psutil.Process(self.fact.agent_pid)

    def send(self, message: Message, payload: tuple[bytes, ...] = ()) -> None:
        frames = wire.encode(message, payload)
        self._router.send_multipart([wire.agent_identity(HOST), *frames])

    def send_rank(self, rank: int, message: Message) -> None:
        identity = wire.rank_identity(rank, self.incarnations[rank])
        self._router.send_multipart([identity, *wire.encode(message)])

    def expect(
        self,
        kind: type[_M],
        test: Callable[[_M], bool] = lambda _message: True,
        timeout_s: float = 30.0,
    ) -> _M:
        """Return the next message of a kind; the others are kept for later."""
        return self.expect_payload(kind, test, timeout_s)[0]

    def expect_payload(
        self,
        kind: type[_M],
        test: Callable[[_M], bool] = lambda _message: True,
        timeout_s: float = 30.0,
    ) -> tuple[_M, list[bytes]]:
        deadline_s = time.monotonic() + timeout_s
        place = 0
        while True:
            while place < len(self._unread):
                message, payload = self._unread[place]
                if isinstance(message, kind) and test(message):
                    del self._unread[place]
                    return message, payload
                place += 1
            left_ms = int((deadline_s - time.monotonic()) * 1000)
            if left_ms <= 0 or not self._router.poll(left_ms):
                message = (
                    f"no {kind.__name__} within {timeout_s} s; unread: "
                    f"{self._unread}\n{self.log_path.read_text()}"
                )
                raise AssertionError(message)
            self._receive()

    def _receive(self) -> None:
        _identity, message, payload = wire.read_to_controller(
            self._router.recv_multipart()
        )
        if isinstance(message, AgentAlive):
            self.send(AgentAlive(host=HOST))
        else:
            self.seen.append(message)
            self._unread.append((message, payload))

    def prepare(self, timeout_s: float = 45.0, **env: str) -> HostPrepared:
        self.send(PrepareHost(provider=self.provider, env=env))
        return self.expect(HostPrepared, timeout_s=timeout_s)

    def spec(self, rank: int, **changes: Any) -> RankSpec:
        incarnation = self.incarnations.get(rank, -1) + 1
        self.incarnations[rank] = incarnation
        facts = {
            "rank": rank,
            "local_rank": rank,
            "incarnation": incarnation,
            "env": {"RANK": str(rank)},
            "cwd": str(self.folder),
            "log_path": str(self.folder / f"rank{rank}.log"),
        }
        return RankSpec(**{**facts, **changes})

    def start(self, *specs: RankSpec) -> None:
        command = StartRanks(
            provider=self.provider, endpoint=self.endpoint, ranks=specs
        )
        self.send(command)

    def start_ranks(self, *ranks: int) -> list[int]:
        """Start ranks, wait until they have joined, return their pids."""
        self.start(*(self.spec(rank) for rank in ranks))
        pids = [
            self.expect(RankSpawned, lambda m, rank=rank: m.rank == rank).pid
            for rank in ranks
        ]
        for rank in ranks:
            self.expect(RankJoined, lambda m, rank=rank: m.rank == rank)
        return pids

    def submit(self, rank: int, code: str) -> None:
        """Have a rank run a cell; does not wait."""
        self.send_rank(rank, RunCell(cell_id=f"cell-{time.monotonic_ns()}", code=code))

    def run(self, rank: int, code: str) -> None:
        """Have a rank run a cell and wait for its end, which must be a good one."""
        self.submit(rank, code)
        done = self.expect(CellDone, lambda m: m.rank == rank)
        assert done.error is None, done.error

    def read_when_written(self, name: str, timeout_s: float = 10.0) -> str:
        """Return what a rank's cell writes to a file, when it is there."""
        path = self.folder / name
        wait_until(lambda: path.exists() and path.read_text(), timeout_s)
        return path.read_text()

    def end(self, grace_s: float = 2.0) -> None:
        self.send(EndHost(grace_s=grace_s))
        self.expect(HostEnded)
        self.wait_for_agent()

    def wait_for_agent(self, timeout_s: float = 10.0) -> int:
        """Return the exit status of the agent."""
        exits: list[Any] = []
        wait_until(lambda: exits.extend(self.launcher.poll()) or exits, timeout_s)
        return exits[0].returncode

    def close(self) -> None:
        """End whatever still runs."""
        with suppress(zmq.ZMQError):  # it has left already, or is about to
            self.send(EndHost(grace_s=0.5))
        self.launcher.end(grace_s=10.0)
        self._router.close(linger=0)
        self._context.term()
        shutil.rmtree(self.folder)


def wait_until(is_so: Callable[[], Any], timeout_s: float = 10.0) -> None:
    """Look every 20 ms; fail with the last answer after ``timeout_s``."""
    pause = threading.Event()
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"not so after {timeout_s} s"
        pause.wait(0.02)


def is_alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)
