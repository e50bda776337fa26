"""Long output: capped on screen, whole in a file, and never a reason to fail."""

import errno
import os
from pathlib import Path

import pytest

from npu_notebook.controller.spool import Shown, Spool
from npu_notebook.messages import DisplayOutput, RankOutcome, StreamText


def text(data: str, rank: int = 0, cell_id: str = "c", stream="stdout") -> StreamText:
    return StreamText(cell_id=cell_id, rank=rank, stream=stream, text=data)


def shown_of(spool: Spool, *pieces: str, watched: bool = True) -> str:
    taken = [spool.take_text(text(piece), watched=watched) for piece in pieces]
    return "".join(piece.text for piece in taken if piece is not None)


def outcome_of(spool: Spool, rank: int = 0, cell_id: str = "c") -> RankOutcome:
    (outcome,) = spool.finish_cell(cell_id, (RankOutcome(rank=rank),))
    return outcome


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path, cap_nbytes=100, budget_nbytes=100_000, display_nbytes=1000)
    made.open_cell("c")
    return made


def test_short_output_is_shown_whole_and_leaves_no_file(spool: Spool, tmp_path: Path):
    assert shown_of(spool, "one\n", "two\n") == "one\ntwo\n"
    assert outcome_of(spool) == RankOutcome(rank=0)
    assert list(tmp_path.iterdir()) == []


def test_long_output_is_cut_at_a_line_and_whole_in_the_file(
    spool: Spool, tmp_path: Path
):
    lines = [f"line {number}\n" for number in range(50)]
    shown = shown_of(spool, *lines)
    assert shown == "".join(lines[:13])
    assert len(shown) <= 100
    outcome = outcome_of(spool)
    assert outcome.hidden_lines == 50 - 13
    assert outcome.spool_path == str(tmp_path / "cell-1-rank-0.txt")
    assert Path(outcome.spool_path).read_text() == "".join(lines)


def test_one_large_piece_is_cut_at_a_line_too(spool: Spool):
    lines = "".join(f"line {number}\n" for number in range(50))
    shown = shown_of(spool, lines)
    assert shown.endswith("\n")
    assert lines.startswith(shown)
    assert 90 < len(shown) <= 100
    assert Path(outcome_of(spool).spool_path).read_text() == lines


def test_after_the_cut_nothing_more_is_shown_however_short(spool: Spool):
    shown_of(spool, "x" * 90 + "\n", "y" * 90 + "\n")
    assert shown_of(spool, "z\n") == ""
    assert outcome_of(spool).hidden_lines == 2


def test_a_line_without_end_is_hidden_and_counted(spool: Spool):
    assert shown_of(spool, "x" * 500) == ""
    outcome = outcome_of(spool)
    assert outcome.hidden_lines == 1
    assert Path(outcome.spool_path).read_text() == "x" * 500


def test_characters_are_never_cut_in_two(spool: Spool):
    data = "é\n" * 100
    shown = shown_of(spool, data)
    assert set(shown) == {"é", "\n"}
    assert Path(outcome_of(spool).spool_path).read_bytes() == data.encode()


def test_both_streams_share_the_cap_and_the_file_in_order(spool: Spool):
    for number in range(30):
        stream = "stderr" if number % 2 else "stdout"
        spool.take_text(text(f"line {number}\n", stream=stream), watched=True)
    data = Path(outcome_of(spool).spool_path).read_text()
    assert data == "".join(f"line {number}\n" for number in range(30))


def test_ranks_and_cells_are_counted_apart(spool: Spool, tmp_path: Path):
    spool.open_cell("d")
    long = "x\n" * 100
    for rank, cell_id in [(0, "c"), (3, "c"), (0, "d")]:
        spool.take_text(text(long, rank, cell_id), watched=True)
    short = spool.take_text(text("ok\n", 1, "d"), watched=True)
    assert short is not None
    assert short.text == "ok\n"
    outcome_of(spool, 0, "c")
    outcome_of(spool, 3, "c")
    outcome_of(spool, 0, "d")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["cell-1-rank-0.txt", "cell-1-rank-3.txt", "cell-2-rank-0.txt"]


def test_files_are_private(spool: Spool):
    shown_of(spool, "x\n" * 100)
    assert Path(outcome_of(spool).spool_path).stat().st_mode & 0o777 == 0o600


def test_a_progress_bar_that_redraws_its_line_is_never_cut(spool: Spool):
    bars = [f"\rstep {number:5d} of 5000" for number in range(200)]
    assert shown_of(spool, *bars) == "".join(bars)
    assert outcome_of(spool).spool_path == ""


def test_even_redrawn_lines_have_a_limit(spool: Spool):
    bars = [f"\rstep {number:5d} of 5000" for number in range(2000)]
    assert len(shown_of(spool, *bars)) < 100 * 64 + 30
    assert Path(outcome_of(spool).spool_path).read_bytes() == "".join(bars).encode()


@pytest.mark.parametrize(
    ("pieces", "nbytes"),
    [
        (["abc\n", "de"], 6),
        (["abc", "\rde"], 2),
        (["abc\r", "de"], 2),
        (["abc\r\nde\r\n"], 7),
        (["abc\ndef", "\rxy\n", "z"], 8),
        (["\r", "\r", ""], 0),
    ],
)
def test_the_size_on_screen_counts_what_stays_there(pieces: list[str], nbytes: int):
    shown = Shown()
    for piece in pieces:
        shown.add(piece.encode())
    assert shown.nbytes == nbytes
    assert shown.sent_nbytes == sum(len(piece) for piece in pieces)


def test_output_nobody_sees_is_kept_in_the_file(spool: Spool):
    assert shown_of(spool, "one\ntwo\n", watched=False) == ""
    outcome = outcome_of(spool)
    assert outcome.hidden_lines == 2
    assert Path(outcome.spool_path).read_text() == "one\ntwo\n"


def test_late_output_is_shown_below_the_cap(spool: Spool, tmp_path: Path):
    shown_of(spool, "one\n")
    outcome_of(spool)
    assert shown_of(spool, "late\n") == "late\n"
    assert list(tmp_path.iterdir()) == []
    assert spool.notices == []


def test_late_output_above_the_cap_goes_to_the_file_and_is_told_once(
    spool: Spool, tmp_path: Path
):
    shown_of(spool, "x\n" * 100)
    outcome_of(spool)
    shown_of(spool, "late 1\n", "late 2\n")
    data = (tmp_path / "cell-1-rank-0.txt").read_text()
    assert data == "x\n" * 100 + "late 1\nlate 2\n"
    (notice,) = spool.notices
    assert notice.cell_id == "c"
    assert "cell-1-rank-0.txt" in notice.text


def test_files_of_an_earlier_cluster_of_the_same_name_stay(tmp_path: Path):
    (tmp_path / "cell-7-rank-0.txt").write_text("old")
    spool = Spool(tmp_path, cap_nbytes=10)
    spool.open_cell("c")
    shown_of(spool, "x\n" * 100)
    assert outcome_of(spool).spool_path == str(tmp_path / "cell-8-rank-0.txt")
    assert (tmp_path / "cell-7-rank-0.txt").read_text() == "old"


def test_the_oldest_files_make_room(tmp_path: Path):
    spool = Spool(tmp_path, cap_nbytes=10, budget_nbytes=1000)
    for number in range(5):
        cell_id = f"c{number}"
        spool.open_cell(cell_id)
        spool.take_text(text("x" * 299 + "\n", 0, cell_id), watched=True)
        path = Path(outcome_of(spool, 0, cell_id).spool_path)
        os.utime(path, (number, number))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"cell-{number}-rank-0.txt" for number in (3, 4, 5)]


def test_one_cell_cannot_take_more_than_the_budget(tmp_path: Path):
    spool = Spool(tmp_path, cap_nbytes=10, budget_nbytes=1000)
    spool.open_cell("c")
    for _ in range(20):
        spool.take_text(text("x" * 99 + "\n"), watched=True)
    assert outcome_of(spool).spool_path == ""
    assert list(tmp_path.iterdir()) == []
    (notice,) = spool.notices
    assert "more than 1,000 bytes of output" in notice.text


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs /dev/full (Linux) as a full disk"
)
def test_a_full_disk_gives_one_notice_and_cells_run_on(spool: Spool, tmp_path: Path):
    for rank in range(3):
        (tmp_path / f"cell-1-rank-{rank}.txt").symlink_to("/dev/full")
    for rank in range(3):
        shown = spool.take_text(text("x\n" * 40, rank), watched=True)
        assert shown is not None
        assert shown.text == "x\n" * 40
        spool.take_text(text("y\n" * 200, rank), watched=True)
        outcome = outcome_of(spool, rank)
        assert outcome.spool_path == ""
        assert outcome.hidden_lines == 190
    (notice,) = spool.notices
    assert notice.level == "warning"
    assert os.strerror(errno.ENOSPC) in notice.text
    assert str(tmp_path) in notice.text


def display(**data: object) -> DisplayOutput:
    named = {key.replace("_", "/"): value for key, value in data.items()}
    return DisplayOutput(cell_id="c", rank=2, kind="display", data=named)


def test_a_rich_output_passes_untouched(spool: Spool):
    message = display(text_html="<b>hi</b>", image_png="aGk=")
    assert spool.take_display(message) is message


def test_a_huge_rich_output_is_saved_and_named(spool: Spool, tmp_path: Path):
    html = "<b>" + "x" * 2000 + "</b>"
    taken = spool.take_display(display(text_html=html, text_plain="<short>"))
    path = tmp_path / "cell-1-rank-2-display-1.html"
    assert path.read_text() == html
    assert taken.data == {
        "text/plain": (f"[rich output of 0.0 MB is too large to show; saved to {path}]")
    }


def test_many_cells_leave_nothing_in_memory(tmp_path: Path):
    spool = Spool(tmp_path, cap_nbytes=100)
    for number in range(300):
        cell_id = f"c{number}"
        spool.open_cell(cell_id)
        spool.take_text(text("x\n", 0, cell_id), watched=True)
        outcome_of(spool, 0, cell_id)
    assert len(spool._streams) <= 200
    assert not any(stream.pending for stream in spool._streams.values())
