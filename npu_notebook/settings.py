"""Defaults from a file, so that a class or a team types less.

``$NPU_NOTEBOOK_CONFIG``, else ``$XDG_CONFIG_HOME/npu-notebook/config.toml``, else
``~/.config/npu-notebook/config.toml``. Words of the command line win.
"""

from __future__ import annotations

import math
import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from npu_notebook.errors import ConfigError


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of the file; every one is optional.

    ``linger`` is seconds or ``"forever"``; ``output_cap`` is bytes per rank and cell;
    ``orphan_timeout`` and ``start_timeout`` are seconds.
    """

    device: str | None = None
    num_ranks: Annotated[int, Meta(ge=1)] | None = None
    launcher: str | None = None
    hosts: str | None = None
    env: dict[str, str] = {}
    linger: float | str | None = None
    output_cap: Annotated[int, Meta(ge=1)] | None = None
    orphan_timeout: Annotated[float, Meta(gt=0)] | None = None
    start_timeout: Annotated[float, Meta(gt=0)] | None = None


def settings_file() -> Path:
    """Return where the defaults are read from, whether the file exists or not."""
    chosen = os.environ.get("NPU_NOTEBOOK_CONFIG")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(base) if base else Path.home() / ".config"
    return folder / "npu-notebook" / "config.toml"


def read_settings() -> Settings:
    """Read the defaults; all unset when there is no file.

    Raises
    ------
    ConfigError
        If the file is no TOML, has an unknown key, or a value of the wrong type; the
        sentence names the file and the key.
    """
    path = settings_file()
    try:
        words = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problem = f"the settings file {path} cannot be read ({error})"
        raise ConfigError(problem, "Correct it or remove it.") from error
    for key in words:
        if key not in Settings.__struct_fields__:
            near = get_close_matches(key, Settings.__struct_fields__, 1)
            known = f"'{near[0]}'" if near else ", ".join(Settings.__struct_fields__)
            problem = f"the settings file {path} has an unknown key '{key}'"
            raise ConfigError(problem, f"Did you mean {known}?")
    try:
        settings = msgspec.convert(words, Settings)
        if settings.linger is not None:
            parse_linger(settings.linger)
    except (msgspec.ValidationError, ConfigError) as error:
        problem = f"the settings file {path} has a value that cannot be used ({error})"
        raise ConfigError(problem, "docs/install.md lists the keys.") from error
    return settings


def parse_linger(words: float | str) -> float | None:
    """Return seconds, or None for ``"forever"``.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if words == "forever":
        return None
    try:
        seconds = float(words)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:  # neither is NaN
        problem = f"'{words}' is not a time to linger"
        raise ConfigError(problem, "Give seconds, or forever.")
    return seconds
