"""Packing: raw buffers, one shared copy, private writes, errors that name names."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch

from npu_notebook import bulk
from npu_notebook.errors import DataError


def through_memory(values, tmp_path):
    layout = bulk.pack(values).write(tmp_path / "region")
    return bulk.unpack(bulk.read_region(layout))


def test_arrays_tensors_and_functions_arrive_equal_and_writable(tmp_path):
    offset = 3
    sent = {
        "a": np.arange(12.0).reshape(3, 4)[:, ::2],
        "h": torch.randn(5, 7).to(torch.bfloat16),
        "g": torch.randn(3, requires_grad=True),
        "e": torch.empty(0, 4),
        "s": torch.tensor(2.5),
        "c": torch.tensor([1 + 2j]).conj(),
        "f": lambda x: x + offset,
        "m": torch.nn.Linear(2, 3),
    }
    got = through_memory(sent, tmp_path)
    assert np.array_equal(got["a"], sent["a"])
    for name in "hgesc":
        assert torch.equal(got[name], sent[name])
        assert got[name].dtype == sent[name].dtype
    assert got["g"].requires_grad
    assert got["f"](1) == 4
    assert torch.equal(got["m"].weight, sent["m"].weight)
    assert isinstance(got["m"].weight, torch.nn.Parameter)
    got["a"][0, 0] = 7
    got["h"].zero_()
    assert sent["a"][0, 0] == 0


def test_large_data_travels_beside_the_pickle_not_in_it():
    packed = bulk.pack({"a": np.zeros(100_000), "t": torch.zeros(100_000)})
    assert packed.sizes[0] < 2000
    assert sorted(packed.sizes[1:]) == [400_000, 800_000]


def test_a_rank_that_writes_does_not_change_what_others_read(tmp_path):
    layout = bulk.pack({"a": np.zeros(10_000)}).write(tmp_path / "region")
    one = bulk.unpack(bulk.read_region(layout))["a"]
    other = bulk.unpack(bulk.read_region(layout))["a"]
    one += 1
    assert one.sum() == 10_000
    assert other.sum() == 0


def test_a_region_can_be_removed_while_it_is_mapped(tmp_path):
    layout = bulk.pack({"a": np.ones(10_000)}).write(tmp_path / "region")
    got = bulk.unpack(bulk.read_region(layout))["a"]
    (tmp_path / "region").unlink()
    assert got.sum() == 10_000


def test_a_region_is_readable_by_its_owner_only(tmp_path):
    bulk.pack({"a": 1}).write(tmp_path / "region")
    assert (tmp_path / "region").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (threading.Lock(), "type _thread.lock cannot be pickled"),
        (torch.empty(3, device="meta"), "a meta tensor has no data"),
        ((n for n in range(3)), "generator"),
    ],
)
def test_the_variable_that_cannot_travel_is_named(value, words):
    with pytest.raises(DataError) as caught:
        bulk.pack({"fine": 1, "culprit": value})
    assert str(caught.value).startswith("'culprit': cannot be sent")
    assert words in str(caught.value)


def test_a_full_folder_is_said_before_a_byte_is_written(tmp_path):
    room = os.statvfs(tmp_path)
    too_much = room.f_bavail * room.f_frsize + (1 << 30)
    with pytest.raises(DataError, match="do not fit"):
        bulk.create_region(tmp_path / "region", too_much)
    assert not (tmp_path / "region").exists()


def test_a_failing_write_leaves_no_region(tmp_path):
    with pytest.raises(ZeroDivisionError), bulk.create_region(tmp_path / "r", 10):
        _ = 1 / 0
    assert not (tmp_path / "r").exists()
