"""A controller or an agent that is gone: nothing stays for ever."""

import shutil
import subprocess
import sys
import time

from tests.agent.scripted import ScriptedController, is_alive, wait_until

# A controller in a process of its own, so that a test can kill it.
PROGRAM = """
import signal
from tests.agent.scripted import ScriptedController
controller = ScriptedController("none")
controller.prepare()
pids = [controller.agent.pid, *controller.start_ranks(0, 1)]
print(controller.folder, *pids, flush=True)
signal.pause()
"""


def test_a_silent_controller_is_given_up_after_the_orphan_timeout(launch):
    controller: ScriptedController = launch("none", "--orphan-timeout", "2")
    controller.prepare()
    (pid,) = controller.start_ranks(0)
    begin_s = time.monotonic()
    # Nobody answers heartbeats from here on.
    assert controller.wait_for_agent(timeout_s=15.0) == 0
    assert time.monotonic() - begin_s > 1.5
    assert not is_alive(pid)
    assert "no word from the controller for" in controller.log_path.read_text()


def test_heartbeats_keep_an_agent_alive_beyond_the_orphan_timeout(launch):
    controller: ScriptedController = launch("none", "--orphan-timeout", "2")
    controller.prepare()
    (pid,) = controller.start_ranks(0)
    code = "import pathlib, time; time.sleep(4); pathlib.Path('late').write_text('1')"
    controller.run(0, code)  # answers heartbeats while it waits
    assert is_alive(pid)


def test_a_killed_controller_takes_agent_and_ranks_with_it():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as program:
        folder, *words = program.stdout.readline().split()
        pids = [int(word) for word in words]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        program.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), 10.0)
    shutil.rmtree(folder)


def test_ranks_do_not_outlive_a_killed_agent(controller):
    pids = controller.start_ranks(0, 1)
    pids += [process.pid for process in controller.agent.children()]
    controller.agent.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), 5.0)
