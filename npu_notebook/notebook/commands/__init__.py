"""The subcommands of ``%npu_cluster``: one file per group, found by their table.

A file of this folder that defines ``COMMANDS`` adds subcommands; no other file has to
be edited. A command parses nothing itself and calls `Cluster` to do the work.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from npu_notebook.errors import ConfigError
from npu_notebook.notebook.options import HelpAsked, Words, nearest

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from npu_notebook.notebook.state import NotebookState

MAGIC = "%npu_cluster"
Run: TypeAlias = "Callable[[NotebookState, Namespace], object]"


def no_options(_words: Words) -> None:
    """Add no options."""


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    Parameters
    ----------
    name : str
        What the user types behind ``%npu_cluster``.
    purpose : str
        One sentence for the overview and for ``--help``.
    run : callable
        Does it; what it returns becomes the cell's value.
    add_options : callable
        Adds the options to the parser.
    """

    name: str
    purpose: str
    run: Run
    add_options: Callable[[Words], None] = no_options

    def words(self) -> Words:
        """Return the parser of the subcommand's options."""
        words = Words(f"{MAGIC} {self.name}", self.purpose)
        self.add_options(words)
        return words


@cache
def table() -> dict[str, Command]:
    """Return all subcommands by name.

    Raises
    ------
    ValueError
        If two files define the same name.
    """
    found: dict[str, Command] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for command in importlib.import_module(module.name).COMMANDS:
            if command.name in found:
                message = f"two files define the subcommand {command.name!r}"
                raise ValueError(message)
            found[command.name] = command
    return dict(sorted(found.items()))


def overview() -> str:
    """Return one line per subcommand."""
    commands = table()
    width = max(len(name) for name in commands)
    lines = [f"  {name.ljust(width)}  {one.purpose}" for name, one in commands.items()]
    head = f"{MAGIC} SUBCOMMAND, with --help for the options of one:"
    return "\n".join([head, *lines])


def perform(state: NotebookState, words: list[str]) -> object:
    """Run one subcommand.

    Raises
    ------
    ConfigError
        If there is no such subcommand or option.
    HelpAsked
        If help was asked for, or nothing.
    """
    if not words or words[0] in ("-h", "--help", "help"):
        raise HelpAsked(overview())
    command = table().get(words[0])
    if command is None:
        problem = f"{MAGIC} has no subcommand '{words[0]}'"
        near = nearest(words[0], list(table()))
        if near:
            raise ConfigError(problem, f"Did you mean `{MAGIC} {near}`?")
        raise ConfigError(problem, f"It has {', '.join(table())}.")
    return command.run(state, command.words().read_words(words[1:]))
