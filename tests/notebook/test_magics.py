"""The magics in a real kernel with real ranks."""

import pytest

from npu_notebook.topology import parse_ranks
from tests.cases.notebook import Notebook


def test_loading_twice_changes_nothing(shared: Notebook):
    shared.must("%load_ext npu_notebook")
    shared.must(
        "import npu_notebook\nnpu_notebook.load_ipython_extension(get_ipython())"
    )
    assert shared.must("%spmd rank").lines == [f"[{rank}] {rank}" for rank in range(4)]


def test_unloading_takes_the_magics_away_and_the_cluster_lingers(notebook: Notebook):
    notebook.must("%spmd kept = rank + 5")
    name = notebook.value("cluster.name")
    notebook.must("%unload_ext npu_notebook")
    assert notebook.value("get_ipython().find_line_magic('spmd') is None")
    notebook.must("%load_ext npu_notebook")
    assert "no cluster" in notebook.run("%spmd 1").error
    notebook.must(f"%npu_cluster attach {name}")
    notebook.must("%pull kept")
    assert notebook.value("kept") == [5, 6, 7, 8]


def test_the_cluster_is_a_variable_of_the_notebook(shared: Notebook):
    assert shared.value("[cluster.world_size, cluster.fact.provider]") == [4, "none"]


def test_a_variable_of_the_users_own_called_cluster_is_left_alone(open_notebook):
    notebook = open_notebook()
    notebook.must("cluster = 'mine'")
    notebook.must("%npu_cluster start -n 1 --device none")
    assert notebook.value("cluster") == "mine"


def test_push_and_pull_move_variables_and_functions(shared: Notebook):
    shared.must("import numpy as np\na = np.arange(5)\ndef twice(v):\n    return 2 * v")
    shared.must("%push a twice")
    shared.must("%spmd b = twice(a).sum().item() + rank")
    shared.must("%pull b")
    assert shared.value("b") == [20, 21, 22, 23]
    shared.must("%pull b --ranks 2 --into one")
    assert shared.value("one") == 22
    shared.must("%pull b --ranks 1-2 --into two")
    assert shared.value("two") == [21, 22]


def test_push_to_some_ranks_leaves_the_others_as_they_were(shared: Notebook):
    shared.must("c = 1\n%push c\nc = 2\n%push c --ranks 0,3\n%pull c --into got")
    assert shared.value("got") == [2, 1, 1, 2]


def test_out_gives_the_values_by_rank(shared: Notebook):
    shared.must("%%spmd --out squares\nrank**2")
    assert shared.value("squares") == [0, 1, 4, 9]
    shared.must("%spmd --ranks 1,3 --out some rank + 1")
    assert shared.value("some") == [2, 4]


def test_quiet_shows_nothing_but_errors(shared: Notebook):
    assert shared.must("%%spmd --quiet\nprint('x')\n1").text == ""
    assert "ranks 0-3: ZeroDivisionError" in shared.run("%spmd --quiet 1/0").error


def test_a_cell_in_the_background_shows_its_output_where_it_began(notebook: Notebook):
    code = (
        "%%spmd --no-block\nimport time\nfor step in range(3):\n"
        "    print('B', step)\n    time.sleep(0.4)\nrank + 10"
    )
    background = notebook.must(code)
    other = notebook.must("h = _\nprint('C')")
    # A cell behind it waits for its turn on the ranks.
    behind = notebook.must("%spmd --ranks 1 print('D')")
    assert behind.lines == ["[1] D"]
    assert notebook.value("h.result()") == [10, 11, 12, 13]
    assert other.lines == ["C"]
    for rank in range(4):
        said = background.by_rank[rank]
        assert said == ["B 0", "B 1", "B 2", str(rank + 10)]


def test_a_background_cell_can_be_cancelled_and_says_how_it_ended(notebook: Notebook):
    code = "%spmd --no-block import time; print('begun'); time.sleep(60)"
    background = notebook.must(code)
    notebook.until(lambda: background.all_said("begun"))
    notebook.must("h = _; h.cancel()")
    failed = notebook.run("h.wait()")
    assert failed.error_name == "CellError"
    assert "Interrupted: ranks 0-3" in failed.error
    notebook.until(lambda: "Interrupted" in background.text)


def test_out_and_no_block_do_not_go_together(shared: Notebook):
    assert (
        "Use result() of the handle" in shared.run("%spmd --out a --no-block 1").error
    )


def test_what_a_thread_prints_after_its_cell_lands_in_its_cell(shared: Notebook):
    code = (
        "%%spmd --ranks 0\nimport threading, time\n"
        "def late():\n    time.sleep(0.5)\n    print('late')\n"
        "threading.Thread(target=late).start()\nprint('in time')"
    )
    cell = shared.must(code)
    other = shared.must("import time; time.sleep(1); print('other')")
    shared.until(lambda: "late" in cell.text)
    assert cell.lines == ["[0] in time", "[0] late"]
    assert other.lines == ["other"]
    assert not [one for one in shared.strays if one.kind == "stream"]


def test_tracebacks_name_the_number_of_the_cell(shared: Notebook):
    number = shared.value("len(In)")
    assert f"Cell In[{number}], line 2" in shared.run("%%spmd\nx = 0\n1/x").error
    assert f"Cell In[{number + 1}], line 1" in shared.run("%spmd 1/0").error


def test_a_failed_cell_stops_run_all_and_each_rank_can_be_asked(shared: Notebook):
    failed = shared.run("%%spmd\nif rank % 2:\n    raise KeyError(rank)")
    assert failed.error_name == "CellError"
    assert "ranks 1,3: KeyError" in failed.error
    assert "1/0" not in failed.error
    assert "npu_notebook" not in failed.error
    one = shared.must("%npu_cluster traceback --ranks 3")
    assert one.lines[0] == "rank 3:"
    assert "KeyError: 3" in one.text
    assert "rank 1:" not in one.text


def test_autospmd_sends_cells_and_local_keeps_them(shared: Notebook):
    shared.must("here = 'notebook'")
    shared.must("%autospmd on")
    try:
        on = [f"[{rank}] on {rank}" for rank in range(4)]
        assert shared.must("print('on', rank)").lines == on
        assert shared.must("%%local\nprint(here)").lines == ["notebook"]
        assert "line 3" in shared.run("%push here\n\n1/0").error
        shared.must("there = rank * 3\n%pull there\n")
        assert "NameError" in shared.run("not_here").error
        assert "name 'rank' is not" not in shared.must("%time y = rank").text
    finally:
        shared.must("%autospmd off")
    assert shared.value("there") == [0, 3, 6, 9]


def test_local_without_autospmd_is_an_ordinary_cell(shared: Notebook):
    assert shared.must("%%local\nprint('x')").lines == ["x"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%spmd --ranks 9 1", "rank 9 in '9' does not exist: this cluster has 4 ranks"),
        ("%spmd --ranks 0,0 1", "names 0 twice"),
        ("%spmd --ranks '' 1", "is not a rank or a range"),
        ("%%spmd --rankz 1\n1", "has no option '--rankz'. Did you mean --ranks?"),
        ("%spmd", "%spmd has no code behind its options"),
        ("%push nothere", "the notebook has no variable 'nothere'"),
        ("%pull nothere", "'nothere'"),
        ("%autospmd maybe", "%autospmd takes on or off, but got 'maybe'"),
        ("%npu_cluster strat", "Did you mean `%npu_cluster start`?"),
        ("%npu_cluster start --device tpu", "no devices named 'tpu'"),
        ("%npu_cluster start -n 0", "0 ranks were asked for"),
        ("%npu_cluster start --cwd /not/there", "the folder /not/there does not exist"),
        ("%npu_cluster start --name 'a b'", "'a b' cannot be the name of a cluster"),
        ("%npu_cluster start --linger soon", "'soon' is not a time to linger"),
        ("%npu_cluster attach nobody", "there is no cluster of that name"),
        ("%npu_cluster stop nobody", "there is no cluster of that name"),
    ],
)
def test_a_mistake_is_one_sentence_without_our_frames(
    shared: Notebook, line: str, words: str
):
    failed = shared.run(line)
    assert words in failed.error
    assert len(failed.error.splitlines()) == 1
    assert shared.must("%spmd --ranks 0 1").lines == ["[0] 1"]  # nothing has ended


@pytest.mark.parametrize(
    "name",
    ["%spmd", "%%spmd", "%npu_cluster", "%push", "%pull", "%autospmd", "%%local"],
)
def test_every_magic_has_help(shared: Notebook, name: str):
    code = f"get_ipython().object_inspect_mime('{name}')['text/plain']"
    text = shared.value(code)
    assert len(text.split("Docstring:")[1].splitlines()) > 3


def test_help_of_a_magic_and_of_a_subcommand_is_text(shared: Notebook):
    assert "--no-block" in shared.must("%spmd --help").text
    assert "--linger SECONDS" in shared.must("%npu_cluster start --help").text
    assert "Show every rank and what it does." in shared.must("%npu_cluster").text


def test_status_and_list_are_tables_for_every_front_end(shared: Notebook):
    status = shared.must("%npu_cluster status")
    assert status.text.splitlines()[1].split() == [
        "rank",
        "host",
        "pid",
        "device",
        "state",
        "doing",
    ]
    assert "<table>" in status.outputs[0]["data"]["text/html"]
    name = shared.value("cluster.name")
    listed = shared.must("%npu_cluster list")
    assert f"%npu_cluster attach {name}" in listed.text


def test_captured_output_is_captured(shared: Notebook):
    shared.must(
        "from IPython.utils.capture import capture_output\n"
        "with capture_output() as caught:\n"
        "    get_ipython().run_cell_magic('spmd', '', 'print(7)')"
    )
    assert "] 7\n" in shared.value("caught.stdout")


def test_a_rank_is_replaced_and_the_others_keep_their_variables(notebook: Notebook):
    notebook.must("%spmd v = rank")
    shown = notebook.must("%npu_cluster restart --ranks 1")
    assert "restarted after" in shown.text
    notebook.must("%%spmd --out have\n'v' in globals()")
    assert notebook.value("have") == [True, False, True, True]


def test_rich_output_arrives_labelled_once(shared: Notebook):
    cell = shared.must(
        "%%spmd\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))"
    )
    labels, shown = cell.outputs[::2], cell.outputs[1::2]
    assert parse_ranks(labels[0]["text"].strip("[]\n"), 4)
    assert {one["data"]["text/html"] for one in shown} == {"<b>x</b>"}
    assert len(labels) == len(shown)
