"""Start rank processes once and run checks on all of them, from the test's side."""

import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent

START_TIMEOUT_S = 120.0
CHECK_TIMEOUT_S = 60.0
# How long the other ranks may take once one has failed; they wait in a collective.
REST_TIMEOUT_S = 25.0


def checks_in(*names: str) -> list[tuple[str, str]]:
    """Return module and function of every check: each public function of the files.

    The files are read, not imported: they import torch.
    """
    found = []
    for name in names:
        tree = ast.parse((FOLDER / "checks" / f"{name}.py").read_text(encoding="utf-8"))
        found += [
            (f"tests.simulated.checks.{name}", statement.name)
            for statement in tree.body
            if isinstance(statement, ast.FunctionDef)
            and not statement.name.startswith("_")
        ]
    return found


class RankFailedError(AssertionError):
    """A check failed; the text holds the traceback of each rank that says another."""


class Ranks:
    """N rank processes with simulated NPUs, started once for many checks.

    A failed check ends them all: its ranks may wait in a collective. From then on each
    check starts its own, because a test may leave no process behind.
    """

    def __init__(self, world_size: int, devices: int = 8, memory: str = "256MiB"):
        self.world_size = world_size
        self._settings = {
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "NPU_NOTEBOOK_SIMULATED_DEVICES": str(devices),
            "NPU_NOTEBOOK_SIMULATED_MEMORY": memory,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._connections: list[Connection] = []

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._log = Path(self._folder.name) / "log"
        address = str(Path(self._folder.name) / "socket")
        with (
            Listener(address, "AF_UNIX", backlog=self.world_size + 1) as listener,
            self._log.open("wb") as log,
        ):
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.simulated.rank_process",
                    str(self.world_size),
                    address,
                ],
                cwd=ROOT,
                env={**os.environ, **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that one signal ends all of them
            )
            self._accept(listener)

    def _accept(self, listener: Listener) -> None:
        listener._listener._socket.settimeout(START_TIMEOUT_S)
        ranks: dict[int, Connection] = {}
        port = None
        self._store = None
        for _ in range(self.world_size + 1):
            connection = listener.accept()
            kind, number = connection.recv()
            if kind == "store":
                port, self._store = number, connection
            else:
                ranks[number] = connection
        self._connections = [ranks[rank] for rank in range(self.world_size)]
        for connection in self._connections:
            connection.send(port)

    def run(self, module: str, name: str) -> None:
        """Run a check on all ranks at once.

        Raises
        ------
        RankFailedError
            If it fails on a rank, or a rank ends or does not answer.
        """
        alone = self._process is None
        if alone:
            self.start()
        for connection in self._connections:
            connection.send((module, name))
        said = self._answers()
        if all(text == "" for text in said.values()) and len(said) == self.world_size:
            if alone:
                self.stop()
            return
        silent = set(range(self.world_size)) - set(said)
        report = [f"rank {rank}: no answer, it hangs" for rank in sorted(silent)]
        report += [f"rank {r}: {text}" for r, text in sorted(said.items()) if text]
        log = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
        self.stop(kill=True)
        raise RankFailedError(
            "\n".join(report) + f"\n--- output of the ranks ---\n{log}"
        )

    def _answers(self) -> dict[int, str]:
        """Return what each rank said: nothing if the check passed, or a traceback."""
        said: dict[int, str] = {}
        deadline_s = time.monotonic() + CHECK_TIMEOUT_S
        while len(said) < self.world_size:
            if any(said.values()):
                deadline_s = min(deadline_s, time.monotonic() + REST_TIMEOUT_S)
            waiting = [c for r, c in enumerate(self._connections) if r not in said]
            ready = wait(waiting, max(0.0, deadline_s - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = self._connections.index(connection)
                try:
                    said[rank] = connection.recv()
                except (EOFError, OSError):
                    said[rank] = "the process ended"
        return said

    def stop(self, *, kill: bool = False) -> None:
        if self._process is None:
            return
        for connection in self._connections:
            connection.close()
        try:
            if not kill:
                self._process.wait(START_TIMEOUT_S)
        finally:
            if self._process.poll() is None or kill:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._store is not None:
                self._store.close()
            self._process = None
            self._connections = []
            self._folder.cleanup()
