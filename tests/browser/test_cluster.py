"""A cluster of four ranks, used from a real JupyterLab as a person uses it."""

import re
import time
from pathlib import Path

import pytest

from tests import leaks

START = "%npu_cluster start --device cpu -n 4"
USABLE_S = 10.0
FLOOD = (
    "%%spmd\nfor i in range(200_000):\n    print('line', i, 'of rank', rank)\n"
    "print('flood over')"
)


@pytest.fixture
def open_cluster(open_notebook):
    """Open a notebook whose first cell has started a cluster; yours begin at 1."""

    def open_cluster(*cells: str):
        notebook = open_notebook([START, *cells])
        assert "ready after" in notebook.run(0, timeout_s=60)
        return notebook

    return open_cluster


def cluster_processes() -> int:
    """Return how many processes of clusters there are: controllers, agents, ranks."""
    lines = [leaks.description(process) for process in leaks.marked_processes()]
    return sum("npu_notebook." in line for line in lines)


def test_the_launcher_offers_the_kernel_and_it_starts(page, lab_server):
    page.goto(lab_server.page_url())
    card = page.locator(".jp-LauncherCard", has_text="NPU Cluster (Python 3)").first
    card.locator("img[src$='logo-svg.svg'], img[src*='logo']").wait_for()
    card.click()
    page.locator(".jp-NotebookPanel-toolbar").get_by_text("NPU Cluster").wait_for()
    page.locator(".jp-Notebook").wait_for()
    editor = page.locator(".jp-NotebookPanel:visible .cm-content").first
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    editor.fill("%npu_cluster list")
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-OutputArea-output").first.wait_for()
    assert "UsageError" not in page.locator(".jp-OutputArea").first.inner_text()


def test_a_start_shows_its_progress_and_ends_in_a_table(open_notebook):
    notebook = open_notebook([START])
    notebook.start(0)
    seen = set()

    def ready() -> bool:
        seen.add(notebook.output_text(0))
        return "ready after" in notebook.output_text(0)

    notebook.wait_until(ready, "the cluster is ready", 60)
    assert any("Starting" in text for text in seen)
    notebook.wait_done(0)
    text = notebook.output_text(0)
    assert "4 ranks on CPU, gloo" in text
    assert "Starting" not in text
    assert notebook.output(0).locator("table tr").count() == 5


def test_the_output_of_a_cell_stays_in_that_cell(open_cluster):
    notebook = open_cluster(
        "%%spmd\nprint('same everywhere')\nprint('I am', rank)", "print('plain')"
    )
    text = notebook.run(1)
    assert "[0-3] same everywhere" in text
    for rank in range(4):
        assert f"[{rank}] I am {rank}" in text
    assert notebook.run(2).strip() == "plain"
    assert notebook.output_text(1) == text


def test_the_stop_button_ends_a_flood_and_the_page_stays_usable(open_cluster):
    notebook = open_cluster(FLOOD, "print('typed')", "%%spmd\n'alive'")
    notebook.start(1)
    notebook.output(1).get_by_text("of rank").first.wait_for()
    # Four ranks that print, a browser and a server share the machine's cores: seconds
    # here, where a page that draws all of it anew each time froze for half a minute.
    typed_s = time.monotonic()
    notebook.cell(2).locator(".cm-content").first.fill("print('typed later')")
    assert time.monotonic() - typed_s < USABLE_S
    pressed_s = time.monotonic()
    notebook.press_stop()
    notebook.wait_done(1)
    assert time.monotonic() - pressed_s < USABLE_S
    assert notebook.run(2).strip() == "typed later"
    assert "[0-3] 'alive'" in notebook.run(3)


def test_a_flood_is_capped_on_screen_and_whole_in_its_files(open_cluster, lab_server):
    notebook = open_cluster(FLOOD)
    notebook.run(1, timeout_s=120)
    text = notebook.output_text(1)
    notices = re.findall(
        r"([\d,]+) lines of rank (\d) hidden, full text in (\S+)", text
    )
    assert [rank for _, rank, _ in notices] == ["0", "1", "2", "3"]
    for _, rank, spool in notices:
        lines = Path(spool).read_text().splitlines()
        assert lines[:-1] == [f"line {i} of rank {rank}" for i in range(200_000)]
        assert lines[-1] == "flood over"
    notebook.save()
    assert notebook.path.stat().st_size < 1_200_000
    assert "rate exceeded" not in lab_server.log_text()


def test_the_stop_button_ends_a_sleep_on_every_rank(open_cluster):
    sleep = (
        "%%spmd\nimport time\nx = rank * 2\nprint('asleep')\n"
        "while True:\n    time.sleep(5)"
    )
    notebook = open_cluster(sleep, "%%spmd\nprint('x is', x)")
    notebook.start(1)
    notebook.output(1).get_by_text("[0-3] asleep").wait_for()
    pressed_s = time.monotonic()
    notebook.press_stop()
    notebook.wait_done(1)
    assert time.monotonic() - pressed_s < USABLE_S
    assert "Interrupted: ranks 0-3 at line 5" in notebook.output_text(1)
    text = notebook.run(2)
    for rank in range(4):
        assert f"[{rank}] x is {2 * rank}" in text


def test_a_progress_bar_is_one_line_per_rank(open_cluster):
    bars = (
        "%%spmd\nimport time\nfrom tqdm import tqdm\n"
        "for _ in tqdm(range(40), desc=f'rank {rank}'):\n    time.sleep(0.05)"
    )
    notebook = open_cluster(bars)
    notebook.start(1)
    counts = set()

    def done() -> bool:
        counts.add(notebook.output_text(1).count("it/s"))
        return notebook.prompt(1) != "[*]:"

    notebook.wait_until(done, "the bars are full", 30)
    assert max(counts) == 4
    lines = [line for line in notebook.output_text(1).splitlines() if "%" in line]
    assert len(lines) == 4
    for rank, line in enumerate(lines):
        assert line.startswith(f"[{rank}] rank {rank}: 100%")


def test_output_of_a_cell_that_does_not_block_lands_in_it(open_cluster):
    late = (
        "%%spmd --no-block\nimport time\nfor i in range(20):\n"
        "    print('late', i)\n    time.sleep(0.1)"
    )
    notebook = open_cluster(late, "print('meanwhile')")
    notebook.start(1)
    notebook.wait_done(1)
    assert "late 19" not in notebook.output_text(1)
    assert notebook.run(2).strip() == "meanwhile"
    notebook.output(1).get_by_text("[0-3] late 19").wait_for()
    assert notebook.output_text(2).strip() == "meanwhile"


def test_shutting_the_kernel_down_ends_the_cluster(open_cluster):
    notebook = open_cluster()
    assert cluster_processes() > 0
    notebook.shut_down_kernel()
    notebook.wait_until(lambda: cluster_processes() == 0, "the cluster is gone", 20)


def test_a_restarted_kernel_finds_its_ranks_and_variables(open_cluster):
    notebook = open_cluster(
        "%%spmd\nx = rank + 10",
        "%npu_cluster attach",
        "%%spmd\nprint('x is', x)",
        "%npu_cluster stop",
    )
    notebook.run(1)
    notebook.press_restart()
    notebook.wait_idle()
    assert cluster_processes() > 0
    notebook.run(2)
    text = notebook.run(3)
    assert "[0] x is 10" in text
    assert "[3] x is 13" in text
    notebook.run(4)
    notebook.wait_until(lambda: cluster_processes() == 0, "the cluster is gone", 20)
