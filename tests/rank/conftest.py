from collections.abc import Iterator

import pytest

from tests.rank.driving import Desk, DrivenRank


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.fixture(scope="module")
def shared_desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.fixture(scope="module")
def rank(shared_desk: Desk) -> DrivenRank:
    """One rank without torch for the tests of a module that leave it idle."""
    return shared_desk.start()
