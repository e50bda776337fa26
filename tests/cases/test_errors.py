"""One traceback per distinct error; exit ends no rank (H08, H15, H17)."""

import re

import pytest

from tests.cases.notebook import Notebook, each

FAILING = """%%spmd
def inner(x):
    return 1 / x
def outer(x):
    return inner(x)
outer(0) if rank != 3 else [][1]"""


def test_h15_equal_errors_are_one_block_with_the_lines_of_this_cell(
    shared_notebook: Notebook,
):
    error = shared_notebook.run(FAILING).error
    assert error.count("ranks 0-2: ZeroDivisionError") == 1
    assert error.count("rank 3: IndexError") == 1
    # "ranks 0-2: ...", and the traceback's own head and last line.
    assert len(re.findall("division by zero", error)) <= 3
    first, second = error.split("rank 3: IndexError", 1)
    for line, source in [
        (2, "return 1 / x"),
        (4, "return inner(x)"),
        (5, "outer(0) if rank != 3 else [][1]"),
    ]:
        assert source in first
        assert re.search(rf"(line {line}\b|-> +{line} )", first), first
    assert "outer(x)" in first
    assert "inner(x)" in first
    assert "return 1 / x" not in second
    assert "[][1]" in second
    for ours in ("npu_notebook/", "IPython/", "interactiveshell", "run_cell"):
        assert ours not in error


def test_h15_the_full_text_of_any_rank_can_be_asked_for(shared_notebook: Notebook):
    shared_notebook.run(FAILING)
    asked = shared_notebook.must("%npu_cluster traceback --ranks 2")
    assert asked.text.startswith("rank 2:\n")
    assert "ZeroDivisionError: division by zero" in asked.text
    assert "return inner(x)" in asked.text
    asked = shared_notebook.must("%npu_cluster traceback --ranks 1,3")
    first, second = asked.text.split("rank 3:\n")
    assert "ZeroDivisionError" in first
    assert "IndexError: list index out of range" in second


def test_h15_a_typo_on_all_ranks_is_said_once(shared_notebook: Notebook):
    error = shared_notebook.run("%%spmd\nx = 1\nprimt(x)").error
    assert error.count("ranks 0-3: NameError") == 1
    assert error.count("primt(x)") == 1
    error = shared_notebook.run("%%spmd\nx = 1\nif x\n    pass").error
    assert error.count("ranks 0-3: SyntaxError") == 1
    assert "line 2" in error


def test_h08_exit_in_a_cell_ends_no_rank(shared_notebook: Notebook):
    notebook = shared_notebook
    notebook.must("%%spmd --out pids\nimport os\nos.getpid()")
    cell = notebook.run(
        "%%spmd\nimport sys\nif rank == 0:\n    sys.exit(3)\nprint('after', rank)"
    )
    assert "rank 0 called exit with code 3 at line 3" in cell.error
    assert sorted(cell.stream("stdout").splitlines()) == [
        f"[{rank}] after {rank}" for rank in (1, 2, 3)
    ]
    assert re.search(
        r"Logs of the ranks: \S+/logs/ \(rank-0\.log,.*rank-3\.log\)", cell.error
    )
    again = notebook.must("%%spmd\nimport os\nprint(os.getpid())")
    assert sorted(again.lines) == [
        f"[{rank}] {pid}" for rank, pid in enumerate(notebook.value("pids"))
    ]


@pytest.mark.parametrize("call", ["exit()", "quit()", "raise SystemExit", "exit(0)"])
def test_h08_exit_on_all_ranks_is_one_sentence(shared_notebook: Notebook, call: str):
    cell = shared_notebook.run(f"%%spmd\nkept = rank\n{call}")
    assert "ranks 0-3 called exit with code 0 at line 2" in cell.error
    assert "Traceback" not in cell.text
    assert sorted(shared_notebook.must("%spmd print(kept)").lines) == [
        f"[{rank}] {rank}" for rank in range(4)
    ]


def test_h08_what_exit_was_given_to_say_is_shown(shared_notebook: Notebook):
    cell = shared_notebook.run(
        "%%spmd\nimport sys\nsys.exit(f'no data on {rank // 2}')"
    )
    for ranks, number in (("0-1", 0), ("2-3", 1)):
        sentence = (
            f"ranks {ranks} called exit with code 1 at line 2: no data on {number};"
        )
        assert sentence in cell.error


@pytest.mark.parametrize(
    "code", ["name = input('who? ')", "import sys\nsys.stdin.readline() or 1 / 0"]
)
def test_h17_input_on_ranks_ends_at_once(shared_notebook: Notebook, code: str):
    cell = shared_notebook.run(f"%%spmd\n{code}", timeout_s=20)
    assert "ranks 0-3" in cell.error
    assert shared_notebook.must("%spmd print('on')").by_rank == each("on")


@pytest.mark.parametrize(
    "code",
    [
        "name = input('who? ')",
        "import getpass\ngetpass.getpass()",
        "breakpoint()",
        "import pdb; pdb.set_trace()\nx = 1",
    ],
)
def test_h17_a_sentence_says_that_ranks_have_no_keyboard_and_what_to_do(
    shared_notebook: Notebook, code: str
):
    cell = shared_notebook.run(f"%%spmd\n{code}", timeout_s=20)
    assert "ranks 0-3" in cell.error
    assert "no keyboard" in cell.error
    assert "%push" in cell.error
    assert shared_notebook.must("%spmd print('on')").by_rank == each("on")


def test_h17_help_of_a_function_is_shown_and_does_not_wait(shared_notebook: Notebook):
    cell = shared_notebook.must("%%spmd\nhelp(len)", timeout_s=20)
    assert "Return the number of items in a container." in cell.text
    assert cell.text.count("Return the number of items") == 1


def test_h15_a_failing_cell_stops_run_all(notebook: Notebook):
    first = notebook.begin("%spmd print('first')")
    second = notebook.begin("%spmd 1 / 0 if rank == 2 else None")
    third = notebook.begin("reached = True")
    notebook.wait(second)
    notebook.until(lambda: third.ended or third.arrivals != [])
    notebook.wait(third)
    assert first.by_rank == each("first")
    assert "rank 2: ZeroDivisionError" in second.error
    assert notebook.value("'reached' in globals()") is False
