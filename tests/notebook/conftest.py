"""Real kernels for the magics: one that all leave as it is, or one of a test's own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cases.notebook import Notebook

#: Ranks without torch start fastest.
START = "%npu_cluster start -n 4 --device none"


@pytest.fixture
def open_notebook(tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Open kernels, each with the environment it is given, and shut them down."""
    opened: list[Notebook] = []

    def make(folder_name: str = "notebook", **environment: str) -> Notebook:
        folder = tmp_path / folder_name
        folder.mkdir(exist_ok=True)
        notebook = Notebook(folder, **environment)
        opened.append(notebook)
        return notebook

    yield make
    for notebook in opened:
        notebook.close()


@pytest.fixture
def notebook(open_notebook: Callable[..., Notebook]) -> Notebook:
    """A kernel with four ranks that a test may break."""
    opened = open_notebook()
    opened.must(START)
    return opened


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel with four ranks, for tests that leave every rank idle."""
    opened = Notebook(tmp_path_factory.mktemp("shared"))
    try:
        opened.must(START)
        yield opened
    finally:
        opened.close()
