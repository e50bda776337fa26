"""Whatever happens in whatever order, the promises of the lifecycle hold."""

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_notebook import messages
from npu_notebook.controller import events
from npu_notebook.controller.records import CONNECTED
from npu_notebook.messages import ErrorInfo, RankState
from npu_notebook.wire import Peer
from tests.controller.driving import World, actions_of, layout

RANKS = st.integers(0, 3)
SETS = st.lists(st.integers(0, 4), max_size=4).map(tuple)
NOTEBOOKS = st.sampled_from(["n", "m"])
CELLS = st.integers(0, 9).map(lambda number: f"c{number}")
REQUESTS = st.integers(0, 5).map(lambda number: f"r{number}")
ERRORS = st.none() | st.just(ErrorInfo(kind="ValueError", message="no"))
COMMANDS = st.sampled_from(
    [
        messages.EndRanks,
        messages.EndHost,
        messages.FormGroup,
        messages.StartRanks,
        messages.StartStore,
        messages.PrepareHost,
        messages.RankJoined,
        events.LaunchAgent,
    ]
)
HOSTS = st.sampled_from(["a", "b"])


def op(name: str, *arguments: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(st.just(name), *arguments)


OPS = st.one_of(
    op("join", NOTEBOOKS),
    op("leave", NOTEBOOKS),
    op("vanish", NOTEBOOKS),
    op("submit", CELLS, SETS, NOTEBOOKS, st.none() | st.floats(0.1, 3)),
    op("submit", CELLS, st.just((0, 1, 2, 3)), NOTEBOOKS, st.none()),
    op("done", CELLS, RANKS, ERRORS, st.booleans()),
    op("print", CELLS, RANKS),
    op("interrupt", st.integers(1, 3), st.none() | CELLS, NOTEBOOKS),
    op("exit", RANKS, st.sampled_from([0, 1, -9, -11])),
    op("fail", RANKS),
    op("restart", REQUESTS, SETS, NOTEBOOKS),
    op("push", REQUESTS, SETS, NOTEBOOKS, st.sampled_from(["", "/shm-a/x"])),
    op("staged", REQUESTS, RANKS, ERRORS),
    op("committed", REQUESTS, RANKS),
    op("stored", REQUESTS, HOSTS, st.sampled_from(["", "full"])),
    op("pull", REQUESTS, SETS, NOTEBOOKS),
    op("pulled", REQUESTS, RANKS, st.sampled_from(["", "/shm-b/x"])),
    op("chunk", REQUESTS, HOSTS, NOTEBOOKS),
    op("credit", REQUESTS, RANKS, NOTEBOOKS),
    op("formed", RANKS, st.integers(1, 3), ERRORS),
    op("rejoin", RANKS),
    op("host_exit", HOSTS),
    op("agent", HOSTS),
    op("mute", COMMANDS),
    op("unmute", COMMANDS),
    op("time", st.floats(0.01, 20)),
    op("silence", st.floats(1, 40)),
    op("stop", st.just("n")),
)


class Checked(World):
    """A world that holds every action against the promises."""

    def __init__(self, **spec: object) -> None:
        super().__init__(hosts=("a", "b"), **spec)
        self.submitted: set[str] = set()
        self.ends: Counter[str] = Counter()
        self.exits = 0

    def tell(self, event: events.Event):
        return super().tell(event)

    def answer(self, action: events.Action) -> None:
        assert self.exits == 0 or isinstance(action, events.Exit), action
        self.exits += isinstance(action, events.Exit)
        super().answer(action)

    def check(self, actions: list[events.Action]) -> None:
        for action in actions:
            if isinstance(action, events.FinishCell):
                self.ends[action.message.cell_id] += 1
                assert [one.rank for one in action.message.outcomes] == sorted(
                    one.rank for one in action.message.outcomes
                )
            if isinstance(action, events.Send):
                if isinstance(action.message, messages.RequestDone):
                    self.ends[action.message.request_id] += 1
                for peer in action.peers:
                    self.check_receiver(peer, action.message)

    def check_receiver(self, peer: Peer, message: messages.Message) -> None:
        if peer.kind == "rank":
            record = self.board.ranks[int(peer.name)]
            assert record.peer == peer, message
            assert record.state in CONNECTED, message
            if not isinstance(message, messages.CommitValues):
                assert not record.leaving, message
        elif peer.kind == "agent":
            assert self.board.hosts[peer.name].connected or self.board.stopping

    def do(self, name: str, *arguments: object) -> None:
        getattr(self, f"do_{name}")(*arguments)

    def do_join(self, name):
        self.join(name, memory_key="memory-a")

    def do_leave(self, name):
        self.from_notebook(messages.LeaveNotebook(reason="bye"), name)

    def do_vanish(self, name):
        self.tell(events.NotebookGone(Peer("notebook", name), self.now_s))

    def do_submit(self, cell_id, ranks, name, timeout_s):
        if name in self.board.notebooks and cell_id not in self.submitted:
            self.submitted.add(cell_id)
            self.submit(cell_id, ranks, name, timeout_s=timeout_s)

    def do_done(self, cell_id, rank, error, present):
        if rank < len(self.board.ranks):
            self.finish(cell_id, [rank], error=error, group_present=present)

    def do_print(self, cell_id, rank):
        if rank < len(self.board.ranks):
            text = messages.StreamText(
                cell_id=cell_id, rank=rank, stream="stdout", text="hi"
            )
            self.from_rank(rank, text)

    def do_interrupt(self, level, cell_id, name):
        message = messages.InterruptCell(level=level, cell_id=cell_id)
        self.from_notebook(message, name)

    def do_exit(self, rank, returncode):
        if rank < len(self.board.ranks):
            self.exit_rank(rank, returncode)

    def do_fail(self, rank):
        if rank < len(self.board.ranks):
            incarnation = self.board.ranks[rank].incarnation
            error = ErrorInfo(kind="OSError", message="no device")
            self.from_rank(
                rank,
                messages.RankFailed(rank=rank, incarnation=incarnation, error=error),
            )

    def do_restart(self, request_id, ranks, name):
        message = messages.RestartRanks(request_id=request_id, ranks=ranks)
        self.from_notebook(message, name)

    def do_push(self, request_id, ranks, name, path):
        message = messages.PushValues(
            request_id=request_id,
            transfer_id=request_id,
            names=("x",),
            ranks=ranks,
            layout=layout(path),
        )
        self.from_notebook(message, name, () if path else (b"p", b"q"))

    def do_staged(self, request_id, rank, error):
        if rank < len(self.board.ranks):
            message = messages.ValuesStaged(
                request_id=request_id, rank=rank, error=error
            )
            self.from_rank(rank, message)

    def do_committed(self, request_id, rank):
        if rank < len(self.board.ranks):
            message = messages.ValuesCommitted(request_id=request_id, rank=rank)
            self.from_rank(rank, message)

    def do_stored(self, request_id, host, problem):
        message = messages.RegionStored(
            transfer_id=request_id, host=host, path="/shm/y", problem=problem
        )
        self.from_agent(host, message)

    def do_pull(self, request_id, ranks, name):
        message = messages.PullValues(request_id=request_id, names=("x",), ranks=ranks)
        self.from_notebook(message, name)

    def do_pulled(self, request_id, rank, path):
        if rank < len(self.board.ranks):
            message = messages.PulledValues(
                request_id=request_id, rank=rank, layout=layout(path)
            )
            self.from_rank(rank, message, () if path else (b"p", b"q"))

    def do_chunk(self, request_id, host, name):
        message = messages.BulkChunk(
            transfer_id=request_id, host=host, offset=0, total_nbytes=1
        )
        self.from_notebook(message, name, (b"1",))
        self.report(Peer("agent", host), message, (b"1",))

    def do_credit(self, request_id, rank, name):
        message = messages.BulkCredit(
            transfer_id=f"{request_id}/{rank}", host="", upto=0
        )
        self.from_notebook(message, name)

    def do_formed(self, rank, epoch, error):
        if rank < len(self.board.ranks):
            self.form_group(rank, epoch, error)

    def do_rejoin(self, rank):
        if rank < len(self.board.ranks):
            self.join_rank(rank)

    def do_host_exit(self, host):
        self.tell(events.HostExited(host, "exited with code 1", self.now_s))

    def do_agent(self, host):
        self.join_agent(host)

    def do_mute(self, command):
        self.mute.add(command)

    def do_unmute(self, command):
        self.mute.discard(command)

    def do_time(self, seconds):
        self.pass_time(seconds)

    def do_silence(self, seconds):
        self.now_s += seconds
        self.tell(events.Tick(self.now_s))

    def do_stop(self, name):
        self.from_notebook(messages.StopCluster(reason="enough"), name)


class Watched(Checked):
    """Checks every decision the moment it is taken, before anybody answers."""

    def __init__(self, **spec: object) -> None:
        super().__init__(**spec)
        handle = self.lifecycle.handle

        def checked(event: events.Event) -> list[events.Action]:
            actions = handle(event)
            self.check(actions)
            return actions

        self.handle = checked

    def tell(self, event: events.Event):
        before = len(self.log)
        actions = self.handle(event)
        self.log += actions
        for action in actions:
            self.answer(action)
        return self.log[before:]


def run(ops: list[tuple], *, at_once: bool, device: str, linger_s: float | None):
    world = Watched(device=device, linger_s=linger_s)
    if at_once:
        world.start()
    else:
        world.mute = {events.LaunchAgent}
        world.start()
    for name, *arguments in ops:
        world.do(name, *arguments)
    return world


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ops=st.lists(OPS, max_size=40),
    at_once=st.sampled_from([True, True, True, False]),
    device=st.sampled_from(["cpu", "none"]),
    linger_s=st.sampled_from([None, 0.0, 600.0]),
)
def test_every_cell_ends_once_and_no_command_goes_to_a_rank_that_is_gone(
    ops, at_once, device, linger_s
):
    world = run(ops, at_once=at_once, device=device, linger_s=linger_s)
    world.tell(events.StopAsked("the end", world.now_s))
    for _ in range(40):
        world.do_silence(1.0)
    assert world.exits == 1
    assert world.board.ended
    cells = {cell_id: world.ends[cell_id] for cell_id in world.submitted}
    # A notebook that left before the answer gets none, but the cell has ended.
    there = {cell_id: count for cell_id, count in cells.items() if count}
    assert set(there.values()) <= {1}
    assert not world.board.cell_ids()


@settings(max_examples=40, deadline=None)
@given(ops=st.lists(OPS, max_size=30))
def test_an_idle_cluster_comes_back_from_anything_by_one_restart_of_all(ops):
    world = run(
        [one for one in ops if one[0] not in ("stop", "mute", "leave", "vanish")],
        at_once=True,
        device="cpu",
        linger_s=None,
    )
    if world.board.stopping:
        return
    world.join("n")
    world.do_restart("again", (0, 1, 2, 3), "n")
    world.pass_time(15)
    assert world.ends["again"] == 1
    assert world.states == [RankState.IDLE] * 4
    assert not actions_of(world.log, events.Exit)
