"""Bulk data in and out of this host's shared memory, in chunks with credit."""

import os
import stat
from pathlib import Path

import pytest

from npu_notebook import bulk
from npu_notebook.messages import (
    AgentNotice,
    BulkChunk,
    BulkCredit,
    RegionStored,
    SendRegion,
)
from tests.agent.scripted import HOST


@pytest.fixture
def shared(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NPU_NOTEBOOK_SHARED_MEMORY_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def agent(launch, shared):
    assert shared.is_dir()  # set before the agent starts
    return launch("none", "--cluster", "mine")


def chunk(transfer_id: str, offset: int, total_nbytes: int, host: str = HOST):
    return BulkChunk(
        transfer_id=transfer_id, host=host, offset=offset, total_nbytes=total_nbytes
    )


def test_chunks_become_a_private_file_in_shared_memory(agent, shared):
    data = [os.urandom(1000), os.urandom(500)]
    agent.send(chunk("t1", 0, 1500), (data[0],))
    assert agent.expect(BulkCredit).upto == 1000
    agent.send(chunk("t1", 1000, 1500), (data[1],))
    assert agent.expect(BulkCredit).upto == 1500
    stored = agent.expect(RegionStored)
    assert stored.problem == ""
    path = Path(stored.path)
    assert path == bulk.region_path(shared, "mine", "t1")
    assert path.read_bytes() == b"".join(data)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_does_not_fit_is_answered_and_nothing_is_left(agent, shared):
    huge = 1 << 50
    agent.send(chunk("t2", 0, huge), (b"x" * 100,))
    stored = agent.expect(RegionStored)
    assert "do not fit into" in stored.problem
    assert agent.expect(BulkCredit).upto == 100
    assert not list(shared.glob("*t2*"))


def test_a_region_is_sent_with_credit_and_removed(agent, shared):
    nbytes = bulk.CHUNK_NBYTES * (bulk.CREDIT + 2) + 5
    path = bulk.region_path(shared, "mine", "t3")
    data = os.urandom(nbytes)
    path.write_bytes(data)
    agent.send(SendRegion(transfer_id="t3", path=str(path)))
    received = bytearray()
    for _ in range(bulk.CREDIT):
        message, payload = agent.expect_payload(BulkChunk)
        assert (message.host, message.offset) == ("", len(received))
        assert message.total_nbytes == nbytes
        received += payload[0]
    assert not path.exists()
    with pytest.raises(AssertionError, match="no BulkChunk"):
        agent.expect(BulkChunk, timeout_s=0.5)
    while len(received) < nbytes:
        agent.send(BulkCredit(transfer_id="t3", host="", upto=len(received)))
        received += agent.expect_payload(BulkChunk)[1][0]
    agent.send(BulkCredit(transfer_id="t3", host="", upto=nbytes))
    assert received == data


@pytest.mark.parametrize("name", ["npu-notebook-{uid}-mine-gone", "../secret", "other"])
def test_a_path_that_is_no_region_is_refused(agent, shared, name):
    (shared / "other").write_text("not ours")
    path = shared / name.format(uid=os.getuid())
    agent.send(SendRegion(transfer_id="t4", path=str(path)))
    stored = agent.expect(RegionStored)
    assert stored.problem
    assert (shared / "other").exists()


def test_the_end_removes_this_clusters_regions_and_no_others(agent, shared, launch):
    other = launch("none", "--cluster", "mine-too")
    mine = bulk.region_path(shared, "mine", "left")
    theirs = bulk.region_path(shared, "mine-too", "left")
    for path in (mine, theirs):
        path.write_text("x")
    agent.end()
    assert not mine.exists()
    assert theirs.exists()
    other.end()
    assert not list(shared.iterdir())


def test_a_folder_that_cannot_be_used_is_a_warning_and_a_refusal(launch, monkeypatch):
    monkeypatch.setenv("NPU_NOTEBOOK_SHARED_MEMORY_DIR", "/proc")
    controller = launch("none")
    notice = controller.expect(AgentNotice)
    assert notice.level == "warning"
    assert "/proc cannot be used" in notice.text
    controller.send(chunk("t5", 0, 10), (b"x" * 10,))
    assert controller.expect(RegionStored).problem


def test_regions_of_a_killed_agent_are_removed_by_the_next_one(agent, shared, launch):
    path = bulk.region_path(shared, "mine", "left")
    path.write_text("x")
    agent.agent.kill()
    agent.wait_for_agent()
    assert path.exists()
    launch("none", "--cluster", "another").end()
    assert not list(shared.iterdir())
