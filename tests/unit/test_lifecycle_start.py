"""The start sequence: what is asked of whom, and how each failure is told."""

import pytest

from npu_notebook import messages
from npu_notebook.controller import events
from npu_notebook.messages import ClusterState, ErrorInfo, RankState, StartFailed
from npu_notebook.topology import HostSpec
from npu_notebook.wire import Peer
from tests.controller.driving import (
    World,
    actions_of,
    host_fact,
    join_message,
    receivers,
    sent,
)


def failure_of(world: World) -> StartFailed:
    """The one failure that was told, and the proof that all is being ended."""
    told = actions_of(world.log, events.TellFailure)
    assert {action.message for action in told} == {told[0].message}
    assert len(actions_of(world.log, events.Exit)) == 1
    assert len(actions_of(world.log, events.EndAgents)) == 1
    assert world.state is ClusterState.ENDED
    return told[0].message


def muted(*commands: type, **spec: object) -> World:
    world = World(**spec)
    world.mute = set(commands)
    return world


def test_a_start_asks_for_each_thing_once_in_order():
    world = World(hosts=("a", "b")).start()
    launched = [one.host.name for one in actions_of(world.log, events.LaunchAgent)]
    assert launched == ["a", "b"]
    asked = [
        (type(action.message).__name__, [peer.name for peer in action.peers])
        for action in actions_of(world.log, events.Send)
        if action.peers[0].kind != "notebook"
    ]
    assert asked == [
        ("PrepareHost", ["a"]),
        ("PrepareHost", ["b"]),
        ("StartStore", ["a"]),
        ("StartRanks", ["a"]),
        ("StartRanks", ["b"]),
        ("FormGroup", ["0", "1", "2", "3"]),
    ]
    assert world.state is ClusterState.READY


def test_ranks_get_the_environment_of_torchrun():
    world = World(env={"FOO": "1"}, num_ranks=2).start()
    (start,) = sent(world.log, messages.StartRanks)
    first, second = start.ranks
    assert start.endpoint == "ipc:///run/s"
    assert second.env["RANK"] == "1"
    assert second.env["WORLD_SIZE"] == "2"
    assert second.env["MASTER_ADDR"] == "127.0.0.1"
    assert second.env["MASTER_PORT"] == "4567"
    assert second.env["FOO"] == "1"
    assert second.env["OMP_NUM_THREADS"] == "1"
    assert first.cwd == "/home/me"
    assert first.log_path == "/logs/rank-0.log"


def test_the_user_may_choose_the_number_of_threads():
    world = World(env={"OMP_NUM_THREADS": "3"}).start()
    (start,) = sent(world.log, messages.StartRanks)
    assert start.ranks[0].env["OMP_NUM_THREADS"] == "3"


def test_on_several_hosts_the_store_listens_where_all_can_reach_it():
    world = World(hosts=("a", "b")).start()
    (store,) = sent(world.log, messages.StartStore)
    assert store.address == "address-a"
    (form, *_) = sent(world.log, messages.FormGroup)
    assert (form.master_address, form.master_port) == ("address-a", 4567)
    assert form.world_size == 4


def test_without_a_device_there_is_neither_store_nor_group():
    world = World(device="none").start()
    assert not sent(world.log, messages.StartStore)
    assert not sent(world.log, messages.FormGroup)
    assert world.state is ClusterState.READY
    (prepare,) = sent(world.log, messages.PrepareHost)
    assert prepare.provider == ""


def test_ready_only_after_the_last_rank_has_formed_its_group():
    world = muted(messages.FormGroup).start()
    for rank in range(3):
        world.form_group(rank, 1)
    assert world.state is ClusterState.STARTING
    log = world.form_group(3, 1)
    (change,) = sent(log, messages.StateChanged)
    assert change.fact.state is ClusterState.READY
    assert change.fact.epoch == 1


def test_the_default_tells_that_simulated_npus_are_used():
    world = World(device=None, num_ranks=2)
    world.host_facts["a"] = host_fact(
        "a",
        inventories=(messages.DeviceInventory(provider="simulated", count=64),),
    )
    world.start()
    (notice,) = sent(world.log, messages.Notice)
    assert "2 simulated NPUs" in notice.text


def test_progress_is_published_at_most_ten_times_a_second():
    world = muted(messages.RankJoined)
    world.mute.add(messages.FormGroup)
    world.start()
    before = len(sent(world.log, messages.StateChanged))
    for rank in range(4):
        world.now_s += 0.01
        world.join_rank(rank)
    soon = len(sent(world.log, messages.StateChanged)) - before
    assert soon <= 1
    due_s = world.lifecycle.next_due_s()
    assert due_s <= world.now_s + 0.1
    world.pass_time(0.11)
    change = sent(world.log, messages.StateChanged)[-1]
    assert [one.state for one in change.fact.ranks] == [RankState.FORMING] * 4


@pytest.mark.parametrize(
    ("mute", "words"),
    [
        (events.LaunchAgent, "the agent on a has not joined within 300 s"),
        (messages.PrepareHost, "host a is still being prepared within 300 s"),
        (messages.StartStore, "the store on a has not started within 300 s"),
        (messages.RankJoined, "ranks 0-3 on a have not joined within 300 s"),
    ],
)
def test_a_start_that_takes_too_long_says_what_is_missing(mute: type, words: str):
    world = muted(mute).start()
    world.pass_time(299)
    assert world.state is ClusterState.STARTING
    world.pass_time(20)
    assert failure_of(world).reason == words


def test_one_late_rank_is_named_with_its_log():
    world = muted(messages.RankJoined, start_timeout_s=20.0).start()
    for rank in (0, 1, 3):
        world.join_rank(rank)
    world.pass_time(30)
    failure = failure_of(world)
    assert failure.reason == "rank 2 on a has not joined within 20 s"
    assert failure.log_path == "/logs/rank-2.log"


def test_a_group_that_does_not_form_names_the_silent_ranks():
    world = muted(messages.FormGroup).start()
    world.form_group(0, 1)
    world.form_group(3, 1)
    world.pass_time(140)
    failure = failure_of(world)
    assert failure.what == "ranks 1-2"
    assert "no answer within 120 s" in failure.reason


def test_more_ranks_than_devices_are_the_users_mistake():
    world = World(num_ranks=65).start()
    failure = failure_of(world)
    assert failure.config_error
    assert "65 ranks" in failure.reason
    assert failure.remedy == "Use -n 64 or fewer."
    assert not sent(world.log, messages.PrepareHost)


def test_a_rank_that_fails_shows_its_reason_and_everything_is_ended():
    world = muted(messages.RankJoined).start()
    error = ErrorInfo(kind="DeviceError", message="npu:2 is held", traceback="tb")
    world.join_rank(0)
    world.from_rank(2, messages.RankFailed(rank=2, incarnation=0, error=error))
    failure = failure_of(world)
    assert failure.what == "rank 2 on a"
    assert failure.reason == "DeviceError: npu:2 is held"
    assert failure.stderr_tail == "tb"
    assert receivers(world.log, messages.EndHost) == ["a"]
    (ended,) = sent(world.log, messages.ClusterEnded)
    assert ended.reason == "rank 2 on a did not start"


def test_a_rank_that_exits_while_starting_shows_the_tail_of_its_stderr():
    world = muted(messages.RankJoined).start()
    world.exit_rank(1, 1, "ImportError: no torch")
    failure = failure_of(world)
    assert (failure.what, failure.reason) == ("rank 1 on a", "exited with code 1")
    assert failure.stderr_tail == "ImportError: no torch"
    assert failure.log_path == "/logs/rank-1.log"


def test_the_cause_is_told_and_not_what_it_did_to_others():
    world = muted(messages.FormGroup).start()
    reset = ErrorInfo(kind="RuntimeError", message="Connection reset by peer")
    world.form_group(0, 1, reset)
    world.form_group(1, 1, reset)
    world.now_s += 0.2
    world.exit_rank(2, -11)
    failure = failure_of(world)
    assert failure.what == "rank 2 on a"
    assert failure.reason.startswith("ended by signal 11 (SIGSEGV)")


def test_a_wrong_sum_fails_the_start():
    world = muted(messages.FormGroup).start()
    wrong = ErrorInfo(kind="GroupError", message="all_reduce gave 5 instead of 6")
    for rank in range(4):
        world.form_group(rank, 1, wrong)
    assert world.state is ClusterState.STARTING
    world.pass_time(0.6)
    failure = failure_of(world)
    assert failure.what == "ranks 0-3"
    assert failure.reason == (
        "no process group was formed: GroupError: all_reduce gave 5 instead of 6"
    )


def test_a_host_that_cannot_be_prepared_fails_the_start():
    world = muted(messages.PrepareHost).start()
    answer = messages.HostPrepared(
        host="a", problem="no C++ compiler", remedy="Use --device cpu."
    )
    world.from_agent("a", answer)
    failure = failure_of(world)
    assert (failure.what, failure.reason) == ("host a", "no C++ compiler")
    assert failure.remedy == "Use --device cpu."


def test_a_port_that_is_taken_is_named():
    world = muted(messages.StartStore, port=29500).start()
    (store,) = sent(world.log, messages.StartStore)
    assert store.port == 29500
    problem = "port 29500 is taken by pid 7"
    world.from_agent("a", messages.StoreStarted(host="a", port=0, problem=problem))
    failure = failure_of(world)
    assert failure.reason == problem
    assert failure.remedy == "Leave --port out to use any free port."


def test_an_agent_that_dies_fails_the_start():
    world = muted(events.LaunchAgent).start()
    exited = events.HostExited("a", "exited with code 1", world.now_s, "no module zmq")
    world.tell(exited)
    failure = failure_of(world)
    assert (failure.what, failure.reason) == ("the agent on a", "exited with code 1")
    assert failure.stderr_tail == "no module zmq"
    assert failure.log_path == "/logs/agent-a.log"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"python": "3.12.1"}, "host a has Python 3.11 and host b has Python 3.12"),
        ({"torch": "2.14.1"}, "host a has torch 2.13.0 and host b has torch 2.14.1"),
    ],
)
def test_hosts_with_other_versions_are_named_before_anything_starts(
    facts: dict[str, str], words: str
):
    world = World(hosts=("a", "b"))
    world.host_facts["b"] = host_fact("b", **facts)
    world.start()
    failure = failure_of(world)
    assert failure.reason == words
    assert failure.config_error
    assert not sent(world.log, messages.PrepareHost)


def test_a_patch_version_of_python_or_a_build_of_torch_may_differ():
    world = World(hosts=("a", "b"))
    world.host_facts["b"] = host_fact("b", python="3.11.2", torch="2.13.0+cu12")
    world.start()
    assert world.state is ClusterState.READY


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"python": "3.12.1"},
            "host a has Python 3.11 and rank 1 on a has Python 3.12",
        ),
        ({"torch": "2.6"}, "host a has torch 2.13.0 and rank 1 on a has torch 2.6"),
        ({"protocol_version": 99}, "it speaks protocol 99, the controller speaks 1"),
    ],
)
def test_a_rank_with_other_versions_fails_the_start(
    facts: dict[str, object], words: str
):
    world = muted(messages.RankJoined).start()
    world.join_rank(1, **facts)
    failure = failure_of(world)
    assert (failure.what, failure.reason) == ("rank 1 on a", words)


def test_an_agent_of_another_protocol_fails_the_start():
    world = muted(events.LaunchAgent).start()
    joined = messages.AgentJoined(protocol_version=99, fact=host_fact("a"))
    world.from_agent("a", joined)
    failure = failure_of(world)
    assert failure.what == "the agent on a"
    assert failure.reason == "it speaks protocol 99, the controller speaks 1"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"protocol_version": 2, "package_version": "9.0"},
            "this notebook has npu_notebook 9.0 (protocol 2), the cluster 1.0 "
            "(protocol 1)",
        ),
        (
            {"python": "3.13.0"},
            "this notebook has Python 3.13 and the cluster has Python 3.11",
        ),
    ],
)
def test_a_notebook_that_does_not_fit_is_refused_in_one_sentence(
    facts: dict[str, object], words: str
):
    world = World().start()
    log = world.from_notebook(join_message(**facts), "other")
    (welcome,) = sent(log, messages.Welcome)
    assert welcome.refused == words
    assert "other" not in world.board.notebooks


def test_a_notebook_that_comes_after_the_failure_still_hears_why():
    world = muted(events.LaunchAgent)
    world.tell(events.Opened(world.now_s))
    world.tell(events.HostExited("a", "exited with code 1", world.now_s))
    assert not actions_of(world.log, events.Exit)
    world.pass_time(1)
    world.join()
    failure = failure_of(world)
    assert failure.what == "the agent on a"
    kinds = [type(one.message) for one in actions_of(world.log, events.Send)]
    assert kinds[-1] is messages.ClusterEnded


def test_a_failed_start_that_nobody_asks_about_ends_by_itself():
    world = muted(events.LaunchAgent)
    world.tell(events.Opened(world.now_s))
    world.tell(events.HostExited("a", "exited with code 1", world.now_s))
    world.pass_time(9)
    assert not actions_of(world.log, events.Exit)
    world.pass_time(2)
    assert len(actions_of(world.log, events.Exit)) == 1


def test_progress_told_by_agents_reaches_a_notebook_that_joins_later():
    world = muted(messages.PrepareHost)
    world.tell(events.Opened(world.now_s))
    world.from_agent("a", messages.AgentNotice(host="a", text="building"))
    log = world.join()
    assert [one.text for one in sent(log, messages.Notice)] == ["building"]


def test_a_report_of_a_process_of_the_past_changes_nothing():
    world = muted(messages.RankJoined).start()
    old = Peer("rank", "0", 7)
    joined = messages.RankJoined(
        rank=0,
        incarnation=7,
        host="a",
        pid=1,
        python="3.11.9",
        torch="",
        device="cpu",
        protocol_version=1,
    )
    world.report(old, joined)
    assert world.states[0] is RankState.STARTING


def test_work_given_before_the_cluster_is_ready_is_answered_at_once():
    world = muted(messages.FormGroup).start()
    log = world.submit("c1", [0])
    (done,) = sent(log, messages.RequestDone)
    assert (done.request_id, done.problem) == ("c1", "the cluster is still starting")


def test_each_host_has_the_number_of_ranks_it_was_given():
    hosts = (HostSpec(name="a", num_ranks=1), HostSpec(name="b", num_ranks=3))
    world = World(hosts=("a", "b"), hosts_spec=hosts).start()
    assert [record.host for record in world.board.ranks] == ["a", "b", "b", "b"]
    assert [record.local_rank for record in world.board.ranks] == [0, 0, 1, 2]
