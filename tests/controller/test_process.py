"""The controller's process: how it comes, whom it notices, how it goes."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from npu_notebook import messages, runtime, wire
from npu_notebook.controller import events
from npu_notebook.controller.controller import Controller
from npu_notebook.controller.lifecycle import Lifecycle
from npu_notebook.controller.spool import Spool
from npu_notebook.errors import ProtocolError
from npu_notebook.topology import ClusterSpec
from tests.controller.driving import World
from tests.controller.scripted import wait_for
from tests.controller.scripted_launcher import NoProcessLauncher


def test_a_controller_can_be_joined_as_soon_as_its_file_is_there(make_cluster):
    cluster = make_cluster()
    connection = cluster.connection()
    assert connection.controller_pid == cluster.process.pid
    assert connection.num_ranks == 2
    mode = cluster.paths.connection_file.stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE(cluster.paths.directory.stat().st_mode) == 0o700
    notebook = cluster.notebook()
    welcome = notebook.expect(messages.Welcome)
    assert welcome.fact.state is messages.ClusterState.STARTING


def test_scripted_peers_come_up_run_a_cell_and_stop(make_cluster):
    cluster = make_cluster()
    notebook = cluster.start()
    cluster.run_cell(notebook, "c1")
    cluster.end_cell("c1")
    finished = notebook.expect(messages.CellFinished)
    assert [one.rank for one in finished.outcomes] == [0, 1]
    notebook.send(messages.StopCluster(reason="enough"))
    cluster.agent.expect(messages.EndHost)
    cluster.agent.send(messages.HostEnded(host="a"))
    assert notebook.expect(messages.ClusterEnded).reason == "enough"
    assert cluster.process.wait(10) == 0
    assert not cluster.paths.directory.exists()
    assert not cluster.paths.lock_file.exists()
    assert cluster.paths.logs.is_dir()


def test_a_name_has_one_controller(make_cluster):
    cluster = make_cluster()
    cluster.connection()
    second = cluster.launch()
    assert second.wait(20) == 1
    assert "runs already" in cluster.log()
    cluster.notebook().expect(messages.Welcome)


def test_sigterm_stops_the_cluster(make_cluster):
    cluster = make_cluster()
    notebook = cluster.start()
    cluster.process.send_signal(signal.SIGTERM)
    cluster.agent.expect(messages.EndHost)
    cluster.agent.send(messages.HostEnded(host="a"))
    ended = notebook.expect(messages.ClusterEnded)
    assert ended.reason == "the controller received SIGTERM"
    assert cluster.process.wait(10) == 0


def test_a_notebook_whose_process_is_killed_is_noticed_at_once(make_cluster):
    cluster = make_cluster(linger_s=0.0)
    cluster.start()
    own = cluster.peers[0]
    kernel = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    cluster.notebook(kernel.pid).expect(messages.Welcome)
    own.send(messages.LeaveNotebook(reason="bye"))
    began_s = time.monotonic()
    kernel.kill()
    kernel.communicate()
    cluster.agent.expect(messages.EndHost)
    assert time.monotonic() - began_s < 5
    cluster.agent.send(messages.HostEnded(host="a"))
    assert cluster.process.wait(10) == 0


def test_what_a_killed_agent_left_behind_is_ended(make_cluster):
    cluster = make_cluster(launcher="leaving")
    notebook = cluster.start()
    child = int(wait_for(_text_of(cluster.child_pid_file), "the grandchild"))
    agent = int(cluster.child_pid_file.with_suffix(".agent").read_text())
    os.kill(agent, signal.SIGKILL)
    lost = notebook.expect(messages.Notice)
    assert lost.text == (
        "host a is lost: ended by signal 9; often the out-of-memory killer; ranks 0-1 "
        "are lost with it, `%npu_cluster restart --ranks 0-1` starts again"
    )
    wait_for(lambda: not _runs(child), "the end of the grandchild")
    assert cluster.process.poll() is None


def test_nothing_is_left_when_the_controller_ends(make_cluster):
    cluster = make_cluster(launcher="leaving")
    cluster.start()
    child = int(wait_for(_text_of(cluster.child_pid_file), "the grandchild"))
    agent = int(cluster.child_pid_file.with_suffix(".agent").read_text())
    cluster.process.send_signal(signal.SIGTERM)
    cluster.agent.expect(messages.EndHost)
    cluster.agent.send(messages.HostEnded(host="a"))
    assert cluster.process.wait(10) == 0
    assert not _runs(child)
    assert not _runs(agent)


def test_an_unknown_launcher_is_one_sentence_in_the_log(make_cluster):
    cluster = make_cluster(launcher="balloon")
    assert cluster.process.wait(20) == 1
    assert "no launchers named 'balloon'. Installed: " in cluster.log()
    assert not cluster.paths.directory.exists()


def test_a_folder_without_room_is_one_sentence_in_the_log(make_cluster):
    cluster = make_cluster()
    cluster.connection()
    cluster.close()
    # A folder where the file should be: it cannot be written, not even by root.
    cluster.paths.create()
    spec = msgspec.json.encode(cluster.spec)
    runtime.write_private(cluster.paths.spec_file, spec)
    cluster.paths.connection_file.mkdir()
    cluster.process = cluster.launch()
    assert cluster.process.wait(20) == 1
    assert f"the files of cluster '{cluster.spec.name}' cannot be made" in cluster.log()
    assert "Make room in" in cluster.log()


class Stumbling(Lifecycle):
    """A lifecycle with a mistake: it trips over the first event."""

    stumbled = False

    def handle(self, event: events.Event) -> list[events.Action]:
        assert event.now_s > 0
        if not self.stumbled:
            self.stumbled = True
            message = "a mistake of ours"
            raise RuntimeError(message)
        return [events.Exit("seen")]


def test_a_mistake_of_the_lifecycle_does_not_end_the_cluster(tmp_path: Path, caplog):
    spec = ClusterSpec(name="stumbling")
    around = World().board.around
    with zmq.Context() as context:
        router = wire.open_router(context, f"ipc://{tmp_path}/s", None)
        spool = Spool(tmp_path, 100)
        lifecycle = Stumbling(spec, around)
        controller = Controller(lifecycle, spec, router, spool, NoProcessLauncher())
        controller.run()
        controller.close()
    assert "a mistake of ours" in caplog.text


def test_a_message_of_somebody_else_is_logged_and_survived(make_cluster):
    cluster = make_cluster()
    notebook = cluster.start()
    notebook.dealer.send_multipart([b"not msgpack"])
    notebook.send(messages.AskState(request_id="q"))
    assert notebook.expect(messages.StateAnswer).request_id == "q"
    assert "a message cannot be read" in cluster.log()


def test_a_failed_start_tells_the_end_of_the_ranks_log(make_cluster):
    cluster = make_cluster()
    cluster.connection()
    notebook = cluster.notebook()
    agent = cluster.join_agent()
    start = agent.expect(messages.StartRanks)
    Path(start.ranks[1].log_path).write_text("ImportError: no module named helper\n")
    exited = messages.RankExited(host="a", rank=1, incarnation=0, pid=4, returncode=1)
    agent.send(exited)
    failure = notebook.expect(messages.StartFailed)
    assert failure.what == "rank 1 on a"
    assert failure.stderr_tail == "ImportError: no module named helper\n"
    agent.send(messages.HostEnded(host="a"))
    notebook.expect(messages.ClusterEnded)
    assert cluster.process.wait(10) == 0


def test_secrets_of_the_environment_are_not_logged(make_cluster):
    cluster = make_cluster(env={"TOKEN": "hunter2"})
    cluster.connection()
    assert "TOKEN" in cluster.log()
    assert "hunter2" not in cluster.log()


def test_a_tcp_endpoint_without_keys_is_never_opened():
    with zmq.Context() as context, pytest.raises(ProtocolError, match="encryption"):
        wire.open_router(context, "tcp://127.0.0.1:0", None)


def test_the_controller_imports_neither_torch_nor_ipython():
    code = (
        "import sys, npu_notebook.controller.__main__; "
        "print([m for m in ('torch', 'IPython', 'numpy') if m in sys.modules])"
    )
    words = [sys.executable, "-c", code]
    assert subprocess.check_output(words, text=True).strip() == "[]"


def test_an_idle_controller_sleeps(make_cluster):
    cluster = make_cluster()
    cluster.start()
    process = psutil.Process(cluster.process.pid)
    switches = process.num_ctx_switches().voluntary
    used_s = sum(process.cpu_times()[:2])
    notebook = cluster.peers[0]
    notebook.next(5.0)  # nothing is said to it meanwhile
    assert process.num_ctx_switches().voluntary - switches < 200
    assert sum(process.cpu_times()[:2]) - used_s < 1.0


def test_a_refused_notebook_is_told_why(make_cluster):
    cluster = make_cluster()
    cluster.connection()
    notebook = cluster.notebook(protocol_version=99, package_version="9")
    assert "protocol 99" in notebook.expect(messages.Welcome).refused


def _runs(pid: int) -> bool:
    return runtime.process_start_s(pid) is not None


def _text_of(path: Path):
    return lambda: path.exists() and path.read_text()
