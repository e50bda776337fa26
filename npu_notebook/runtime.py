"""Where a cluster's files lie, who may read them, and which clusters there are.

Two places: the *runtime* folder (private, short path) holds the sockets and the
connection file and vanishes with the cluster; the *state* folder holds logs and
spooled output, which a person may want to read afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil

from npu_notebook.bulk import shared_memory_dir
from npu_notebook.errors import ConfigError, LinkError
from npu_notebook.topology import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

# A longer path cannot be bound. Source: unix(7), sun_path is 108 bytes with its NUL.
_MAX_SOCKET_PATH = 107
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_KEPT_STATE_FOLDERS = 20


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """What a notebook must know to reach a controller; the file has mode 0600."""

    name: str
    endpoint: str
    host: str
    user: str
    controller_pid: int
    controller_start_s: float
    created_s: float
    protocol_version: int
    package_version: str
    python: str
    num_ranks: int | None = None
    device: str | None = None
    owner: str = ""
    owner_pid: int = 0
    curve_public: str = ""
    curve_secret: str = ""


class ClusterEntry(NamedTuple):
    """One cluster found in the runtime folder."""

    connection: Connection
    alive: bool


class ClusterPaths:
    """The files of one cluster.

    Parameters
    ----------
    name : str
        Name of the cluster: a letter or digit, then letters, digits, ``_``, ``.``,
        ``-``; at most 32 in all, because it is part of a socket's path.

    Raises
    ------
    ConfigError
        If the name cannot be used.
    """

    def __init__(self, name: str) -> None:
        if _NAME.fullmatch(name) is None:
            problem = f"'{name}' cannot be the name of a cluster"
            remedy = "Use up to 32 letters, digits, '_', '.' or '-'."
            raise ConfigError(problem, remedy)
        self.name = name
        self.directory = runtime_root() / name
        self.connection_file = self.directory / "connection.json"
        self.spec_file = self.directory / "spec.json"
        self.lock_file = runtime_root() / f"{name}.lock"
        self.socket = self.directory / "s"
        state = state_root() / name
        self.logs = state / "logs"
        self.spool = state / "spool"

    @property
    def endpoint(self) -> str:
        """The controller's local address."""
        return f"ipc://{self.socket}"

    def create(self) -> None:
        """Make the folders, private to this user.

        Raises
        ------
        ConfigError
            If one cannot be made, or the socket's path would be too long.
        """
        if len(os.fsencode(self.socket)) > _MAX_SOCKET_PATH:
            problem = f"the socket's path {self.socket} is longer than 107 bytes"
            raise ConfigError(
                problem, "Set NPU_NOTEBOOK_RUNTIME_DIR to a short folder."
            )
        for folder in (self.directory, self.logs.parent, self.logs, self.spool):
            _make_private(folder)

    def remove_runtime(self) -> None:
        """Remove sockets and connection file; logs and spool stay."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.lock_file.unlink(missing_ok=True)


def runtime_root() -> Path:
    """Return the private folder of all this user's clusters, made if need be.

    Notes
    -----
    ``$NPU_NOTEBOOK_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/npu-notebook``, else
    ``npu-notebook-<uid>`` in the temporary folder.

    Raises
    ------
    ConfigError
        If it cannot be written, or belongs to somebody else.
    """
    chosen = os.environ.get("NPU_NOTEBOOK_RUNTIME_DIR")
    session = os.environ.get("XDG_RUNTIME_DIR")
    if chosen:
        root = Path(chosen)
    elif session and _is_ours(Path(session)):  # under sudo it is another user's
        root = Path(session) / "npu-notebook"
    else:
        root = Path(tempfile.gettempdir()) / f"npu-notebook-{os.getuid()}"
    _make_private(root)
    return root


def _is_ours(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid()


def state_root() -> Path:
    """Return the folder of logs and spooled output, made if need be.

    Notes
    -----
    ``$NPU_NOTEBOOK_STATE_DIR``, else ``$XDG_STATE_HOME/npu-notebook``, else
    ``~/.local/state/npu-notebook``.
    Source: XDG Base Directory Specification.
    """
    chosen = os.environ.get("NPU_NOTEBOOK_STATE_DIR")
    base = os.environ.get("XDG_STATE_HOME")
    if chosen:
        root = Path(chosen)
    else:
        root = (Path(base) if base else Path.home() / ".local/state") / "npu-notebook"
    _make_private(root)
    return root


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        problem = f"the folder {folder} cannot be made ({error.strerror})"
        raise ConfigError(problem, _OTHER_FOLDER) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        problem = f"{folder} is not a folder of user {getpass.getuser()}"
        raise ConfigError(problem, _OTHER_FOLDER)
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)  # it is ours: another user shall not look in
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"the folder {folder} cannot be written", _OTHER_FOLDER)  # noqa: EM102


_OTHER_FOLDER = (
    "Set NPU_NOTEBOOK_RUNTIME_DIR (sockets) and NPU_NOTEBOOK_STATE_DIR (logs) "
    "to folders you can write."
)


def write_private(path: Path, data: bytes) -> None:
    """Write a file with mode 0600, all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    temporary.replace(path)


def write_connection(paths: ClusterPaths, connection: Connection) -> None:
    """Publish how to reach the controller."""
    write_private(paths.connection_file, msgspec.json.encode(connection))


def read_connection(name: str) -> Connection:
    """Read how to reach the controller of ``name``.

    Raises
    ------
    LinkError
        If there is no such cluster, its file cannot be read, or its controller is
        dead; the sentence says which, and what is there instead.
    """
    paths = ClusterPaths(name)
    try:
        data = paths.connection_file.read_bytes()
        connection = msgspec.json.decode(data, type=Connection)
    except FileNotFoundError as error:
        others = ", ".join(sorted(entry.connection.name for entry in list_clusters()))
        problem = f"there is no cluster of that name on {socket.gethostname()}"
        remedy = f"Running: {others or 'none'}. `%npu_cluster start` makes one."
        raise LinkError(name, problem, remedy) from error
    except (OSError, msgspec.DecodeError) as error:
        problem = (
            f"its connection file {paths.connection_file} cannot be read ({error})"
        )
        remedy = "Run `npu-notebook clean` and start again."
        if is_held(paths.lock_file):
            pid = paths.lock_file.read_text()
            remedy = f"Its controller runs: `kill {pid}` ends it with all its ranks."
        raise LinkError(name, problem, remedy) from error
    if not is_alive(connection):
        problem = f"its controller (pid {connection.controller_pid}) is dead"
        remedy = "Its ranks have ended or end by themselves; start a new cluster."
        raise LinkError(name, problem, remedy)
    return connection


def read_spec(paths: ClusterPaths) -> ClusterSpec:
    """Read what the user asked for."""
    return msgspec.json.decode(paths.spec_file.read_bytes(), type=ClusterSpec)


def list_clusters() -> list[ClusterEntry]:
    """Return this user's clusters on this host, dead ones included."""
    entries: list[ClusterEntry] = []
    for file in sorted(runtime_root().glob("*/connection.json")):
        try:
            connection = msgspec.json.decode(file.read_bytes(), type=Connection)
        except (OSError, msgspec.DecodeError):
            continue  # being written or removed right now
        entries.append(ClusterEntry(connection, is_alive(connection)))
    return entries


def remove_stale() -> list[str]:
    """Remove what crashed clusters left behind; return their names.

    Notes
    -----
    A cluster is stale when the process that its connection file names is gone (pid and
    start time), or when that file cannot be read and no controller holds the name.
    Folders without a connection file are left alone for a minute: a controller may be
    about to write it. Old state folders are pruned as well.
    """
    removed: list[str] = []
    readable: set[str] = set()
    for entry in list_clusters():
        readable.add(entry.connection.name)
        if not entry.alive and entry.connection.host == socket.gethostname():
            ClusterPaths(entry.connection.name).remove_runtime()
            removed.append(entry.connection.name)
    for folder in [path for path in runtime_root().iterdir() if path.is_dir()]:
        if folder.name in readable or is_held(folder.with_name(f"{folder.name}.lock")):
            continue
        if (folder / "connection.json").exists():
            removed.append(folder.name)
        elif time.time() - _modified_s(folder) < 60:  # noqa: PLR2004  a minute
            continue
        shutil.rmtree(folder, ignore_errors=True)
    _prune_state()
    return removed


def _modified_s(path: Path) -> float:
    """Return when a folder was changed last, now if somebody has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def is_held(lock_file: Path) -> bool:
    """Return whether a controller has locked its name."""
    with contextlib.suppress(FileNotFoundError), lock_file.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def one_start_at_a_time() -> Iterator[None]:
    """Let one process of this user at a time choose a name and start its controller.

    Until the controller has written its connection file nobody else can see that the
    name is taken.
    """
    root = runtime_root()
    try:
        file = (root / ".start.lock").open("ab")
    except OSError as error:
        problem = f"the folder {root} cannot be written ({error.strerror})"
        raise ConfigError(problem, _OTHER_FOLDER) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prune_state() -> None:
    running = {entry.connection.name for entry in list_clusters()}
    folders = [path for path in state_root().iterdir() if path.name not in running]
    folders.sort(key=_modified_s, reverse=True)
    for folder in folders[_KEPT_STATE_FOLDERS:]:
        shutil.rmtree(folder, ignore_errors=True)


def is_alive(connection: Connection) -> bool:
    """Return whether the controller's process still runs on this host."""
    if connection.host != socket.gethostname():
        return True  # a shared folder: only its own host can tell
    start_s = process_start_s(connection.controller_pid)
    return start_s is not None and start_s == connection.controller_start_s


def process_start_s(pid: int) -> float | None:
    """Return when a process started, None if it is gone.

    Together with the pid this names a process for good: pids are used again.

    Notes
    -----
    Seconds since the boot on Linux, where seconds since 1970 would change for a running
    process whenever somebody sets the clock; since 1970 elsewhere.
    Source: proc_pid_stat(5), "state" and "starttime".
    """
    if sys.platform != "linux":
        return _created_s(pid)
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything, spaces and parentheses too.
    state, *facts = line.rpartition(b")")[2].split()
    if state in (b"Z", b"X"):
        return None
    return int(facts[18]) / os.sysconf("SC_CLK_TCK")


def _created_s(pid: int) -> float | None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return float(process.create_time())
    return None


def memory_key() -> str:
    """Return a text that is equal for processes which see the same shared memory.

    Notes
    -----
    The boot id tells machines apart, the folder's device and inode tell containers
    apart (each has its own tmpfs).

    Raises
    ------
    ConfigError
        If the folder is not there.
    """
    folder = shared_memory_dir()
    try:
        status = folder.stat()
    except OSError as error:
        problem = f"the shared-memory folder {folder} cannot be used ({error.strerror})"
        remedy = "Set NPU_NOTEBOOK_SHARED_MEMORY_DIR to a folder that exists."
        raise ConfigError(problem, remedy) from error
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else socket.gethostname()
    return f"{machine}:{folder}:{status.st_dev}:{status.st_ino}"


def python_version() -> str:
    """Return the interpreter's version as messages carry it."""
    return ".".join(str(part) for part in sys.version_info[:3])
