"""Agents of a test's own, ended with it."""

from collections.abc import Callable, Iterator

import pytest

from tests.agent.scripted import ScriptedController


@pytest.fixture
def launch() -> Iterator[Callable[..., ScriptedController]]:
    """Start agents with options of the test's choice."""
    controllers: list[ScriptedController] = []

    def start(*words: str) -> ScriptedController:
        controllers.append(ScriptedController(*words))
        return controllers[-1]

    yield start
    for controller in controllers:
        controller.close()


@pytest.fixture
def controller(launch: Callable[..., ScriptedController]) -> ScriptedController:
    """An agent that is prepared for ranks without torch."""
    controller = launch("none")
    assert controller.prepare().problem == ""
    return controller
