"""Views against a sink that records: what a person would see, top to bottom."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from npu_notebook import messages
from npu_notebook.messages import (
    CellFinished,
    ClusterFact,
    ClusterState,
    DisplayOutput,
    Notice,
    RankFact,
    RankOutcome,
    RankState,
    StateChanged,
    StreamText,
)
from npu_notebook.notebook.blocks import HEAD_CHARS
from npu_notebook.notebook.pacing import (
    MAX_MESSAGES,
    MAX_NBYTES,
    WINDOW_S,
    Pacer,
    json_nbytes,
)
from npu_notebook.notebook.panels import MAX_LIVE_CHARS, Panels
from npu_notebook.notebook.progress import StartView
from npu_notebook.notebook.sink import encoded
from npu_notebook.notebook.tables import advice, cluster_table
from npu_notebook.notebook.views import MAX_RUNS, TextView


class Area:
    """An output area as a front end keeps it: a list, displays found by their id."""

    can_update = True

    def __init__(self) -> None:
        self.outputs: list[tuple[str, Any]] = []
        self.count = 0
        self._clear_next = False

    def stream(self, name: str, text: str) -> None:
        self._begin()
        self.outputs.append((name, text))

    def display(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,  # noqa: ARG002  not shown
        display_id: str = "",
        *,
        update: bool = False,
    ) -> None:
        if update:
            places = [
                number
                for number, (kind, _) in enumerate(self.outputs)
                if kind == f"display {display_id}"
            ]
            assert places, "an update of a display that is not there"
            for number in places:
                self.outputs[number] = (f"display {display_id}", dict(data))
            self.count += 1
            return
        self._begin()
        self.outputs.append((f"display {display_id}", dict(data)))

    def clear(self, *, wait: bool) -> None:
        self._clear_next = True
        if not wait:
            self._begin()

    def _begin(self) -> None:
        self.count += 1
        if self._clear_next:
            self.outputs.clear()
            self._clear_next = False

    @property
    def lines(self) -> list[str]:
        shown: list[str] = []
        for kind, value in self.outputs:
            text = value if kind in ("stdout", "stderr") else value["text/plain"]
            shown += text.splitlines()
        return shown


@pytest.fixture
def area() -> Area:
    return Area()


def say(rank: int, text: str, stream: Any = "stdout") -> StreamText:
    return StreamText(cell_id="c", rank=rank, stream=stream, text=text)


def rich(rank: int, data: dict[str, Any], **facts: Any) -> DisplayOutput:
    facts.setdefault("kind", "display")
    return DisplayOutput(cell_id="c", rank=rank, data=data, **facts)


def finish(*outcomes: RankOutcome) -> CellFinished:
    return CellFinished(cell_id="c", outcomes=outcomes)


def show(view: TextView, *updates: messages.Update | None) -> None:
    for update in updates:
        view.show(update)


def test_a_cell_that_says_nothing_sends_nothing(area: Area):
    show(TextView(area, range(4)), None, finish(), None)
    assert area.outputs == []


def test_lines_are_labelled_folded_and_joined_into_one_message(area: Area):
    view = TextView(area, range(4), Pacer())
    show(view, *[say(rank, "same\nI\n") for rank in range(4)], finish())
    assert area.outputs == [("stdout", "[0-3] same\n[0-3] I\n")]


def test_stdout_and_stderr_go_where_they_were_written_in_order(area: Area):
    view = TextView(area, [0])
    show(view, say(0, "a\n"), say(0, "b\n", "stderr"), say(0, "c\n"), finish())
    texts = [text for _, text in area.outputs]
    assert texts == ["[0] a\n", "[0] b\n", "[0] c\n"]
    assert [name for name, _ in area.outputs] == ["stdout", "stderr", "stdout"]


def test_a_storm_of_changes_between_the_streams_costs_few_messages(area: Area):
    view = TextView(area, [0], Pacer())
    for number in range(500):
        # One batch: nothing goes out before its time has come.
        view._folder.feed_text(0, "stdout", f"o{number}\n", 0.0)
        view._folder.feed_text(0, "stderr", f"e{number}\n", 0.0)
    view._has_text = True
    show(view, finish())
    assert area.count < MAX_RUNS
    written = dict.fromkeys(("stdout", "stderr"), "")
    for name, text in area.outputs:
        written[name] += text
    assert written["stdout"].split() == list(
        itertools.chain(*(("[0]", f"o{number}") for number in range(500)))
    )
    assert written["stderr"].count("\n") == 500


def test_a_value_is_text_with_its_label_and_further_lines_stand_below(area: Area):
    view = TextView(area, range(2))
    value = {"text/plain": "tensor([1,\n        2])"}
    show(view, *[rich(rank, value, kind="value") for rank in range(2)], finish())
    assert area.lines == ["[0-1] tensor([1,", "              2])"]


def test_rich_outputs_are_labelled_folded_and_unaltered(area: Area):
    view = TextView(area, range(3))
    html = {"text/plain": "<HTML>", "text/html": "<b>x</b>"}
    show(view, *[rich(rank, html) for rank in range(3)], finish())
    (label, bundle) = area.outputs
    assert label == ("stdout", "[0-2]\n")
    assert bundle[1] == html


def test_a_display_with_an_id_is_changed_in_place_rank_by_rank(area: Area):
    view = TextView(area, range(2))
    for rank in range(2):
        show(view, rich(rank, {"text/plain": f"0 of {rank}"}, display_id="d"))
    show(view, rich(1, {"text/plain": "9 of 1"}, display_id="d", kind="update"))
    show(view, finish())
    shown = [value["text/plain"] for kind, value in area.outputs if kind != "stdout"]
    assert shown == ["[0] 0 of 0", "[1] 9 of 1"]


def test_clear_output_of_all_ranks_clears_the_cell_when_the_next_output_comes(
    area: Area,
):
    view = TextView(area, range(2))
    for rank in range(2):
        show(view, say(rank, "old\n"))
    for rank in range(2):
        show(view, rich(rank, {}, kind="clear", wait=True), say(rank, "new\n"))
    show(view, finish())
    assert area.lines == ["[0-1] new"]


def test_clear_output_of_one_rank_takes_only_its_own_displays_away(area: Area):
    view = TextView(area, range(2))
    for rank in range(2):
        show(view, rich(rank, {"text/html": f"<i>{rank}</i>", "text/plain": "i"}))
    show(view, rich(0, {}, kind="clear", wait=True))
    show(view, rich(0, {"text/html": "<i>next</i>", "text/plain": "i"}))
    show(view, finish())
    html = [value["text/html"] for kind, value in area.outputs if kind != "stdout"]
    assert html == ["<i>next</i>", "<i>1</i>"]


def test_images_travel_as_base64():
    assert encoded({"image/png": b"\x89PNG", "text/plain": "x"}) == {
        "image/png": "iVBORw==",
        "text/plain": "x",
    }


def test_hidden_lines_are_told_with_the_file_that_has_them(area: Area):
    view = TextView(area, range(2))
    outcome = RankOutcome(rank=1, hidden_lines=1234, spool_path="/spool/x")
    show(view, say(1, "a\n"), finish(RankOutcome(rank=0), outcome))
    assert area.lines[-1] == "1,234 lines of rank 1 hidden, full text in /spool/x"


def test_notices_come_in_their_place_and_even_when_quiet(area: Area):
    view = TextView(area, [0], quiet=True)
    show(view, say(0, "unseen\n"), Notice(text="careful", level="warning"), finish())
    assert area.outputs == [("stderr", "careful\n")]


def test_what_comes_after_the_end_is_still_shown_labelled(area: Area):
    view = TextView(area, range(2))
    show(view, finish(), say(1, "late\n"))
    assert area.outputs == [("stdout", "[1] late\n")]


def test_a_bar_is_one_display_and_keeps_its_last_state(
    area: Area, monkeypatch: pytest.MonkeyPatch
):
    now_s = itertools.count(0.0, 0.2)
    monkeypatch.setattr("time.monotonic", lambda: next(now_s))
    view = TextView(area, range(2), Pacer())
    for step in range(50):
        for rank in range(2):
            show(view, say(rank, f"\rrank {rank}: {step}", "stderr"))
    for rank in range(2):
        show(view, say(rank, "\n", "stderr"))
    show(view, finish())
    assert len(area.outputs) == 1
    assert area.lines == ["[0] rank 0: 49", "[1] rank 1: 49"]


def test_text_printed_after_a_bar_stands_below_it_and_the_next_bar_below_that(
    area: Area, monkeypatch: pytest.MonkeyPatch
):
    now_s = itertools.count(0.0, 0.2)
    monkeypatch.setattr("time.monotonic", lambda: next(now_s))
    view = TextView(area, [0])
    for epoch in range(2):
        show(view, say(0, "\r10%", "stderr"), None, say(0, "\r100%\n", "stderr"))
        show(view, None, None, None, say(0, f"epoch {epoch}\n"), None)
    show(view, finish())
    assert area.lines == ["[0] 100%", "[0] epoch 0", "[0] 100%", "[0] epoch 1"]


def test_an_endless_unfinished_line_is_redrawn_by_its_end_only(area: Area):
    panels = Panels(area)
    panels.draw({0: "x" * 10_000 + "end"}, [])
    (line,) = area.lines
    assert len(line) < MAX_LIVE_CHARS + 20
    assert line.endswith("end")


def test_the_server_never_sees_more_than_it_passes():
    pacer = Pacer()
    sent: list[tuple[float, int]] = []
    now_s = 0.0
    while now_s < 20:
        if pacer.room(now_s) > 0:
            text = "x" * 100_000
            pacer.spend(now_s, text)
            sent.append((now_s, len(text)))
        now_s += 0.01
    for start_s, _ in sent:
        window = [n for at_s, n in sent if start_s <= at_s < start_s + 3.0]
        assert sum(window) <= 3_000_000
    assert sum(n for _, n in sent) > 20 * 600_000  # and not much less than it could be


def test_many_small_messages_wait_too():
    pacer = Pacer()
    for _ in range(MAX_MESSAGES):
        pacer.spend(0.0, "")
    assert pacer.room(0.0) == 0
    assert pacer.room(WINDOW_S) == MAX_NBYTES


def test_the_size_of_a_message_counts_what_json_adds():
    assert json_nbytes("a") == 1
    assert json_nbytes("\x1b[31m") == 10
    assert json_nbytes("ü") == 2


def fact(*states: RankState, provider: str = "simulated") -> ClusterFact:
    ranks = tuple(
        RankFact(
            rank=n, host="a", local_rank=n, state=state, pid=n + 10, device=f"npu:{n}"
        )
        for n, state in enumerate(states)
    )
    return ClusterFact(
        name="c",
        state=ClusterState.READY,
        world_size=len(ranks),
        provider=provider,
        label="simulated NPU",
        backend="hccl",
        epoch=1,
        ranks=ranks,
        linger_s=600.0,
        age_s=5.0,
    )


def test_the_table_says_simulated_in_title_and_rows():
    table = cluster_table(fact(RankState.IDLE, RankState.IDLE))
    lines = repr(table).splitlines()
    assert lines[0].startswith("cluster 'c': 2 ranks on simulated NPU, hccl")
    assert lines[2].split()[:5] == ["0", "a", "10", "npu:0", "(simulated)"]
    assert "npu:1 (simulated)" in table.bundle()["text/html"]


def test_lost_ranks_bring_the_command_that_replaces_them():
    assert advice(fact(RankState.IDLE, RankState.IDLE)) == ""
    words = advice(fact(RankState.LOST, RankState.IDLE, RankState.LOST))
    assert "`%npu_cluster restart --ranks 0,2`" in words


def test_a_start_is_one_display_that_tells_who_is_missing_and_ends_as_a_table(
    area: Area,
):
    view = StartView(area, "Starting")
    show(view, None, StateChanged(fact=fact(RankState.JOINED, RankState.STARTING)))
    view.show(Notice(text="No Ascend NPU found: starting 2 simulated NPUs."))
    assert len(area.outputs) == 1
    assert area.lines[0].startswith("No Ascend NPU found")
    assert "1 of 2 ranks up, waiting for 1" in area.lines[1]
    view.finish(fact(RankState.IDLE, RankState.IDLE))
    assert len(area.outputs) == 1
    assert "ready after" in area.lines[1]
    assert len(area.lines) == 5


LONG = 40_000  # lines, about half a megabyte


def flood(view: TextView, ranks: range, count: int) -> None:
    for begin in range(0, count, 1000):
        for rank in ranks:
            lines = [f"{n} of {rank}\n" for n in range(begin, begin + 1000)]
            view.show(say(rank, "".join(lines)))


def test_long_output_is_a_stream_first_and_then_displays_that_are_drawn_once(
    area: Area,
):
    view = TextView(area, [0])
    flood(view, range(1), LONG)
    show(view, finish(RankOutcome(rank=0, spool_path="/f")))
    assert area.lines == [f"[0] {n} of 0" for n in range(LONG)]
    streamed = sum(len(text) for kind, text in area.outputs if kind == "stdout")
    assert streamed < 2 * HEAD_CHARS
    assert area.count == len(area.outputs)  # no display was changed


def test_what_a_capped_rank_said_leaves_the_page_again_and_is_counted(area: Area):
    view = TextView(area, range(2))
    flood(view, range(2), LONG)
    capped = RankOutcome(rank=0, hidden_lines=5, spool_path="/f")
    show(view, finish(capped, RankOutcome(rank=1)))
    mine = [line for line in area.lines if line.startswith("[0] ")]
    theirs = [line for line in area.lines if line.startswith("[1] ")]
    assert theirs == [f"[1] {n} of 1" for n in range(LONG)]
    assert 0 < len(mine) < LONG / 2
    assert mine == [f"[0] {n} of 0" for n in range(len(mine))]
    hidden = LONG - len(mine) + 5
    assert area.lines[-1] == f"{hidden:,} lines of rank 0 hidden, full text in /f"


def test_who_stops_a_flood_does_not_wait_until_all_of_it_is_drawn(area: Area):
    view = TextView(area, [0], Pacer())
    flood(view, range(1), 8 * LONG)
    stopped = messages.ErrorInfo(kind="KeyboardInterrupt", message="", interrupted=True)
    show(view, finish(RankOutcome(rank=0, error=stopped, spool_path="/f")))
    count, _, rest = area.lines[-1].partition(" ")
    assert rest == "lines of rank 0 hidden, full text in /f"
    shown = [line for line in area.lines if line.startswith("[0] ")]
    assert len(shown) + int(count.replace(",", "")) == 8 * LONG
