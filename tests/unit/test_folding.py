import random

import pytest

from npu_notebook.folding import RICH, Folder, LiveEnd, Piece, label
from npu_notebook.screen import Style, close_colours, last_state


def shown(pieces: list[Piece]) -> list[str]:
    return [label(piece.ranks) + piece.text for piece in pieces]


def feed_all(folder: Folder, texts: dict[int, str], now_s: float = 0.0) -> None:
    for rank, text in texts.items():
        folder.feed_text(rank, "stdout", text, now_s)


def drain(folder: Folder) -> list[str]:
    folder.finish(100.0)
    return shown(folder.take(100.0, everything=True))


def test_equal_lines_of_all_ranks_are_one_line_at_once():
    folder = Folder(range(4))
    feed_all(folder, dict.fromkeys(range(4), "same\n"))
    assert shown(folder.take(0.0)) == ["[0-3] same"]
    assert folder.is_empty


def test_different_lines_keep_their_rank():
    folder = Folder(range(3))
    feed_all(folder, {0: "zero\n", 1: "one\n", 2: "zero\n"})
    assert shown(folder.take(0.0)) == ["[0,2] zero", "[1] one"]


def test_lines_said_at_the_same_time_come_by_rank():
    folder = Folder(range(3))
    for rank in (2, 0, 1):
        folder.feed_text(rank, "stdout", f"I am {rank}\n", 0.0)
    assert shown(folder.take(0.0)) == ["[0] I am 0", "[1] I am 1", "[2] I am 2"]


def test_a_line_waits_for_silent_ranks_but_not_longer_than_a_tenth_of_a_second():
    folder = Folder(range(4))
    folder.feed_text(0, "stdout", "only me\n", 10.0)
    assert folder.take(10.05) == []
    assert folder.due_s() == pytest.approx(10.1)
    assert shown(folder.take(10.11)) == ["[0] only me"]


def test_a_line_that_others_say_a_little_later_is_still_folded():
    folder = Folder(range(2))
    folder.feed_text(0, "stdout", "x\n", 0.0)
    folder.feed_text(1, "stdout", "x\n", 0.09)
    assert shown(folder.take(0.09)) == ["[0-1] x"]


def test_when_ranks_are_seen_further_apart_the_next_lines_wait_longer():
    folder = Folder(range(2))
    folder.feed_text(0, "stdout", "epoch 1\n", 0.0)
    assert shown(folder.take(0.1)) == ["[0] epoch 1"]
    folder.feed_text(1, "stdout", "epoch 1\n", 0.15)
    assert shown(folder.take(0.26)) == []
    assert shown(folder.take(0.36)) == ["[1] epoch 1"]
    folder.feed_text(0, "stdout", "epoch 2\n", 1.0)
    assert folder.take(1.15) == []
    folder.feed_text(1, "stdout", "epoch 2\n", 1.18)
    assert shown(folder.take(1.18)) == ["[0-1] epoch 2"]


def test_an_extra_line_of_one_rank_does_not_break_the_folding_of_the_rest():
    folder = Folder(range(4))
    feed_all(folder, {0: "a\nextra\nb\n", 1: "a\nb\n", 2: "a\nb\n", 3: "a\nb\n"})
    assert shown(folder.take(0.0)) == ["[0-3] a", "[0] extra", "[0-3] b"]


def test_stdout_and_stderr_are_not_folded_into_each_other():
    folder = Folder(range(2))
    folder.feed_text(0, "stdout", "x\n", 0.0)
    folder.feed_text(1, "stderr", "x\n", 0.0)
    assert folder.take(0.0) == [Piece((0,), "stdout", "x"), Piece((1,), "stderr", "x")]


def test_rich_outputs_keep_their_place_among_the_lines_and_fold_when_equal():
    folder = Folder(range(2))
    for rank in range(2):
        folder.feed_text(rank, "stdout", "before\n", 0.0)
        folder.feed_rich(rank, "figure", 0.0)
        folder.feed_text(rank, "stdout", "after\n", 0.0)
    assert folder.take(0.0) == [
        Piece((0, 1), "stdout", "before"),
        Piece((0, 1), RICH, "figure"),
        Piece((0, 1), "stdout", "after"),
    ]


@pytest.mark.parametrize(
    "line",
    ["", "   leading", "\ttab", "größe 模型 🚀", "[0] looks like a label", "a\x00b"],
)
def test_lines_arrive_unaltered(line: str):
    folder = Folder([0])
    folder.feed_text(0, "stdout", f"{line}\n", 0.0)
    assert folder.take(0.0) == [Piece((0,), "stdout", line)]


def test_a_line_that_arrives_in_parts_is_one_line():
    folder = Folder([0])
    for part in ("hel", "lo\nwor", "ld\n"):
        folder.feed_text(0, "stdout", part, 0.0)
    assert shown(folder.take(0.0)) == ["[0] hello", "[0] world"]


def test_an_unfinished_line_appears_at_the_end():
    folder = Folder([0])
    folder.feed_text(0, "stdout", "no newline", 0.0)
    assert folder.take(0.0) == []
    assert drain(folder) == ["[0] no newline"]


def test_dos_line_ends_are_line_ends():
    folder = Folder([0])
    folder.feed_text(0, "stdout", "a\r\nb\r\n", 0.0)
    assert shown(folder.take(0.0)) == ["[0] a", "[0] b"]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("a\rb", "b"),
        ("100\r5", "500"),
        ("50%\r", "50%"),
        ("a\b\bxy", "xy"),
        ("\x1b[31mred\x1b[0m\rb", "b\x1b[31med\x1b[0m"),
        ("long text\r\x1b[Kx", "x"),
        ("long text\r\x1b[2Kx", "x"),
    ],
)
def test_a_redrawn_line_shows_its_last_state(text: str, state: str):
    assert last_state(text) == state
    folder = Folder([0])
    folder.feed_text(0, "stdout", f"{text}\n", 0.0)
    assert drain(folder) == [f"[0] {state}"]


def test_a_redrawn_line_keeps_its_place_among_later_lines():
    folder = Folder([0])
    folder.feed_text(0, "stderr", "\r10%\r100%\n", 0.0)
    folder.feed_text(0, "stdout", "after\n", 0.0)
    assert shown(folder.take(0.0)) == ["[0] 100%", "[0] after"]


def test_an_open_colour_is_closed_at_the_line_end_and_taken_up_again():
    folder = Folder([0])
    folder.feed_text(0, "stdout", "\x1b[1;31mred\nstill\x1b[0m\nplain\n", 0.0)
    assert [piece.text for piece in folder.take(0.0)] == [
        "\x1b[1;31mred\x1b[0m",
        "\x1b[1;31mstill\x1b[0m",
        "plain",
    ]


@pytest.mark.parametrize(
    ("on", "off"),
    [("31", "39"), ("38;5;12", "39"), ("48;2;1;2;3", "49"), ("1", "22"), ("4", "24")],
)
def test_a_colour_that_was_switched_off_does_not_go_on(on: str, off: str):
    style = Style()
    line = f"\x1b[{on}mx\x1b[{off}m"
    assert close_colours(line, style) == line
    assert not style


def test_a_progress_bar_is_one_live_line_and_ends_in_its_place():
    folder = Folder(range(2))
    for step in range(200):
        folder.feed_text(0, "stderr", f"\rrank 0: {step}/200", step / 100)
        assert folder.take(step / 100) == []
        assert folder.live(step / 100) == {0: f"rank 0: {step}/200"}
    folder.feed_text(0, "stderr", "\n", 2.0)
    folder.take(2.5)
    assert folder.take_ends() == [LiveEnd(0, "rank 0: 199/200")]
    assert drain(folder) == []


def test_a_bar_that_was_never_shown_is_an_ordinary_line():
    folder = Folder([0])
    folder.feed_text(0, "stderr", "\r0%\r50%\r100%\n", 0.0)
    folder.feed_text(0, "stderr", "done\n", 0.0)
    assert shown(folder.take(0.0)) == ["[0] 100%", "[0] done"]


def test_nested_bars_are_one_live_block_and_leave_one_line():
    folder = Folder([0])
    for outer in range(3):
        folder.feed_text(0, "stderr", f"\router {outer}", float(outer))
        for inner in range(5):
            now_s = outer + inner / 10
            folder.feed_text(0, "stderr", f"\n\rinner {inner}\x1b[A", now_s)
            assert folder.live(now_s) == {0: f"outer {outer}\ninner {inner}"}
        folder.feed_text(0, "stderr", "\n\r       \r\x1b[A", outer + 0.6)
    assert folder.take(2.6) == []
    folder.feed_text(0, "stderr", "\router 3\n", 3.0)
    folder.finish(3.0)
    assert folder.take_ends() == [LiveEnd(0, "outer 3")]


def test_a_question_without_newline_becomes_live_and_is_not_lost():
    folder = Folder([0])
    folder.feed_text(0, "stdout", "loading ...", 0.0)
    assert folder.live(0.1) == {}
    assert folder.due_s() == pytest.approx(0.3)
    assert folder.live(0.3) == {0: "loading ..."}
    folder.feed_text(0, "stdout", " done\nnext\n", 1.0)
    assert folder.take_ends() == [LiveEnd(0, "loading ... done")]
    assert shown(folder.take(1.0)) == ["[0] next"]


def test_a_line_cut_in_the_middle_of_a_flood_does_not_become_live():
    folder = Folder([0])
    folder.feed_text(0, "stdout", "x" * 99 + "\n" + "line\n" * 2000 + "li", 0.0)
    folder.take(0.2)
    assert folder.live(1.0) == {}
    folder.feed_text(0, "stdout", "ne\n", 1.1)
    assert shown(folder.take(1.3)) == ["[0] line"]
    assert folder.take_ends() == []


def test_only_one_stream_of_a_rank_is_live():
    folder = Folder([0])
    folder.feed_text(0, "stderr", "\r10%", 0.0)
    folder.feed_text(0, "stdout", "dots..", 0.0)
    assert folder.live(5.0) == {0: "10%"}
    assert folder.due_s() is None
    folder.finish(6.0)
    assert folder.take_ends() == [LiveEnd(0, "10%")]
    assert drain(folder) == ["[0] dots.."]


def test_what_does_not_fit_comes_with_the_next_call():
    folder = Folder([0])
    folder.feed_text(0, "stdout", "12345\n" * 10, 0.0)
    assert len(folder.take(0.0, 12)) == 2
    assert len(folder.take(0.0)) == 8


def test_nothing_is_lost_and_order_within_a_rank_is_kept_whatever_the_timing():
    chance = random.Random(7)
    for _ in range(50):
        ranks = range(chance.randint(1, 5))
        wrote: dict[int, list[str]] = {rank: [] for rank in ranks}
        got: dict[int, list[str]] = {rank: [] for rank in ranks}
        folder = Folder(ranks)
        now_s = 0.0
        pieces: list[Piece] = []
        for _ in range(60):
            rank = chance.choice(ranks)
            lines = [chance.choice("abc ") for _ in range(chance.randint(0, 4))]
            wrote[rank] += lines
            folder.feed_text(rank, "stdout", "".join(f"{x}\n" for x in lines), now_s)
            now_s += chance.random() / 20
            pieces += folder.take(now_s, chance.choice([None, 3]))
        folder.finish(now_s)
        pieces += folder.take(now_s, everything=True)
        for piece in pieces:
            for rank in piece.ranks:
                got[rank].append(piece.text)
        assert got == wrote


def test_eighty_thousand_distinct_lines_all_come_out():
    texts = {
        rank: [
            "".join(f"line {i} of rank {rank}\n" for i in range(at, at + 2000))
            for at in range(0, 20_000, 2000)
        ]
        for rank in range(4)
    }
    folder = Folder(range(4))
    count = 0
    for part in range(10):
        for rank in range(4):
            folder.feed_text(rank, "stdout", texts[rank][part], part / 100)
        count += len(folder.take(part / 100))
    count += len(folder.take(1.0))
    assert count == 80_000
