"""Everything printed is seen, live, once, and in its own cell (H09, H10, H13, H14)."""

import re
import time

import pytest

from tests.cases.notebook import Notebook, each

BEFORE = """
import time
print('before', rank)
time.sleep(0.5)
raise RuntimeError('stop here')"""
FOUR_BEFORE = [f"[{rank}] before {rank}" for rank in range(4)]


def positions(text: str, words: list[str]) -> list[int]:
    return [text.index(word) for word in words]


@pytest.mark.parametrize("magic", ["%%spmd", "%%spmd --timeout 30", "%%spmd --out got"])
def test_h09_what_was_printed_before_an_error_stands_above_it(
    shared_notebook: Notebook, magic: str
):
    cell = shared_notebook.run(magic + BEFORE)
    assert cell.error_name == "CellError"
    assert sorted(cell.stream("stdout").splitlines()) == FOUR_BEFORE
    assert max(positions(cell.text, FOUR_BEFORE)) < cell.text.index("RuntimeError")


def test_h09_a_cell_in_the_background_shows_it_too(shared_notebook: Notebook):
    cell = shared_notebook.must("%%spmd --no-block" + BEFORE)
    shared_notebook.until(lambda: "RuntimeError: stop here" in cell.text)
    assert max(positions(cell.text, FOUR_BEFORE)) < cell.text.index("RuntimeError")


def test_h09_one_line_and_a_plain_program_show_it_too(shared_notebook: Notebook):
    cell = shared_notebook.run("%spmd print('before', rank); 1 / 0")
    assert max(positions(cell.text, FOUR_BEFORE)) < cell.text.index("ZeroDivision")
    cell = shared_notebook.run(f"cluster.run({BEFORE!r})")
    assert max(positions(cell.text, FOUR_BEFORE)) < cell.text.index("RuntimeError")


def test_h10_each_line_appears_under_the_cell_that_printed_it(notebook: Notebook):
    notebook.must("%npu_cluster stop")
    start = notebook.begin("%npu_cluster start -n 4 --device none --name own")
    cells = [
        notebook.begin(
            "%%spmd\n"
            "import time\n"
            f"for i in range(5):\n    print('{name}', rank, i)\n    time.sleep(0.2)"
        )
        for name in ("B", "C")
    ]
    notebook.wait(cells[-1])
    for name, cell in zip("BC", cells, strict=True):
        expected = [
            f"[{rank}] {name} {rank} {i}" for rank in range(4) for i in range(5)
        ]
        assert sorted(cell.lines) == expected
    assert not re.search(r"\b[BC] \d", start.text)
    assert [stray for stray in notebook.strays if stray.kind == "stream"] == []


def test_h10_a_thread_goes_on_printing_into_the_cell_that_started_it(
    shared_notebook: Notebook,
):
    notebook = shared_notebook
    started = notebook.must(
        "%%spmd --ranks 0\n"
        "import threading\n"
        "go_on, over = threading.Event(), threading.Event()\n"
        "def tell():\n"
        "    for n in range(2):\n"
        "        go_on.wait(); go_on.clear()\n"
        "        print('thread', n)\n"
        "        over.set()\n"
        "threading.Thread(target=tell).start()\n"
        "print('started')"
    )
    assert started.lines == ["[0] started"]
    inside = notebook.must(
        "%%spmd --ranks 0\ngo_on.set(); over.wait(); over.clear(); print('mine')"
    )
    notebook.until(lambda: "thread 0" in started.text)
    between = notebook.must("print('here')")
    after = notebook.must("%%spmd --ranks 0\ngo_on.set()\nover.wait();")
    notebook.until(lambda: "thread 1" in started.text)
    assert started.lines == ["[0] started", "[0] thread 0", "[0] thread 1"]
    assert [inside.lines, between.lines, after.lines] == [["[0] mine"], ["here"], []]


def test_h13_every_line_is_on_screen_within_a_second_and_in_its_cell(
    shared_notebook: Notebook,
):
    cells = [
        shared_notebook.begin(
            "%%spmd\n"
            "import time\n"
            "for i in range(5):\n"
            f"    print('{name}', i, rank, time.monotonic())\n"
            "    time.sleep(0.4)"
        )
        for name in ("first", "second")
    ]
    shared_notebook.wait(cells[-1])
    for name, cell in zip(("first", "second"), cells, strict=True):
        delays_s = {}
        for arrival in cell.arrivals:
            if arrival.kind != "stream":
                continue
            for line in arrival.content["text"].splitlines():
                label, said, i, rank, printed_s = line.split()
                assert (label, said) == (f"[{rank}]", name)
                delays_s[i, rank] = arrival.at_s - float(printed_s)
        assert len(delays_s) == 20
        assert max(delays_s.values()) < 1.0
        assert min(delays_s.values()) > 0.0


LOGGING = """%%spmd
import logging, sys
log = logging.getLogger("mine")
log.addHandler(logging.StreamHandler(sys.stdout)); log.setLevel(logging.INFO)
log.info("hello from %d", rank)"""


def test_h14_logging_set_up_in_a_cell_says_each_line_once_where_it_was_logged(
    notebook: Notebook,
):
    hello = [f"[{rank}] hello from {rank}" for rank in range(4)]
    first = notebook.must(LOGGING)
    assert sorted(first.lines) == hello
    second = notebook.must('%%spmd\nlog.info("again")')
    assert second.by_rank == each("again")
    # A second handler of the user's own makes a second line; none is ours.
    assert sorted(notebook.must(LOGGING).lines) == sorted(hello * 2)
    assert sorted(first.lines) == hello
    root = notebook.must("%%spmd\nlogging.getLogger().handlers")
    assert root.by_rank == each("[]")


def test_h14_a_log_on_stderr_arrives_as_stderr_of_its_cell(shared_notebook: Notebook):
    cell = shared_notebook.must(
        "%%spmd\nimport logging\nlogging.getLogger('plain').warning('from %d', rank)"
    )
    assert sorted(cell.stream("stderr").splitlines()) == [
        f"[{rank}] from {rank}" for rank in range(4)
    ]


def test_h13_a_long_silence_is_not_needed_to_see_a_line(shared_notebook: Notebook):
    cell = shared_notebook.begin(
        "%%spmd\nimport sys, threading\nprint('now')\nopen_end = threading.Event()\n"
        "sys.stdout.write('no newline yet'); open_end.wait(2);"
    )
    shared_notebook.until(lambda: cell.all_said("no newline yet"))
    assert not cell.ended
    began_s = time.monotonic()
    shared_notebook.wait(cell)
    assert time.monotonic() - began_s < 10
    assert cell.by_rank == each("now", "no newline yet")
