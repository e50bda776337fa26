"""`npu-notebook` from a terminal, beside a running cluster."""

import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_notebook import Cluster, runtime

PRIVATE = "hunter2-and-more"


def npu_notebook(
    *words: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    code = "import sys; from npu_notebook.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster.start(
        2, device="none", name="at-work", env={"HF_TOKEN": PRIVATE}
    ) as cluster:
        yield cluster


@pytest.mark.usefixtures("running")
def test_list_names_every_cluster_and_how_to_reach_it():
    done = npu_notebook("list")
    assert done.returncode == 0
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("at-work ")]
    connection = runtime.read_connection("at-work")
    assert str(connection.controller_pid) in row.split()
    assert "npu-notebook stop at-work" in row
    assert "%npu_cluster attach at-work" in row
    assert "running" in row


def test_stop_ends_a_cluster_by_name():
    cluster = Cluster.start(1, device="none", name="to-stop")
    done = npu_notebook("stop", "to-stop")
    assert (done.returncode, done.stdout) == (0, "Cluster 'to-stop' is stopped.\n")
    assert "to-stop" not in [one.connection.name for one in runtime.list_clusters()]
    cluster.stop()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["stop", "nobody"], 1, "there is no cluster of that name"),
        (["stop"], 1, "no cluster is named"),
        (["logs", "nobody"], 1, "there are no logs of a cluster 'nobody'"),
        (["bugreport", "-o", "/not/there.tar.gz"], 1, "cannot be written"),
        (["frobnicate"], 2, "invalid choice"),
        ([], 2, "required: COMMAND"),
    ],
)
def test_a_mistake_is_a_sentence_and_an_exit_code(
    words: list[str], code: int, sentence: str
):
    done = npu_notebook(*words)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("running")
def test_logs_shows_where_they_lie():
    folder = runtime.ClusterPaths("at-work").logs
    assert str(folder) in npu_notebook("logs").stdout.splitlines()
    shown = npu_notebook("logs", "at-work", "-n", "1").stdout
    for name in ("controller.log", "rank-0.log", "rank-1.log"):
        assert f"==> {folder / name} <==" in shown


def test_clean_touches_nothing_that_runs(running: Cluster):
    assert npu_notebook("clean").returncode == 0
    assert running.run("1").outcomes[0].error is None


@pytest.mark.usefixtures("running")
def test_a_bug_report_has_logs_and_versions_and_no_secret(tmp_path: Path):
    done = npu_notebook("bugreport", cwd=tmp_path)
    assert done.returncode == 0
    (path,) = tmp_path.glob("*.tar.gz")
    assert str(path) in done.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as tar:
        texts = {
            member.name.partition("/")[2]: tar.extractfile(member).read().decode()
            for member in tar
        }
    assert "ipykernel" in texts["versions.txt"]
    assert "NPU_NOTEBOOK_RUNTIME_DIR" in texts["variables.txt"].splitlines()
    assert '"at-work"' in texts["clusters.json"]
    assert "logs/at-work/controller.log" in texts
    everything = "\n".join(texts.values())
    assert PRIVATE not in everything
    connection = runtime.read_connection("at-work")
    for key in (connection.curve_public, connection.curve_secret):
        assert not key or key not in everything
