"""Versions that must agree between the processes of a cluster, and who disagrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook.messages import PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npu_notebook.messages import HostFact, JoinNotebook, RankJoined


def find_host_conflict(facts: Sequence[HostFact]) -> str:
    """Return a sentence if hosts differ in Python or torch, else an empty string."""
    pythons = [(f"host {fact.name}", minor_version(fact.python)) for fact in facts]
    torches = [(f"host {fact.name}", public_version(fact.torch)) for fact in facts]
    return find_conflict("Python", pythons) or find_conflict("torch", torches)


def find_rank_conflict(place: str, joined: RankJoined, first: HostFact) -> str:
    """Return a sentence if a rank does not fit the first host, else an empty string."""
    if joined.protocol_version != PROTOCOL_VERSION:
        return protocol_conflict(joined.protocol_version)
    who = f"host {first.name}"
    pythons = [
        (who, minor_version(first.python)),
        (place, minor_version(joined.python)),
    ]
    torches = [
        (who, public_version(first.torch)),
        (place, public_version(joined.torch)),
    ]
    return find_conflict("Python", pythons) or find_conflict("torch", torches)


def find_notebook_conflict(
    joined: JoinNotebook, package_version: str, python: str
) -> str:
    """Return a sentence if a notebook may not join, else an empty string."""
    if joined.protocol_version != PROTOCOL_VERSION:
        return (
            f"this notebook has npu_notebook {joined.package_version} (protocol "
            f"{joined.protocol_version}), the cluster {package_version} "
            f"(protocol {PROTOCOL_VERSION})"
        )
    versions = [
        ("this notebook", minor_version(joined.python)),
        ("the cluster", minor_version(python)),
    ]
    return find_conflict("Python", versions)


def protocol_conflict(version: int) -> str:
    """Say that a process speaks another protocol."""
    return f"it speaks protocol {version}, the controller speaks {PROTOCOL_VERSION}"


def find_conflict(label: str, found: Sequence[tuple[str, str]]) -> str:
    """Return a sentence if not all versions are the same, else an empty string.

    Parameters
    ----------
    label : str
        What has the versions, for example ``"Python"``.
    found : sequence of (str, str)
        Who, and which version; an empty version is not known and agrees with all.

    Examples
    --------
    >>> find_conflict("torch", [("host a", "2.13.0"), ("host b", "2.14.1")])
    'host a has torch 2.13.0 and host b has torch 2.14.1'
    """
    known = [(who, version) for who, version in found if version]
    for who, version in known[1:]:
        first, expected = known[0]
        if version != expected:
            return f"{first} has {label} {expected} and {who} has {label} {version}"
    return ""


def minor_version(version: str) -> str:
    """Return ``3.11`` of ``3.11.9``: what must be equal for functions to travel."""
    return ".".join(version.split(".")[:2])


def public_version(version: str) -> str:
    """Return ``2.13.0`` of ``2.13.0+cpu``."""
    return version.partition("+")[0]
