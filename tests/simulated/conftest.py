import pytest

from npu_notebook.devices.simulated import SimulatedProvider
from tests.simulated.ranks import Ranks


@pytest.fixture(scope="session", autouse=True)
def built_library() -> None:
    """Compile the simulated NPU, unless this torch build has it already."""
    SimulatedProvider().prepare(print)


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest):
    """Rank processes; the parameter says how many."""
    processes = Ranks(request.param)
    processes.start()
    yield processes
    processes.stop()
