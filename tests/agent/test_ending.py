"""The end of ranks: asked first, then forced, with everything they started."""

import signal
import subprocess
import sys
import time

import psutil

from npu_notebook.messages import EndHost, EndRanks, HostEnded, RankExited
from tests.agent.scripted import is_alive, wait_until

SLEEPER = "import time; time.sleep(600)"
# Each starts a process that outlives an ordinary end of the rank and writes its pid.
CHILD = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("child").write_text(str(child.pid))
"""
DAEMON = """
import os, pathlib, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path("daemon").write_text(str(os.getpid()))
    time.sleep(600)
    os._exit(0)
os.wait()
"""
DAEMON_OF_A_PROGRAM = f"""
import subprocess, sys
code = {DAEMON!r}
subprocess.run([sys.executable, "-c", code], start_new_session=True, check=True)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def read_pid(controller, name: str) -> int:
    return int(controller.read_when_written(name))


def test_a_rank_that_ignores_sigterm_is_killed_after_its_grace(controller):
    (pid,) = controller.start_ranks(0)
    controller.run(0, DEAF)
    begin_s = time.monotonic()
    controller.send(EndRanks(ranks=(0,), grace_s=1.0))
    exit_ = controller.expect(RankExited)
    assert exit_.returncode == -signal.SIGKILL
    assert 1.0 <= time.monotonic() - begin_s < 15.0
    assert not is_alive(pid)


def test_what_a_rank_started_is_gone_when_its_exit_is_reported(controller):
    controller.start_ranks(0, 1)
    controller.run(0, CHILD)
    controller.run(0, DAEMON)
    pids = [read_pid(controller, "child"), read_pid(controller, "daemon")]
    assert all(is_alive(pid) for pid in pids)
    controller.send(EndRanks(ranks=(0,), grace_s=5.0))
    controller.expect(RankExited)
    assert not is_alive(pids[0])
    controller.run(1, "x = 1")


def test_the_end_of_one_rank_leaves_what_others_started_alone(controller):
    controller.start_ranks(0, 1)
    controller.run(1, CHILD)
    controller.run(1, DAEMON_OF_A_PROGRAM)
    pids = [read_pid(controller, "child"), read_pid(controller, "daemon")]
    controller.send(EndRanks(ranks=(0,), grace_s=2.0))
    controller.expect(RankExited)
    assert all(is_alive(pid) for pid in pids)
    controller.send(EndRanks(ranks=(1,), grace_s=2.0))
    controller.expect(RankExited)
    assert not any(is_alive(pid) for pid in pids)


def test_a_daemon_is_recognised_by_the_mark_in_its_environment(controller):
    controller.start_ranks(0, 1)
    controller.run(0, DAEMON_OF_A_PROGRAM)
    pid = read_pid(controller, "daemon")
    assert psutil.Process(pid).ppid() == controller.agent.pid
    controller.send(EndRanks(ranks=(0,), grace_s=2.0))
    controller.expect(RankExited)
    assert not is_alive(pid)
    controller.run(1, "x = 1")


def test_no_grandchild_survives_a_stop_whatever_it_does(controller):
    pids = controller.start_ranks(0, 1)
    controller.run(0, CHILD)
    controller.run(0, DAEMON)
    pids += [read_pid(controller, "child"), read_pid(controller, "daemon")]
    own = [process.pid for process in controller.agent.children()]
    controller.end()
    assert not any(is_alive(pid) for pid in {*pids, *own})


def test_workers_of_a_data_loader_end_with_the_cluster(launch):
    controller = launch("cpu")
    assert controller.prepare().problem == ""
    controller.start_ranks(0)
    code = """
import pathlib, torch
from torch.utils.data import DataLoader, TensorDataset
dl = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, num_workers=2,
                persistent_workers=True)
it = iter(dl)
next(it)
pathlib.Path("workers").write_text(" ".join(str(w.pid) for w in it._workers))
"""
    controller.run(0, code)
    pids = [int(word) for word in controller.read_when_written("workers").split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    controller.end()
    assert not any(is_alive(pid) for pid in pids)


def test_what_a_crashed_rank_leaves_behind_is_ended(controller):
    controller.start_ranks(0, 1)
    controller.run(0, CHILD)
    pid = read_pid(controller, "child")
    controller.submit(0, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert controller.expect(RankExited).returncode == -signal.SIGKILL
    wait_until(lambda: not is_alive(pid), 5.0)
    controller.run(1, "x = 1")


def test_a_zombie_that_a_living_rank_orphaned_is_reaped(controller):
    controller.start_ranks(0)
    code = "import os\nif os.fork() == 0:\n    os.fork()\n    os._exit(0)\nos.wait()"
    controller.run(0, code)
    zombie = psutil.STATUS_ZOMBIE
    wait_until(
        lambda: all(one.status() != zombie for one in controller.agent.children())
    )


def test_processes_that_the_cluster_did_not_start_are_not_touched(controller):
    with subprocess.Popen([sys.executable, "-c", SLEEPER]) as stranger:
        controller.start_ranks(0)
        controller.end()
        assert stranger.poll() is None
        stranger.kill()


def test_a_second_end_while_the_first_goes_on_changes_nothing(controller):
    controller.start_ranks(0)
    controller.run(0, DEAF)
    for _ in range(3):
        controller.send(EndHost(grace_s=1.0))
    assert controller.expect(RankExited).returncode == -signal.SIGKILL
    controller.expect(HostEnded)
    assert controller.wait_for_agent() == 0
    assert sum(isinstance(one, HostEnded) for one in controller.seen) == 1


def test_the_end_of_the_host_does_not_wait_for_a_longer_grace(controller):
    controller.start_ranks(0)
    controller.run(0, DEAF)
    begin_s = time.monotonic()
    controller.send(EndRanks(ranks=(0,), grace_s=60.0))
    controller.send(EndHost(grace_s=0.5))
    controller.expect(HostEnded)
    assert time.monotonic() - begin_s < 10.0


def test_an_agent_told_by_a_signal_ends_its_ranks_too(controller):
    (pid,) = controller.start_ranks(0)
    controller.agent.terminate()
    controller.expect(HostEnded)
    assert not is_alive(pid)
    assert controller.wait_for_agent() == 0


def test_a_host_can_end_while_its_template_is_still_importing(launch):
    controller = launch("cpu")
    controller.end()
