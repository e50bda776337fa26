"""Logs of ranks as files."""

import stat

from npu_notebook.agent.logs import open_log, read_tail


def test_a_log_is_private_and_appended(tmp_path):
    path = tmp_path / "logs" / "rank0.log"
    for text in (b"one\n", b"two\n"):
        with open_log(str(path)) as file:
            file.write(text)
    assert path.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_tail_is_whole_lines_of_the_last_4_kib_after_the_start(tmp_path):
    path = tmp_path / "log"
    lines = [f"line {number:04d}\n" for number in range(1000)]
    path.write_text("".join(lines))
    tail = read_tail(str(path), 0)
    assert tail == "".join(lines[-409:])  # of 10 bytes each
    assert read_tail(str(path), 9980) == "line 0998\nline 0999\n"
    assert read_tail(str(path), 10_000) == ""


def test_a_log_that_is_gone_has_no_tail(tmp_path):
    assert read_tail(str(tmp_path / "none"), 0) == ""
