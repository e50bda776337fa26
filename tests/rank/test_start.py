"""How a rank starts, and how it ends."""

import os
import signal
import sys
import time

import pytest

from npu_notebook.messages import (
    PROTOCOL_VERSION,
    FormGroup,
    Heartbeat,
    RankFailed,
    RankJoined,
)
from tests.rank.driving import Desk, DrivenRank


def test_a_rank_says_who_it_is(rank: DrivenRank):
    joined = rank.first_report
    assert joined == RankJoined(
        rank=0,
        incarnation=0,
        host="here",
        pid=rank.process.pid,
        python=".".join(map(str, sys.version_info[:3])),
        torch="",
        device="",
        protocol_version=PROTOCOL_VERSION,
    )


def test_torch_comes_before_ipython(desk: Desk):
    rank = desk.start("cpu")
    assert rank.first_report.device == "cpu"
    assert rank.first_report.torch.startswith("2.")
    code = (
        "import sys\nnames = list(sys.modules)\n"
        "(names.index('torch') < names.index('IPython'), 'ipykernel' in names, device)"
    )
    assert rank.run(code).value == "(True, False, device(type='cpu'))"
    assert rank.run("import torch; torch.get_num_threads()").value == "1"


def test_a_device_that_cannot_be_used_is_the_reason(desk: Desk):
    rank = desk.start("nonsense")
    assert isinstance(rank.first_report, RankFailed)
    assert rank.first_report.error.kind == "ConfigError"
    assert "no devices named 'nonsense'" in rank.first_report.error.message
    assert rank.process.wait(10) == 1
    assert "Traceback" in rank.log


def test_a_folder_that_is_not_there_is_the_reason(desk: Desk):
    rank = desk.start(cwd=str(desk.folder / "nowhere"))
    assert rank.first_report.error.kind == "FileNotFoundError"
    assert "nowhere" in rank.first_report.error.message
    assert rank.process.wait(10) == 1


def test_a_rank_ends_when_it_is_told(desk: Desk):
    rank = desk.start()
    code = "import atexit\natexit.register(lambda: open('left', 'w').close());"
    rank.run(code)
    begin_s = time.monotonic()
    assert rank.end() == 0
    assert time.monotonic() - begin_s < 10.0
    assert (rank.cwd / "left").exists()
    assert rank.log == ""


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "while True: pass"])
def test_sigterm_ends_a_rank_at_once(desk: Desk, code: str):
    rank = desk.start()
    rank.submit(f"print('begun')\n{code}")
    rank.receive()
    os.kill(rank.process.pid, signal.SIGTERM)
    assert rank.process.wait(5) == -signal.SIGTERM
    assert rank.log == ""


def test_a_crash_leaves_its_place_in_the_log(desk: Desk):
    rank = desk.start()
    rank.submit("import ctypes\nctypes.string_at(0)")
    assert rank.process.wait(10) == -signal.SIGSEGV
    assert "Segmentation fault" in rank.log
    assert "ipython-input-1" in rank.log


def test_a_rank_beats_and_says_what_it_does(desk: Desk):
    rank = desk.start()
    desk.keep_heartbeats = True
    cell_id = rank.submit("import time\ndef f():\n    time.sleep(5)\nf()")
    rank.wait(cell_id)
    beats = [one for one in desk.heartbeats if isinstance(one, Heartbeat)]
    assert Heartbeat(rank=0, cell_id=cell_id, doing="running line 3") in beats


_TEMPLATE = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's starts its threads when imported
import torch, torch.distributed, torch.utils.data
import IPython.core.interactiveshell, msgspec, zmq
import npu_notebook.rank.preload
from npu_notebook.rank.worker import run_rank
assert len(os.listdir("/proc/self/task")) == 1
birth = sys.stdin.buffer.read()
pid = os.fork()
if pid == 0:
    os._exit(run_rank(birth))
print(pid, flush=True)
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_rank_is_like_any_other(desk: Desk):
    rank = desk.start("cpu", program=[sys.executable, "-c", _TEMPLATE], forked=True)
    assert rank.first_report.device == "cpu"
    code = "import torch\n(torch.ones(4) @ torch.ones(4)).item(), __name__"
    assert rank.run(code).value == "(4.0, '__main__')"
    assert rank.run("print('hi')").text() == "hi\n"
    assert rank.run("1 / 0").error.kind == "ZeroDivisionError"
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    formed = rank.ask(
        FormGroup(
            epoch=1,
            master_address="127.0.0.1",
            master_port=store.port,
            world_size=1,
            timeout_s=20.0,
        )
    )
    assert formed.error is None
    assert rank.run("torch.get_num_threads()").value == "1"
    assert rank.end() == 0
    del store
