"""Agents as children of the controller."""

import signal
import stat
import sys

import pytest

from npu_notebook import plugins
from npu_notebook.errors import LaunchError
from npu_notebook.launchers import HostExit
from npu_notebook.launchers.local import LocalLauncher
from npu_notebook.topology import HostSpec
from tests.agent.scripted import wait_until

HOST = HostSpec(name="here")


def wait_for_exit(launcher: LocalLauncher) -> HostExit:
    exits: list[HostExit] = []
    wait_until(lambda: exits.extend(launcher.poll()) or exits)
    assert launcher.poll() == []  # each is told once
    return exits[0]


def test_it_is_found_by_its_entry_point():
    assert isinstance(plugins.load("npu_notebook.launchers", "local"), LocalLauncher)


def test_an_agent_that_ends_early_is_reported_with_its_last_words(tmp_path):
    launcher = LocalLauncher()
    program = "import sys; sys.exit('no such module')"
    launcher.launch(HOST, [sys.executable, "-c", program], tmp_path / "log")
    exit_ = wait_for_exit(launcher)
    assert (exit_.host, exit_.returncode) == ("here", 1)
    assert exit_.reason == "no such module\n"
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("program", "log"), [("/no/such/python", "log"), (sys.executable, "no/folder/log")]
)
def test_what_cannot_be_started_is_a_launch_error(tmp_path, program, log):
    with pytest.raises(LaunchError, match=r"the agent on here did not start: .*no"):
        LocalLauncher().launch(HOST, [program, "-c", "pass"], tmp_path / log)


def test_an_agent_that_does_not_end_is_killed_after_the_grace(tmp_path):
    launcher = LocalLauncher()
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    program += "print('deaf', flush=True); signal.pause()"
    launcher.launch(HOST, [sys.executable, "-c", program], tmp_path / "log")
    wait_until((tmp_path / "log").read_text)
    launcher.end(grace_s=0.2)
    assert wait_for_exit(launcher).returncode == -signal.SIGKILL
