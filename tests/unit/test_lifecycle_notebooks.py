"""Notebooks join, leave and vanish; the cluster lingers, stops and ends."""

import pytest

from npu_notebook import messages
from npu_notebook.controller import events
from npu_notebook.messages import ClusterState
from npu_notebook.wire import Peer
from tests.controller.driving import World, actions_of, finished, receivers, sent

N = Peer("notebook", "n")


def ready(**spec: object) -> World:
    return World(**spec).start()


def vanish(world: World, name: str = "n"):
    return world.tell(events.NotebookGone(Peer("notebook", name), world.now_s))


def ended(world: World) -> bool:
    return bool(actions_of(world.log, events.Exit))


def test_a_notebook_is_welcomed_with_the_whole_state():
    world = ready()
    log = world.join("m")
    (welcome,) = sent(log, messages.Welcome)
    assert welcome.refused == ""
    assert welcome.fact.state is ClusterState.READY
    assert welcome.fact.world_size == 4
    assert welcome.fact.label == "CPU"
    assert welcome.fact.ranks[3].pid == 1003
    assert welcome.fact.ranks[3].memory_key == "memory-a"
    assert [one.notebook.name for one in actions_of(log, events.WatchNotebook)] == ["m"]


def test_a_notebook_that_joins_a_ready_cluster_is_told_that_it_is_ready():
    log = ready().join("m")
    (change,) = sent(log, messages.StateChanged)
    assert change.fact.state is ClusterState.READY


def test_the_state_is_answered_when_asked():
    world = ready()
    world.now_s += 7
    (answer,) = sent(
        world.from_notebook(messages.AskState(request_id="q")), messages.StateAnswer
    )
    assert answer.request_id == "q"
    assert answer.fact.age_s == 7


def test_a_cluster_nobody_is_attached_to_lingers_and_ends():
    world = ready(linger_s=60.0)
    world.from_notebook(messages.LeaveNotebook(reason="restart"))
    world.pass_time(59)
    assert not ended(world)
    world.pass_time(2)
    assert ended(world)
    assert receivers(world.log, messages.EndHost) == ["a"]


def test_a_notebook_that_comes_back_in_time_keeps_the_cluster():
    world = ready(linger_s=60.0)
    vanish(world)
    world.pass_time(59)
    world.join("m")
    world.pass_time(600)
    assert not ended(world)


def test_a_cluster_may_linger_for_ever():
    world = ready(linger_s=None)
    vanish(world)
    world.pass_time(5000)
    assert not ended(world)


def test_a_cluster_that_does_not_linger_ends_with_its_notebook():
    world = ready(linger_s=0.0)
    vanish(world)
    assert ended(world)


def test_a_cluster_that_does_not_linger_waits_for_its_first_notebook():
    world = World(linger_s=0.0)
    world.tell(events.Opened(world.now_s))
    assert world.state is ClusterState.READY
    world.pass_time(200)
    assert not ended(world)
    world.pass_time(200)
    assert ended(world)


def test_lingering_never_ends_in_the_middle_of_a_cell():
    world = ready(linger_s=60.0)
    world.submit("c1")
    vanish(world)
    world.pass_time(3600)
    assert not ended(world)
    world.finish("c1")
    assert ended(world)


def test_without_lingering_an_unwatched_cell_is_asked_to_end_and_ends_soon():
    world = ready(linger_s=0.0)
    world.submit("c1")
    log = vanish(world)
    assert {one.level for one in sent(log, messages.InterruptRank)} == {1}
    assert not ended(world)
    log = world.pass_time(6)
    assert {one.level for one in sent(log, messages.InterruptRank)} == {2}
    world.pass_time(5)
    assert ended(world)


def test_a_second_notebook_keeps_the_cluster():
    world = ready(linger_s=0.0)
    world.join("m")
    vanish(world)
    world.pass_time(100)
    assert not ended(world)
    vanish(world, "m")
    assert ended(world)


def test_a_notebook_elsewhere_that_is_silent_for_long_counts_as_gone():
    world = ready(linger_s=10.0)
    for _ in range(35):
        world.now_s += 1
        world.tell(events.Tick(world.now_s))
    assert not world.board.notebooks
    assert not ended(world)


def test_a_notebook_that_was_only_asleep_is_still_attached():
    world = ready(linger_s=100.0)
    for _ in range(35):
        world.now_s += 1
        world.tell(events.Tick(world.now_s))
    log = world.from_notebook(messages.AskState(request_id="q"))
    assert len(sent(log, messages.StateAnswer)) == 1
    world.pass_time(1000)
    assert not ended(world)


def test_the_silence_of_a_watched_notebook_means_nothing():
    world = ready(linger_s=0.0)
    world.tell(events.NotebookWatched(N, world.now_s))
    for _ in range(300):
        world.now_s += 1
        world.tell(events.Tick(world.now_s))
    assert "n" in world.board.notebooks


def test_a_stop_ends_everything_and_says_so():
    world = ready()
    log = world.from_notebook(messages.StopCluster(reason="enough"))
    kinds = [
        type(one.message).__name__
        if isinstance(one, events.Send)
        else type(one).__name__
        for one in log
    ]
    assert kinds == ["StateChanged", "EndHost", "EndAgents", "ClusterEnded", "Exit"]
    (gone,) = sent(log, messages.ClusterEnded)
    assert gone.reason == "enough"


def test_a_stop_ends_what_runs_and_what_waits():
    world = ready()
    world.submit("c1")
    world.finish("c1", [0])
    world.mute.add(messages.EndRanks)
    world.from_notebook(messages.RestartRanks(request_id="r1", ranks=(3,)))
    world.submit("c2")
    log = world.from_notebook(messages.StopCluster(reason="enough"))
    one, two = finished(log)
    assert one.cell_id == "c1"
    assert [outcome.lost for outcome in one.outcomes] == [False, True, True, True]
    assert two.cell_id == "c2"
    assert two.outcomes[0].error is not None
    assert two.outcomes[0].error.message == "not run: the cluster ended: enough"
    (done,) = sent(log, messages.RequestDone)
    assert done.problem == "the cluster ended: enough"


def test_a_stop_does_not_wait_for_an_agent_that_does_not_answer():
    world = ready()
    world.mute.add(messages.EndHost)
    world.from_notebook(messages.StopCluster(reason="enough"))
    assert world.state is ClusterState.STOPPING
    world.pass_time(5)
    assert not ended(world)
    world.pass_time(2)
    assert ended(world)


def test_an_agent_that_ends_without_a_word_ends_the_waiting_too():
    world = ready()
    world.mute.add(messages.EndHost)
    world.from_notebook(messages.StopCluster(reason="enough"))
    world.tell(events.HostExited("a", "exited with code 0", world.now_s))
    assert ended(world)


def test_nothing_is_taken_while_the_cluster_stops():
    world = ready()
    world.mute.add(messages.EndHost)
    world.from_notebook(messages.StopCluster(reason="enough"))
    (done,) = sent(world.submit("c1"), messages.RequestDone)
    assert done.problem == "the cluster is being stopped"


def test_a_signal_stops_the_cluster():
    world = ready()
    reason = "the controller received SIGTERM"
    log = world.tell(events.StopAsked(reason, world.now_s))
    (gone,) = sent(log, messages.ClusterEnded)
    assert gone.reason == reason


def test_after_the_exit_nothing_happens():
    world = ready()
    world.from_notebook(messages.StopCluster(reason="enough"))
    assert world.tell(events.Tick(world.now_s + 100)) == []
    assert world.join("late") == []


@pytest.mark.parametrize("hosts", [("a",), ("a", "b")])
def test_words_of_agents_name_the_host_when_there_are_several(hosts: tuple[str, ...]):
    world = ready(hosts=hosts)
    log = world.from_agent("a", messages.AgentNotice(host="a", text="disk is full"))
    (notice,) = sent(log, messages.Notice)
    assert notice.text == ("a: disk is full" if len(hosts) > 1 else "disk is full")
