"""Drive real rank processes through a real ROUTER, without controller and agent."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from npu_notebook import messages, wire
from npu_notebook.messages import CellDone, DisplayOutput, ErrorInfo, StreamText

TIMEOUT_S = 30.0


@dataclass
class CellRun:
    """What one rank reported about one cell."""

    reports: list[Any] = field(default_factory=list)

    @property
    def done(self) -> CellDone:
        return self.reports[-1]

    @property
    def error(self) -> ErrorInfo | None:
        return self.done.error

    @property
    def displays(self) -> list[DisplayOutput]:
        return [one for one in self.reports if isinstance(one, DisplayOutput)]

    def text(self, stream: str = "stdout") -> str:
        texts = [one for one in self.reports if isinstance(one, StreamText)]
        return "".join(one.text for one in texts if one.stream == stream)

    @property
    def value(self) -> str:
        """The plain text of the last expression's value."""
        (value,) = [one for one in self.displays if one.kind == "value"]
        return value.data["text/plain"]


class Desk:
    """The controller's side of the wire for the ranks of one test."""

    def __init__(self) -> None:
        # A short path: sockets may have names of 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="npu-"))
        self.endpoint = f"ipc://{self.folder}/socket"
        self._context = zmq.Context()
        self._router = wire.open_router(self._context, self.endpoint, None)
        self._waiting: dict[int, list[tuple[Any, list[Any]]]] = {}
        self.ranks: list[DrivenRank] = []

    def start(self, provider: str = "none", rank: int = 0, **options: Any):
        """Start a rank and wait until it has joined."""
        return DrivenRank(self, provider, rank, **options)

    def send(self, rank: int, message: messages.Message, payload: Sequence[Any] = ()):
        frames = [wire.rank_identity(rank, 0), *wire.encode(message, payload)]
        self._router.send_multipart(frames)

    def receive(self, rank: int, timeout_s: float = TIMEOUT_S) -> tuple[Any, list[Any]]:
        """Return the next report of a rank, heartbeats left out."""
        end_s = time.monotonic() + timeout_s
        while not self._waiting.get(rank):
            left_ms = int((end_s - time.monotonic()) * 1000)
            if left_ms <= 0 or not self._router.poll(left_ms):
                logs = "\n".join(one.log for one in self.ranks)
                message = f"no word from rank {rank} in {timeout_s} s; logs:\n{logs}"
                raise TimeoutError(message)
            frames = self._router.recv_multipart()
            identity, report, payload = wire.read_to_controller(frames)
            sender = int(wire.parse_identity(identity).name)
            if not isinstance(report, messages.Heartbeat | messages.CellStarted):
                self._waiting.setdefault(sender, []).append((report, payload))
            elif self.keep_heartbeats:
                self.heartbeats.append(report)
        return self._waiting[rank].pop(0)

    keep_heartbeats = False

    @property
    def heartbeats(self) -> list[Any]:
        return self.__dict__.setdefault("_heartbeats", [])

    def close(self) -> None:
        for rank in self.ranks:
            rank.end()
        self._router.close(linger=0)
        self._context.term()
        shutil.rmtree(self.folder)


class DrivenRank:
    """One rank process."""

    def __init__(  # noqa: PLR0913  each is given by some test
        self,
        desk: Desk,
        provider: str,
        rank: int,
        *,
        world_size: int = 1,
        cwd: str = "",
        program: Sequence[str] = (sys.executable, "-m", "npu_notebook.rank"),
        forked: bool = False,
    ) -> None:
        self.desk = desk
        self.rank = rank
        self.cwd = desk.folder / "work"
        self.cwd.mkdir(exist_ok=True)
        self.log_path = desk.folder / f"rank-{rank}.log"
        values = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "OMP_NUM_THREADS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        self.cell_count = 0
        birth = {
            "endpoint": desk.endpoint,
            "provider": provider,
            "host": "here",
            "spec": {
                "rank": rank,
                "local_rank": rank,
                "incarnation": 0,
                "env": values,
                "cwd": cwd or str(self.cwd),
                "log_path": str(self.log_path),
            },
            "forked": forked,
        }
        self.process = start_rank(program, msgspec.json.encode(birth), self.log_path)
        desk.ranks.append(self)
        self.first_report = self.receive()

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def send(self, message: messages.Message, payload: Sequence[Any] = ()) -> None:
        self.desk.send(self.rank, message, payload)

    def receive(self, timeout_s: float = TIMEOUT_S) -> Any:
        return self.desk.receive(self.rank, timeout_s)[0]

    def ask(self, message: messages.Message, payload: Sequence[Any] = ()) -> Any:
        self.send(message, payload)
        return self.receive()

    def submit(self, code: str, **options: Any) -> str:
        self.cell_count += 1
        cell_id = f"cell{self.cell_count}"
        options.setdefault("execution_count", self.cell_count)
        self.send(messages.RunCell(cell_id=cell_id, code=code, **options))
        return cell_id

    def wait(self, cell_id: str, timeout_s: float = TIMEOUT_S) -> CellRun:
        """Collect all reports up to the end of a cell."""
        run = CellRun()
        while True:
            report = self.receive(timeout_s)
            run.reports.append(report)
            if isinstance(report, CellDone) and report.cell_id == cell_id:
                return run

    def run(self, code: str, **options: Any) -> CellRun:
        return self.wait(self.submit(code, **options))

    def interrupt(self, level: int = 1, cell_id: str | None = None) -> None:
        self.send(messages.InterruptRank(level=level, cell_id=cell_id))

    def end(self) -> int:
        with suppress(zmq.ZMQError):  # it may be gone already
            self.send(messages.EndRank())
        try:
            return self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def start_rank(
    program: Sequence[str], birth_json: bytes, log_path: Path
) -> subprocess.Popen[bytes]:
    """Start a rank as the agent does on hosts with real devices."""
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    process.stdin.write(birth_json)
    process.stdin.close()
    return process
