"""The template: a process that has imported what a rank needs and waits to be forked.

The agent starts it by exec and keeps it, so that a restart of ranks costs a fork and
not an import of torch. Rules, each of which a fork would break otherwise: no import
may start a thread (a torch operation would), there is no ZeroMQ context, and nothing
of a rank's own work runs here.

Ranks are forked by a short-lived process in between: it forks all ranks of a request
and ends, so the kernel gives them to the agent (`linux.adopt_orphans`). The agent can
then reap forked and spawned ranks alike, and the template's death harms none of them.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import importlib
import os
import signal
import socket
import struct
import sys
import time
import traceback
from typing import TYPE_CHECKING

import msgspec

from npu_notebook import plugins
from npu_notebook.agent import linux
from npu_notebook.agent.outcome import Outcome, attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npu_notebook.devices.provider import DeviceProvider

# torch comes before IPython: torch_npu looks at the modules that are there when it is
# imported. Source: torch_npu, __init__.py, its check for an interactive session.
_TORCH_IMPORTS = ("torch", "torch.distributed", "torch.utils.data")
# Whatever is missing here every rank imports again, in memory of its own.
_RANK_IMPORTS = (
    "IPython.core.application",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "npu_notebook.devices.provider",
    "npu_notebook.rank.preload",
)
_HEADER = struct.Struct("!I")
_MAX_FDS = 4
_EXIT_PARENT_GONE = 75
_EXIT_BROKEN = 70


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """One process to fork.

    ``program`` is ``"module:function"``; the function takes ``argument`` and returns
    the exit status. ``env`` is the whole environment. With ``log_path`` "" it writes
    to the agent's log. File descriptors that came with the request are 3, 4, ... in the
    new process.
    """

    name: str
    program: str
    argument: bytes
    env: dict[str, str]
    cwd: str
    log_path: str


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent -> template: fork these now; answered by `ForkReply`."""

    births: tuple[Birth, ...]


class BindRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent -> template: bind device 0 of a provider; answered by an `Outcome`.

    What a provider loads for its device is then shared by all ranks, of which each
    binds its own device after its fork.
    """

    provider: str


class ForkReply(msgspec.Struct, frozen=True, kw_only=True):
    """Template -> agent: the pids in the order of the births, or why there are none."""

    pids: tuple[int, ...] = ()
    problem: str = ""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Template -> agent, once: imports took ``elapsed_s``.

    ``problem`` says which import failed, ``unsafe`` why this process must not fork.
    """

    elapsed_s: float
    problem: str = ""
    unsafe: str = ""


def send(
    channel: socket.socket, message: msgspec.Struct, fds: Sequence[int] = ()
) -> None:
    """Write one message, with open files beside it."""
    body = msgspec.msgpack.encode(message)
    frame = _HEADER.pack(len(body)) + body
    sent = socket.send_fds(channel, [frame], list(fds)) if fds else channel.send(frame)
    channel.sendall(frame[sent:])


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Read the bytes of one message and the open files that came with it.

    Raises
    ------
    EOFError
        If the other side is gone.
    """
    head, fds, _flags, _address = socket.recv_fds(channel, _HEADER.size, _MAX_FDS)
    if head:
        head += _receive_exactly(channel, _HEADER.size - len(head))
    if not head:
        raise EOFError
    (nbytes,) = _HEADER.unpack(head)
    return _receive_exactly(channel, nbytes), fds


def _receive_exactly(channel: socket.socket, nbytes: int) -> bytes:
    parts = bytearray()
    while len(parts) < nbytes:
        part = channel.recv(min(1 << 20, nbytes - len(parts)))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def main() -> int:
    """Import, say so, then fork on request until the agent closes the channel."""
    parser = argparse.ArgumentParser(prog="npu_notebook.agent.template")
    parser.add_argument("--channel-fd", type=int, required=True)
    parser.add_argument("--agent-pid", type=int, required=True)
    parser.add_argument("--without-torch", action="store_true")
    options = parser.parse_args()
    linux.die_with_parent(options.agent_pid)
    linux.set_process_name("npu template")
    channel = socket.socket(fileno=options.channel_fd)
    send(channel, _warm_up(with_torch=not options.without_torch))
    try:
        while True:
            body, fds = receive(channel)
            match msgspec.msgpack.decode(body, type=ForkRequest | BindRequest):
                case ForkRequest() as request:
                    _fork_all(channel, request, fds, options.agent_pid)
                    for fd in fds:
                        os.close(fd)
                case BindRequest(provider=name):
                    send(channel, _bind(name))
    except EOFError:
        return 0


def _warm_up(*, with_torch: bool) -> Ready:
    """Import everything; objects made so far are never looked at by gc again."""
    begin_s = time.monotonic()
    gc.disable()  # a collection would write to the pages that ranks share
    problem = unsafe = ""
    for name in (*(_TORCH_IMPORTS if with_torch else ()), *_RANK_IMPORTS):
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  any code runs in an import
            traceback.print_exc()
            problem = f"import {name} failed ({type(error).__name__}: {error})"
            break
        unsafe = unsafe or _check_single_thread(f"import {name}")
    plugins.names("npu_notebook.devices")  # ranks find the answer in their memory
    gc.collect()
    gc.freeze()
    elapsed_s = time.monotonic() - begin_s
    return Ready(elapsed_s=elapsed_s, problem=problem, unsafe=unsafe)


def _bind(name: str) -> Outcome:
    def bind() -> None:
        provider: DeviceProvider = plugins.load("npu_notebook.devices", name)
        provider.bind(0)

    outcome = attempt(f"binding a {name} device", bind)
    gc.collect()
    gc.freeze()
    return outcome


def _check_single_thread(cause: str) -> str:
    count = linux.count_threads()
    if count == 1:
        return ""
    return f"{cause} left {count} threads running, so forks of it could hang"


def _fork_all(
    channel: socket.socket, request: ForkRequest, fds: list[int], agent_pid: int
) -> None:
    problem = _check_single_thread("something")
    if problem:
        send(channel, ForkReply(problem=problem))
        return
    pid_read, pid_write = os.pipe()
    gate_read, gate_write = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(gate_write)
        _fork_births(request.births, fds, (gate_read, pid_write), agent_pid)
    os.close(pid_write)
    os.close(gate_read)
    with os.fdopen(pid_read, "rb") as file:
        written = file.read()
    os.waitpid(between, 0)  # from here on the agent is the parent of the new ones
    pids = tuple(int(word) for word in written.split())
    problem = "" if len(pids) == len(request.births) else "fork failed; see the log"
    # The agent knows the pids before any of these processes can end.
    send(channel, ForkReply(pids=pids, problem=problem))
    os.write(gate_write, b"\0" * len(pids))
    os.close(gate_write)


def _fork_births(
    births: Sequence[Birth], fds: list[int], pipes: tuple[int, int], agent_pid: int
) -> None:
    """Run in the process in between: fork each, write the pids, end."""
    gate_read, pid_write = pipes
    status = _EXIT_BROKEN
    try:
        for birth in births:
            pid = os.fork()
            if pid == 0:
                os.close(pid_write)  # or its reader would wait for us
                _become(birth, fds, gate_read, agent_pid)
            os.write(pid_write, f"{pid} ".encode())
        status = 0
    except OSError:
        traceback.print_exc()
    finally:
        os._exit(status)


def _become(birth: Birth, fds: list[int], gate_read: int, agent_pid: int) -> None:
    """Turn this fork into a process that looks as if it had been started by exec."""
    status = _EXIT_BROKEN
    try:
        if os.read(gate_read, 1) != b"\0":
            os._exit(_EXIT_PARENT_GONE)
        os.setsid()
        linux.die_with_parent(agent_pid)
        _take_files(birth.log_path, fds)
        _take_place(birth)
        status = _run(birth)
    except ProcessLookupError:
        status = _EXIT_PARENT_GONE
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except SystemExit as request:
        status = _exit_status(request.code)
    except BaseException:  # noqa: BLE001  the rank's own code; its log must say why
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _take_files(log_path: str, fds: list[int]) -> None:
    """Leave only /dev/null, the log and the files of the request open."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(log_path, flags, 0o600) if log_path else os.dup(2)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(source, target, inheritable=True)
    # Out of the way first: a file of the request may be open as 3 or 4 already.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3 + _MAX_FDS) for fd in fds]
    for offset, fd in enumerate(moved):
        os.dup2(fd, 3 + offset, inheritable=False)
    os.closerange(3 + len(moved), os.sysconf("SC_OPEN_MAX"))


def _take_place(birth: Birth) -> None:
    """Default signals, the environment, folder and random numbers of its own."""
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    linux.set_process_name(birth.name)
    os.environ.clear()
    os.environ.update(birth.env)
    os.chdir(birth.cwd)
    sys.path.insert(0, birth.cwd)  # as `python -m` run in that folder has it
    sys.argv = [birth.name]
    gc.enable()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        # Its generator was seeded in the template: all ranks would draw the same.
        numpy_random.seed()


def _run(birth: Birth) -> int:
    module_name, _, function_name = birth.program.partition(":")
    function = getattr(importlib.import_module(module_name), function_name)
    return int(function(birth.argument))


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201  what the interpreter does
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed or replaced by the rank; there is nobody left to tell


if __name__ == "__main__":
    sys.exit(main())
