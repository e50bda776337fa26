"""What an agent says of its host, and that waiting costs nothing."""

import os
import stat
import sys
from pathlib import Path

from npu_notebook import runtime
from npu_notebook.devices.torch_install import find_torch
from npu_notebook.messages import AgentNotice, RankExited
from tests.agent.scripted import HOST, is_alive, wait_until


def test_the_facts_are_those_of_this_host(controller):
    fact = controller.fact
    assert fact.name == HOST
    assert fact.memory_key == runtime.memory_key()
    assert fact.python == runtime.python_version()
    assert fact.torch == find_torch().version
    assert fact.cpu_count == len(os.sched_getaffinity(0))
    found = {one.provider: one for one in fact.inventories}
    assert found["cpu"].count > 0
    assert {"ascend", "simulated", "cuda", "cpu"} <= set(found)


def test_an_agent_imports_no_torch(controller):
    maps = Path(f"/proc/{controller.agent.pid}/maps").read_text()
    assert "libtorch" not in maps


def test_its_log_can_be_read_by_its_user_alone(controller):
    assert stat.S_IMODE(controller.log_path.stat().st_mode) == 0o600
    assert "template" in controller.log_path.read_text()


def test_a_provider_that_is_not_there_is_refused_with_those_that_are(controller):
    controller.provider = "tpu"
    answer = controller.prepare()
    assert answer.problem == "no devices named 'tpu'"
    assert "cpu" in answer.remedy


def test_a_missing_torch_is_a_sentence(launch, tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('not today')")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.0'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    controller = launch("cpu")
    answer = controller.prepare()
    assert answer.problem == "import torch failed (ImportError: not today)"
    assert "--device none" in answer.remedy
    controller.start(controller.spec(0))
    assert "not today" in controller.expect(RankExited).stderr_tail


def test_ranks_are_spawned_where_forking_would_be_unsafe(launch, tmp_path, monkeypatch):
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, "
    thread += "daemon=True).start()\n"
    only_template = "import sys\nif 'template' in ' '.join(sys.orig_argv):\n    "
    code = only_template + "exec(" + repr(thread) + ")\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    controller = launch("none")
    assert controller.prepare().problem == ""
    notice = controller.expect(AgentNotice)
    assert notice.level == "warning"
    assert "2 threads" in notice.text
    (pid,) = controller.start_ranks(0)
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    assert command[:3] == [sys.executable, "-m", "npu_notebook.rank"]
    assert os.getsid(pid) == pid
    controller.agent.kill()
    wait_until(lambda: not is_alive(pid))
