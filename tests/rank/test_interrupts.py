"""An interrupt reaches the running cell and nothing else."""

import time

import psutil
import pytest

from npu_notebook.messages import CellDone, StreamText
from tests.rank.driving import DrivenRank


def submit_and_wait_for_word(rank: DrivenRank, code: str) -> str:
    cell_id = rank.submit(code)
    report = rank.receive()
    assert isinstance(report, StreamText), report
    return cell_id


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(60)",
        "while True: pass",
        "import queue; queue.Queue().get()",
        "import subprocess; subprocess.run(['sleep', '60'])",
        "!sleep 60",
        "import asyncio; await asyncio.sleep(60)",
        "async def spin():\n    while True: pass\nawait spin()",
        "%time time.sleep(60)",
        "import select; select.select([], [], [])",
    ],
)
def test_an_interrupt_ends_the_cell_and_keeps_variables(rank: DrivenRank, body: str):
    code = f"import time\nkept = 17\nprint('begun', flush=True)\n{body}"
    cell_id = submit_and_wait_for_word(rank, code)
    begin_s = time.monotonic()
    rank.interrupt(cell_id=cell_id)
    error = rank.wait(cell_id).error
    assert time.monotonic() - begin_s < 5.0
    assert error.kind == "KeyboardInterrupt"
    assert error.interrupted
    # IPython before 9 hides the cell's own frame when %time is interrupted.
    assert error.frames[0].file in (f"Cell In[{rank.cell_count}]", "<timed eval>")
    assert rank.run("kept").value == "17"


def test_an_interrupt_ends_a_bash_cell(rank: DrivenRank):
    cell_id = submit_and_wait_for_word(rank, "%%bash\necho begun\nsleep 60")
    rank.interrupt()
    error = rank.wait(cell_id, timeout_s=10.0).error
    # IPython before 9 ends the magic quietly.
    assert error is None or error.interrupted
    assert rank.run("1").value == "1"


def test_child_processes_of_the_cell_end_and_those_of_earlier_cells_do_not(
    rank: DrivenRank,
):
    old = int(
        rank.run(
            "import subprocess, time\nold = subprocess.Popen(['sleep', '60'])\nold.pid"
        ).value
    )
    code = (
        "new = subprocess.Popen('sleep 60 & sleep 60; true', shell=True)\n"
        "print(new.pid)\nnew.wait()"
    )
    cell_id = rank.submit(code)
    new = psutil.Process(int(rank.receive().text))
    while len(new.children()) < 2:
        time.sleep(0.01)
    family = [new, *new.children()]
    rank.interrupt()
    rank.wait(cell_id)
    _, alive = psutil.wait_procs(family, 5.0)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
    assert psutil.Process(old).status() != psutil.STATUS_ZOMBIE
    assert rank.run("old.kill(); old.wait(); new.wait()").error is None


def test_a_child_that_ignores_sigint_is_terminated(rank: DrivenRank):
    code = (
        "import subprocess\n"
        "p = subprocess.Popen(['sh', '-c', 'trap \"\" INT; echo begun; sleep 60'])\n"
        "p.wait()"
    )
    cell_id = submit_and_wait_for_word(rank, code)
    rank.interrupt()
    error = rank.wait(cell_id).error
    assert error.message == ""
    assert rank.run("p.wait()").value == "-15"


def test_a_child_that_ignores_everything_is_named_and_then_killed(rank: DrivenRank):
    code = (
        "p = subprocess.Popen(['sh', '-c', "
        "'trap \"\" INT TERM; echo begun; while :; do sleep 1; done'])\n"
        "p.wait()"
    )
    cell_id = submit_and_wait_for_word(rank, f"import subprocess\n{code}")
    rank.interrupt()
    error = rank.wait(cell_id).error
    assert "still running: sh (pid " in error.message
    rank.run("p.kill(); p.wait()")

    cell_id = submit_and_wait_for_word(rank, code)
    rank.interrupt(level=1)
    rank.interrupt(level=2)
    assert rank.wait(cell_id).error.message == ""
    assert rank.run("p.wait()").value == "-9"


def test_the_second_level_reaches_code_that_put_sigint_aside(rank: DrivenRank):
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, lambda *_: print('no'))\n"
        "print('begun', flush=True)\n"
        "while True: pass"
    )
    cell_id = submit_and_wait_for_word(rank, code)
    rank.interrupt(level=1)
    assert rank.receive().text == "no\n"
    rank.interrupt(level=2)
    assert rank.wait(cell_id).error.kind == "KeyboardInterrupt"
    cell_id = submit_and_wait_for_word(rank, "print('x')\nwhile True: pass")
    rank.interrupt(level=1)
    assert rank.wait(cell_id).error.kind == "KeyboardInterrupt"


def test_a_waiting_cell_can_be_interrupted_alone(rank: DrivenRank):
    first = submit_and_wait_for_word(
        rank, "import time\nran = []\nprint('x')\ntime.sleep(0.5)\nran.append(1)"
    )
    second = rank.submit("ran.append(2)")
    third = rank.submit("ran.append(3)")
    rank.interrupt(cell_id=second)
    assert rank.wait(first).error is None
    assert rank.wait(second).error.interrupted
    assert rank.wait(third).error is None
    assert rank.run("ran").value == "[1, 3]"


def test_interrupts_around_cell_boundaries_never_hit_another_cell(rank: DrivenRank):
    rank.run("count = 0")
    ends = 0
    for number in range(200):
        short = rank.submit("sum(range(2000))")
        after = rank.submit("count += 1")
        time.sleep(number % 20 * 0.0002)
        rank.interrupt(cell_id=short)
        run = rank.wait(after)
        short_done, after_done = (
            one for one in run.reports if isinstance(one, CellDone)
        )
        assert after_done.error is None
        assert short_done.error is None or short_done.error.interrupted
        ends += short_done.error is not None
    assert rank.run("count").value == "200"
    assert ends > 0  # some hit


def test_a_storm_of_interrupts_ends_the_cell_once(rank: DrivenRank):
    code = (
        "import time\nseen = 0\nprint('begun', flush=True)\n"
        "for _ in range(3):\n"
        "    try:\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        seen += 1\n        raise\n"
    )
    cell_id = submit_and_wait_for_word(rank, code)
    for _ in range(200):
        rank.interrupt()
    assert rank.wait(cell_id).error.kind == "KeyboardInterrupt"
    assert rank.run("seen").value == "1"


def test_text_printed_before_an_interrupt_is_not_lost(rank: DrivenRank):
    code = "i = 0\nprint('begun')\nwhile True:\n    i += 1\n    print(i)"
    cell_id = submit_and_wait_for_word(rank, code)
    time.sleep(0.1)
    rank.interrupt()
    lines = rank.wait(cell_id).text().split()
    last = int(rank.run("i").value)
    numbers = [int(line) for line in lines if line != "begun"]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert last - numbers[-1] <= 1


@pytest.mark.parametrize(
    "damage",
    [
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])",
    ],
)
def test_what_a_cell_does_to_sigint_ends_with_the_cell(rank: DrivenRank, damage: str):
    assert rank.run(f"import signal\nold = {damage}").error is None
    cell_id = submit_and_wait_for_word(rank, "print('x')\nwhile True: pass")
    rank.interrupt(level=1)
    assert rank.wait(cell_id).error.kind == "KeyboardInterrupt"
