"""Controllers of a test's own, ended with it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controller.scripted import ScriptedCluster


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., ScriptedCluster]]:
    """Start controllers with a specification of the test's choice."""
    clusters: list[ScriptedCluster] = []

    def make(**spec: Any) -> ScriptedCluster:
        clusters.append(ScriptedCluster(tmp_path, **spec))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()
