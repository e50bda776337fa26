"""Devices before the ranks: prepared with progress, bound once, refused in words."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npu_notebook.devices.simulated import SimulatedProvider
from npu_notebook.messages import AgentNotice, RankJoined
from tests.agent.test_ranks import private_mbytes

if TYPE_CHECKING:
    from tests.agent.scripted import ScriptedController


@pytest.fixture(scope="session")
def built_library() -> None:
    """Compile the simulated NPU, unless this torch build has it already."""
    SimulatedProvider().prepare(print)


@pytest.mark.usefixtures("built_library")
def test_forked_ranks_share_the_simulated_npus_library(launch):
    controller: ScriptedController = launch("simulated")
    assert controller.prepare().problem == ""
    specs = [
        controller.spec(rank, env={"RANK": str(rank), "LOCAL_WORLD_SIZE": "10"})
        for rank in (0, 9)
    ]
    controller.start(*specs)
    for rank in (0, 9):
        joined = controller.expect(RankJoined, lambda m, rank=rank: m.rank == rank)
        assert joined.device == f"npu:{rank}"
        assert private_mbytes(joined.pid) <= 25.0
    code = "import torch; assert torch.npu.device_count() == 10; "
    controller.run(9, code + "assert torch.ones(3, device=device).sum().item() == 3")


@pytest.mark.usefixtures("built_library")
def test_a_setting_of_the_device_that_cannot_be_read_is_refused_before_any_rank(launch):
    controller: ScriptedController = launch("simulated")
    answer = controller.prepare(NPU_NOTEBOOK_SIMULATED_DEVICES="many")
    assert answer.problem == (
        "NPU_NOTEBOOK_SIMULATED_DEVICES='many' is no number of simulated NPUs"
    )
    assert answer.remedy == "Give a number from 1 to 64."
    assert controller.prepare(NPU_NOTEBOOK_SIMULATED_DEVICES="2").problem == ""


def test_a_provider_that_cannot_be_prepared_says_why_and_what_else(launch, tmp_path):
    controller: ScriptedController = launch("simulated")
    answer = controller.prepare(
        NPU_NOTEBOOK_CACHE_DIR=str(tmp_path), CXX="no-such-compiler"
    )
    assert "no-such-compiler" in answer.problem
    assert "--device cpu" in answer.remedy


@pytest.fixture
def slow_compiler(tmp_path: Path) -> Path:
    """A compiler that says that it was called and then never ends."""
    program = tmp_path / "slow-c++"
    called = tmp_path / "called"
    sleep = shutil.which("sleep")
    program.write_text(f"#!/bin/sh\n: > {called}\n{sleep} 600\n")
    program.chmod(0o755)
    return program


def test_progress_is_told_and_the_end_of_a_host_ends_its_compiler(
    launch, tmp_path, slow_compiler
):
    controller: ScriptedController = launch("simulated")
    controller.provider = "simulated"
    with pytest.raises(AssertionError, match="no HostPrepared"):
        controller.prepare(
            2.0, NPU_NOTEBOOK_CACHE_DIR=str(tmp_path), CXX=str(slow_compiler)
        )
    assert "compiling" in controller.expect(AgentNotice).text.lower()
    controller.end()
