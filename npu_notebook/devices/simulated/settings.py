"""The settings of the simulated NPU, read from the rank's environment."""

from __future__ import annotations

import os
import re

from npu_notebook.errors import ConfigError

MAX_DEVICES = 64
DEFAULT_DEVICES = 8
DEFAULT_MEMORY = "2GiB"

_DEVICES = "NPU_NOTEBOOK_SIMULATED_DEVICES"
_MEMORY = "NPU_NOTEBOOK_SIMULATED_MEMORY"
_UNITS = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


def simulated_devices() -> int:
    """Return how many NPUs this process sees.

    ``NPU_NOTEBOOK_SIMULATED_DEVICES`` if set, else one per rank of this host
    (``LOCAL_WORLD_SIZE``), else 8.

    Raises
    ------
    ConfigError
        If the number is not between 1 and 64.
    """
    for name in (_DEVICES, "LOCAL_WORLD_SIZE"):
        text = os.environ.get(name, "")
        if not text:
            continue
        if not text.isdecimal() or not 1 <= int(text) <= MAX_DEVICES:
            problem = f"{name}={text!r} is no number of simulated NPUs"
            raise ConfigError(problem, f"Give a number from 1 to {MAX_DEVICES}.")
        return int(text)
    return DEFAULT_DEVICES


def simulated_memory_nbytes() -> int:
    """Return the memory of each simulated NPU in bytes.

    Raises
    ------
    ConfigError
        If ``NPU_NOTEBOOK_SIMULATED_MEMORY`` is no size.
    """
    return parse_size(os.environ.get(_MEMORY) or DEFAULT_MEMORY)


def parse_size(text: str) -> int:
    """Return a size such as ``"512MiB"``, ``"1.5 GB"`` or ``"4096"`` in bytes.

    Raises
    ------
    ConfigError
        If the text is no size, or a size of 0.

    Examples
    --------
    >>> parse_size("2GiB")
    2147483648
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    nbytes = int(float(match[1]) * unit) if match and unit else 0
    # An int64 in the library; nobody simulates an exbibyte.
    if not 0 < nbytes < 2**60:
        problem = f"{_MEMORY}={text!r} is no size of memory"
        raise ConfigError(problem, "Write it like 2GiB, 512MiB or 1.5GB.")
    return nbytes
