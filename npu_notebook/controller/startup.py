"""Bring hosts and ranks up: the first start, and again whenever ranks are replaced.

`Startup.advance` looks at what is there and asks for what is missing next. It knows no
steps, so a host that comes back in the middle of a restart needs no case of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook import messages
from npu_notebook.controller.events import LaunchAgent, Planned
from npu_notebook.controller.records import HostRecord, HostStage, RankRecord
from npu_notebook.controller.versions import find_host_conflict, protocol_conflict
from npu_notebook.errors import ConfigError
from npu_notebook.messages import PROTOCOL_VERSION, RankState, StartFailed
from npu_notebook.topology import plan as make_plan
from npu_notebook.topology import rank_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_notebook.controller.board import Board, Reaction
    from npu_notebook.controller.groups import Groups
    from npu_notebook.topology import Plan
    from npu_notebook.wire import Payload, Peer

_LOOPBACK = "127.0.0.1"
_SAME_VERSIONS = "Use the same versions of Python, torch and npu_notebook everywhere."


class Startup:
    """From a specification to ranks that have joined."""

    def __init__(self, board: Board, groups: Groups) -> None:
        self._board = board
        self._groups = groups
        self._store_asked = False
        self.on_failed: Callable[[StartFailed], None] = lambda _failure: None
        self.tell: Callable[[messages.Notice], None] = lambda _notice: None
        self.reactions: dict[type[messages.Message], Reaction] = {
            messages.AgentJoined: self._on_agent_joined,
            messages.HostPrepared: self._on_prepared,
            messages.StoreStarted: self._on_store_started,
        }

    def advance(self) -> None:
        """Ask for what is missing next; does nothing when nothing is."""
        board = self._board
        if board.stopping:
            return
        needed = self._needed_hosts()
        for host in needed:
            if host.stage in (HostStage.AWAY, HostStage.GONE):
                host.stage = HostStage.LAUNCHED
                board.act(LaunchAgent(host.spec))
        if not needed or any(not host.connected for host in needed):
            return
        if board.plan is None and not self._make_plan():
            return
        self._prepare(needed)
        if any(host.stage is not HostStage.PREPARED for host in needed):
            return
        if board.has_groups and self._groups.store is None:
            self._start_store()
            return
        for host in needed:
            self._start_ranks(host)

    def _needed_hosts(self) -> list[HostRecord]:
        board = self._board
        if board.plan is None:
            return list(board.hosts.values())
        waiting = {r.host for r in board.ranks if r.state is RankState.WAITING}
        if waiting and board.has_groups and self._groups.store is None:
            waiting.add(board.ranks[0].host)  # where the store belongs
        return [host for host in board.hosts.values() if host.spec.name in waiting]

    def _make_plan(self) -> bool:
        board = self._board
        conflict = find_host_conflict(self._facts())
        if conflict:
            self._fail("the cluster", conflict, _SAME_VERSIONS, config_error=True)
            return False
        try:
            plan = make_plan(board.spec, self._facts())
            board.provider = board.around.describe_provider(plan.provider)
        except ConfigError as error:
            self._fail("the cluster", error.problem, error.remedy, config_error=True)
            return False
        board.place_ranks(plan)
        board.act(Planned(plan.provider, plan.world_size))
        if plan.notice:
            self.tell(messages.Notice(text=plan.notice))
        board.changed()
        return True

    def _facts(self) -> list[messages.HostFact]:
        return [host.fact for host in self._board.hosts.values() if host.fact]

    def _prepare(self, needed: list[HostRecord]) -> None:
        board = self._board
        provider = board.plan.provider if board.plan else ""
        command = messages.PrepareHost(
            provider="" if provider == "none" else provider, env=board.spec.env
        )
        for host in needed:
            if host.stage is HostStage.JOINED:
                board.send_host(host, command)
                host.stage = HostStage.PREPARING

    def _start_store(self) -> None:
        board = self._board
        if self._store_asked:
            return
        host = board.hosts[board.ranks[0].host]
        single = len(board.hosts) == 1
        address = _LOOPBACK if single or host.fact is None else host.fact.address
        command = messages.StartStore(
            address=address, port=board.spec.port, world_size=len(board.ranks)
        )
        board.send_host(host, command)
        self._store_asked = True

    def _start_ranks(self, host: HostRecord) -> None:
        board = self._board
        chosen = [
            record
            for record in board.ranks
            if record.host == host.spec.name and record.state is RankState.WAITING
        ]
        plan = board.plan
        if not chosen or plan is None:
            return
        for record in chosen:
            record.move(RankState.STARTING)
            record.heard_s = board.now_s
        store = self._groups.store or ("", 0)
        command = messages.StartRanks(
            provider=plan.provider,
            endpoint=board.around.endpoint,
            ranks=tuple(_rank_spec(board, plan, store, record) for record in chosen),
        )
        board.send_host(host, command)
        board.changed()

    # Answers

    def _on_agent_joined(
        self, peer: Peer, message: messages.AgentJoined, _payload: Payload
    ) -> None:
        host = self._board.hosts.get(peer.name)
        if host is None or host.connected or message.fact.name != peer.name:
            return
        host.stage = HostStage.JOINED
        host.fact = message.fact
        host.heard_s = self._board.now_s
        if message.protocol_version != PROTOCOL_VERSION:
            reason = protocol_conflict(message.protocol_version)
            what = f"the agent on {peer.name}"
            self._fail(what, reason, _SAME_VERSIONS, config_error=True)
            return
        self._board.changed()
        self.advance()

    def _on_prepared(
        self, peer: Peer, message: messages.HostPrepared, _payload: Payload
    ) -> None:
        host = self._board.hosts.get(peer.name)
        if host is None or host.stage is not HostStage.PREPARING:
            return
        if message.problem:
            host.stage = HostStage.JOINED
            self._fail(f"host {peer.name}", message.problem, message.remedy)
            return
        host.stage = HostStage.PREPARED
        self.advance()

    def _on_store_started(
        self, peer: Peer, message: messages.StoreStarted, _payload: Payload
    ) -> None:
        board = self._board
        if not self._store_asked or self._groups.store is not None or not board.ranks:
            return
        if peer.name != board.ranks[0].host:
            return
        self._store_asked = False
        if message.problem:
            remedy = "Leave --port out to use any free port."
            what = f"the store on {peer.name}"
            self._fail(what, message.problem, remedy if board.spec.port else "")
            return
        host = board.hosts[peer.name]
        single = len(board.hosts) == 1
        address = _LOOPBACK if single or host.fact is None else host.fact.address
        self._groups.store = (address, message.port)
        self.advance()

    def forget_host(self, host: HostRecord) -> None:
        """Note that an agent is gone, and the store with it if it was there."""
        host.stage = HostStage.GONE
        ranks = self._board.ranks
        if ranks and ranks[0].host == host.spec.name:
            self._groups.store = None
            self._store_asked = False

    def _fail(
        self, what: str, reason: str, remedy: str = "", *, config_error: bool = False
    ) -> None:
        self.on_failed(
            StartFailed(
                what=what, reason=reason, remedy=remedy, config_error=config_error
            )
        )


def _rank_spec(
    board: Board, plan: Plan, store: tuple[str, int], record: RankRecord
) -> messages.RankSpec:
    placement = rank_environment(plan, plan.slots[record.rank], *store)
    # torchrun gives each worker one thread unless the user chose a number.
    # Source: torch.distributed.run, "Setting OMP_NUM_THREADS".
    env = {"OMP_NUM_THREADS": "1", **board.spec.env, **placement}
    env["NPU_NOTEBOOK_CLUSTER"] = board.spec.name  # names what it leaves in memory
    return messages.RankSpec(
        rank=record.rank,
        local_rank=record.local_rank,
        incarnation=record.incarnation,
        env=env,
        cwd=board.spec.cwd,
        log_path=record.log_path,
    )
