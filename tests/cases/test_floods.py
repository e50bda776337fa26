"""Floods and progress bars leave the notebook usable and small (H11, H12)."""

import re
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases.conftest import START
from tests.cases.notebook import Arrival, Cell, Notebook, each

#: What Jupyter's server lets pass, averaged over 3 s, before it drops output.
#: Source: jupyter_server, ``iopub_msg_rate_limit`` and ``iopub_data_rate_limit``.
MAX_MESSAGES_PER_S = 1_000
MAX_NBYTES_PER_S = 1_000_000
WINDOW_S = 3.0
HIDDEN = re.compile(r"([\d,]+) lines of rank (\d) hidden, full text in (\S+)")


def worst_rates(arrivals: list[Arrival]) -> tuple[float, float]:
    """Return the most messages and bytes of text per second over the window."""
    window: deque[tuple[float, int]] = deque()
    most_messages = most_nbytes = nbytes = 0
    for arrival in arrivals:
        size = len(str(arrival.content.get("text", "")).encode())
        window.append((arrival.at_s, size))
        nbytes += size
        while window[0][0] < arrival.at_s - WINDOW_S:
            nbytes -= window.popleft()[1]
        most_messages = max(most_messages, len(window))
        most_nbytes = max(most_nbytes, nbytes)
    return most_messages / WINDOW_S, most_nbytes / WINDOW_S


def hidden_by_rank(cell: Cell) -> dict[int, tuple[int, Path]]:
    """Return how many lines of each rank are hidden, and where all of them lie."""
    return {
        int(rank): (int(count.replace(",", "")), Path(path))
        for count, rank, path in HIDDEN.findall(cell.text)
    }


def shown_lines(cell: Cell, rank: int) -> int:
    return len(re.findall(rf"line \d+ of rank {rank}\b", cell.text))


@pytest.mark.timeout(180)
def test_h11_a_flood_is_capped_on_screen_and_complete_in_a_file(notebook: Notebook):
    count = 200_000
    cell = notebook.must(
        f"%%spmd\nfor i in range({count}):\n    print('line', i, 'of rank', rank)",
        timeout_s=150,
    )
    hidden = hidden_by_rank(cell)
    assert sorted(hidden) == [0, 1, 2, 3]
    for rank, (hidden_lines, path) in hidden.items():
        assert shown_lines(cell, rank) + hidden_lines == count
        whole = "".join(f"line {i} of rank {rank}\n" for i in range(count))
        assert path.read_text() == whole
    messages_per_s, nbytes_per_s = worst_rates(cell.arrivals)
    assert messages_per_s < MAX_MESSAGES_PER_S
    assert nbytes_per_s < MAX_NBYTES_PER_S
    assert cell.saved_nbytes() < 1_000_000


@pytest.mark.timeout(120)
def test_h11_a_lower_cap_keeps_the_saved_notebook_below_a_megabyte(
    open_notebook: Callable[..., Notebook], tmp_path: Path
):
    settings = tmp_path / "config.toml"
    settings.write_text("output_cap = 100_000\n")
    notebook = open_notebook(NPU_NOTEBOOK_CONFIG=str(settings))
    notebook.must(START)
    count = 30_000
    cell = notebook.must(
        f"%%spmd\nfor i in range({count}):\n    print('line', i, 'of rank', rank)"
    )
    for rank, (hidden_lines, path) in hidden_by_rank(cell).items():
        assert shown_lines(cell, rank) + hidden_lines == count
        assert len(path.read_text().splitlines()) == count
    assert cell.text.count(" hidden, full text in ") == 4
    assert cell.saved_nbytes() < 1_000_000


@pytest.mark.timeout(120)
def test_h11_stop_works_within_two_seconds_in_the_middle_of_a_flood(
    notebook: Notebook,
):
    cell = notebook.begin(
        "%%spmd\n"
        "import time\n"
        "i = 0\n"
        "try:\n"
        "    while True:\n"
        "        print('line', i, 'of rank', rank)\n"
        "        i += 1\n"
        "except KeyboardInterrupt:\n"
        "    stopped_s = time.monotonic()\n"
        "    raise\n"
    )
    notebook.until(lambda: "line 10000 of rank 3" in cell.text)
    pressed_s = notebook.press_stop()
    notebook.wait(cell)
    assert "Interrupted" in cell.error
    notebook.must("%pull stopped_s i")
    assert max(notebook.value("stopped_s")) - pressed_s < 2.0
    assert cell.ended_s - pressed_s < 8.0
    printed = notebook.value("i")
    again = notebook.must("%spmd print('usable')")
    assert again.by_rank == each("usable")
    for rank, (hidden_lines, path) in hidden_by_rank(cell).items():
        lines = path.read_text().splitlines()
        assert shown_lines(cell, rank) + hidden_lines == len(lines)
        # The line in hand when Stop came may or may not have been counted.
        assert len(lines) - printed[rank] in (0, 1)


BAR = """%%spmd
import time
from tqdm import tqdm
for _ in tqdm(range(50), desc=f"rank {rank}"):
    time.sleep(0.02)"""


def displays(cell: Cell) -> dict[str, list[str]]:
    """Return every state of every redrawn display, by its id."""
    states: dict[str, list[str]] = {}
    for arrival in cell.arrivals:
        if arrival.kind in ("display_data", "update_display_data"):
            key = arrival.content["transient"]["display_id"]
            states.setdefault(key, []).append(arrival.content["data"]["text/plain"])
    return states


def test_h12_four_progress_bars_are_four_lines_redrawn_in_place(
    shared_notebook: Notebook,
):
    cell = shared_notebook.must(BAR)
    bars = [line for line in cell.lines if "rank" in line]
    assert len(bars) == len(cell.lines) == 4
    for rank in range(4):
        (bar,) = [line for line in bars if f"rank {rank}:" in line]
        assert bar.startswith(f"[{rank}] rank {rank}: 100%")
        assert "50/50" in bar
    (states,) = displays(cell).values()
    assert len(states) > 3  # it did move
    for state in states:
        lines = state.splitlines()
        assert len(lines) == len({line[:4] for line in lines}) <= 4
    assert not [one for one in cell.arrivals if one.kind == "stream"]


def test_h12_a_carriage_return_begins_the_line_anew(shared_notebook: Notebook):
    cell = shared_notebook.must('%%spmd\nprint("a\\rb")')
    assert cell.by_rank == each("b")


def test_h12_lines_printed_beside_a_bar_are_kept_above_or_below_it(
    shared_notebook: Notebook,
):
    cell = shared_notebook.must(
        "%%spmd --ranks 1\n"
        "from tqdm import tqdm\n"
        "for i in tqdm(range(3), desc='bar', file=sys.stdout):\n"
        "    tqdm.write(f'note {i}')\n".replace("from tqdm", "import sys\nfrom tqdm")
    )
    # tqdm puts blanks over its bar before it writes.
    notes = [line.rstrip() for line in cell.lines if "note" in line]
    assert notes == [f"[1] note {i}" for i in range(3)]
    assert len([line for line in cell.lines if "bar: 100%" in line]) == 1
