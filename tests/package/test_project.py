"""The files around the package are complete."""

import json
import re
import struct
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELSPEC = ROOT / "kernelspec"


def test_the_kernel_is_the_stock_one_with_the_extension_loaded():
    spec = json.loads((KERNELSPEC / "kernel.json").read_text())
    assert spec["display_name"] == "NPU Cluster (Python 3)"
    assert spec["argv"] == [
        *("python", "-m", "ipykernel_launcher", "-f", "{connection_file}"),
        *("--ext", "npu_notebook"),
    ]


@pytest.mark.parametrize("size", [32, 64])
def test_a_logo_has_the_size_in_its_name(size):
    data = (KERNELSPEC / f"logo-{size}x{size}.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (size, size)


def test_every_changelog_fragment_has_a_known_kind():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    kinds = {one["directory"] for one in project["tool"]["towncrier"]["type"]}
    for fragment in (ROOT / "changelog.d").iterdir():
        if fragment.name != "README.md":
            name, kind, ending = fragment.name.split(".")
            assert re.fullmatch("[a-z0-9-]+", name)
            assert (kind in kinds, ending) == (True, "md"), fragment.name


def test_make_help_lists_every_target():
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    listed = re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)
    assert sorted(listed) == sorted(phony.split())
