"""Drive a real JupyterLab in Chromium the way a person does."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nbformat
from playwright.sync_api import Locator, Page

#: Without these, Chromium asks the internet for updates at every start, and refuses to
#: run as root or with the small /dev/shm of a container.
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]

#: Settings of JupyterLab: no question about news over the page, no second copy of a
#: cell's output scrolled out of the document, no rewriting of the file while we look.
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}


def chromium_path() -> str:
    """Return where Chromium is, or raise with what to install."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    message = (
        "tests/browser needs Chromium and finds none in PATH: install it with "
        "`apt-get install chromium` (or your system's way), then run again"
    )
    raise FileNotFoundError(message)


class LabServer:
    """A JupyterLab server of its own: own home, settings, token, folder and log."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / ".home"
        self.log_path = root / ".server.log"
        self.token = os.urandom(12).hex()
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        for name, settings in SETTINGS.items():
            path = self.home / "lab-settings" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings))
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_until_it_answers(timeout_s=120)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "jupyter", "lab"),
            "--no-browser",
            "--allow-root",
            # Gives the page `window.jupyterapp`, to call what has no button.
            "--expose-app-in-browser",
            f"--port={self.port}",
            "--ServerApp.port_retries=0",
            "--ServerApp.ip=127.0.0.1",
            f"--IdentityProvider.token={self.token}",
            f"--ServerApp.root_dir={self.root}",
            "--ServerApp.terminals_enabled=False",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--FileContentsManager.delete_to_trash=False",
        ]

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "HOME": str(self.home),
            "JUPYTER_CONFIG_DIR": str(self.home / "config"),
            "JUPYTER_DATA_DIR": str(self.home / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.home / "runtime"),
            "IPYTHONDIR": str(self.home / "ipython"),
            "JUPYTERLAB_SETTINGS_DIR": str(self.home / "lab-settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.home / "lab-workspaces"),
        }

    def _wait_until_it_answers(self, timeout_s: float) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        retry = threading.Event()
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                self.get("api/status")
            except OSError:
                retry.wait(0.1)
            else:
                return
        message = f"JupyterLab did not start:\n{self.log_path.read_text()[-3000:]}"
        raise RuntimeError(message)

    def url(self, path: str) -> str:
        """Return the address of ``path`` on this server, token included."""
        return f"http://127.0.0.1:{self.port}/{path}?token={self.token}"

    def page_url(self, path: str = "") -> str:
        """Return the address of a page on which no earlier one's tabs are open."""
        return self.url(f"lab/workspaces/{os.urandom(4).hex()}/{path}")

    def get(self, path: str) -> Any:
        """Return what the server's REST interface answers to GET ``path``."""
        return self._ask("GET", path)

    def delete(self, path: str) -> None:
        """DELETE ``path``: a session, a kernel."""
        self._ask("DELETE", path)

    def _ask(self, method: str, path: str) -> Any:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(link):
            link.request(method, f"/{path}?token={self.token}")
            answer = link.getresponse()
            text = answer.read()
        # 404 to a DELETE: it has ended by itself meanwhile.
        if answer.status >= 400 and (method, answer.status) != ("DELETE", 404):
            message = f"{method} {path}: {answer.status} {answer.reason}"
            raise OSError(message)
        return json.loads(text) if text else None

    def log_text(self) -> str:
        """Return what the server and its kernels have written so far."""
        return self.log_path.read_text(errors="replace")

    def end_sessions(self) -> None:
        """Shut down every kernel, as the page's "Shut Down All" does."""
        for session in self.get("api/sessions"):
            self.delete(f"api/sessions/{session['id']}")


class LabNotebook:
    """One open notebook in one browser page; cells are named by their index from 0."""

    def __init__(self, page: Page, server: LabServer, name: str) -> None:
        self.page = page
        self.server = server
        self.name = name
        self._panel = page.locator(".jp-NotebookPanel:visible")
        self._prompt_before: dict[int, str] = {}

    @classmethod
    def open(
        cls, page: Page, server: LabServer, cells: list[str], kernel: str = "python3"
    ) -> Self:
        """Write a notebook of these code cells, open it and wait for its kernel."""
        name = f"nb-{os.urandom(4).hex()}.ipynb"
        sources = [nbformat.v4.new_code_cell(cell) for cell in cells]
        notebook = nbformat.v4.new_notebook(cells=sources)
        notebook.metadata.kernelspec = {
            "name": kernel,
            "display_name": kernel,
            "language": "python",
        }
        nbformat.write(notebook, server.root / name)
        page.goto(server.page_url(f"tree/{name}"))
        self = cls(page, server, name)
        self._panel.locator(".jp-Notebook").wait_for(timeout=60_000)
        self.wait_idle(timeout_s=60)
        return self

    @property
    def path(self) -> Path:
        """The notebook's file."""
        return self.server.root / self.name

    def cell(self, index: int) -> Locator:
        """Return the element of one cell."""
        return self._panel.locator(".jp-Notebook-cell").nth(index)

    def output(self, index: int) -> Locator:
        """Return the element with all that one cell has put out."""
        return self.cell(index).locator(".jp-OutputArea").first

    def output_text(self, index: int) -> str:
        """Return what a person reads below one cell; empty if there is nothing."""
        area = self.output(index)
        return area.inner_text() if area.count() else ""

    def prompt(self, index: int) -> str:
        """Return ``[ ]:``, ``[*]:`` or ``[3]:``."""
        return self.cell(index).locator(".jp-InputPrompt").first.inner_text().strip()

    def start(self, index: int) -> None:
        """Press Shift+Enter in one cell and return at once."""
        self._prompt_before[index] = self.prompt(index)
        self.cell(index).locator(".jp-InputPrompt").first.click()
        self.page.keyboard.press("Shift+Enter")

    def run(self, index: int, timeout_s: float = 30) -> str:
        """Run one cell, wait for its end and return its output's text."""
        self.start(index)
        self.wait_done(index, timeout_s)
        return self.output_text(index)

    def wait_done(self, index: int, timeout_s: float = 30) -> None:
        """Wait until one cell that was started has a new number for its prompt."""
        self.wait_until(
            lambda: (
                self.prompt(index)[1:-2].isdigit()
                and self.prompt(index) != self._prompt_before[index]
            ),
            f"cell {index} is done",
            timeout_s,
        )

    def wait_idle(self, timeout_s: float = 30) -> None:
        """Wait until server and page agree that the kernel is connected and idle.

        The page's own indicator says "idle" also before there is a kernel, and a cell
        run then is lost without a word.
        """
        self.wait_until(self.is_idle, "the kernel is idle", timeout_s)

    def is_idle(self) -> bool:
        """Say whether server and page agree that the kernel waits for a cell."""
        here = self.page.evaluate(
            """() => {
                const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
                const kernel = context?.isReady && context.session?.kernel;
                return kernel && [kernel.connectionStatus, kernel.status].join(" ");
            }"""
        )
        there = self.kernel()
        return (
            here == "connected idle"
            and there is not None
            and there["connections"] > 0
            and there["execution_state"] == "idle"
        )

    def kernel(self) -> dict[str, Any] | None:
        """Return what the server says of this notebook's kernel; None without one."""
        for session in self.server.get("api/sessions"):
            if session["path"] == self.name:
                return session["kernel"]
        return None

    def wait_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = 30
    ) -> None:
        """Ask ``condition`` ten times a second until it holds, while the page lives."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
            self.page.wait_for_timeout(100)

    def press_stop(self) -> None:
        """Press the toolbar's Stop button."""
        self._toolbar("interrupt").click()

    def press_restart(self) -> None:
        """Press the toolbar's restart button and confirm."""
        self._toolbar("restart").click()
        self.page.locator(".jp-Dialog .jp-mod-accept").click()

    def _toolbar(self, item: str) -> Locator:
        toolbar = self._panel.locator(".jp-NotebookPanel-toolbar")
        return toolbar.locator(f"[data-jp-item-name={item}]")

    def shut_down_kernel(self) -> None:
        """Choose Shut Down Kernel in the menu."""
        self.page.get_by_role("menuitem", name="Kernel", exact=True).click()
        self.page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()

    def save(self) -> nbformat.NotebookNode:
        """Save, and return the notebook as it is in the file."""
        self.page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.path, as_version=4)


def free_port() -> int:
    """Return a TCP port of the loopback address that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
