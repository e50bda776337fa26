"""Devices that one cluster has and another wants, through a provider of a plugin.

The plugin is what a third party would install: a package with an entry point. Its
devices are CPUs that may have one user each, as a real accelerator's device has.
"""

import os
from pathlib import Path

import psutil
import pytest

from npu_notebook.agent.locks import DeviceLocks
from npu_notebook.messages import AgentNotice, EndRanks, RankExited, RankJoined
from tests.agent.scripted import ScriptedController

MODULE = """
from npu_notebook.devices.provider import Inventory, ProviderFacts

class Provider:
    facts = ProviderFacts(name="exclusive", device_type="cpu", backend="gloo",
                          forkable=False, label="CPU for one")
    def discover(self):
        return Inventory(count=2, names=(), reason="")
    def prepare(self, report):
        report("warming up")
    def environment(self, local_rank):
        return {"EXCLUSIVE_DEVICE": str(local_rank)}
    def bind(self, local_rank):
        return f"cpu:{local_rank}"
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "exclusive_devices.py").write_text(MODULE)
    facts = tmp_path / "exclusive_devices-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Name: exclusive-devices\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[npu_notebook.devices]\nexclusive = exclusive_devices:Provider\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("NPU_NOTEBOOK_DEVICE_LOCK_DIR", str(tmp_path / "locks"))


def holders(controller: ScriptedController) -> tuple[str, ...]:
    found = {one.provider: one for one in controller.fact.inventories}
    return found["exclusive"].holders


@pytest.mark.usefixtures("plugin")
def test_a_device_of_another_cluster_is_named_before_and_refused_at_the_start(launch):
    first = launch("exclusive", "--cluster", "early")
    assert holders(first) == ()
    assert first.prepare().problem == ""
    assert first.expect(AgentNotice).text == "warming up"
    first.start(first.spec(0))
    joined = first.expect(RankJoined)
    assert joined.device == "cpu:0"
    assert psutil.Process(joined.pid).ppid() == first.agent.pid
    first.run(0, "import os; assert os.environ['EXCLUSIVE_DEVICE'] == '0'")

    second = launch("exclusive", "--cluster", "late")
    user = psutil.Process().username()
    holder = f"cluster 'early' of user {user} (agent pid {first.agent.pid})"
    assert holders(second) == (f"exclusive device 0 is in use by {holder}",)
    assert second.prepare().problem == ""
    second.start(second.spec(0), second.spec(1))
    refused = second.expect(RankExited)
    assert (refused.rank, refused.pid) == (0, 0)
    assert f"is in use by {holder}" in refused.stderr_tail
    assert second.expect(RankJoined).rank == 1

    first.end()
    second.start(second.spec(0))
    assert second.expect(RankJoined).rank == 0


@pytest.mark.usefixtures("plugin")
def test_a_restarted_rank_keeps_its_device(launch):
    controller = launch("exclusive")
    controller.prepare()
    controller.start_ranks(0)
    controller.send(EndRanks(ranks=(0,), grace_s=2.0))
    controller.expect(RankExited)
    # Nobody can take it between the two processes.
    asking = DeviceLocks("asking", Path(os.environ["NPU_NOTEBOOK_DEVICE_LOCK_DIR"]))
    assert len(asking.list_holders("exclusive", 2)) == 1
    controller.start_ranks(0)
