"""What one rank shows as well as four: what is refused, what may be mixed, limits."""

import pytest

from tests.simulated.ranks import Ranks, checks_in

# The first start may have to compile the library.
pytestmark = pytest.mark.timeout(600)

CHECKS = checks_in("mixing", "refusals", "beyond")


@pytest.mark.parametrize("ranks", [1], indirect=True, ids=["1 rank"])
@pytest.mark.parametrize(("module", "name"), CHECKS, ids=[name for _, name in CHECKS])
def test_api(ranks: Ranks, module: str, name: str):
    ranks.run(module, name)
