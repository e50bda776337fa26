"""The tables of the documents and those of the code say the same."""

import re
from pathlib import Path
from typing import get_args

import pytest

from npu_notebook import messages
from npu_notebook.controller.facts import cluster_state
from npu_notebook.controller.records import TRANSITIONS
from npu_notebook.messages import ClusterState, RankState
from tests.controller.driving import World

DOCS = Path(__file__).parents[2] / "docs"
FAMILIES = {
    "Request": messages.Request,
    "Update": messages.Update,
    "RankCommand": messages.RankCommand,
    "RankReport": messages.RankReport,
    "AgentCommand": messages.AgentCommand,
    "AgentReport": messages.AgentReport,
}


def section(document: str, title: str) -> str:
    text = (DOCS / document).read_text()
    match = re.search(
        rf"^## {title}.*?$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert match is not None, f"{document} has no section '{title}'"
    return match[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of all rows of a table but its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_message_has_a_row_in_the_protocol(family: str):
    names = [row[0].strip("`") for row in rows(section("protocol.md", family))]
    assert sorted(names) == sorted(kind.__name__ for kind in get_args(FAMILIES[family]))


def test_every_row_of_the_protocol_says_when_and_what():
    for family in FAMILIES:
        for row in rows(section("protocol.md", family)):
            assert len(row) == 3
            assert all(row)


def test_the_life_of_a_rank_is_the_one_in_the_documents():
    table = rows(section("states.md", "A rank"))
    documented = {row[0]: sorted(row[2].split(", ")) for row in table}
    assert documented == {
        state.value: sorted(next_state.value for next_state in follow)
        for state, follow in TRANSITIONS.items()
    }


def test_every_state_of_a_rank_is_explained():
    text = section("states.md", "A rank")
    for state in RankState:
        assert re.search(rf"\b{state.value}\b", text)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["idle", "idle"], "ready"),
        (["idle", "running"], "busy"),
        (["interrupting", "idle"], "busy"),
        (["joined", "running"], "busy"),
        (["joined", "idle"], "starting"),
        (["forming", "running"], "starting"),
        (["waiting", "idle"], "starting"),
        (["starting", "lost"], "degraded"),
        (["ended", "running"], "degraded"),
    ],
)
def test_the_state_of_the_cluster_follows_from_its_ranks(
    states: list[str], expected: str
):
    assert cluster_state(map(RankState, states)) is ClusterState(expected)


def test_the_order_of_cluster_states_is_the_one_in_the_documents():
    table = rows(section("states.md", "The cluster"))
    per_state = [
        (row[0], [state for state in RankState if re.search(rf"\b{state}\b", row[1])])
        for row in table[3:-1]
    ]
    for number, (name, states) in enumerate(per_state):
        later = [state for _, more in per_state[number:] for state in more]
        assert states
        for state in states:
            assert cluster_state([state, *later, RankState.IDLE]) == name


def test_every_message_to_the_controller_has_a_reaction():
    expected = set(get_args(messages.ToController))
    assert set(World().lifecycle.reactions) == expected


def test_doctests_of_the_controller_hold():
    import doctest

    from npu_notebook.controller import facts, versions, words

    for module in (facts, versions, words):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed
