"""Ranks and hosts come and go: loss, restart, silence."""

import pytest

from npu_notebook import messages
from npu_notebook.controller import events
from npu_notebook.controller.words import describe_exit
from npu_notebook.messages import ClusterState, ErrorInfo, RankState
from npu_notebook.wire import Peer
from tests.controller.driving import (
    World,
    actions_of,
    finished,
    host_fact,
    receivers,
    sent,
)


@pytest.fixture
def ready() -> World:
    return World().start()


@pytest.fixture
def two_hosts() -> World:
    return World(hosts=("a", "b")).start()


def restart(world: World, ranks=(0, 1, 2, 3), request_id: str = "r1"):
    message = messages.RestartRanks(request_id=request_id, ranks=tuple(ranks))
    return world.from_notebook(message)


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "exited with code 0"),
        (137, "exited with code 137"),
        (-9, "ended by signal 9; often the out-of-memory killer"),
        (
            -7,
            "ended by signal 7 (SIGBUS); often a full shared-memory folder, "
            "see `df -h /dev/shm`",
        ),
        (
            -11,
            "ended by signal 11 (SIGSEGV); a crash in native code: "
            "a segmentation fault",
        ),
        (-2, "ended by signal 2 (SIGINT)"),
        (-99, "ended by signal 99"),
    ],
)
def test_an_exit_is_put_into_words(returncode: int, words: str):
    assert describe_exit(returncode) == words


def test_a_restart_of_all_replaces_every_process_and_forms_the_group(ready: World):
    log = restart(ready)
    (end,) = sent(log, messages.EndRanks)
    assert end.ranks == (0, 1, 2, 3)
    starts = sent(log, messages.StartRanks)
    ranks = [spec.rank for start in starts for spec in start.ranks]
    assert sorted(ranks) == [0, 1, 2, 3]
    assert {spec.incarnation for start in starts for spec in start.ranks} == {1}
    assert {one.epoch for one in sent(log, messages.FormGroup)} == {2}
    (done,) = sent(log, messages.RequestDone)
    assert (done.request_id, done.problem) == ("r1", "")
    assert ready.state is ClusterState.READY


def test_a_restart_waits_for_no_tick(ready: World):
    before = ready.now_s
    restart(ready)
    assert ready.now_s == before
    assert ready.state is ClusterState.READY


def test_a_lost_rank_is_replaced_and_the_others_keep_their_process(ready: World):
    ready.exit_rank(2, -9)
    log = restart(ready, [2])
    assert not sent(log, messages.EndRanks)
    (start,) = sent(log, messages.StartRanks)
    assert [spec.rank for spec in start.ranks] == [2]
    assert receivers(log, messages.FormGroup) == ["0", "1", "2", "3"]
    (notice,) = sent(log, messages.Notice)
    assert notice.text == (
        "rank 2 was replaced: its variables are gone, the other ranks kept theirs"
    )
    assert [record.incarnation for record in ready.board.ranks] == [0, 0, 1, 0]


def test_a_restart_ends_the_cell_on_the_replaced_rank_only(ready: World):
    ready.submit("c1")
    log = restart(ready, [2])
    assert not finished(log)
    (end,) = finished(ready.finish("c1", [0, 1, 3]))
    assert end.outcomes[2].lost
    assert end.outcomes[2].error is not None
    assert "was replaced by a restart" in end.outcomes[2].error.message


def test_a_restart_beside_a_running_cell_is_answered_before_the_cell_ends(
    ready: World,
):
    ready.submit("c1", [0, 1])
    log = restart(ready, [2])
    (done,) = sent(log, messages.RequestDone)
    assert done.problem == ""
    notices = [one.text for one in sent(log, messages.Notice)]
    assert notices[0] == (
        "the process group is formed again once the cell on ranks 0-1 has ended"
    )
    assert not sent(log, messages.FormGroup)
    assert len(receivers(ready.finish("c1", [0, 1]), messages.FormGroup)) == 4


def test_a_cell_given_during_a_restart_runs_on_the_new_processes(ready: World):
    ready.mute.add(messages.RankJoined)
    restart(ready)
    assert not sent(ready.submit("c1"), messages.RunCell)
    for rank in range(3):
        ready.join_rank(rank)
    log = ready.join_rank(3)
    (send,) = [
        one
        for one in actions_of(log, events.Send)
        if isinstance(one.message, messages.RunCell)
    ]
    assert {peer.incarnation for peer in send.peers} == {1}


def test_waiting_cells_do_not_run_in_a_process_without_their_variables(ready: World):
    ready.submit("c1", [0])
    ready.submit("c2", [0, 1])
    log = restart(ready, [1])
    (end,) = finished(log)
    assert end.cell_id == "c2"
    assert end.outcomes[1].error == ErrorInfo(
        kind="CellNotRun", message="not run: rank 1 was replaced before its turn came"
    )


def test_a_replacement_that_does_not_start_is_told_with_the_tail_of_its_log(
    ready: World,
):
    ready.mute.add(messages.RankJoined)
    restart(ready, [1, 2])
    ready.join_rank(2)
    log = ready.exit_rank(1, 1, "ImportError: torch\n")
    (done,) = sent(log, messages.RequestDone)
    assert done.problem == (
        "rank 1 on a exited with code 1; last lines of its log:\nImportError: torch"
    )
    assert done.remedy == "Its log: /logs/rank-1.log."
    assert ready.states[1] is RankState.LOST
    assert ready.states[0] is RankState.IDLE


def test_a_replacement_that_says_why_it_fails_is_quoted(ready: World):
    ready.mute.add(messages.RankJoined)
    restart(ready, [1])
    error = ErrorInfo(kind="DeviceError", message="npu:1 is held by pid 7")
    ready.from_rank(1, messages.RankFailed(rank=1, incarnation=1, error=error))
    (done,) = sent(ready.exit_rank(1, 1), messages.RequestDone)
    assert done.problem == (
        "rank 1 on a did not start: DeviceError: npu:1 is held by pid 7"
    )


def test_a_restart_that_takes_too_long_names_the_ranks(ready: World):
    ready.mute.add(messages.RankJoined)
    restart(ready, [1, 2])
    ready.join_rank(2)
    assert not sent(ready.pass_time(299), messages.RequestDone)
    (done,) = sent(ready.pass_time(2), messages.RequestDone)
    assert done.problem == (
        "not ready after 300 s: rank 1 on a is starting, rank 2 on a is joined"
    )


def test_a_group_that_does_not_form_ends_the_restart_with_the_reason(ready: World):
    ready.mute.add(messages.FormGroup)
    restart(ready)
    error = ErrorInfo(kind="RuntimeError", message="address in use")
    for rank in range(4):
        ready.form_group(rank, 2, error)
    (done,) = sent(ready.pass_time(1), messages.RequestDone)
    assert done.problem == (
        "no process group was formed: ranks 0-3: RuntimeError: address in use"
    )


def test_a_rank_of_another_version_is_not_taken_into_a_running_cluster(ready: World):
    ready.mute |= {messages.RankJoined, messages.EndRanks}
    ready.exit_rank(1, -9)
    restart(ready, [1])
    log = ready.join_rank(1, torch="2.6.0")
    (end,) = sent(log, messages.EndRanks)
    assert end.ranks == (1,)
    (done,) = sent(log, messages.RequestDone)
    assert "rank 1 on a has torch 2.6.0" in done.problem
    assert ready.state is not ClusterState.ENDED


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((7,), "rank 7 in"), ((), "the rank set is empty"), ((1, 1), "names 1 twice")],
)
def test_a_restart_of_ranks_that_cannot_be_is_one_sentence(
    ready: World, ranks: tuple[int, ...], words: str
):
    (done,) = sent(restart(ready, ranks), messages.RequestDone)
    assert words in done.problem


def test_a_second_restart_of_the_same_rank_is_answered_too(ready: World):
    ready.mute.add(messages.RankJoined)
    restart(ready, [1], "r1")
    restart(ready, [1], "r2")
    ready.mute.discard(messages.RankJoined)
    log = ready.join_rank(1)
    assert {one.request_id for one in sent(log, messages.RequestDone)} == {"r1", "r2"}


def test_a_rank_that_dies_while_others_form_the_group_does_not_stop_the_cluster(
    ready: World,
):
    ready.mute.add(messages.FormGroup)
    ready.exit_rank(2, -9)
    restart(ready, [2])
    ready.exit_rank(2, -9)
    for rank in (0, 1, 3):
        error = ErrorInfo(kind="RuntimeError", message="Connection reset")
        ready.form_group(rank, 2, error)
    assert ready.states == [
        RankState.IDLE,
        RankState.IDLE,
        RankState.LOST,
        RankState.IDLE,
    ]
    ready.pass_time(1)
    assert receivers(ready.submit("c1", [0, 1, 3]), messages.RunCell) == ["0", "1", "3"]


def test_a_host_that_is_lost_takes_its_ranks_with_it(two_hosts: World):
    two_hosts.submit("c1")
    event = events.HostExited("b", "ended by signal 9", two_hosts.now_s)
    log = two_hosts.tell(event)
    assert [one.host for one in actions_of(log, events.EndOrphans)] == ["b"]
    (end,) = finished([*log, *two_hosts.finish("c1", [0, 1])])
    assert [one.lost for one in end.outcomes] == [False, False, True, True]
    assert end.outcomes[3].error is not None
    assert end.outcomes[3].error.message == (
        "rank 3 (b, pid 1003) is lost with its host: ended by signal 9"
    )
    assert two_hosts.state is ClusterState.DEGRADED
    (notice,) = sent(log, messages.Notice)
    assert notice.text == (
        "host b is lost: ended by signal 9; ranks 2-3 are lost with it, "
        "`%npu_cluster restart --ranks 2-3` starts again"
    )


def test_a_restart_brings_a_lost_host_back(two_hosts: World):
    two_hosts.tell(events.HostExited("b", "ended by signal 9", two_hosts.now_s))
    log = restart(two_hosts, [2, 3])
    assert [one.host.name for one in actions_of(log, events.LaunchAgent)] == ["b"]
    assert receivers(log, messages.PrepareHost) == ["b"]
    assert not sent(log, messages.StartStore)
    assert two_hosts.state is ClusterState.READY


def test_a_restart_after_the_host_of_the_store_was_lost_makes_a_new_store(
    two_hosts: World,
):
    two_hosts.tell(events.HostExited("a", "ended by signal 9", two_hosts.now_s))
    log = restart(two_hosts, [0, 1])
    assert receivers(log, messages.StartStore) == ["a"]
    assert two_hosts.state is ClusterState.READY


def test_a_lost_host_that_cannot_be_used_any_more_ends_the_restart(two_hosts: World):
    two_hosts.mute.add(messages.PrepareHost)
    two_hosts.tell(events.HostExited("b", "ended by signal 9", two_hosts.now_s))
    restart(two_hosts, [2, 3])
    answer = messages.HostPrepared(host="b", problem="no compiler", remedy="Get one.")
    (done,) = sent(two_hosts.from_agent("b", answer), messages.RequestDone)
    assert done.problem == "host b did not start: no compiler"
    assert done.remedy == "Get one."
    assert two_hosts.states[2:] == [RankState.LOST] * 2


def test_a_host_that_dies_again_during_a_restart_ends_the_restart(two_hosts: World):
    two_hosts.mute.add(events.LaunchAgent)
    two_hosts.tell(events.HostExited("b", "ended by signal 9", two_hosts.now_s))
    restart(two_hosts, [2, 3])
    log = two_hosts.tell(events.HostExited("b", "exited with code 1", two_hosts.now_s))
    (done,) = sent(log, messages.RequestDone)
    assert done.problem == "host b is lost: exited with code 1"


def test_a_silent_rank_is_shown_and_left_alone(ready: World):
    for _ in range(11):
        ready.now_s += 1
        for rank in (0, 1, 3):
            ready.from_rank(rank, messages.Heartbeat(rank=rank))
        ready.from_agent("a", messages.AgentAlive(host="a"))
        log = ready.tell(events.Tick(ready.now_s))
    assert ready.states[2] is RankState.UNRESPONSIVE
    (notice,) = sent(log, messages.Notice)
    assert notice.text == (
        "rank 2 on a said nothing for 10 s, but did not end; wait, or replace with "
        "`%npu_cluster restart --ranks 2`"
    )
    assert ready.state is ClusterState.READY
    assert not sent(ready.log, messages.EndRanks)


def test_a_silent_rank_that_speaks_again_is_what_it_was(ready: World):
    ready.submit("c1", [2])
    for _ in range(12):
        ready.now_s += 1
        for rank in (0, 1, 3):
            ready.from_rank(rank, messages.Heartbeat(rank=rank))
        ready.from_agent("a", messages.AgentAlive(host="a"))
        ready.tell(events.Tick(ready.now_s))
    assert ready.states[2] is RankState.UNRESPONSIVE
    ready.from_rank(2, messages.Heartbeat(rank=2))
    assert ready.states[2] is RankState.RUNNING


def test_a_controller_that_slept_does_not_take_the_others_for_silent(ready: World):
    ready.pass_time(3)
    ready.now_s += 3600
    log = ready.tell(events.Tick(ready.now_s))
    assert not sent(log, messages.Notice)
    assert RankState.UNRESPONSIVE not in ready.states
    assert "n" in ready.board.notebooks


def test_an_exit_of_an_earlier_process_changes_nothing(ready: World):
    restart(ready, [2])
    old = messages.RankExited(host="a", rank=2, incarnation=0, pid=1, returncode=-9)
    assert ready.from_agent("a", old) == []
    assert ready.states[2] is RankState.IDLE


def test_agents_hear_from_the_controller(ready: World):
    log = ready.pass_time(10)
    assert 4 <= len(receivers(log, messages.AgentAlive)) <= 6


def test_a_message_of_the_wrong_family_is_not_heard(ready: World):
    rank = Peer("rank", "0", 0)
    assert ready.report(rank, messages.StopCluster(reason="mine")) == []
    host = Peer("agent", "a")
    done = messages.CellDone(cell_id="c1", rank=0, elapsed_ns=1)
    assert ready.report(host, done) == []
    stranger = Peer("notebook", "never joined")
    assert ready.report(stranger, messages.StopCluster(reason="mine")) == []
    assert ready.state is ClusterState.READY


def test_a_second_agent_of_the_same_name_changes_nothing(ready: World):
    other = messages.AgentJoined(
        protocol_version=1, fact=host_fact("a", memory_key="other")
    )
    ready.from_agent("a", other)
    assert ready.board.fact().ranks[0].memory_key == "memory-a"
