"""The agent: one per host; does what the controller says with that host's processes.

One loop, no threads: a command, a signal or a child's exit wakes it, it acts and
sleeps again. It decides nothing about the cluster but one thing: when the controller
is gone it ends everything it started, and itself.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

import zmq

from npu_notebook import wire
from npu_notebook.agent import inventory, linux
from npu_notebook.agent.ending import Ending
from npu_notebook.agent.locks import DeviceLocks
from npu_notebook.agent.loop import Loop
from npu_notebook.agent.ranks import Ranks
from npu_notebook.agent.regions import Regions
from npu_notebook.agent.services import Services
from npu_notebook.errors import ProtocolError
from npu_notebook.messages import (
    PROTOCOL_VERSION,
    AgentAlive,
    AgentCommand,
    AgentJoined,
    AgentNotice,
    AgentReport,
    BulkChunk,
    BulkCredit,
    EndHost,
    EndRanks,
    HostEnded,
    PrepareHost,
    SendRegion,
    StartRanks,
    StartStore,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

_ALIVE_PERIOD_S = 1.0
_ENDING_PERIOD_S = 0.05
_GRACE_S = 2.0  # when nobody says how long ranks may take to end
_MESSAGES_AT_ONCE = 100  # then look at signals and children again


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of an agent.

    ``warm`` is the provider to expect ("" the user named none); ``controller_pid`` None
    for a controller on another host.
    """

    endpoint: str
    host: str
    cluster: str
    warm: str
    controller_pid: int | None
    orphan_timeout_s: float


class Agent:
    """The processes of one host, for one cluster."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop = Loop((signal.SIGCHLD, signal.SIGTERM), self._on_signal)
        self._locks = DeviceLocks(options.cluster)
        self._ranks = Ranks(options.host, self._send, self._locks)
        self._services = Services(options.host, self._loop, self._send, self._ranks)
        self._regions = Regions(options.cluster, options.host, self._send)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = wire.open_dealer(
            self._context, options.endpoint, wire.agent_identity(options.host)
        )
        self._heard_s = self._next_alive_s = time.monotonic()
        self._last: Ending | None = None  # of the agent's own children, at the end
        self._ending = False
        self._over = False

    def run(self) -> None:
        """Join the controller and serve it until the end."""
        linux.adopt_orphans()
        self._watch_controller()
        self._join()
        self._loop.watch(self._dealer, self._receive)
        while not self._over:
            self._loop.wait(self._wait_s())
            self._tick(time.monotonic())
        self._locks.release_all()
        self._dealer.close(linger=1000)
        self._context.term()
        self._loop.close()

    def _join(self) -> None:
        providers = self._services.providers
        found = {}
        # What decides whether to warm the template comes first.
        for name in sorted(providers, key=lambda name: (name != "ascend", name)):
            found[name] = inventory.take_inventory(name, providers[name], self._locks)
            if name == "ascend":
                self._services.warm(self._options.warm, found[name].count)
        fact = inventory.describe_host(self._options.host, tuple(found.values()))
        self._send(AgentJoined(protocol_version=PROTOCOL_VERSION, fact=fact))
        if self._regions.problem:
            text = f"on {self._options.host}, {self._regions.problem}"
            notice = AgentNotice(host=self._options.host, text=text, level="warning")
            self._send(notice)

    def _watch_controller(self) -> None:
        pid = self._options.controller_pid
        if pid is None:
            return
        try:
            self._controller_fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._controller_gone()
            return
        self._loop.watch(self._controller_fd, self._controller_gone)

    def _controller_gone(self) -> None:
        self._loop.forget(self._controller_fd)
        self._end_host(_GRACE_S, "the controller's process is gone")

    def _send(self, report: AgentReport, payload: Sequence[bytes] = ()) -> None:
        self._dealer.send_multipart(wire.encode(report, payload), copy=not payload)

    def _receive(self) -> None:
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                frames = self._dealer.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._heard_s = time.monotonic()
            parts = [frame.buffer for frame in frames]
            try:
                command, payload = wire.read_agent_command(parts)
            except ProtocolError:
                log.exception("a command cannot be read")
                continue
            if not self._ending:  # then it is too late for anything
                self._perform(command, payload)

    def _perform(self, command: AgentCommand, payload: list[Any]) -> None:
        match command:
            case AgentAlive():
                return
            case PrepareHost():
                self._services.prepare(command)
            case StartStore():
                self._services.start_store(command)
            case StartRanks():
                self._services.start_ranks(command)
            case EndRanks(ranks=ranks, grace_s=grace_s):
                self._ranks.end(ranks, grace_s, time.monotonic())
            case EndHost(grace_s=grace_s):
                self._end_host(grace_s, "the controller said so")
            case SendRegion(transfer_id=transfer_id, path=path):
                self._regions.send(transfer_id, path)
            case BulkChunk():
                self._regions.receive(command, payload)
            case BulkCredit(transfer_id=transfer_id, upto=upto):
                self._regions.credit(transfer_id, upto)
            case _:
                assert_never(command)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self._end_host(_GRACE_S, "it received SIGTERM")
        if number == signal.SIGCHLD:
            self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            returncode = os.waitstatus_to_exitcode(status)
            if not self._ranks.reaped(pid, returncode, time.monotonic()):
                self._services.reaped(pid, returncode)

    def _wait_s(self) -> float:
        if self._ranks.is_ending or self._ending:
            return _ENDING_PERIOD_S
        return max(0.0, self._next_alive_s - time.monotonic())

    def _tick(self, now_s: float) -> None:
        if now_s >= self._next_alive_s:
            self._next_alive_s = now_s + _ALIVE_PERIOD_S
            self._send(AgentAlive(host=self._options.host))
        silent_s = now_s - self._heard_s
        # Messages may wait: this process can have been stopped for a while itself.
        if silent_s > self._options.orphan_timeout_s and not self._dealer.poll(0):
            self._end_host(
                _GRACE_S, f"no word from the controller for {silent_s:.0f} s"
            )
        self._ranks.advance(now_s, self._services.pids)
        if self._ending and not self._ranks.is_ending:
            self._end_own(now_s)

    def _end_host(self, grace_s: float, reason: str) -> None:
        if self._ending:
            return
        log.info("ending everything on this host: %s", reason)
        self._ending = True
        self._services.stop_starting()
        self._ranks.end_all(grace_s, time.monotonic())

    def _end_own(self, now_s: float) -> None:
        """End the agent's other children when no rank is left, then say so."""
        if self._last is None:
            self._services.end()
            self._last = Ending({}, now_s)
        self._last.advance(now_s, {}, ())
        if self._last.done:
            self._regions.close()
            self._send(HostEnded(host=self._options.host))
            self._over = True
