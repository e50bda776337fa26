"""An error of a cell names the user's lines, and keeps nothing alive."""

import pytest

from tests.rank.driving import Desk, DrivenRank


def plain(text: str) -> str:
    """Return a traceback without its colours."""
    import re

    return re.sub("\x1b\\[[0-9;]*m", "", text)


def test_the_frames_are_the_users(rank: DrivenRank):
    code = (
        "def inner(x):\n    return 1 / x\ndef outer(x):\n    return inner(x)\nouter(0)"
    )
    run = rank.run(code)
    n = rank.cell_count
    facts = [(one.file, one.line, one.function, one.source) for one in run.error.frames]
    assert facts == [
        (f"Cell In[{n}]", 5, "<module>", "outer(0)"),
        (f"Cell In[{n}]", 4, "outer", "return inner(x)"),
        (f"Cell In[{n}]", 2, "inner", "return 1 / x"),
    ]
    text = plain(run.error.traceback)
    assert f"Cell In[{n}], line 2, in inner(x)" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "npu_notebook" not in text
    assert "IPython" not in text
    assert run.reports == [run.done]  # nothing of it was printed


def test_the_number_of_the_cell_is_the_notebooks(rank: DrivenRank):
    assert rank.run("1 / 0", execution_count=77).error.frames[0].file == "Cell In[77]"


def test_functions_of_earlier_cells_keep_their_number(rank: DrivenRank):
    rank.run("def fail():\n    raise KeyError('k')", execution_count=50)
    frames = rank.run("fail()", execution_count=51).error.frames
    assert [one.file for one in frames] == ["Cell In[51]", "Cell In[50]"]


def test_modules_of_the_user_are_named_with_their_path(rank: DrivenRank):
    path = rank.cwd / "mine.py"
    path.write_text("import json\ndef load():\n    json.loads('{')\n")
    error = rank.run("import mine\nmine.load()").error
    assert [(one.file, one.line) for one in error.frames] == [
        (f"Cell In[{rank.cell_count}]", 2),
        (str(path), 3),
    ]
    assert "json/decoder.py" in plain(error.traceback)  # the text has them all


def test_internals_between_the_users_frames_are_left_out(rank: DrivenRank):
    error = rank.run("def f(): 1 / 0\n%time f()").error
    assert "IPython" not in plain(error.traceback)
    assert error.frames[-1].function == "f"


def test_causes_are_shown(rank: DrivenRank):
    code = (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n"
        "    raise ValueError('no') from e"
    )
    text = plain(rank.run(code).error.traceback)
    assert text.index("ZeroDivisionError: division") < text.index("ValueError: no")
    assert "direct cause" in text


def test_a_syntax_error_shows_its_line(rank: DrivenRank):
    error = rank.run("a = 1\nb = = 2").error
    assert (error.kind, error.frames[0].line) == ("SyntaxError", 2)
    assert f"Cell In[{rank.cell_count}], line 2" in plain(error.traceback)
    assert "b = = 2" in error.traceback


def test_an_indentation_error_shows_its_line(rank: DrivenRank):
    error = rank.run("if True:\nx = 1").error
    assert (error.kind, error.frames[0].line) == ("IndentationError", 2)


def test_exception_groups_show_their_parts(rank: DrivenRank):
    error = rank.run("raise ExceptionGroup('g', [ValueError(1), KeyError(2)])").error
    assert error.kind == "ExceptionGroup"
    assert f"Cell In[{rank.cell_count}], line 1" in error.traceback
    assert "KeyError: 2" in error.traceback


def test_an_endless_recursion_is_short(rank: DrivenRank):
    error = rank.run("def f(): return f()\nf()").error
    assert error.kind == "RecursionError"
    assert len(error.frames) <= 40
    assert error.traceback.count("\n") < 60


def test_an_exception_without_text_is_told(rank: DrivenRank):
    code = "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E"
    error = rank.run(code).error
    assert (error.kind, error.message) == ("E", "<E whose text cannot be made>")


@pytest.mark.parametrize(
    ("code", "exit_code", "message"),
    [
        ("import sys\nsys.exit(3)", 3, "3"),
        ("x = 1\nexit()", 0, "None"),
        ("x = 1\nquit(4)", 4, "4"),
        ("x = 1\nraise SystemExit('why')", 1, "why"),
    ],
)
def test_exit_ends_the_cell_and_not_the_rank(
    rank: DrivenRank, code: str, exit_code: int, message: str
):
    run = rank.run(f"{code}")
    assert (run.error.kind, run.error.exit_code) == ("SystemExit", exit_code)
    assert run.error.message == message
    assert run.error.frames[0].line == 2
    assert run.text("stderr") == ""
    assert rank.run("1").value == "1"


def test_exit_without_parentheses_ends_the_cell(rank: DrivenRank):
    assert rank.run("exit").error.exit_code == 0


def test_what_was_printed_before_the_error_comes_before_it(rank: DrivenRank):
    run = rank.run("print('before')\nraise RuntimeError('stop here')")
    assert run.text() == "before\n"
    assert run.error.message == "stop here"


def test_an_error_keeps_no_variable_alive(rank: DrivenRank):
    code = (
        "import gc, weakref\ngc.disable()\n"
        "class Big: pass\n"
        "watch = []\n"
        "def inner():\n"
        "    big = Big(); watch.append(weakref.ref(big)); {}['missing']\n"
        "def outer():\n"
        "    big = Big(); watch.append(weakref.ref(big))\n"
        "    try:\n        inner()\n    except KeyError as e:\n"
        "        raise RuntimeError('no') from e\n"
        "outer()"
    )
    assert rank.run(code).error.kind == "RuntimeError"
    assert rank.run("[ref() for ref in watch]").value == "[None, None]"
    code = "import sys\n[n for n in dir(sys) if n.startswith('last_')]"
    assert rank.run(code).value == "[]"
    rank.run("gc.enable()")


def test_a_failed_tensor_computation_gives_its_memory_back(desk: Desk):
    rank = desk.start("cpu")
    code = (
        "import psutil, torch\n"
        "def used(): return psutil.Process().memory_info().rss >> 20\n"
        "before = used()\n"
        "def compute():\n"
        "    big = torch.ones(40, 1 << 20)\n"  # 160 MiB
        "    raise torch.OutOfMemoryError('none left')\n"
        "compute()"
    )
    error = rank.run(code).error
    assert error.kind == "OutOfMemoryError"
    assert int(rank.run("used() - before").value) < 80


def test_the_last_words_before_os_exit_arrive(desk: Desk):
    rank = desk.start()
    rank.submit("import os\nprint('dying')\nos._exit(5)")
    assert rank.receive().text == "dying\n"
    assert rank.process.wait(10) == 5


def test_an_error_whose_text_exits_ends_the_cell_and_not_the_rank(rank: DrivenRank):
    error = rank.run(
        "class Odd(Exception):\n"
        "    def __str__(self):\n"
        "        raise SystemExit\n"
        "raise Odd"
    ).error
    assert error.kind == "Odd"
    assert rank.run("1").value == "1"


def test_a_broken_interpreter_costs_the_cell_and_leaves_a_reason(desk: Desk):
    rank = desk.start()
    error = rank.run("get_ipython().run_cell = None").error
    assert error is None
    error = rank.run("1").error
    assert error.kind == "TypeError"
    assert "a cell ended outside the user's code" in rank.log


def test_of_a_very_long_error_the_ends_are_shown_and_the_log_has_all(desk: Desk):
    rank = desk.start()
    error = rank.run("raise ValueError('a' * 2_000_000 + 'z' * 2_000_000)").error
    for text in (error.message, error.traceback):
        assert len(text) < 100_000
        assert "characters left out; the rank's log has them" in text
        assert text.rstrip().endswith("zzz")
    assert "a" * 2_000_000 + "z" * 2_000_000 in rank.log
