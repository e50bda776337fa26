"""What the notebook says arrives as it is, and where it is meant (H16, H19, H20)."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.cases.conftest import START
from tests.cases.notebook import Notebook, each

BRACES = 'print(f"{x}", "$x", "{x}")'


def test_h16_braces_and_dollars_are_left_to_the_ranks(shared_notebook: Notebook):
    notebook = shared_notebook
    notebook.must('x = "driver"')
    notebook.must("%spmd x = rank")
    own = [f"[{rank}] {rank} $x {{x}}" for rank in range(4)]
    assert sorted(notebook.must(f"%spmd {BRACES}").lines) == own
    assert sorted(notebook.must(f"%%spmd\n{BRACES}").lines) == own
    assert sorted(notebook.must(f"cell = 1\n%spmd {BRACES}").lines) == own
    inside = notebook.must(f"for _ in range(2):\n    %spmd {BRACES}")
    assert sorted(inside.lines) == sorted(own * 2)


SHOW = "%%spmd\nimport os\nprint(os.environ.get('FOO'), os.environ.get('BAR'))"


def test_h19_variables_set_before_start_arrive_and_later_ones_are_spoken_of(
    open_notebook: Callable[..., Notebook],
):
    notebook = open_notebook()
    notebook.must("%env FOO=1")
    notebook.must(START)
    assert notebook.must(SHOW).by_rank == each("1 None")

    later = notebook.must("%env BAR=private-word")
    assert "do not get BAR" in later.stream("stderr")
    assert "%spmd %env BAR=" in later.stream("stderr")
    assert "private-word" not in later.stream("stderr")  # secrets are not repeated
    assert notebook.must(SHOW).by_rank == each("1 None")
    notebook.must("%spmd %env BAR=2")  # the command that the sentence names
    assert notebook.must(SHOW).by_rank == each("1 2")

    group = notebook.must("%env HCCL_CONNECT_TIMEOUT=600")
    assert "HCCL_CONNECT_TIMEOUT" in group.stream("stderr")
    assert "when the process group is formed" in group.stream("stderr")
    assert "--env HCCL_CONNECT_TIMEOUT=" in group.stream("stderr")
    by_python = notebook.must("import os; os.environ['BAZ'] = '1'")
    assert "do not get BAZ" in by_python.stream("stderr")
    assert "BAR" not in by_python.stream("stderr")  # said once

    notebook.must(f"{START} --env FOO=3 --env BAZ=4")
    assert notebook.must(SHOW).by_rank == each("3 private-word")


def test_h20_a_module_beside_the_notebook_is_imported_and_its_edit_arrives(
    open_notebook: Callable[..., Notebook], tmp_path: Path
):
    notebook = open_notebook("project")
    folder = tmp_path / "project"
    module = folder / "helper.py"
    module.write_text("def f(): return 1\n")
    notebook.must(START)
    cell = "%%spmd\nfrom helper import f\nimport os\nprint(f(), os.getcwd())"
    assert notebook.must(cell).by_rank == each(f"1 {folder}")
    module.write_text("def f(): return 2  # edited\n")
    edited = notebook.must(cell)
    told = edited.by_rank[0][-1]
    assert edited.by_rank == each(f"1 {folder}", told)
    assert told.startswith("helper has changed since its import")
    assert told in edited.stream("stderr")
    # The words of the sentence, typed as they stand there.
    now, load, every = re.findall(r"`(%spmd .*?)`", told)
    notebook.must(now)
    assert notebook.must(cell).by_rank == each(f"2 {folder}")
    notebook.must(load)
    notebook.must(every)
    module.write_text("def f(): return 3  # edited again\n")
    assert notebook.must(cell).by_rank == each(f"3 {folder}")


def test_h20_a_missing_module_is_one_message(shared_notebook: Notebook):
    error = shared_notebook.run("%%spmd\nimport not_on_this_host").error
    assert error.count("ranks 0-3: ModuleNotFoundError") == 1
    assert "not_on_this_host" in error
