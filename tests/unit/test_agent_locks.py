"""Device locks between processes and users."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_notebook.agent.locks import DeviceLocks

# Another cluster, on request of another user: takes device 2, says so, and holds it
# until its input ends.
HOLDER = """
import os, sys
from pathlib import Path
from npu_notebook.agent.locks import DeviceLocks
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
locks = DeviceLocks("other", Path(sys.argv[1]))
print(locks.take("ascend", 2) or "taken", flush=True)
sys.stdin.read()
"""
NOBODY = "65534"


def hold(folder: Path, *user: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), *user],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "taken\n"
    return holder


def test_a_device_of_another_process_is_refused_by_name_until_that_ends(tmp_path):
    locks = DeviceLocks("mine", tmp_path / "locks")
    with hold(tmp_path / "locks") as holder:
        sentence = locks.take("ascend", 2)
        assert sentence.startswith("ascend device 2 is in use by cluster 'other' of")
        assert f"pid {holder.pid}" in sentence
        assert locks.take("ascend", 3) == ""
        assert locks.take("cuda", 2) == ""
        assert len(locks.list_holders("ascend", 4)) == 1
        holder.stdin.close()
    assert locks.take("ascend", 2) == ""
    locks.release_all()


def test_a_killed_holder_leaves_nothing_stale(tmp_path):
    locks = DeviceLocks("mine", tmp_path / "locks")
    with hold(tmp_path / "locks") as holder:
        holder.kill()
    assert locks.take("ascend", 2) == ""
    locks.release_all()


def test_a_device_taken_twice_by_one_cluster_is_no_conflict(tmp_path):
    locks = DeviceLocks("mine", tmp_path / "locks")
    assert locks.take("ascend", 0) == ""
    assert locks.take("ascend", 0) == ""
    assert locks.list_holders("ascend", 1) == ()
    locks.release_all()


def test_asking_who_holds_devices_takes_none(tmp_path):
    asking = DeviceLocks("asking", tmp_path / "locks")
    assert asking.list_holders("ascend", 3) == ()
    with hold(tmp_path / "locks") as holder:
        holder.stdin.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user as well")
def test_a_device_of_another_user_is_refused_and_can_be_had_after_it(tmp_path):
    folder = tmp_path / "locks"
    DeviceLocks("first", folder).list_holders("ascend", 3)  # the files are root's now
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    locks = DeviceLocks("mine", folder)
    with hold(folder, NOBODY) as holder:
        assert "user nobody" in locks.take("ascend", 2)
        holder.stdin.close()
    assert locks.take("ascend", 2) == ""
    locks.release_all()


@pytest.mark.parametrize("trap", ["symlink", "hardlink", "folder"])
def test_a_planted_link_is_not_written_through(tmp_path, trap):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "locks"
    folder.mkdir()
    planted = folder / "ascend-0"
    if trap == "symlink":
        planted.symlink_to(victim)
    elif trap == "hardlink":
        planted.hardlink_to(victim)
    else:
        planted.mkdir()
    locks = DeviceLocks("mine", folder)
    with pytest.raises(OSError, match="ascend-0"):
        locks.take("ascend", 0)
    assert victim.read_text() == "precious"


def test_text_of_a_holder_is_shown_without_control_characters(tmp_path):
    locks = DeviceLocks("mine", tmp_path / "locks")
    with hold(tmp_path / "locks") as holder:
        (tmp_path / "locks" / "ascend-2").write_bytes(b"\x1b[31mevil\n" + b"x" * 500)
        sentence = locks.take("ascend", 2)
        assert sentence.isprintable()
        assert len(sentence) < 260
        holder.stdin.close()
