"""What all tests share: nothing is left behind, and two kinds of cluster."""

import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests import leaks

if TYPE_CHECKING:
    from npu_notebook import Cluster


def pytest_configure():
    leaks.set_mark()


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the clusters of this test run apart from all others of this user."""
    # The sockets in it may have paths of at most 107 bytes: no long folder of pytest's.
    runtime = tempfile.mkdtemp(prefix="npu-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPU_NOTEBOOK_RUNTIME_DIR", runtime)
        patch.setenv("NPU_NOTEBOOK_CONFIG", f"{runtime}/config.toml")
        patch.setenv("NPU_NOTEBOOK_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield
    shutil.rmtree(runtime)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread or a process running."""
    threads = threading.enumerate()
    processes = leaks.marked_processes()
    yield
    left = leaks.leaked_threads(threads) + leaks.leaked_processes(processes)
    if left:
        pytest.fail("left behind by this test:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator["Cluster"]:
    """Four ranks on the CPU for tests that leave every rank idle: one start for all."""
    from npu_notebook import Cluster  # unit tests need none

    with Cluster.start(num_ranks=4, device="cpu") as cluster:
        yield cluster


@pytest.fixture
def cluster() -> Iterator["Cluster"]:
    """Four ranks on the CPU that a test may break: a start costs seconds."""
    from npu_notebook import Cluster  # unit tests need none

    with Cluster.start(num_ranks=4, device="cpu") as cluster:
        yield cluster
