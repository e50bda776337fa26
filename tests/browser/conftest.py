"""One Chromium and one JupyterLab for all browser tests, a page for each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.lab import CHROMIUM_ARGS, LabNotebook, LabServer, chromium_path

REPORTS = Path("test-results")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")
            # A page is shown after 10 s on a quiet machine, and ours are not quiet.
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser of the system."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path(), args=CHROMIUM_ARGS
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab with this environment's kernels."""
    with LabServer(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture
def page(
    chromium: Browser, lab_server: LabServer, request: pytest.FixtureRequest
) -> Iterator[Page]:
    """An empty page; what it showed is kept as a picture when the test fails."""
    context = chromium.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    failed_before = request.session.testsfailed
    yield page
    if request.session.testsfailed > failed_before:
        REPORTS.mkdir(exist_ok=True)
        (REPORTS / f"{request.node.name}.png").write_bytes(page.screenshot())
        (REPORTS / f"{request.node.name}.log").write_text(lab_server.log_text())
    context.close()
    lab_server.end_sessions()


@pytest.fixture
def open_notebook(
    page: Page, lab_server: LabServer
) -> Callable[[list[str], str], LabNotebook]:
    """Open a notebook of the given code cells with a kernel of the given name."""

    def open_notebook(cells: list[str], kernel: str = "npu_notebook") -> LabNotebook:
        return LabNotebook.open(page, lab_server, cells, kernel)

    return open_notebook
