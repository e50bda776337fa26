"""What the project says it supports is what it installs and tests."""

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = [
    Requirement(text)
    for texts in PROJECT["optional-dependencies"].values()
    for text in texts
    if not text.startswith("npu-notebook[")
]


def pins(path: Path) -> dict[str, Version]:
    """Return the releases that a constraints file names."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line]
    return {canonicalize_name(name): Version(number) for name, number in pairs}


def lower_bound(requirement: Requirement) -> Version:
    (bound,) = [part for part in requirement.specifier if part.operator == ">="]
    return Version(bound.version)


@pytest.mark.parametrize("requirement", DEPENDENCIES + EXTRAS, ids=str)
def test_constraints_pin_a_supported_release(requirement):
    pinned = pins(ROOT / "constraints.txt")
    assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_oldest_releases_are_the_lower_bounds():
    bounds = {canonicalize_name(one.name): lower_bound(one) for one in DEPENDENCIES}
    assert pins(ROOT / "tests/package/oldest.txt") == bounds


@pytest.mark.parametrize("requirement", DEPENDENCIES, ids=str)
def test_the_installed_release_is_supported(requirement):
    installed = Version(version(requirement.name))
    assert installed in requirement.specifier
    if sys.prefix.endswith("-oldest"):
        assert installed == lower_bound(requirement)


@pytest.mark.parametrize(
    "requirement",
    [*DEPENDENCIES, Requirement(PROJECT["optional-dependencies"]["torch"][0])],
    ids=str,
)
def test_the_documentation_states_oldest_and_pinned_release(requirement):
    page = (ROOT / "docs/supported-versions.md").read_text()
    name = canonicalize_name(requirement.name)
    oldest, pinned = lower_bound(requirement), pins(ROOT / "constraints.txt")[name]
    assert f"\n| {requirement.name} | {oldest} | {pinned} |" in page


def test_the_documentation_states_the_oldest_python():
    page = (ROOT / "docs/supported-versions.md").read_text()
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"| Python | {oldest} |" in page
