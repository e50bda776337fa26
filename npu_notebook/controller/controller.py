"""The controller's one loop: read, let `Lifecycle` decide, do.

One thread, one socket, no polling: the loop sleeps until a message, a signal, the end
of a watched notebook, or the next deadline of the lifecycle.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import msgspec
import zmq

from npu_notebook import messages, runtime, wire
from npu_notebook.bulk import REGION_PREFIX
from npu_notebook.controller import events, words
from npu_notebook.controller.outgoing import Outgoing
from npu_notebook.controller.processes import Children
from npu_notebook.controller.watching import Watching
from npu_notebook.errors import NpuNotebookError, ProtocolError

if TYPE_CHECKING:
    from npu_notebook.controller.lifecycle import Lifecycle
    from npu_notebook.controller.spool import Spool
    from npu_notebook.launchers import Launcher
    from npu_notebook.topology import ClusterSpec

log = logging.getLogger(__name__)

_TICK_S = 1.0
_MESSAGES_AT_ONCE = 200  # then look at signals and deadlines again


class Controller:
    """Performs what the lifecycle decides.

    Parameters
    ----------
    lifecycle : Lifecycle
        Decides.
    spec : ClusterSpec
        What the user asked for.
    router : zmq.Socket
        Bound already.
    spool : Spool
        Keeps long output.
    launcher : Launcher
        Starts agents.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        spec: ClusterSpec,
        router: zmq.Socket[bytes],
        spool: Spool,
        launcher: Launcher,
    ) -> None:
        self._lifecycle = lifecycle
        self._spec = spec
        self._router = router
        self._spool = spool
        self._launcher = launcher
        self._endpoint = lifecycle.board.around.endpoint
        self._log_file = Path(lifecycle.board.around.logs) / "controller.log"
        self._children = Children()
        self.watching = Watching(router)
        self._outgoing = Outgoing(router, spool, lifecycle.board)
        self._over = False

    def run(self) -> None:
        """Serve until the lifecycle says `Exit`."""
        self._tell(events.Opened(time.monotonic()))
        tick_s = time.monotonic() + _TICK_S
        until_s = tick_s
        while not self._over:
            self.watching.wait(until_s - time.monotonic())
            self._take_signals()
            for peer in self.watching.take_gone():
                self._tell(events.NotebookGone(peer, time.monotonic()))
            self._receive()
            now_s = time.monotonic()
            until_s = min(tick_s, self._lifecycle.next_due_s())
            if now_s >= until_s:
                tick_s = now_s + _TICK_S
                self._look_at_hosts()
                self._tell(events.Tick(now_s))
                until_s = min(tick_s, self._lifecycle.next_due_s())

    def close(self) -> None:
        """Give everything back."""
        self._children.end_all()
        self._spool.close()
        self.watching.close()
        self._router.close()

    # Events

    def _tell(self, event: events.Event) -> None:
        try:
            for action in self._lifecycle.handle(event):
                self._perform(action)
        except Exception:  # a mistake of ours must not cost the user's variables
            log.exception("this event was not dealt with: %r", event)
            text = f"the controller made a mistake; its log says more: {self._log_file}"
            peers = tuple(r.peer for r in self._lifecycle.board.notebooks.values())
            self._outgoing.send(peers, messages.Notice(text=text, level="error"))

    def _receive(self) -> None:
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=True)
            except zmq.Again:
                return
            self._read(frames)
            if self._over:
                return

    def _read(self, frames: list[bytes]) -> None:
        try:
            identity, message, payload = wire.read_to_controller(frames)
            peer = self._outgoing.find(identity)
        except ProtocolError:
            log.exception("a message cannot be read")
            return
        self._tell(events.Reported(peer, message, payload, time.monotonic()))

    def _take_signals(self) -> None:
        for number in self.watching.take_signals():
            if number == signal.SIGCHLD:
                self._look_at_hosts()
            else:
                name = signal.Signals(number).name
                reason = f"the controller received {name}"
                self._tell(events.StopAsked(reason, time.monotonic()))

    def _look_at_hosts(self) -> None:
        for one in self._launcher.poll():
            reason = words.describe_exit(one.returncode)
            event = events.HostExited(one.host, reason, time.monotonic(), one.reason)
            self._tell(event)
        self._children.reap_orphans()

    # Actions

    def _perform(self, action: events.Action) -> None:  # noqa: C901, PLR0912  one line a case
        match action:
            case events.Send():
                self._outgoing.send(action.peers, action.message, action.payload)
            case events.ForwardOutput():
                self._outgoing.forward(action)
            case events.OpenCell():
                self._spool.open_cell(action.cell_id)
            case events.FinishCell():
                self._outgoing.finish_cell(action)
            case events.LaunchAgent():
                self._launch(action)
            case events.EndOrphans():
                self._children.end_orphans()
            case events.EndAgents():
                self._end_agents(action.grace_s)
            case events.WatchNotebook():
                self._watch(action)
            case events.ForgetNotebook():
                self.watching.forget(action.notebook)
            case events.RemoveRegion():
                _remove_region(action.path)
            case events.TellFailure():
                self._outgoing.tell_failure(action)
            case events.Planned():
                self._publish(action)
            case events.Exit():
                log.info("the cluster has ended: %s", action.reason)
                self._over = True
            case _:
                assert_never(action)

    def _publish(self, plan: events.Planned) -> None:
        paths = runtime.ClusterPaths(self._spec.name)
        try:
            connection = msgspec.structs.replace(
                runtime.read_connection(self._spec.name),
                num_ranks=plan.num_ranks,
                device=plan.provider,
            )
            runtime.write_connection(paths, connection)
        except (NpuNotebookError, OSError):
            log.exception("the plan is not published: lists will not show it")

    def _launch(self, action: events.LaunchAgent) -> None:
        host = action.host
        try:
            log_path = Path(self._lifecycle.board.agent_log_path(host.name))
            self._launcher.launch(host, self._agent_command(host.name), log_path)
        except (NpuNotebookError, OSError) as error:
            log.exception("the agent on %s cannot be launched", host.name)
            self._tell(events.HostExited(host.name, str(error), time.monotonic()))
        self._children.note_launched()

    def _agent_command(self, host: str) -> list[str]:
        facts = {
            "--endpoint": self._endpoint,
            "--host": host,
            "--cluster": self._spec.name,
            "--warm": self._spec.device or "",
            "--orphan-timeout": f"{self._spec.orphan_timeout_s:g}",
        }
        options = [f"{name}={value}" for name, value in facts.items()]
        return [sys.executable, "-m", "npu_notebook.agent", *options]

    def _end_agents(self, grace_s: float) -> None:
        self._launcher.end(grace_s)
        self._children.end_orphans()

    def _watch(self, action: events.WatchNotebook) -> None:
        if action.message.host == socket.gethostname():
            joined = action.message
            if self.watching.watch(action.notebook, joined.pid, joined.process_start_s):
                self._tell(events.NotebookWatched(action.notebook, time.monotonic()))


def _remove_region(path: str) -> None:
    file = Path(path)
    if file.name.startswith(REGION_PREFIX):  # never anything else, whoever says so
        file.unlink(missing_ok=True)
