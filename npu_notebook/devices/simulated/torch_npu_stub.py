"""A module ``torch_npu`` for notebooks that import it beside the simulated NPU."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType

from npu_notebook.devices.simulated.refusals import missing_name

VERSION = "0+simulated"


class _StubModule(ModuleType):
    """A package whose missing names explain themselves.

    Parameters
    ----------
    name : str
        Its full name.
    submodules : list of str
        Folders in which Python looks for its submodules.
    names : ModuleType or str
        What it has.
    """

    def __init__(
        self, name: str, submodules: list[str], **names: ModuleType | str
    ) -> None:
        super().__init__(name, "Part of the simulated NPU of npu_notebook.")
        # With a spec, importlib.util.find_spec finds this and no package on the path.
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = submodules
        self.__spec__ = spec
        self.__path__ = submodules
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> object:
        raise missing_name(self.__name__, name)


def install(npu: ModuleType) -> None:
    """Put ``torch_npu``, its ``npu`` and its ``contrib`` into `sys.modules`."""
    # transfer_to_npu.py lies there and runs when a notebook imports it.
    contrib_folder = str(Path(__file__).with_name("contrib"))
    contrib = _StubModule("torch_npu.contrib", [contrib_folder])
    root = _StubModule("torch_npu", [], npu=npu, contrib=contrib, __version__=VERSION)
    sys.modules["torch_npu"] = root
    sys.modules["torch_npu.npu"] = npu
    sys.modules["torch_npu.contrib"] = contrib
