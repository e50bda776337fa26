"""The check that runs after every test notices what it is there for."""

import subprocess
import sys
import threading

import psutil

from tests import leaks

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_process_that_left_our_session_is_found_and_killed(monkeypatch):
    monkeypatch.setattr(leaks, "GRACE_S", 0.2)
    before = leaks.marked_processes()
    with subprocess.Popen(SLEEP, start_new_session=True) as process:
        (line,) = leaks.leaked_processes(before)
        assert line.startswith(f"process {process.pid} ")
        assert "time.sleep(60)" in line
        assert not psutil.pid_exists(process.pid)


def test_a_process_of_before_the_test_is_left_alone(monkeypatch):
    monkeypatch.setattr(leaks, "GRACE_S", 0.2)
    with subprocess.Popen(SLEEP) as process:
        assert leaks.leaked_processes(leaks.marked_processes()) == []
        assert process.poll() is None
        process.kill()


def test_a_thread_that_runs_on_is_named(monkeypatch):
    monkeypatch.setattr(leaks, "GRACE_S", 0.2)
    before = threading.enumerate()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    assert leaks.leaked_threads(before) == ["thread 'forgotten'"]
    end.set()
    thread.join()
    assert leaks.leaked_threads(before) == []
