"""Cells: order, ends, interrupts, timeouts, output."""

import pytest

from npu_notebook import messages
from npu_notebook.controller import events
from npu_notebook.messages import ClusterState, ErrorInfo, RankState
from tests.controller.driving import World, actions_of, finished, receivers, sent


@pytest.fixture
def ready() -> World:
    return World().start()


def interrupt(world: World, level: int, cell_id: str | None = None):
    message = messages.InterruptCell(level=level, cell_id=cell_id)
    return world.from_notebook(message)


def test_a_cell_is_sent_once_to_all_its_ranks_and_ends_when_all_have_ended(
    ready: World,
):
    log = ready.submit("c1", execution_count=7, want_value=True)
    (send,) = list(actions_of(log, events.Send))
    assert [peer.name for peer in send.peers] == ["0", "1", "2", "3"]
    assert send.message == messages.RunCell(
        cell_id="c1", code="x = 1", execution_count=7, want_value=True
    )
    assert ready.state is ClusterState.BUSY
    assert not finished(ready.finish("c1", [0, 1, 2]))
    (end,) = finished(ready.finish("c1", [3]))
    assert [one.rank for one in end.outcomes] == [0, 1, 2, 3]
    assert [one.elapsed_ns for one in end.outcomes] == [7] * 4
    assert not end.timed_out
    assert ready.state is ClusterState.READY


def test_only_the_ranks_named_run_a_cell(ready: World):
    log = ready.submit("c1", [0, 2])
    assert receivers(log, messages.RunCell) == ["0", "2"]
    assert ready.states == [
        RankState.RUNNING,
        RankState.IDLE,
        RankState.RUNNING,
        RankState.IDLE,
    ]


def test_the_error_of_a_rank_is_its_outcome(ready: World):
    error = ErrorInfo(kind="ZeroDivisionError", message="division by zero")
    ready.submit("c1")
    ready.finish("c1", [0, 2, 3])
    (end,) = finished(ready.finish("c1", [1], error=error))
    assert [one.error for one in end.outcomes] == [None, error, None, None]
    assert not any(one.lost for one in end.outcomes)


def test_cells_that_share_a_rank_run_one_after_the_other(ready: World):
    ready.submit("c1", [0, 1])
    assert not sent(ready.submit("c2", [1, 2]), messages.RunCell)
    assert receivers(ready.submit("c3", [3]), messages.RunCell) == ["3"]
    assert not sent(ready.finish("c1", [1]), messages.RunCell)
    log = ready.finish("c1", [0])
    assert receivers(log, messages.RunCell) == ["1", "2"]


def test_a_waiting_cell_keeps_its_place_on_every_rank(ready: World):
    ready.submit("c1", [0])
    ready.submit("c2", [0, 1])
    # Rank 1 is free, but c2 was there first.
    assert not sent(ready.submit("c3", [1]), messages.RunCell)
    log = ready.finish("c1", [0])
    assert [one.cell_id for one in sent(log, messages.RunCell)] == ["c2", "c2"]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((9,), "rank 9 in '(9,)' does not exist: this cluster has 4 ranks"),
        ((), "the rank set is empty"),
        ((1, 1), "the rank set '(1, 1)' names 1 twice"),
    ],
)
def test_ranks_that_cannot_be_are_answered_in_one_sentence(
    ready: World, ranks: tuple[int, ...], words: str
):
    (done,) = sent(ready.submit("c1", ranks), messages.RequestDone)
    assert done.request_id == "c1"
    assert done.problem == words
    assert done.remedy


def test_a_cell_id_is_used_once(ready: World):
    ready.submit("c1")
    (done,) = sent(ready.submit("c1"), messages.RequestDone)
    assert done.problem == "cell c1 exists already"


def test_a_rank_that_dies_ends_the_cell_there_and_others_run_on(ready: World):
    ready.submit("c1")
    log = ready.exit_rank(2, -9)
    assert not finished(log)
    assert ready.states[3] is RankState.RUNNING
    (end,) = finished(ready.finish("c1", [0, 1, 3]))
    lost = end.outcomes[2]
    assert lost.lost
    assert lost.error is not None
    assert lost.error.kind == "RankLostError"
    assert lost.error.message == (
        "rank 2 (a, pid 1002) ended by signal 9; often the out-of-memory killer"
    )
    assert [one.lost for one in end.outcomes] == [False, False, True, False]
    assert ready.state is ClusterState.DEGRADED


def test_the_user_is_told_at_once_which_rank_died_and_what_to_type(ready: World):
    ready.submit("c1")
    (notice,) = sent(ready.exit_rank(2, -11), messages.Notice)
    assert notice.level == "error"
    assert notice.text == (
        "rank 2 (a, pid 1002) ended by signal 11 (SIGSEGV); a crash in native code: "
        "a segmentation fault; `%npu_cluster restart --ranks 2` replaces it"
    )


def test_a_cell_for_a_lost_rank_ends_at_once_and_runs_nowhere(ready: World):
    ready.exit_rank(2, -9)
    log = ready.submit("c1")
    assert not sent(log, messages.RunCell)
    (end,) = finished(log)
    assert [one.lost for one in end.outcomes] == [False, False, True, False]
    assert end.outcomes[0].error == ErrorInfo(
        kind="CellNotRun", message="not run: rank 2 is lost"
    )
    assert receivers(ready.submit("c2", [0, 1, 3]), messages.RunCell) == ["0", "1", "3"]


def test_a_waiting_cell_whose_rank_dies_ends_without_having_run(ready: World):
    ready.submit("c1", [0])
    ready.submit("c2", [0, 2])
    (end,) = finished(ready.exit_rank(2, -9))
    assert end.cell_id == "c2"
    assert end.outcomes[1].lost


def test_the_first_interrupt_asks(ready: World):
    ready.submit("c1")
    ready.finish("c1", [0])
    log = interrupt(ready, 1)
    assert receivers(log, messages.InterruptRank) == ["1", "2", "3"]
    assert set(sent(log, messages.InterruptRank)) == {
        messages.InterruptRank(level=1, cell_id="c1")
    }
    assert not sent(log, messages.Notice)
    assert ready.states[1:] == [RankState.INTERRUPTING] * 3


def test_the_second_interrupt_insists_and_says_so(ready: World):
    ready.submit("c1")
    interrupt(ready, 1)
    ready.finish("c1", [0, 1])
    log = interrupt(ready, 2)
    assert receivers(log, messages.InterruptRank) == ["2", "3"]
    (notice,) = sent(log, messages.Notice)
    assert notice.cell_id == "c1"
    assert notice.text.startswith("ranks 2-3 did not stop yet")
    assert "killing the child processes" in notice.text
    assert not sent(log, messages.EndRanks)


def test_the_third_interrupt_ends_by_name_what_still_runs(ready: World):
    ready.mute.add(messages.EndRanks)
    ready.submit("c1")
    interrupt(ready, 2)
    ready.finish("c1", [0, 1, 3])
    log = interrupt(ready, 3)
    (end,) = sent(log, messages.EndRanks)
    assert end.ranks == (2,)
    (notice,) = sent(log, messages.Notice)
    assert notice.text == (
        "rank 2 cannot be interrupted: ending the process, its variables are lost; "
        "`%npu_cluster restart --ranks 2` brings it back"
    )
    (cell,) = finished(ready.exit_rank(2, -15))
    assert cell.outcomes[2].lost
    assert cell.outcomes[2].error is not None
    assert "was ended because it could not be interrupted" in (
        cell.outcomes[2].error.message
    )
    assert ready.states[2] is RankState.ENDED


def test_a_cell_right_after_an_interrupt_runs(ready: World):
    ready.submit("c1")
    interrupt(ready, 1)
    ready.finish("c1", error=ErrorInfo(kind="KeyboardInterrupt", message=""))
    assert len(receivers(ready.submit("c2"), messages.RunCell)) == 4


def test_an_interrupt_by_name_leaves_other_cells_alone(ready: World):
    ready.submit("c1", [0])
    ready.submit("c2", [1])
    log = interrupt(ready, 1, "c2")
    assert receivers(log, messages.InterruptRank) == ["1"]


def test_a_waiting_cell_that_is_interrupted_by_name_never_runs(ready: World):
    ready.submit("c1")
    ready.submit("c2")
    (end,) = finished(interrupt(ready, 1, "c2"))
    assert end.cell_id == "c2"
    assert all(one.error and one.error.interrupted for one in end.outcomes)
    assert not sent(ready.finish("c1"), messages.RunCell)


def test_an_interrupt_frees_a_cell_that_waits_for_a_process_group(ready: World):
    ready.mute.add(messages.FormGroup)
    ready.submit("c1")
    ready.finish("c1", group_present=False)
    ready.submit("c2")
    (end,) = finished(interrupt(ready, 1))
    assert end.cell_id == "c2"
    assert all(one.error and one.error.interrupted for one in end.outcomes)


def test_an_interrupt_when_nothing_runs_does_nothing(ready: World):
    assert interrupt(ready, 3) == []


def test_a_cell_over_its_timeout_is_asked_then_told_and_never_killed(ready: World):
    ready.submit("c1", timeout_s=2.0)
    ready.finish("c1", [0, 2])
    assert not sent(ready.pass_time(1.9), messages.InterruptRank)
    log = ready.pass_time(0.2)
    assert receivers(log, messages.InterruptRank) == ["1", "3"]
    (notice,) = sent(log, messages.Notice)
    assert notice.text == (
        "the cell is over its timeout of 2 s and still runs on ranks 1,3: "
        "interrupting it there"
    )
    log = ready.pass_time(4.9)
    assert not sent(log, messages.InterruptRank)
    log = ready.pass_time(0.2)
    assert {one.level for one in sent(log, messages.InterruptRank)} == {2}
    log = ready.pass_time(6)
    (notice,) = sent(log, messages.Notice)
    assert "the next Stop ends the process there" in notice.text
    assert not sent(ready.pass_time(100), messages.EndRanks)
    (end,) = finished(ready.finish("c1", [1, 3]))
    assert end.timed_out


def test_the_timeout_counts_from_the_moment_a_cell_runs(ready: World):
    ready.submit("c1")
    ready.submit("c2", timeout_s=2.0)
    ready.pass_time(10)
    ready.finish("c1")
    assert not sent(ready.pass_time(1.5), messages.InterruptRank)
    assert not finished(ready.log)[-1].timed_out
    (end,) = finished(ready.finish("c2"))
    assert not end.timed_out


def test_after_user_code_destroyed_the_group_it_is_formed_before_the_next_cell(
    ready: World,
):
    ready.mute.add(messages.FormGroup)
    ready.submit("c1")
    ready.finish("c1", [0, 1, 2])
    log = ready.finish("c1", [3], group_present=False)
    assert receivers(log, messages.FormGroup) == ["0", "1", "2", "3"]
    assert {one.epoch for one in sent(log, messages.FormGroup)} == {2}
    assert not sent(ready.submit("c2"), messages.RunCell)
    for rank in range(3):
        assert not sent(ready.form_group(rank, 2), messages.RunCell)
    assert len(receivers(ready.form_group(3, 2), messages.RunCell)) == 4


def test_the_group_is_not_formed_under_a_cell_that_runs_elsewhere(ready: World):
    ready.submit("c1", [0])
    ready.submit("c2", [1])
    assert not sent(ready.finish("c2", [1], group_present=False), messages.FormGroup)
    assert not sent(ready.submit("c3", [2]), messages.RunCell)
    log = ready.finish("c1", [0])
    assert len(receivers(log, messages.FormGroup)) == 4
    assert receivers(log, messages.RunCell) == ["2"]


def test_a_group_that_cannot_be_formed_again_does_not_hold_cells_for_ever(
    ready: World,
):
    ready.mute.add(messages.FormGroup)
    ready.submit("c1")
    ready.finish("c1", group_present=False)
    ready.submit("c2")
    error = ErrorInfo(kind="RuntimeError", message="address in use")
    for rank in range(4):
        ready.form_group(rank, 2, error)
    log = ready.pass_time(1)
    (notice,) = sent(log, messages.Notice)
    assert "RuntimeError: address in use" in notice.text
    assert len(receivers(log, messages.RunCell)) == 4
    ready.finish("c2")
    assert len(receivers(ready.submit("c3"), messages.FormGroup)) == 4


def test_output_goes_to_the_notebook_that_submitted(ready: World):
    ready.join("m")
    ready.submit("c1", [0], name="m")
    text = messages.StreamText(cell_id="c1", rank=0, stream="stdout", text="hi\n")
    (forward,) = actions_of(ready.from_rank(0, text), events.ForwardOutput)
    assert forward.message is text
    assert forward.notebook is not None
    assert forward.notebook.name == "m"


def test_output_of_a_thread_still_finds_its_cell_after_the_end(ready: World):
    ready.join("m")
    ready.submit("c1", [0], name="m")
    ready.finish("c1", [0])
    text = messages.StreamText(cell_id="c1", rank=0, stream="stdout", text="late\n")
    (forward,) = actions_of(ready.from_rank(0, text), events.ForwardOutput)
    assert forward.notebook is not None
    assert forward.notebook.name == "m"


def test_output_for_a_notebook_that_left_is_kept_only(ready: World):
    ready.join("m")
    ready.submit("c1", [0], name="m")
    ready.from_notebook(messages.LeaveNotebook(reason="bye"), "m")
    text = messages.StreamText(cell_id="c1", rank=0, stream="stdout", text="hi\n")
    (forward,) = actions_of(ready.from_rank(0, text), events.ForwardOutput)
    assert forward.notebook is None


def test_a_rank_cannot_print_for_another(ready: World):
    text = messages.StreamText(cell_id="c1", rank=1, stream="stdout", text="hi\n")
    assert ready.from_rank(0, text) == []


def test_records_of_collectives_go_to_the_notebook_that_submitted(ready: World):
    ready.join("m")
    ready.submit("c1", [0], name="m")
    record = messages.CollectiveRecord(
        cell_id="c1",
        op="all_reduce",
        group="default",
        sequence=1,
        nbytes=4,
        dtype="float32",
        shape=(1,),
        start_ns=1,
    )
    batch = messages.CollectivesRecorded(rank=0, records=(record,))
    log = ready.from_rank(0, batch)
    assert receivers(log, messages.CollectivesRecorded) == ["m"]


def test_a_short_cell_publishes_no_change_of_state(ready: World):
    ready.pass_time(1)
    log = ready.submit("c1")
    log += ready.finish("c1")
    log += ready.pass_time(1)
    assert not sent(log, messages.StateChanged)


def test_a_long_cell_shows_who_is_busy_and_what_runs(ready: World):
    ready.pass_time(1)
    ready.submit("c1", [1])
    (change,) = sent(ready.pass_time(0.06), messages.StateChanged)
    assert change.fact.state is ClusterState.BUSY
    assert change.fact.ranks[1].state is RankState.RUNNING
    assert change.fact.cell_ids == ("c1",)
    beat = messages.Heartbeat(rank=1, cell_id="c1", doing="running line 12")
    ready.from_rank(1, beat)
    (change,) = sent(ready.pass_time(0.2), messages.StateChanged)
    assert change.fact.ranks[1].doing == "running line 12"
