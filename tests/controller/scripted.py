"""A real controller process, and peers whose every word the test says."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq

from npu_notebook import messages, runtime, wire
from npu_notebook.messages import Message
from npu_notebook.runtime import ClusterPaths, Connection
from npu_notebook.topology import ClusterSpec, HostSpec
from tests.controller.driving import host_fact

M = TypeVar("M", bound=Message)
_TIMEOUT_S = 20.0
_NUMBERS = itertools.count()
_ROOT = Path(__file__).parents[2]
_ENTRY_POINTS = """\
[npu_notebook.launchers]
nothing = tests.controller.scripted_launcher:NoProcessLauncher
leaving = tests.controller.scripted_launcher:LeavingLauncher
"""


def wait_for(condition: Any, what: str, timeout_s: float = _TIMEOUT_S) -> Any:
    """Return what ``condition()`` returns as soon as that is true."""
    end_s = time.monotonic() + timeout_s
    pause = zmq.Poller()
    while time.monotonic() < end_s:
        value = condition()
        if value:
            return value
        pause.poll(10)
    msg = f"not within {timeout_s} s: {what}"
    raise AssertionError(msg)


class ScriptedPeer:
    """One DEALER; it answers nothing by itself."""

    def __init__(self, endpoint: str, identity: bytes) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.dealer = wire.open_dealer(self._context, endpoint, identity)
        kind = wire.parse_identity(identity).kind
        self._read = {
            "notebook": wire.read_update,
            "rank": wire.read_rank_command,
            "agent": wire.read_agent_command,
        }[kind]
        self.payload: list[Any] = []

    def send(self, message: Message, payload: Any = ()) -> None:
        self.dealer.send_multipart(wire.encode(message, payload))

    def next(self, timeout_s: float = _TIMEOUT_S) -> Message | None:
        """Return the next message, None if there is none in time."""
        if not self.dealer.poll(int(timeout_s * 1000)):
            return None
        message, self.payload = self._read(self.dealer.recv_multipart())
        return message

    def expect(self, kind: type[M], timeout_s: float = _TIMEOUT_S) -> M:
        """Return the next message of a class, passing over others."""
        end_s = time.monotonic() + timeout_s
        seen = []
        while (left_s := end_s - time.monotonic()) > 0:
            message = self.next(left_s)
            if isinstance(message, kind):
                return message
            seen.append(message)
        msg = f"no {kind.__name__}, but {seen}"
        raise AssertionError(msg)

    def close(self) -> None:
        self.dealer.close(linger=0)
        self._context.term()


class ScriptedCluster:
    """A controller process; `start` plays agent and ranks of a start that goes well."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        facts: dict[str, Any] = {
            "name": f"scripted-{next(_NUMBERS)}",
            "num_ranks": 2,
            "device": "none",
            "hosts": (HostSpec(name="a"),),
            "launcher": "nothing",
        }
        self.spec = ClusterSpec(**{**facts, **spec})
        self.paths = ClusterPaths(self.spec.name)
        self.paths.create()
        data = msgspec.json.encode(self.spec)
        runtime.write_private(self.paths.spec_file, data)
        self.peers: list[ScriptedPeer] = []
        self.ranks: list[ScriptedPeer] = []
        self.agent: ScriptedPeer | None = None
        self._plugins = folder / "scripted-0.dist-info"
        self._plugins.mkdir(exist_ok=True)
        (self._plugins / "entry_points.txt").write_text(_ENTRY_POINTS)
        (self._plugins / "METADATA").write_text("Name: scripted\nVersion: 0\n")
        self.child_pid_file = folder / "child"
        self.process = self.launch()

    def launch(self) -> subprocess.Popen[bytes]:
        """Start a controller process for this cluster's name."""
        path = os.pathsep.join([str(self._plugins.parent), str(_ROOT)])
        env = {
            **os.environ,
            "PYTHONPATH": path,
            "CHILD_PID_FILE": str(self.child_pid_file),
        }
        words = [sys.executable, "-m", "npu_notebook.controller", self.spec.name]
        return subprocess.Popen(words, env=env, start_new_session=True)

    def connection(self) -> Connection:
        """Wait until the controller can be joined."""

        def read() -> Connection | None:
            assert self.process.poll() is None, self.log()
            try:
                return runtime.read_connection(self.spec.name)
            except Exception:  # noqa: BLE001  not yet there, or half of a predecessor
                return None

        return wait_for(read, "the connection file")

    def log(self) -> str:
        return (self.paths.logs / "controller.log").read_text()

    def peer(self, identity: bytes) -> ScriptedPeer:
        peer = ScriptedPeer(self.paths.endpoint, identity)
        self.peers.append(peer)
        return peer

    def notebook(self, pid: int | None = None, **changes: Any) -> ScriptedPeer:
        """Join a notebook that claims to be the process ``pid``."""
        peer = self.peer(wire.notebook_identity())
        number = os.getpid() if pid is None else pid
        facts: dict[str, Any] = {
            "protocol_version": messages.PROTOCOL_VERSION,
            "package_version": "0",
            "python": runtime.python_version(),
            "host": socket.gethostname(),
            "pid": number,
            "process_start_s": runtime.process_start_s(number) or 0.0,
            "memory_key": "memory-a",
        }
        peer.send(messages.JoinNotebook(**{**facts, **changes}))
        return peer

    def join_agent(self) -> ScriptedPeer:
        """Join the agent and prepare its host."""
        self.agent = agent = self.peer(wire.agent_identity("a"))
        fact = host_fact("a", python=runtime.python_version(), torch="")
        joined = messages.AgentJoined(
            protocol_version=messages.PROTOCOL_VERSION, fact=fact
        )
        agent.send(joined)
        agent.expect(messages.PrepareHost)
        agent.send(messages.HostPrepared(host="a"))
        return agent

    def join_rank(self, spec: messages.RankSpec) -> ScriptedPeer:
        rank = self.peer(wire.rank_identity(spec.rank, spec.incarnation))
        joined = messages.RankJoined(
            rank=spec.rank,
            incarnation=spec.incarnation,
            host="a",
            pid=os.getpid(),
            python=runtime.python_version(),
            torch="",
            device="",
            protocol_version=messages.PROTOCOL_VERSION,
        )
        rank.send(joined)
        return rank

    def start(self) -> ScriptedPeer:
        """Come up; return the notebook."""
        self.connection()
        notebook = self.notebook()
        start = self.join_agent().expect(messages.StartRanks)
        self.ranks = [self.join_rank(spec) for spec in start.ranks]
        while True:
            change = notebook.expect(messages.StateChanged)
            if change.fact.state is messages.ClusterState.READY:
                return notebook

    def run_cell(self, notebook: ScriptedPeer, cell_id: str) -> None:
        """Submit a cell and take it on every rank."""
        ranks = tuple(range(len(self.ranks)))
        cell = messages.SubmitCell(cell_id=cell_id, code="x = 1", ranks=ranks)
        notebook.send(cell)
        for rank in self.ranks:
            assert rank.expect(messages.RunCell).cell_id == cell_id

    def end_cell(self, cell_id: str) -> None:
        for number, rank in enumerate(self.ranks):
            done = messages.CellDone(cell_id=cell_id, rank=number, elapsed_ns=1)
            rank.send(done)

    def close(self) -> None:
        """End the controller whatever happened."""
        if self.process.poll() is None:
            self.process.terminate()
            if self.agent is not None:
                self._say_host_ended(self.agent)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for peer in self.peers:
            peer.close()

    def _say_host_ended(self, agent: ScriptedPeer) -> None:
        for _ in range(100):
            if self.process.poll() is not None:
                return
            if isinstance(agent.next(0.1), messages.EndHost):
                agent.send(messages.HostEnded(host="a"))
                return
