"""Stop reaches the ranks and what they started, and nothing else (H02, H03)."""

import subprocess
import time
from collections.abc import Iterator

import pytest

from npu_notebook import CellError, Cluster
from npu_notebook.cells import SECOND_THOUGHT_S
from npu_notebook.messages import StreamText
from tests.cases.notebook import Notebook, each
from tests.cases.processes import alive, sleepers

PIDS = "%%spmd --out pids\nimport os\nos.getpid()"


def test_h02_stop_reaches_all_ranks_within_two_seconds_and_keeps_all(
    shared_notebook: Notebook,
):
    notebook = shared_notebook
    notebook.must(PIDS)
    pids = notebook.value("pids")
    cell = notebook.begin(
        "%%spmd\n"
        "import time\n"
        "print('looping')\n"
        "try:\n"
        "    for i in range(600):\n"
        "        time.sleep(1)\n"
        "except KeyboardInterrupt:\n"
        "    stopped_s = time.monotonic()\n"
        "    raise\n"
    )
    notebook.until(lambda: cell.all_said("looping"))
    pressed_s = notebook.press_stop()
    notebook.wait(cell)
    assert "ranks 0-3" in cell.error
    assert "Interrupted" in cell.error
    assert "Variables are kept" in cell.error
    notebook.must("%pull stopped_s i")
    delays_s = [at_s - pressed_s for at_s in notebook.value("stopped_s")]
    assert max(delays_s) < 2.0
    assert notebook.value("i") == [0] * 4
    again = notebook.must("%%spmd\nprint(i, os.getpid())")
    assert sorted(again.lines) == [f"[{rank}] 0 {pid}" for rank, pid in enumerate(pids)]


def test_h02_a_second_stop_insists_and_a_third_replaces_nothing_unsaid(
    notebook: Notebook,
):
    notebook.must(PIDS)
    pids = notebook.value("pids")
    cell = notebook.begin(
        "%%spmd\n"
        "import time\n"
        "def shrug(n):\n"
        "    print('stop', n, 'ignored')\n"
        "print('looping')\n"
        "n = 0\n"
        "while True:\n"
        "    try:\n"
        "        time.sleep(0.2)\n"
        "        print('on')\n"
        "    except KeyboardInterrupt:\n"
        "        n += 1\n"
        "        shrug(n)\n"
    )
    notebook.until(lambda: cell.all_said("looping"))
    notebook.press_stop()
    notebook.until(lambda: cell.all_said("stop 1 ignored"))
    assert alive(pids, within_s=0) == pids  # kill is never the first step
    said = len(cell.text)
    insisted_s = notebook.press_stop()
    notebook.press_stop()  # at once: the same wish
    notebook.until(lambda: cell.all_said("stop 2 ignored"))
    notebook.until(lambda: time.monotonic() > insisted_s + SECOND_THOUGHT_S)
    assert alive(pids, within_s=0) == pids
    assert "child processes" in cell.text[said:]
    said = len(cell.text)
    notebook.press_stop()
    notebook.wait(cell)
    assert "ranks 0-3" in cell.text[said:]
    assert "variables are lost" in cell.text[said:]
    assert "%npu_cluster restart --ranks 0-3" in cell.error
    assert alive(pids, within_s=5) == []
    notebook.must("%npu_cluster restart")
    assert notebook.must("%spmd print('back')").by_rank == each("back")


TRACED = """
import cProfile, sys
called = cProfile.Profile().runcall(sorted, [2, 1])
events = []
sys.settrace(lambda frame, event, arg: events.append(event))
(lambda: None)()
sys.settrace(None)
called, events[0]
"""
DEAF = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"


@pytest.mark.parametrize(
    ("before", "levels"), [("", [1]), (DEAF, [1, 2])], ids=["one-stop", "two-stops"]
)
def test_h02_debuggers_and_profilers_work_after_a_stop(before: str, levels: list[int]):
    with Cluster.start(num_ranks=2, device="none") as cluster:
        loop = "import time\nprint('looping')\nwhile True: time.sleep(0.01)"
        handle = cluster.submit(f"{before}\n{loop}")
        looping = set()
        for update in handle.updates():
            if isinstance(update, StreamText) and "looping" in update.text:
                looping.add(update.rank)
            if len(looping) == 2:
                break
        for level in levels:
            handle.cancel(level)
        with pytest.raises(CellError, match="Variables are kept"):
            handle.wait(20)
        traced = cluster.submit(TRACED, want_value=True)
        assert traced.result(20) == [([1, 2], "call")] * 2


@pytest.fixture
def bystander() -> Iterator[int]:
    """A ``sleep 600`` that no cluster has started."""
    process = subprocess.Popen(["/bin/sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "command",
    [
        ["sleep", "600"],
        ["sh", "-c", "trap '' INT; sleep 600; sleep 600"],
        ["sh", "-c", "sleep 600 & wait"],
    ],
    ids=["plain", "deaf-to-ctrl-c", "grandchild"],
)
def test_h03_a_program_that_a_cell_started_ends_with_stop(
    shared_notebook: Notebook, bystander: int, command: list[str]
):
    notebook = shared_notebook
    cell = notebook.begin(
        "%%spmd\n"
        "import subprocess\n"
        f"p = subprocess.Popen({command})\n"
        "print('started', flush=True)\n"
        "p.wait()\n"
    )
    notebook.until(lambda: cell.all_said("started"))
    notebook.until(lambda: len(sleepers()) >= 4)
    started = sleepers()
    notebook.press_stop()
    notebook.wait(cell)
    left = alive(started, within_s=5)
    assert left == [] or all(str(pid) in cell.error for pid in left)
    assert left == []
    assert alive([bystander], within_s=0) == [bystander]


def test_h03_stopping_the_cluster_ends_even_programs_that_hid(
    notebook: Notebook, bystander: int
):
    script = (
        "import os\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if not os.fork():\n"
        "        os.execlp('sleep', 'sleep', '600')\n"
    )
    cell = notebook.must(
        "%%spmd\n"
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {script!r}])\n"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('ended')\n"
    )
    assert cell.by_rank == each("ended")
    notebook.until(lambda: len(sleepers()) == 8)
    started = sleepers()
    notebook.must("%npu_cluster stop")
    assert alive(started, within_s=5) == []
    assert alive([bystander], within_s=0) == [bystander]


def test_h03_stop_leaves_alone_what_an_earlier_cell_keeps_running(notebook: Notebook):
    notebook.must(
        "%%spmd\nimport subprocess, time\np = subprocess.Popen(['sleep', '600'])"
    )
    notebook.must("%%spmd --out servers\np.pid")
    cell = notebook.begin("%%spmd\nprint('looping')\ntime.sleep(600)")
    notebook.until(lambda: cell.all_said("looping"))
    notebook.press_stop()
    notebook.wait(cell)
    servers = notebook.value("servers")
    assert alive(servers, within_s=0) == servers
    notebook.must("%npu_cluster stop")
    assert alive(servers, within_s=5) == []
