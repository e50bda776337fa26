"""Code written for Ascend NPUs runs unchanged on simulated ones, on 2 and 4 ranks.

Each check runs on all ranks at once; a check is a function in `checks`.
"""

import pytest

from tests.simulated.ranks import Ranks, checks_in

# The first start may have to compile the library.
pytestmark = pytest.mark.timeout(600)

CHECKS = checks_in("devices", "operators", "training", "collectives", "parallel")


@pytest.mark.parametrize("ranks", [2, 4], indirect=True, ids=["2 ranks", "4 ranks"])
@pytest.mark.parametrize(("module", "name"), CHECKS, ids=[name for _, name in CHECKS])
def test_api(ranks: Ranks, module: str, name: str):
    ranks.run(module, name)
