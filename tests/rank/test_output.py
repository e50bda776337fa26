"""What a cell prints arrives whole, in order, live and under the right cell."""

import time
from collections import defaultdict

import pytest

from npu_notebook.messages import CellDone, StreamText
from tests.rank.driving import CellRun, Desk, DrivenRank


def texts_by_cell(run: CellRun) -> dict[str, str]:
    found: dict[str, str] = defaultdict(str)
    for report in run.reports:
        if isinstance(report, StreamText):
            found[report.cell_id] += report.text
    return found


@pytest.mark.parametrize(
    "text",
    [
        "plain\n",
        "\n\n  leading blanks\n\n",
        "no end of line",
        "bar 1\rbar 2\r",
        "\x1b[31mred\x1b[0m\n",
        "d\u00e9j\u00e0 vu \u4e2d\u6587 \U0001f600\n",
        "tab\tnul\x00bell\x07\n",
        "long " * 100_000,
    ],
)
def test_text_arrives_unaltered(rank: DrivenRank, text: str):
    for stream in ("stdout", "stderr"):
        run = rank.run(f"import sys; n = sys.{stream}.write({text!r})")
        assert run.text(stream) == text


def test_what_is_no_unicode_stays_readable(rank: DrivenRank):
    run = rank.run("import os\nprint(os.fsdecode(b'a\\xffb'))")
    assert run.text() == "a\\udcffb\n"
    run = rank.run("n = sys.stdout.buffer.write(b'a\\xffb\\n')")
    assert run.text() == "a\\xffb\n"


def test_bytes_may_come_in_halves_of_characters(rank: DrivenRank):
    data = "\u4e2d\u6587\n".encode()
    code = f"for byte in {data!r}:\n    sys.stdout.buffer.write(bytes([byte]))"
    assert rank.run(f"import sys\n{code}").text() == "\u4e2d\u6587\n"


def test_every_line_of_a_flood_arrives(rank: DrivenRank):
    run = rank.run("for i in range(20_000):\n    print('line', i)")
    assert run.text() == "".join(f"line {i}\n" for i in range(20_000))
    assert len(run.reports) < 100


def test_lines_arrive_while_the_cell_runs(rank: DrivenRank):
    cell_id = rank.submit(
        "import time\nfor i in range(3):\n    print('step', i)\n    time.sleep(0.4)"
    )
    begin_s = time.monotonic()
    arrivals = []
    while not isinstance(report := rank.receive(), CellDone):
        arrivals.append((report.text, time.monotonic() - begin_s))
    assert report.cell_id == cell_id
    assert [text for text, _ in arrivals] == ["step 0\n", "step 1\n", "step 2\n"]
    for number, (_, after_s) in enumerate(arrivals):
        assert after_s < 0.4 * number + 1.0


def test_both_streams_keep_their_order(rank: DrivenRank):
    code = "import sys\nfor i in range(5):\n    print(i)\n    print(i, file=sys.stderr)"
    run = rank.run(code)
    order = [(one.stream, one.text) for one in run.reports[:-1]]
    expected = [(s, f"{i}\n") for i in range(5) for s in ("stdout", "stderr")]
    assert order == expected


def test_child_processes_and_prints_keep_their_order(rank: DrivenRank):
    code = (
        "import os, subprocess, sys\n"
        "for i in range(20):\n"
        "    print('own', i)\n"
        "    subprocess.run(['echo', 'child', str(i)])\n"
        "os.system('echo system')\n"
        "subprocess.run(['echo', 'given'], stdout=sys.stdout, stderr=sys.stderr)\n"
        "print('a', flush=True); os.write(1, b'b\\n'); print('c')"
    )
    expected = "".join(f"own {i}\nchild {i}\n" for i in range(20))
    assert rank.run(code).text() == expected + "system\ngiven\na\nb\nc\n"


def test_output_of_c_code_arrives_before_the_end(rank: DrivenRank):
    code = "import ctypes\nn = ctypes.CDLL(None).printf(b'from C\\n')"
    assert rank.run(code).text() == "from C\n"


def test_threads_print_into_the_cell_that_started_them(rank: DrivenRank):
    code = (
        "import threading, time\n"
        "go = threading.Event()\n"
        "def late():\n"
        "    go.wait(); print('late')\n"
        "    inner = threading.Thread(target=lambda: print('inner'))\n"
        "    inner.start(); inner.join()\n"
        "thread = threading.Thread(target=late)\n"
        "thread.start()\n"
        "print('B')"
    )
    first = rank.submit(code)
    assert texts_by_cell(rank.wait(first)) == {first: "B\n"}
    second = rank.submit("go.set(); thread.join(); print('C')")
    texts = texts_by_cell(rank.wait(second))
    assert texts == {first: "late\ninner\n", second: "C\n"}


def test_child_processes_print_into_the_cell_that_started_them(rank: DrivenRank):
    code = (
        "import subprocess\n"
        "late = subprocess.Popen('read line; echo late; echo err >&2', shell=True,\n"
        "                        stdin=subprocess.PIPE)\n"
        "print('B')"
    )
    first = rank.submit(code)
    assert texts_by_cell(rank.wait(first)) == {first: "B\n"}
    second = rank.submit("print('C')")
    assert texts_by_cell(rank.wait(second)) == {second: "C\n"}
    third = rank.submit(
        "n = late.communicate(b'\\n')\nimport time; time.sleep(0.2); print('D')"
    )
    texts = texts_by_cell(rank.wait(third))
    assert texts == {first: "late\nerr\n", third: "D\n"}


def test_a_process_left_behind_by_a_child_keeps_its_cell(rank: DrivenRank):
    first = rank.submit(
        "import os, subprocess\nn = subprocess.run("
        "'(while [ ! -e flag ]; do sleep 0.05; done; rm flag; echo late) &',"
        " shell=True)"
    )
    rank.wait(first)
    second = rank.submit(
        "print('C')\nopen('flag', 'w').close()\n"
        "import time\nwhile os.path.exists('flag'): time.sleep(0.01)\ntime.sleep(0.2)"
    )
    texts = texts_by_cell(rank.wait(second))
    assert texts == {first: "late\n", second: "C\n"}


def test_tasks_print_into_the_cell_that_made_them(rank: DrivenRank):
    first = rank.submit(
        "import asyncio\n"
        "async def late():\n    await asyncio.sleep(0.05); print('late')\n"
        "task = asyncio.ensure_future(late())\n"
        "await asyncio.sleep(0)"
    )
    rank.wait(first)
    second = rank.submit("await task\nprint('C')")
    assert texts_by_cell(rank.wait(second)) == {first: "late\n", second: "C\n"}


def test_bash_cells_print_into_their_own_cell(rank: DrivenRank):
    for word in ("one", "two"):
        cell_id = rank.submit(f"%%bash\necho {word}\necho {word} >&2")
        assert texts_by_cell(rank.wait(cell_id)) == {cell_id: f"{word}\n{word}\n"}


def test_a_logging_handler_of_an_earlier_cell_logs_into_the_present_one(
    rank: DrivenRank,
):
    code = (
        "import logging, sys\nlog = logging.getLogger('mine')\n"
        "log.addHandler(logging.StreamHandler(sys.stdout))\n"
        "log.setLevel(logging.INFO)\n"
        "log.info('hello')"
    )
    assert rank.run(code).text() == "hello\n"
    again = rank.submit("log.info('again')")
    assert texts_by_cell(rank.wait(again)) == {again: "again\n"}
    assert rank.run(code).text() == "hello\nhello\n"
    assert rank.run("logging.getLogger().handlers").value == "[]"


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_child_process_may_print_and_run_what_was_typed_in_a_cell(
    desk: Desk, how: str
):
    rank = desk.start()  # Python's resource tracker stays as long as the rank
    code = (
        "import multiprocessing as mp\n"
        "number = 41\n"
        "class Answer:\n    def __init__(self, n): self.n = n\n"
        "def say(queue):\n    print('child of', number + 1)\n    queue.put(Answer(7))\n"
        f"context = mp.get_context({how!r})\n"
        "queue = context.Queue()\n"
        "p = context.Process(target=say, args=(queue,))\n"
        "p.start(); answer = queue.get(timeout=20); p.join(20)\n"
        "print(p.exitcode, type(answer) is Answer, answer.n)"
    )
    run = rank.run(code)
    assert run.text("stderr") == ""
    assert run.error is None
    assert run.text() == "child of 42\n0 True 7\n"


def test_a_pool_of_spawned_processes_runs_what_was_typed_in_a_cell(desk: Desk):
    rank = desk.start()
    code = (
        "import multiprocessing as mp\n"
        "def double(n): return 2 * n\n"
        "with mp.get_context('spawn').Pool(1) as pool:\n"
        "    first = pool.map(double, [1, 2])\n"
        "    def double(n): return 20 * n\n"
        "    second = pool.map(double, [1, 2])\n"
        "first + second"
    )
    assert rank.run(code).value == "[2, 4, 20, 40]"


def test_lines_of_forked_children_do_not_mix(rank: DrivenRank):
    code = (
        "import os\npids = []\n"
        "for child in range(4):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        for i in range(300): print('child', child, 'line', i)\n"
        "        os._exit(0)\n"
        "    pids.append(pid)\n"
        "for pid in pids: n = os.waitpid(pid, 0)"
    )
    lines = rank.run(code).text().splitlines()
    expected = [f"child {c} line {i}" for c in range(4) for i in range(300)]
    assert sorted(lines) == sorted(expected)


def test_a_stream_is_no_terminal_and_knows_its_descriptor(rank: DrivenRank):
    code = (
        "import sys\n(sys.stdout.isatty(), sys.stdout.fileno(), sys.stderr.fileno(), "
        "sys.stdout.encoding, sys.stdout.writable(), sys.__stdout__ is sys.stdout)"
    )
    assert rank.run(code).value == "(False, 1, 2, 'utf-8', True, True)"


def test_closing_a_stream_does_not_silence_the_rank(rank: DrivenRank):
    assert rank.run("sys.stdout.close(); print('still here')").text() == "still here\n"


def test_writing_something_else_than_text_is_an_error(rank: DrivenRank):
    error = rank.run("sys.stdout.write(b'x')").error
    assert error.message == "write() argument must be str, not bytes"


def test_output_that_a_finaliser_prints_is_no_deadlock(rank: DrivenRank):
    code = (
        "import gc\n"
        "class Loud:\n    def __del__(self): print('gone')\n"
        "for i in range(2000):\n"
        "    loud = Loud(); loud.me = loud\n"
        "    print(i)\n"
        "del loud; n = gc.collect()"
    )
    assert rank.run(code).text().count("gone") == 2000


@pytest.mark.parametrize(
    "damage",
    [
        "sys.stderr = None",
        "del sys.stdout",
        "sys.stdout = open(os.devnull, 'w'); sys.stdout.close()",
        "os.close(1); os.close(2)",
        "os.close(0); os.close(1); os.close(2)",
        "os.close(1); taken = open(os.devnull, 'w')",
    ],
)
def test_a_cell_that_breaks_its_streams_breaks_only_its_own(desk: Desk, damage: str):
    rank = desk.start()
    rank.run(f"import os, sys\n{damage}")
    run = rank.run("print('shown')\nprint('too', file=sys.stderr)\n!echo child")
    assert run.error is None
    assert run.text() == "shown\nchild\n"
    assert run.text("stderr") == "too\n"


def test_a_stream_that_a_cell_has_put_in_place_stays(desk: Desk):
    rank = desk.start()
    rank.run("import io, sys\nsys.stdout = kept = io.StringIO()\nprint('one')")
    assert rank.run("print('two')").text() == ""
    assert rank.run("sys.stdout = sys.__stdout__\nkept.getvalue()").value == (
        r"'one\ntwo\n'"
    )


def test_what_is_printed_is_not_kept(desk: Desk):
    rank = desk.start()
    rank.run("import os, psutil\nprocess = psutil.Process()")
    rank.run("before = process.memory_info().rss")
    for number in range(5):
        rank.run(f"for i in range(2000): print({number}, i, 'x' * 2000)")
    grown = int(rank.run("process.memory_info().rss - before").value)
    assert grown < 10 << 20  # 20 MB were printed
