"""Ranks as processes: forked, apart from each other, replaced, reported."""

import os
import signal
import stat
from pathlib import Path

import psutil
import pytest

from npu_notebook.messages import EndRanks, RankExited, RankJoined, RankSpawned
from tests.agent.scripted import is_alive, wait_until


def private_mbytes(pid: int) -> float:
    """Return the memory that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "Private_" in line) / 1024


def proportional_mbytes(pid: int) -> float:
    """Return the process's memory, shared pages divided by their number of users."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return (
        next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    )


def test_a_rank_is_a_process_of_the_agent_in_its_own_session_and_folder(controller):
    (pid,) = controller.start_ranks(0)
    process = psutil.Process(pid)
    assert process.ppid() == controller.agent.pid
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert process.cwd() == str(controller.folder)
    assert process.name() == "npu rank 0"
    log_path = controller.folder / "rank0.log"
    assert stat.S_IMODE(log_path.stat().st_mode) == 0o600


def test_a_rank_imports_from_its_folder(controller):
    (controller.folder / "beside.py").write_text("value = 7")
    controller.start_ranks(0)
    controller.run(0, "import beside; assert beside.value == 7")


def test_no_file_of_template_or_agent_is_open_in_a_rank(controller):
    (pid,) = controller.start_ranks(0)
    own = {one.path for one in psutil.Process(pid).open_files()}
    agent = {one.path for one in controller.agent.open_files()}
    assert not own & agent - {os.devnull}
    code = "import os; assert os.read(0, 1) == b''"
    controller.run(0, code)


def test_left_overs_of_other_launchers_do_not_reach_ranks(launch, monkeypatch):
    for name in ("WORLD_SIZE", "MASTER_PORT", "SLURM_PROCID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "17")
    monkeypatch.setenv("MY_OWN", "kept")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    controller = launch("none")
    controller.prepare()
    controller.start_ranks(0)
    code = """
import os
left = {"WORLD_SIZE", "MASTER_PORT", "SLURM_PROCID", "TORCHELASTIC_RUN_ID"}
assert not left & set(os.environ), left & set(os.environ)
assert os.environ["RANK"] == "0"
assert os.environ["MY_OWN"] == "kept"
assert os.environ["OMP_NUM_THREADS"] == "1"
"""
    controller.run(0, code)


def test_a_killed_rank_is_reported_with_its_signal_and_others_go_on(controller):
    first, second = controller.start_ranks(0, 1)
    os.kill(first, signal.SIGKILL)
    exit_ = controller.expect(RankExited, timeout_s=5.0)
    assert (exit_.rank, exit_.pid, exit_.returncode) == (0, first, -signal.SIGKILL)
    assert is_alive(second)
    controller.run(1, "x = 1")


def test_the_last_lines_of_a_dead_rank_come_with_its_exit(controller):
    controller.start_ranks(0)
    controller.submit(0, "import os; os.abort()")
    exit_ = controller.expect(RankExited)
    assert exit_.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in exit_.stderr_tail
    assert len(exit_.stderr_tail) <= 4096


def test_a_replaced_rank_does_not_show_the_lines_of_the_one_before(controller):
    controller.start_ranks(0)
    controller.submit(0, "import os; os.abort()")
    assert "Aborted" in controller.expect(RankExited).stderr_tail
    controller.start_ranks(0)
    controller.submit(0, "import os; os._exit(4)")
    exit_ = controller.expect(RankExited)
    assert (exit_.incarnation, exit_.returncode) == (1, 4)
    assert "Aborted" not in exit_.stderr_tail


def test_ended_ranks_can_be_started_again_at_once(controller):
    old = controller.start_ranks(0, 1)
    controller.send(EndRanks(ranks=(0, 1), grace_s=5.0))
    assert {controller.expect(RankExited).rank for _ in old} == {0, 1}
    assert not any(is_alive(pid) for pid in old)
    new = controller.start_ranks(0, 1)
    assert not set(new) & set(old)
    spawned = [one for one in controller.seen if isinstance(one, RankSpawned)]
    assert [one.incarnation for one in spawned] == [0, 0, 1, 1]


def test_a_dead_template_harms_no_rank_and_is_replaced(controller):
    (pid,) = controller.start_ranks(0)
    template = next(
        one for one in controller.agent.children() if one.name() == "npu template"
    )
    template.kill()
    wait_until(lambda: not template.is_running())
    assert is_alive(pid)
    (other,) = controller.start_ranks(1)
    assert psutil.Process(other).ppid() == controller.agent.pid


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cwd": "/no/such/folder"}, "/no/such/folder"),
        ({"log_path": "/proc/no-log"}, "/proc/no-log"),
    ],
)
def test_a_rank_that_cannot_start_is_reported_with_the_reason(
    controller, changes, words
):
    controller.start(controller.spec(0, **changes), controller.spec(1))
    exit_ = controller.expect(RankExited)
    assert exit_.rank == 0
    assert exit_.returncode != 0
    assert words in exit_.stderr_tail
    controller.expect(RankJoined, lambda m: m.rank == 1)


def test_forked_ranks_share_torch_and_draw_different_random_numbers(launch):
    controller = launch("cpu")
    assert controller.prepare().problem == ""
    pids = controller.start_ranks(*range(8))
    code = "import numpy, pathlib; "
    code += "pathlib.Path(f'drawn{rank}').write_text(str(numpy.random.rand()))"
    for rank in (0, 1):
        controller.run(rank, code)
    drawn = [(controller.folder / f"drawn{rank}").read_text() for rank in (0, 1)]
    assert drawn[0] != drawn[1]
    assert max(private_mbytes(pid) for pid in pids[2:]) <= 25.0
    template = next(
        one for one in controller.agent.children() if one.name() == "npu template"
    )
    assert sum(map(proportional_mbytes, [*pids, template.pid])) <= 400.0


def test_the_number_of_threads_given_to_the_cluster_reaches_torch(launch):
    controller = launch("cpu")
    assert controller.prepare(OMP_NUM_THREADS="2").problem == ""
    controller.start(controller.spec(0, env={"RANK": "0", "OMP_NUM_THREADS": "2"}))
    controller.expect(RankJoined)
    controller.run(0, "import torch; assert torch.get_num_threads() == 2")
