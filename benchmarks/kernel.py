"""Drive a Jupyter kernel as a front end does, and time its cells."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import zmq
from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from pathlib import Path

_START_TIMEOUT_S = 60.0
_CELL_TIMEOUT_S = 120.0


@dataclass(slots=True)
class CellRun:
    """One executed cell.

    Attributes
    ----------
    elapsed_s : float
        From the request until both the reply and the end of the output were here.
    outputs : list of dict
        The messages of the cell on the iopub channel but its ``status`` and
        ``execute_input``, as jupyter_client gives them.
    nbytes : int
        Bytes of content of those messages, as they travel.
    """

    elapsed_s: float = 0.0
    outputs: list[dict[str, Any]] = field(default_factory=list)
    nbytes: int = 0

    def text(self, stream: str) -> str:
        """Return all text of ``stdout`` or ``stderr``."""
        return "".join(
            message["content"]["text"]
            for message in self.outputs
            if message["msg_type"] == "stream" and message["content"]["name"] == stream
        )


class Kernel:
    """A kernel of its own process, ended by ``with``.

    Parameters
    ----------
    folder : Path
        For IPython's files and what the kernel prints outside of cells.
    """

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "IPYTHONDIR": str(folder / "ipython")}
        self._log = (folder / "kernel.log").open("ab")
        self._kernels = KernelManager(kernel_name="python3")
        self._kernels.start_kernel(env=environment, stdout=self._log, stderr=self._log)
        self._client = self._kernels.client()
        self._client.start_channels()
        try:
            self._client.wait_for_ready(timeout=_START_TIMEOUT_S)
        except RuntimeError:
            self.close()
            raise
        self._shell = self._client.shell_channel.socket
        self._iopub = self._client.iopub_channel.socket
        self._poller = zmq.Poller()
        self._poller.register(self._shell, zmq.POLLIN)
        self._poller.register(self._iopub, zmq.POLLIN)

    @property
    def pid(self) -> int:
        """The kernel's process."""
        pid: int = self._kernels.provisioner.pid  # type: ignore[union-attr]  # local
        return pid

    def run(self, code: str) -> CellRun:
        """Run a cell and take all it puts out.

        Raises
        ------
        RuntimeError
            If the cell fails; with its traceback.
        TimeoutError
            If nothing arrives for two minutes.
        """
        # The sockets are read here: the blocking client's own loop costs milliseconds
        # that would hide a difference between kernels.
        result = CellRun()
        begin_s = time.perf_counter()
        request = self._client.execute(code)
        reply: dict[str, Any] | None = None
        is_idle = False
        while reply is None or not is_idle:
            ready = self._poller.poll(int(_CELL_TIMEOUT_S * 1000))
            if not ready:
                problem = f"no word from the kernel for {_CELL_TIMEOUT_S:g} s"
                raise TimeoutError(problem)
            for socket, _ in ready:
                for message in self._drain(socket, request, result):
                    if message["msg_type"] == "execute_reply":
                        reply = message["content"]
                    else:
                        is_idle = True
        result.elapsed_s = time.perf_counter() - begin_s
        if reply["status"] != "ok":
            raise RuntimeError("\n".join(reply.get("traceback", [reply["status"]])))
        return result

    def _drain(
        self, socket: zmq.Socket[bytes], request: str, result: CellRun
    ) -> list[dict[str, Any]]:
        """Keep the outputs in ``result``; return reply and end of output."""
        ends = []
        while int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = socket.recv_multipart()
            _, parts = self._client.session.feed_identities(frames)
            message = self._client.session.deserialize(parts)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind = message["msg_type"]
            is_end = kind == "status" and (
                message["content"]["execution_state"] == "idle"
            )
            if kind == "execute_reply" or is_end:
                ends.append(message)
            elif kind not in ("status", "execute_input"):
                result.outputs.append(message)
                result.nbytes += len(parts[-1])
        return ends

    def close(self) -> None:
        """Shut the kernel down as a person would, then make sure."""
        self._client.stop_channels()
        self._kernels.shutdown_kernel()
        self._kernels.cleanup_resources()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_with_cluster(folder: Path, *, num_ranks: int, device: str) -> Kernel:
    """Start a kernel that has a cluster of its own, without any saved defaults."""
    kernel = Kernel(folder)
    try:
        kernel.run("%load_ext npu_notebook")
        kernel.run(f"%npu_cluster start -n {num_ranks} --device {device}")
    except BaseException:
        kernel.close()
        raise
    return kernel
