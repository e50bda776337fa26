"""Push, pull and chunks: all ranks or none, and in the order they were asked for."""

import pytest

from npu_notebook import messages
from npu_notebook.controller import events
from npu_notebook.messages import BulkLayout, ErrorInfo
from npu_notebook.wire import Peer
from tests.controller.driving import World, actions_of, layout, receivers, sent

SHARED = "/shm-a/region"
AGENT_B = Peer("agent", "b")


@pytest.fixture
def ready() -> World:
    return World().start()


@pytest.fixture
def two_hosts() -> World:
    """Ranks 0-1 share memory with the notebook, ranks 2-3 do not."""
    return World(hosts=("a", "b")).start()


def push(world: World, ranks=(0, 1, 2, 3), path: str = SHARED, payload=()):
    message = messages.PushValues(
        request_id="p1",
        transfer_id="t1",
        names=("x", "y"),
        ranks=tuple(ranks),
        layout=layout(path),
    )
    return world.from_notebook(message, payload=payload)


def stage(world: World, ranks, error: ErrorInfo | None = None):
    before = len(world.log)
    for rank in ranks:
        staged = messages.ValuesStaged(request_id="p1", rank=rank, error=error)
        world.from_rank(rank, staged)
    return world.log[before:]


def commit(world: World, ranks):
    before = len(world.log)
    for rank in ranks:
        world.from_rank(rank, messages.ValuesCommitted(request_id="p1", rank=rank))
    return world.log[before:]


def pull(world: World, ranks=(0, 1, 2, 3), request_id: str = "q1"):
    message = messages.PullValues(
        request_id=request_id, names=("x",), ranks=tuple(ranks)
    )
    return world.from_notebook(message)


def pulled(world: World, rank: int, path: str = "", payload=()):
    message = messages.PulledValues(request_id="q1", rank=rank, layout=layout(path))
    return world.from_rank(rank, message, payload)


def test_a_push_is_staged_on_all_then_kept_on_all(ready: World):
    log = push(ready)
    assert receivers(log, messages.StageValues) == ["0", "1", "2", "3"]
    (send,) = actions_of(log, events.Send)
    assert send.message == messages.StageValues(
        request_id="p1", names=("x", "y"), layout=layout(SHARED)
    )
    assert stage(ready, [0, 1, 2]) == []
    log = stage(ready, [3])
    assert receivers(log, messages.CommitValues) == ["0", "1", "2", "3"]
    assert all(one.keep for one in sent(log, messages.CommitValues))
    assert commit(ready, [0, 1, 2]) == []
    (done,) = sent(commit(ready, [3]), messages.RequestDone)
    assert (done.request_id, done.problem) == ("p1", "")


def test_a_small_push_travels_in_the_message(ready: World):
    log = push(ready, path="", payload=(b"pickle", b"buffer"))
    (send,) = actions_of(log, events.Send)
    assert send.payload == (b"pickle", b"buffer")


def test_one_rank_that_cannot_unpack_leaves_all_as_they_were(ready: World):
    push(ready)
    stage(ready, [0, 1, 3])
    error = ErrorInfo(kind="ModuleNotFoundError", message="No module named 'helper'")
    log = stage(ready, [2], error)
    assert receivers(log, messages.CommitValues) == ["0", "1", "3"]
    assert not any(one.keep for one in sent(log, messages.CommitValues))
    (done,) = sent(commit(ready, [0, 1, 3]), messages.RequestDone)
    assert done.problem == (
        "nothing was pushed: rank 2: ModuleNotFoundError: No module named 'helper'"
    )


def test_a_rank_that_dies_before_the_push_was_kept_leaves_all_as_they_were(
    ready: World,
):
    push(ready)
    stage(ready, [0, 1, 2])
    log = ready.exit_rank(3, -9)
    assert not any(one.keep for one in sent(log, messages.CommitValues))
    (done,) = sent(commit(ready, [0, 1, 2]), messages.RequestDone)
    assert "rank 3" in done.problem


def test_a_push_waits_for_the_cell_before_it_and_holds_the_one_after(ready: World):
    ready.submit("c1", [0])
    assert not sent(push(ready, [0, 1]), messages.StageValues)
    assert not sent(ready.submit("c2", [1]), messages.RunCell)
    log = ready.finish("c1", [0])
    assert receivers(log, messages.StageValues) == ["0", "1"]
    stage(ready, [0, 1])
    log = commit(ready, [0, 1])
    assert receivers(log, messages.RunCell) == ["1"]


def test_a_push_to_a_lost_rank_is_refused_at_once(ready: World):
    ready.exit_rank(2, -9)
    log = push(ready)
    assert not sent(log, messages.StageValues)
    (done,) = sent(log, messages.RequestDone)
    assert done.problem.startswith("nothing was pushed: rank 2: RankLostError")


@pytest.mark.parametrize("ranks", [(), (9,), (1, 1)])
def test_ranks_that_cannot_be_are_answered_in_one_sentence(ready: World, ranks):
    (done,) = sent(push(ready, ranks), messages.RequestDone)
    assert done.request_id == "p1"
    assert done.problem
    (done,) = sent(pull(ready, ranks), messages.RequestDone)
    assert done.request_id == "q1"
    assert done.problem


def test_an_interrupt_reaches_ranks_that_hang_in_unpacking(ready: World):
    push(ready, [1])
    log = ready.from_notebook(messages.InterruptCell(level=1))
    assert receivers(log, messages.InterruptRank) == ["1"]


def test_the_third_interrupt_ends_ranks_that_never_finish_unpacking(ready: World):
    push(ready)
    stage(ready, [0, 1])
    log = ready.from_notebook(messages.InterruptCell(level=3))
    (order,) = sent(log, messages.EndRanks)
    assert order.ranks == (2, 3)
    (notice,) = sent(log, messages.Notice)
    assert "ranks 2-3 cannot be interrupted" in notice.text


def test_the_region_of_a_notebook_that_died_is_removed(ready: World):
    push(ready)
    ready.tell(events.NotebookGone(Peer("notebook", "n"), ready.now_s))
    stage(ready, range(4))
    log = commit(ready, range(4))
    assert [one.path for one in actions_of(log, events.RemoveRegion)] == [SHARED]


def test_each_answer_of_a_pull_goes_on_as_it_comes(ready: World):
    log = pull(ready)
    (send,) = actions_of(log, events.Send)
    assert send.message == messages.SendValues(
        request_id="q1", names=("x",), shared_memory_dir="/shm-a"
    )
    (answer,) = actions_of(pulled(ready, 2, payload=(b"p", b"q")), events.Send)
    assert [peer.name for peer in answer.peers] == ["n"]
    assert answer.payload == (b"p", b"q")
    (answer,) = actions_of(pulled(ready, 0, "/shm-a/r0"), events.Send)
    assert answer.message.layout.path == "/shm-a/r0"


def test_a_rank_that_dies_during_a_pull_is_answered_for(ready: World):
    pull(ready)
    (answer,) = sent(ready.exit_rank(1, -9), messages.PulledValues)
    assert answer.rank == 1
    assert "ended by signal 9" in answer.problem


def test_a_pull_from_a_lost_rank_is_answered_for_every_rank(ready: World):
    ready.exit_rank(1, -9)
    answers = sent(pull(ready), messages.PulledValues)
    assert [one.rank for one in answers] == [0, 1, 2, 3]
    assert "ended by signal 9" in answers[1].problem
    assert answers[0].problem == "not run: rank 1 is lost"


def test_a_pull_for_a_notebook_that_died_leaves_no_region(ready: World):
    pull(ready)
    ready.tell(events.NotebookGone(Peer("notebook", "n"), ready.now_s))
    log = pulled(ready, 0, "/shm-a/r0")
    assert [one.path for one in actions_of(log, events.RemoveRegion)] == ["/shm-a/r0"]


def test_chunks_go_to_the_agent_named_and_credit_comes_back(two_hosts: World):
    chunk = messages.BulkChunk(transfer_id="t1", host="b", offset=0, total_nbytes=30)
    (send,) = actions_of(
        two_hosts.from_notebook(chunk, payload=(b"x" * 30,)), events.Send
    )
    assert send.peers == (AGENT_B,)
    assert send.payload == (b"x" * 30,)
    credit = messages.BulkCredit(transfer_id="t1", host="b", upto=30)
    log = two_hosts.from_agent("b", credit)
    assert receivers(log, messages.BulkCredit) == ["n"]


def test_far_ranks_stage_what_their_agent_has_stored(two_hosts: World):
    chunk = messages.BulkChunk(transfer_id="t1", host="b", offset=0, total_nbytes=30)
    two_hosts.from_notebook(chunk, payload=(b"x" * 30,))
    log = push(two_hosts)
    assert receivers(log, messages.StageValues) == ["0", "1"]
    stored = messages.RegionStored(transfer_id="t1", host="b", path="/shm-b/t1")
    log = two_hosts.from_agent("b", stored)
    assert receivers(log, messages.StageValues) == ["2", "3"]
    (command, _) = sent(log, messages.StageValues)
    assert command.layout == BulkLayout(sizes=(10, 20), path="/shm-b/t1")
    log = stage(two_hosts, range(4))
    assert len(receivers(log, messages.CommitValues)) == 4


def test_a_region_stored_before_the_push_is_used_at_once(two_hosts: World):
    chunk = messages.BulkChunk(transfer_id="t1", host="b", offset=0, total_nbytes=30)
    two_hosts.from_notebook(chunk, payload=(b"x" * 30,))
    stored = messages.RegionStored(transfer_id="t1", host="b", path="/shm-b/t1")
    two_hosts.from_agent("b", stored)
    log = push(two_hosts, [2, 3], path="")
    assert receivers(log, messages.StageValues) == ["2", "3"]


def test_a_host_without_room_leaves_all_ranks_as_they_were(two_hosts: World):
    push(two_hosts)
    stage(two_hosts, [0, 1])
    stored = messages.RegionStored(
        transfer_id="t1", host="b", path="", problem="memory is full"
    )
    log = two_hosts.from_agent("b", stored)
    assert not any(one.keep for one in sent(log, messages.CommitValues))
    (done,) = sent(commit(two_hosts, [0, 1]), messages.RequestDone)
    assert done.problem == (
        "nothing was pushed: ranks 2-3: DataError: host b: memory is full"
    )


def test_a_host_that_dies_ends_the_push_and_the_chunks(two_hosts: World):
    chunk = messages.BulkChunk(transfer_id="t1", host="b", offset=0, total_nbytes=30)
    two_hosts.from_notebook(chunk, payload=(b"x",))
    event = events.HostExited("b", "ended by signal 9", two_hosts.now_s)
    (done,) = sent(two_hosts.tell(event), messages.RequestDone)
    assert done.request_id == "t1"
    assert done.problem == "host b cannot send or receive data: it has no agent"


def test_a_far_region_is_offered_and_fetched_when_asked_for(two_hosts: World):
    pull(two_hosts, [2])
    (answer,) = sent(pulled(two_hosts, 2, "/shm-b/r2"), messages.PulledValues)
    assert answer.layout == BulkLayout(sizes=(10, 20))
    ask = messages.BulkCredit(transfer_id="q1/2", host="", upto=0)
    (command,) = sent(two_hosts.from_notebook(ask), messages.SendRegion)
    assert command == messages.SendRegion(transfer_id="q1/2", path="/shm-b/r2")
    chunk = messages.BulkChunk(transfer_id="q1/2", host="", offset=0, total_nbytes=30)
    (send,) = actions_of(two_hosts.report(AGENT_B, chunk, (b"x" * 20,)), events.Send)
    assert [peer.name for peer in send.peers] == ["n"]
    more = messages.BulkCredit(transfer_id="q1/2", host="", upto=20)
    log = two_hosts.from_notebook(more)
    assert receivers(log, messages.BulkCredit) == ["b"]


def test_chunks_nobody_asked_for_are_dropped(two_hosts: World):
    chunk = messages.BulkChunk(transfer_id="none", host="", offset=0, total_nbytes=30)
    assert two_hosts.report(AGENT_B, chunk, (b"x",)) == []
