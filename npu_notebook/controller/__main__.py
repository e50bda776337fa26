"""Run the controller of one cluster: ``python -m npu_notebook.controller NAME``."""

from __future__ import annotations

import fcntl
import getpass
import logging
import os
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import zmq

import npu_notebook
from npu_notebook import plugins, runtime, wire
from npu_notebook.controller.controller import Controller
from npu_notebook.controller.facts import ProviderWords, Surroundings
from npu_notebook.controller.lifecycle import Lifecycle
from npu_notebook.controller.processes import adopt_orphans
from npu_notebook.controller.spool import Spool
from npu_notebook.errors import ConfigError, NpuNotebookError
from npu_notebook.messages import PROTOCOL_VERSION
from npu_notebook.runtime import ClusterPaths, Connection

if TYPE_CHECKING:
    from npu_notebook.devices.provider import DeviceProvider
    from npu_notebook.launchers import Launcher
    from npu_notebook.topology import ClusterSpec

log = logging.getLogger(__name__)

_FLUSH_MS = 1000
"""What the last words to notebooks may take."""


def main(words: list[str]) -> int:
    """Serve a cluster until it ends; return the exit code."""
    if len(words) != 1:
        print("usage: python -m npu_notebook.controller NAME", file=sys.stderr)  # noqa: T201  a program's usage
        return 2
    paths = ClusterPaths(words[0])
    paths.create()
    _log_to(paths)
    lock = _lock(paths)
    if lock is None:
        log.error("a controller of cluster '%s' runs already", paths.name)
        return 1
    try:
        _serve(paths)
    except NpuNotebookError as error:
        log.error("the controller ends: %s", error)  # noqa: TRY400  a sentence, no bug
        return 1
    finally:
        paths.remove_runtime()
        os.close(lock)
    return 0


def _log_to(paths: ClusterPaths) -> None:
    logging.basicConfig(
        filename=paths.logs / "controller.log",
        level=logging.INFO,
        format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s",
    )


def _lock(paths: ClusterPaths) -> int | None:
    """Take the name, or return None if another controller holds it."""
    while True:
        fd = os.open(paths.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        try:
            same = os.fstat(fd).st_ino == paths.lock_file.stat().st_ino
        except FileNotFoundError:
            same = False
        if same:
            with suppress(OSError):  # a full disk: it is for people only
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
            return fd
        os.close(fd)  # the one before us removed it in between


def _serve(paths: ClusterPaths) -> None:
    spec = _complete(runtime.read_spec(paths))
    # Values of variables may be secrets; their names say enough.
    names = dict.fromkeys(spec.env, "...")
    log.info("serving %s", msgspec.structs.replace(spec, env=names))
    adopt_orphans()
    around = Surroundings(
        endpoint=paths.endpoint,
        logs=str(paths.logs),
        python=runtime.python_version(),
        package_version=npu_notebook.__version__,
        describe_provider=_describe_provider,
    )
    launcher: Launcher = plugins.load("npu_notebook.launchers", spec.launcher)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        controller = _open(spec, paths, context, around, launcher)
        try:
            controller.run()
        finally:
            controller.close()
    finally:
        context.destroy(linger=_FLUSH_MS)


def _open(
    spec: ClusterSpec,
    paths: ClusterPaths,
    context: zmq.Context[zmq.Socket[bytes]],
    around: Surroundings,
    launcher: Launcher,
) -> Controller:
    try:
        router = wire.open_router(context, paths.endpoint, None)
        paths.socket.chmod(0o600)  # whatever the umask is
        spool = Spool(paths.spool, spec.output_cap_nbytes)
        controller = Controller(Lifecycle(spec, around), spec, router, spool, launcher)
        # Whoever reads the connection file may send a signal.
        controller.watching.install_signals()
        runtime.write_connection(paths, _connection(spec, paths))
    except (OSError, zmq.ZMQError) as error:
        problem = f"the files of cluster '{spec.name}' cannot be made ({error})"
        remedy = f"Make room in {paths.directory} and {paths.spool}."
        raise ConfigError(problem, remedy) from error
    return controller


def _complete(spec: ClusterSpec) -> ClusterSpec:
    # Ranks get one thread each unless the user chose a number, here or for the kernel.
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None or "OMP_NUM_THREADS" in spec.env:
        return spec
    env = {**spec.env, "OMP_NUM_THREADS": threads}
    return msgspec.structs.replace(spec, env=env)


def _describe_provider(name: str) -> ProviderWords:
    if name == "none":
        return ProviderWords("no device", "")
    provider: DeviceProvider = plugins.load("npu_notebook.devices", name)
    return ProviderWords(provider.facts.label, provider.facts.backend)


def _connection(spec: ClusterSpec, paths: ClusterPaths) -> Connection:
    start_s = runtime.process_start_s(os.getpid())
    if start_s is None:
        problem = "the controller cannot see its own process in the process table"
        raise ConfigError(problem, "Mount /proc in this container.")
    return Connection(
        name=spec.name,
        endpoint=paths.endpoint,
        host=socket.gethostname(),
        user=getpass.getuser(),
        controller_pid=os.getpid(),
        controller_start_s=start_s,
        created_s=time.time(),
        protocol_version=PROTOCOL_VERSION,
        package_version=npu_notebook.__version__,
        python=runtime.python_version(),
        num_ranks=spec.num_ranks,
        device=spec.device,
        owner=spec.owner,
        owner_pid=spec.owner_pid,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
