"""Start a controller: settle the name, wait until it is ready, see to its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from npu_notebook import messages, runtime
from npu_notebook.errors import ConfigError, LaunchError, LinkError
from npu_notebook.runtime import ClusterPaths, Connection
from npu_notebook.session import poll
from npu_notebook.telemetry.host import find_port_holder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npu_notebook.messages import Update
    from npu_notebook.session import Session
    from npu_notebook.topology import ClusterSpec

DEFAULT_NAME = "cluster"
_CONTROLLER_TIMEOUT_S = 60.0
_TAIL_NBYTES = 4096
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def settle_name(
    name: str | None, suggestion: str, owner: str
) -> tuple[str, Connection | None]:
    """Decide the cluster's name, and which earlier cluster it replaces.

    Parameters
    ----------
    name : str or None
        What the user typed.
    suggestion : str
        What to call it otherwise; made unique with a number.
    owner : str
        The notebook; its own earlier cluster is replaced.

    Raises
    ------
    ConfigError
        If the name is in use by somebody else.
    """
    running = {
        entry.connection.name: entry.connection
        for entry in runtime.list_clusters()
        if entry.alive
    }
    own = [one for one in running.values() if owner and one.owner == owner]
    if name is None:
        if own:
            return own[0].name, own[0]
        number = 1
        candidate = suggestion
        while candidate in running:
            number += 1
            candidate = f"{suggestion}-{number}"
        return candidate, None
    taken = running.get(name)
    if taken is not None and taken not in own:
        problem = (
            f"a cluster named '{name}' runs already "
            f"(pid {taken.controller_pid}, started by process {taken.owner_pid})"
        )
        remedy = (
            f"Use it with `%npu_cluster attach {name}`, end it with "
            f"`%npu_cluster stop {name}`, or give another --name."
        )
        raise ConfigError(problem, remedy)
    return name, taken


def start_controller(spec: ClusterSpec) -> Connection:
    """Start the controller's process and wait until it can be joined.

    Raises
    ------
    ConfigError
        If the port that was asked for is taken, or files cannot be written.
    LaunchError
        If it ends first; with the tail of what it said.
    """
    _check_port(spec)
    paths = ClusterPaths(spec.name)
    paths.create()
    log_file = paths.logs / "controller.log"
    try:
        runtime.write_private(paths.spec_file, msgspec.json.encode(spec))
        with os.fdopen(os.open(log_file, _APPEND, 0o600), "ab") as log:
            begin = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-m", "npu_notebook.controller", spec.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the notebook's signals are not meant for it
            )
    except OSError as error:
        problem = f"the files of cluster '{spec.name}' cannot be written ({error})"
        remedy = f"Make room in {paths.directory} and {paths.logs}."
        raise ConfigError(problem, remedy) from error
    try:
        return _await_connection(process, paths, log_file, begin)
    except KeyboardInterrupt:
        process.terminate()  # it ends whatever it may have started
        _Reaper.adopt(process)
        _Reaper.reap(process.pid, _CONTROLLER_TIMEOUT_S)
        raise
    finally:
        if process.poll() is not None and not runtime.is_held(paths.lock_file):
            paths.remove_runtime()  # of one that died before it could


def _check_port(spec: ClusterSpec) -> None:
    """Refuse a taken port before anything starts; the agent's own check comes late."""
    if not spec.port or [one.name for one in spec.hosts] != [socket.gethostname()]:
        return  # only its own host can tell
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", spec.port))
            probe.listen()
        except OSError as error:
            holder = find_port_holder(spec.port)
            taken = f", held by {holder}" if holder else ""
            problem = f"port {spec.port} cannot be used ({error.strerror}{taken})"
            raise ConfigError(
                problem, "Leave --port out to use any free one."
            ) from error


def _await_connection(
    process: subprocess.Popen[bytes], paths: ClusterPaths, log_file: Path, begin: int
) -> Connection:
    waits = int(_CONTROLLER_TIMEOUT_S / 0.01)
    for _ in range(waits):
        try:
            connection = runtime.read_connection(paths.name)
            if connection.controller_pid == process.pid:
                _Reaper.adopt(process)
                return connection
        except LinkError:
            pass  # not yet, or the file of its predecessor
        try:
            process.wait(timeout=0.01)
        except subprocess.TimeoutExpired:
            continue
        reason = f"its process ended with code {process.returncode}"
        break
    else:
        process.kill()
        process.wait()
        reason = f"it was not ready after {_CONTROLLER_TIMEOUT_S:g} s and was killed"
    what = "the controller"
    raise LaunchError(what, reason, _tail(log_file, begin), str(log_file))


class _Reaper:
    """Keeps the controllers we started, so that an ended one leaves no zombie."""

    _children: list[subprocess.Popen[bytes]] = []  # noqa: RUF012  one per process

    @classmethod
    def adopt(cls, process: subprocess.Popen[bytes]) -> None:
        cls._children = [child for child in cls._children if child.poll() is None]
        cls._children.append(process)

    @classmethod
    def reap(cls, pid: int, timeout_s: float) -> None:
        for child in cls._children:
            if child.pid == pid:
                try:
                    child.wait(timeout_s)
                except subprocess.TimeoutExpired:
                    return
        cls._children = [child for child in cls._children if child.poll() is None]


def end_controller(connection: Connection, timeout_s: float) -> None:
    """End a cluster of this host without joining it: another version's, say.

    Raises
    ------
    LinkError
        If it runs on another host, or still runs after ``timeout_s`` seconds.
    """
    if connection.host != socket.gethostname():
        problem = f"it runs on {connection.host} and cannot be joined from here"
        raise LinkError(connection.name, problem, "Stop it there.")
    # The agents end everything when their controller is gone, however it went.
    for number in (signal.SIGTERM, signal.SIGKILL):
        if runtime.is_alive(connection):
            with suppress(ProcessLookupError):
                os.kill(connection.controller_pid, number)
            reap_controller(connection, timeout_s / 2)
    check_ended(connection)
    runtime.remove_stale()  # a killed one leaves its folder


def check_ended(connection: Connection) -> None:
    """Say so if a controller that was asked to end still runs on this host.

    Raises
    ------
    LinkError
        If it does.
    """
    if connection.host == socket.gethostname() and runtime.is_alive(connection):
        pid = connection.controller_pid
        problem = f"its controller (pid {pid}) was asked to end and still runs"
        remedy = f"Its log says more; `kill -9 {pid}` ends it with all its ranks."
        raise LinkError(connection.name, problem, remedy)


def reap_controller(connection: Connection, timeout_s: float) -> None:
    """Wait until a controller's process is gone, started by this process or not.

    Its last deed is to remove its runtime folder; a successor of the same name must
    not have made its own by then.
    """
    _Reaper.reap(connection.controller_pid, timeout_s)
    # Not psutil's wait: the process that started it may leave a zombie for long.
    pause = threading.Event()
    end_s = time.monotonic() + timeout_s
    while connection.host == socket.gethostname() and runtime.is_alive(connection):
        if time.monotonic() > end_s or pause.wait(0.02):
            return


def _tail(path: Path, begin: int) -> str:
    """Return the end of a log, without what earlier clusters of this name wrote."""
    try:
        data = path.read_bytes()[begin:][-_TAIL_NBYTES:]
    except OSError:
        return ""
    return data.decode(errors="replace")


def await_ready(
    session: Session, on_update: Callable[[Update | None], None], tick_s: float
) -> None:
    """Pass on the progress of a start until the cluster is ready.

    Raises
    ------
    ConfigError
        If the user's words cannot be met (more ranks than devices).
    LaunchError
        If a process could not start; everything is ended by then.
    """
    failure: messages.StartFailed | None = None
    while True:
        try:
            arrived = poll(session.events, tick_s)
        except LinkError:
            if failure is not None:
                raise as_error(failure) from None
            raise
        update = arrived.update if arrived else None
        on_update(update)
        if isinstance(update, messages.StartFailed):
            failure = update
        elif isinstance(update, messages.ClusterEnded):
            if failure is not None:
                raise as_error(failure)
            problem = f"it ended while starting ({update.reason})"
            raise LinkError(session.connection.name, problem, "Start it again.")
        elif (
            isinstance(update, messages.StateChanged)
            and update.fact.state is messages.ClusterState.READY
        ):
            return


def as_error(failure: messages.StartFailed) -> ConfigError | LaunchError:
    """Return the error a failed start is raised as."""
    if failure.config_error:
        return ConfigError(failure.reason, failure.remedy)
    reason = failure.reason
    if failure.remedy:
        reason = f"{reason.rstrip('.')}. {failure.remedy.rstrip('.')}"
    return LaunchError(failure.what, reason, failure.stderr_tail, failure.log_path)
