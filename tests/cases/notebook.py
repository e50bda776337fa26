"""A notebook as a front end sees it: a real kernel, cells, and what each shows."""

import json
import os
import queue
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager

from npu_notebook.topology import parse_ranks

KERNEL_FILE = Path(__file__).parents[2] / "kernelspec" / "kernel.json"
_LABEL = re.compile(r"\[([0-9,-]+)\] ?(.*)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

#: How long a kernel may take to start, or a cell to end, in seconds. The machines that
#: run this are slow and shared; what a case itself promises is asserted on its own.
PATIENCE_S = 50.0


def plain(text: str) -> str:
    """Return text without its colours."""
    return _ANSI.sub("", text)


def each(*lines: str, num_ranks: int = 4) -> dict[int | str, list[str]]:
    """Return `Cell.by_rank` of ranks that all have printed the same lines."""
    return {rank: list(lines) for rank in range(num_ranks)}


@dataclass
class Arrival:
    """One message of a cell and when it came, in seconds of CLOCK_MONOTONIC."""

    at_s: float
    kind: str
    content: dict[str, Any]


@dataclass
class Cell:
    """One executed cell and all that has arrived under it."""

    code: str
    arrivals: list[Arrival] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False
    ended_s: float = 0.0

    @property
    def text(self) -> str:
        """All text a person reads, top to bottom, errors included, without colours."""
        return plain("".join(_text_of(output) for output in self.outputs))

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def by_rank(self) -> dict[int | str, list[str]]:
        """The lines of each rank without labels; what has none stands under ""."""
        # A busy machine may show equal lines of ranks in two pieces.
        said: dict[int | str, list[str]] = {}
        for line in self.lines:
            labelled = _LABEL.fullmatch(line)
            ranks = parse_ranks(labelled[1], 64) if labelled else ("",)
            for rank in ranks:
                said.setdefault(rank, []).append(labelled[2] if labelled else line)
        return said

    def all_said(self, line: str) -> bool:
        """Whether four ranks have printed a line."""
        said = self.by_rank
        return all(line in said.get(rank, []) for rank in range(4))

    def stream(self, name: str) -> str:
        """Return what was written to stdout or stderr."""
        return "".join(
            output["text"] for output in self.outputs if output.get("name") == name
        )

    @property
    def error(self) -> str:
        """The error's traceback as text without colours, "" for success."""
        return plain(
            "\n".join(
                "\n".join(output["traceback"])
                for output in self.outputs
                if output["output_type"] == "error"
            )
        )

    @property
    def error_name(self) -> str:
        return "".join(
            output["ename"]
            for output in self.outputs
            if output["output_type"] == "error"
        )

    def saved_nbytes(self) -> int:
        """Return the size of a saved notebook that holds this cell alone."""
        cell = nbformat.v4.new_code_cell(self.code)
        cell.outputs = [nbformat.from_dict(output) for output in self.outputs]
        notebook = nbformat.v4.new_notebook(cells=[cell])
        nbformat.validate(notebook)
        return len(nbformat.writes(notebook).encode())


class Notebook:
    """A kernel of this project, driven as JupyterLab drives it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        specs = folder / "kernels" / "npu_notebook"
        specs.mkdir(parents=True, exist_ok=True)
        spec = json.loads(KERNEL_FILE.read_text())
        spec["argv"][0] = sys.executable
        (specs / "kernel.json").write_text(json.dumps(spec))
        self._manager = KernelManager(
            kernel_name="npu_notebook",
            kernel_spec_manager=KernelSpecManager(
                kernel_dirs=[str(folder / "kernels")]
            ),
            connection_file=str(folder / "kernel-connection.json"),
        )
        env = {**os.environ, "IPYTHONDIR": str(folder / "ipython"), **environment}
        self._manager.start_kernel(cwd=str(folder), env=env)
        self.pid: int = self._manager.provisioner.process.pid
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S)
        self._cells: dict[str, Cell] = {}
        self._displays: dict[str, list[dict[str, Any]]] = {}
        self.strays: list[Arrival] = []

    def begin(self, code: str) -> Cell:
        """Send a cell and return at once."""
        cell = Cell(code)
        self._cells[self._client.execute(code, stop_on_error=True)] = cell
        return cell

    def run(self, code: str, timeout_s: float = PATIENCE_S) -> Cell:
        """Send a cell and wait for its end; an error is the caller's to look at."""
        cell = self.begin(code)
        self.until(lambda: cell.ended, timeout_s)
        return cell

    def must(self, code: str, timeout_s: float = PATIENCE_S) -> Cell:
        """Run a cell that has to succeed."""
        cell = self.run(code, timeout_s)
        assert cell.error == "", cell.text
        return cell

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the notebook, by way of JSON."""
        text = self.must(f"import json; print(json.dumps({expression}))").text
        return json.loads(text)

    def until(self, holds: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Take what arrives until something holds."""
        end_s = time.monotonic() + timeout_s
        while not holds():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                shown = "\n---\n".join(c.text[-2000:] for c in self._cells.values())
                message = f"did not come true in {timeout_s:g} s; cells show:\n{shown}"
                raise AssertionError(message)
            self._take(left_s)

    def wait(self, cell: Cell, timeout_s: float = PATIENCE_S) -> Cell:
        """Wait until a begun cell has ended."""
        self.until(lambda: cell.ended, timeout_s)
        return cell

    def press_stop(self) -> float:
        """Press the Stop button; returns when, in seconds of CLOCK_MONOTONIC."""
        pressed_s = time.monotonic()
        self._manager.interrupt_kernel()
        return pressed_s

    def kill(self) -> None:
        """``kill -9`` the kernel, as the out-of-memory killer does."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Shut the kernel down as a front end does, and wait for its end."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=not self._manager.is_alive())
        self._client.context.destroy(linger=0)

    def _take(self, timeout_s: float) -> None:
        try:
            message = self._client.get_iopub_msg(timeout=timeout_s)
        except queue.Empty:
            return
        arrival = Arrival(time.monotonic(), message["msg_type"], message["content"])
        parent = message["parent_header"].get("msg_id", "")
        cell = self._cells.get(parent)
        if cell is None:
            self.strays.append(arrival)
            return
        cell.arrivals.append(arrival)
        if arrival.kind == "status":
            if arrival.content["execution_state"] == "idle":
                cell.ended, cell.ended_s = True, arrival.at_s
        else:
            self._show(cell, arrival)

    def _show(self, cell: Cell, arrival: Arrival) -> None:
        """Change the cell's outputs as a front end does before it saves them."""
        content = arrival.content
        match arrival.kind:
            case "stream":
                last = cell.outputs[-1] if cell.outputs else {}
                if last.get("name") == content["name"]:
                    last["text"] += content["text"]
                else:
                    cell.outputs.append({"output_type": "stream", **content})
            case "display_data" | "execute_result" | "error":
                output = {"output_type": arrival.kind, **content}
                output_id = output.pop("transient", {}).get("display_id")
                cell.outputs.append(output)
                if output_id:
                    self._displays.setdefault(output_id, []).append(output)
            case "update_display_data":
                for output in self._displays.get(
                    content["transient"]["display_id"], []
                ):
                    output["data"] = content["data"]
            case "clear_output":
                cell.outputs.clear()


def _text_of(output: dict[str, Any]) -> str:
    match output["output_type"]:
        case "stream":
            return output["text"]
        case "error":
            return "\n".join(output["traceback"]) + "\n"
        case _:
            return str(output["data"].get("text/plain", "")) + "\n"
