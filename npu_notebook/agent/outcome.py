"""How code of a device provider ended: fine, or with a sentence and a remedy."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import msgspec

from npu_notebook.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_LOG = "Read the agent's log; `npu-notebook bugreport` collects it."


class Outcome(msgspec.Struct, frozen=True, tag=True):
    """``problem`` "" means success."""

    problem: str = ""
    remedy: str = ""


def attempt(doing: str, act: Callable[[], object]) -> Outcome:
    """Call ``act`` and say how it ended; tracebacks of surprises go to the log.

    Parameters
    ----------
    doing : str
        What it does, for the sentence about a surprise: ``"preparing simulated"``.
    act : callable
        The provider's code.
    """
    try:
        act()
    except DeviceError as error:
        return Outcome(f"{error.device}: {error.problem}", error.remedy)
    except ConfigError as error:
        return Outcome(error.problem, error.remedy)
    except Exception as error:  # noqa: BLE001  a plugin's code runs here
        traceback.print_exc()
        return Outcome(f"{doing} failed: {type(error).__name__}: {error}", _READ_LOG)
    return Outcome()
