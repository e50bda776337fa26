"""A cell on a rank is an IPython cell."""

import time

import pytest

from tests.rank.driving import Desk, DrivenRank


def test_state_lasts_between_cells(rank: DrivenRank):
    assert rank.run("x = 1").error is None
    assert rank.run("x + 1").value == "2"


def test_a_cell_sees_its_place(rank: DrivenRank):
    code = (
        "import os, sys\n(rank, world_size, device, __name__, sys.argv, "
        "os.environ['RANK'], os.getcwd() == os.path.realpath('.'))"
    )
    assert rank.run(code).value == "(0, 1, None, '__main__', [''], '0', True)"


@pytest.mark.parametrize("code", ["%reset -f", "get_ipython().reset()"])
def test_its_place_is_there_again_after_a_reset(rank: DrivenRank, code: str):
    rank.run(f"typed = 1\n{code}")
    assert rank.run("rank, world_size, device").value == "(0, 1, None)"
    assert rank.run("typed").error.kind == "NameError"


def test_ranks_without_torch_import_neither_torch_nor_ipykernel(rank: DrivenRank):
    code = (
        "import sys\n"
        "[m for m in ('torch', 'ipykernel', 'matplotlib') if m in sys.modules]"
    )
    assert rank.run(code).value == "[]"


def test_no_history_thread_runs(rank: DrivenRank):
    code = "import threading\nsorted(t.name for t in threading.enumerate())"
    assert rank.run(code).value == "['MainThread', 'link', 'output']"


def test_a_module_beside_the_notebook_can_be_imported(rank: DrivenRank):
    (rank.cwd / "beside.py").write_text("def f(): return 1\n")
    assert rank.run("from beside import f; f()").value == "1"
    assert rank.run("import os; os.mkdir('sub'); os.chdir('sub')").error is None
    (rank.cwd / "sub" / "below.py").write_text("y = 2\n")
    assert rank.run("import below; below.y").value == "2"
    assert rank.run("os.chdir('..')").error is None


def test_what_is_typed_in_a_cell_can_be_pickled_by_name(rank: DrivenRank):
    code = (
        "import pickle\nclass Point:\n    pass\ndef move(): pass\n"
        "(pickle.loads(pickle.dumps(Point)) is Point, "
        "pickle.loads(pickle.dumps(move)) is move)"
    )
    assert rank.run(code).value == "(True, True)"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("!printf 'a\\tb\\n'", "a\tb\n"),
        ("word = 'x'\n!echo $word {word}", "x x\n"),
        ("files = !echo one\nprint(files)", "['one']\n"),
        ("!printf 'd\\303\\251j\\303\\240'", "d\u00e9j\u00e0"),
        ("%%bash\necho hi", "hi\n"),
        ("%%capture got\nprint('caught')", ""),
        ("print(got.stdout)", "caught\n\n"),
        ('x = "own"\nprint(f"{x}", "$x", "{x}")', "own $x {x}\n"),
    ],
)
def test_magics_work(rank: DrivenRank, code: str, text: str):
    run = rank.run(code)
    assert run.error is None
    assert run.text() == text


def test_the_exit_status_of_a_command_is_kept(rank: DrivenRank):
    rank.run("!exit 3")
    assert rank.run("_exit_code").value == "3"


def test_commands_print_while_they_run(rank: DrivenRank):
    cell_id = rank.submit("!echo first; sleep 2; echo second")
    begin_s = time.monotonic()
    assert rank.receive().text == "first\n"
    assert time.monotonic() - begin_s < 1.9
    assert rank.wait(cell_id).text() == "second\n"


def test_timing_magics_work(rank: DrivenRank):
    assert "Wall time" in rank.run("%time sum(range(10))").text()
    assert "loop" in rank.run("%timeit -n1 -r1 pass").text()
    run = rank.run("%%time\ny = 5\ny")
    assert "Wall time" in run.text()
    assert run.value == "5"


def test_a_script_runs_and_its_failure_fails_the_cell(rank: DrivenRank):
    script = rank.cwd / "script.py"
    script.write_text("z = 3\nprint(__name__)\n")
    assert rank.run("%run script.py").text() == "__main__\n"
    assert rank.run("z").value == "3"
    script.write_text("def f():\n    1 / 0\nf()\n")
    error = rank.run("%run script.py").error
    assert error.kind == "ZeroDivisionError"
    assert [frame.line for frame in error.frames] == [3, 2]
    assert error.frames[-1].file.endswith("script.py")


def test_top_level_await_works(rank: DrivenRank):
    assert rank.run("import asyncio\nawait asyncio.sleep(0.01, result=7)").value == "7"
    assert rank.run("async def f(): return 8\nasyncio.run(f())").value == "8"


def test_only_the_last_expression_is_shown(rank: DrivenRank):
    assert [one.kind for one in rank.run("1\n2\n3").displays] == ["value"]
    assert rank.run("4;").displays == []
    assert rank.run("None").displays == []
    assert rank.run("5; x = 1").displays == []
    assert rank.run("'a;b'").value == "'a;b'"
    rank.run("6")
    assert rank.run("_").value == "6"


def test_display_and_its_updates_keep_their_place(rank: DrivenRank):
    code = (
        "from IPython.display import HTML, Image, clear_output, display\n"
        "print('before')\n"
        "handle = display(HTML('<b>1</b>'), display_id='mine')\n"
        "print('between')\n"
        "handle.update(HTML('<b>2</b>'))\n"
        "clear_output(wait=True)\n"
        "display(Image(data=b'\\x89PNG', format='png'))"
    )
    reports = rank.run(code).reports[:-1]
    assert reports[0].text == "before\n"
    assert (reports[1].kind, reports[1].display_id) == ("display", "mine")
    assert reports[1].data["text/html"] == "<b>1</b>"
    assert reports[2].text == "between\n"
    assert (reports[3].kind, reports[3].display_id) == ("update", "mine")
    assert (reports[4].kind, reports[4].wait) == ("clear", True)
    assert reports[5].data["image/png"] == "iVBORw=="


def test_odd_mime_data_travels(rank: DrivenRank):
    code = (
        "class Odd:\n"
        "    def _repr_mimebundle_(self, **_):\n"
        "        return {'text/plain': '\\udcff', 'application/json': {'a': {1, 2}}}\n"
        "Odd()"
    )
    (value,) = rank.run(code).displays
    assert value.data["text/plain"] == "\\udcff"
    assert value.data["application/json"] == {"a": [1, 2]}


def test_figures_are_shown_at_the_end_of_their_cell(desk: Desk):
    rank = desk.start()
    run = rank.run("import matplotlib.pyplot as plt\np = plt.plot([1, 2])\nprint('p')")
    assert run.error is None
    (figure,) = run.displays
    assert figure.data["image/png"].startswith("iVBORw")
    assert run.reports.index(figure) > 0
    assert rank.run("1").displays[0].kind == "value"
    assert len(rank.run("%matplotlib inline\np = plt.plot([1])").displays) == 1


def test_help_is_shown_as_text(rank: DrivenRank):
    (shown,) = rank.run("len?").displays
    assert "Return the number of items" in shown.data["text/plain"]
    rank.run("def own():\n    'what it does'")
    (shown,) = rank.run("own??").displays
    assert "what it does" in shown.data["text/plain"]


def test_input_says_what_to_do_instead(rank: DrivenRank):
    error = rank.run("name = input('who? ')").error
    assert (error.kind, error.message.split(":")[0]) == (
        "NoKeyboardError",
        "ranks have no keyboard",
    )


def test_a_debugger_without_keyboard_ends_the_cell(rank: DrivenRank):
    assert rank.run("breakpoint()").error.kind == "NoKeyboardError"
    assert rank.run("1").value == "1"


def test_packages_are_installed_once_per_host(desk: Desk):
    first, second = desk.start(), desk.start(rank=1)
    cells = [one.submit("%pip --version\n%pip --version") for one in (first, second)]
    runs = [one.wait(cell) for one, cell in zip((first, second), cells, strict=True)]
    assert [run.error for run in runs] == [None, None]
    assert sum(run.text().count("(python ") for run in runs) == 2
    alone = second.run("%pip --version", execution_count=9)
    assert alone.text().startswith("pip ")


def test_an_unknown_magic_is_named(rank: DrivenRank):
    error = rank.run("%nope").error
    assert error.kind == "UsageError"
    assert error.traceback == "UsageError: Line magic function `%nope` not found."


def test_a_forked_child_that_runs_to_the_end_of_the_cell_is_not_a_second_rank(
    rank: DrivenRank,
):
    code = (
        "import os\npid = os.fork()\n"
        "if pid: status = os.waitpid(pid, 0)[1]\n"
        "print('parent' if pid else 'child')"
    )
    assert rank.run(code).text() == "child\nparent\n"
    assert rank.run("status").value == "0"
