"""Rank sets, host lists and the plan: right words are read, wrong ones explained."""

from __future__ import annotations

import numpy as np
import pytest

from npu_notebook.errors import ConfigError
from npu_notebook.messages import DeviceInventory, HostFact
from npu_notebook.topology import (
    ClusterSpec,
    HostSpec,
    format_ranks,
    parse_hosts,
    parse_ranks,
    plan,
    rank_environment,
)


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (None, (0, 1, 2, 3)),
        ("0,2-3", (0, 2, 3)),
        (" 3 , 0 - 1 ", (0, 1, 3)),
        (2, (2,)),
        ([3, 1], (1, 3)),
    ],
)
def test_a_rank_set_is_read(words, ranks):
    assert parse_ranks(words, 4) == ranks


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("9", "rank 9 in '9' does not exist: this cluster has 4 ranks. Use ranks 0 to"),
        ("4", "rank 4 in '4' does not exist"),
        ("2-99999999999999", "rank 4 in '2-99999999999999' does not exist"),
        ("0,0", "names 0 twice"),
        ("0-2,1", "names 1 twice"),
        ("", "'' in the rank set '' is not a rank"),
        ([], "the rank set is empty"),
        ("a", "'a' in the rank set 'a' is not a rank or a range"),
        ("3-1", "runs backwards. Write 1-3."),
        ("-1", "'-1' in the rank set '-1' is not a rank"),
        (-1, "rank -1 in '-1' does not exist"),
        (["a"], "['a'] is not a set of ranks"),
        (2.5, "2.5 is not a set of ranks"),
    ],
)
def test_a_wrong_rank_set_is_explained(words, sentence):
    with pytest.raises(ConfigError) as caught:
        parse_ranks(words, 4)
    assert sentence in str(caught.value)


def test_a_written_rank_set_reads_back():
    for ranks in [(0,), (0, 1), (0, 2, 3, 4, 9)]:
        assert parse_ranks(format_ranks(ranks), 10) == ranks


@pytest.mark.parametrize("words", ["", "a:", "a:0", "a:x", "a,,b", ":8", "a:8,a:8"])
def test_a_wrong_host_list_is_explained(words):
    with pytest.raises(ConfigError, match="host list"):
        parse_hosts(words)


def host(name: str = "h", **counts: int) -> HostFact:
    inventories = tuple(
        DeviceInventory(provider=provider, count=count, reason="" if count else "none")
        for provider, count in counts.items()
    )
    return HostFact(
        name=name,
        address="127.0.0.1",
        agent_pid=1,
        memory_key="m",
        python="3.11.7",
        torch="2.13.0",
        cpu_count=2,
        inventories=inventories,
    )


def spec(**words: object) -> ClusterSpec:
    return ClusterSpec(name="c", **{"hosts": (HostSpec(name="h"),), **words})


def test_without_an_npu_four_simulated_ones_start_and_it_is_said():
    decided = plan(spec(), [host(ascend=0, simulated=64)])
    assert (decided.provider, decided.world_size) == ("simulated", 4)
    assert decided.notice == "none: starting 4 simulated NPUs."


def test_every_npu_of_the_host_is_taken_without_a_word():
    decided = plan(spec(), [host(ascend=8, simulated=64)])
    assert (decided.provider, decided.world_size, decided.notice) == ("ascend", 8, "")


def test_ranks_are_placed_host_by_host():
    asked = spec(hosts=parse_hosts("a:2,b:1"), device="cpu")
    decided = plan(asked, [host("b", cpu=64), host("a", cpu=64)])
    places = [(slot.rank, slot.host, slot.local_rank) for slot in decided.slots]
    assert places == [(0, "a", 0), (1, "a", 1), (2, "b", 0)]


@pytest.mark.parametrize(
    ("words", "facts", "sentence"),
    [
        (
            {"num_ranks": 9, "device": "ascend"},
            [host(ascend=8)],
            "9 ranks were asked for on host h, which has 8 ascend devices. Use -n 8",
        ),
        (
            {"device": "cuda"},
            [host(cuda=0)],
            "host h has no cuda device (none). Choose --device simulated",
        ),
        (
            {"hosts": parse_hosts("a,b")},
            [host("a", ascend=8), host("b", ascend=0)],
            "no Ascend NPU was found on b",
        ),
        (
            {"hosts": parse_hosts("a:2,b:2"), "num_ranks": 3, "device": "cpu"},
            [host("a", cpu=9), host("b", cpu=9)],
            "-n 3 does not agree with the host list",
        ),
    ],
)
def test_a_plan_that_cannot_be_met_is_explained(words, facts, sentence):
    with pytest.raises(ConfigError) as caught:
        plan(spec(**words), facts)
    assert sentence in str(caught.value)


def test_a_rank_gets_the_variables_of_torchrun():
    asked = spec(hosts=parse_hosts("a:2,b:1"), device="cpu")
    decided = plan(asked, [host("a", cpu=64), host("b", cpu=64)])
    env = rank_environment(decided, decided.slots[2], "10.0.0.1", 29500)
    assert env["RANK"] == "2"
    assert env["LOCAL_RANK"] == "0"
    assert env["WORLD_SIZE"] == "3"
    assert env["LOCAL_WORLD_SIZE"] == "1"
    assert env["GROUP_RANK"] == "1"
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "29500")


def test_ranks_that_count_as_whole_numbers_are_sent_as_such():
    ranks = parse_ranks([True, np.int64(2)], 4)
    assert ranks == (1, 2)
    assert {type(rank) for rank in (*ranks, *parse_ranks(True, 4))} == {int}  # noqa: FBT003  what a user may give
    assert parse_ranks(np.int64(3), 4) == (3,)


def test_more_ranks_than_anyone_wants_are_refused_also_without_devices():
    with pytest.raises(ConfigError, match="65 ranks were asked for on host h"):
        plan(spec(device="none", num_ranks=65), [host()])
