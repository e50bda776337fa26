"""Reads the words behind a magic; a mistake is one sentence, never an exit."""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from npu_notebook.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class HelpAsked(Exception):  # noqa: N818  nothing is wrong: the user asked for it
    """The words were ``--help``; carries what to show."""

    text: str


class Words(argparse.ArgumentParser):
    """The options of one magic or subcommand.

    Parameters
    ----------
    name : str
        As the user types it, for example ``"%npu_cluster start"``.
    purpose : str
        What it does, for ``--help``.
    """

    def __init__(self, name: str, purpose: str) -> None:
        super().__init__(
            prog=name,
            description=purpose,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("-h", "--help", action="store_true", help="show this text")

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print before it exits."""
        msg = f"{self.prog}: {_plain(message)}"
        raise ConfigError(msg, self._remedy())

    def read(self, line: str) -> argparse.Namespace:
        """Read a whole line.

        Raises
        ------
        ConfigError
            Naming the unknown or wrong word, and the nearest known one.
        HelpAsked
            If the words ask for help.
        """
        return self.read_words(split(line, self.prog))

    def read_words(self, words: Sequence[str]) -> argparse.Namespace:
        """Read words that are already split; see `read`."""
        if "-h" in words or "--help" in words:
            raise HelpAsked(self.format_help())
        found, unknown = self.parse_known_args(list(words))
        if unknown:
            self._refuse(unknown[0])
        return found

    def read_front(self, line: str) -> tuple[argparse.Namespace, str]:
        """Read the options before a piece of code and return the code as it stands.

        Raises
        ------
        ConfigError
            If a word in front of the code looks like an option and is none.
        """
        words: list[str] = []
        rest = line
        while match := _FRONT.match(rest):
            word = match[1]
            if word == "--":
                rest = rest[match.end() :]
                break
            option = word.partition("=")[0]
            action = self._option_string_actions.get(option)
            if action is None:
                if not word.startswith("--"):
                    break  # an expression such as -x
                self._refuse(word)
            words.append(word)
            rest = rest[match.end() :]
            if action.nargs != 0 and "=" not in word:
                value = _VALUE.match(rest)
                if value is None:
                    self.error(f"option {word} needs a value")
                words.append(value[1].strip("'\""))
                rest = rest[value.end() :]
        return self.read_words(words), rest.strip()

    def _refuse(self, word: str) -> NoReturn:
        if not word.startswith("-"):
            msg = f"{self.prog}: '{word}' is one word too many"
            raise ConfigError(msg, self._remedy())
        option = word.partition("=")[0]
        known = [name for name in self._option_string_actions if name != "-h"]
        problem = f"{self.prog} has no option '{option}'"
        near = nearest(option, known)
        if near:
            raise ConfigError(problem, f"Did you mean {near}?")
        raise ConfigError(problem, f"It has {', '.join(sorted(known))}.")

    def _remedy(self) -> str:
        return f"Type `{self.prog} --help` to see how it is used."


_FRONT = re.compile(r"\s*(--?[^\s]*)(?=\s|$)")
_VALUE = re.compile(r"""\s*("[^"]*"|'[^']*'|\S+)""")


def split(line: str, name: str) -> list[str]:
    """Split a line into words as a shell does, quotes included; nothing is expanded.

    Raises
    ------
    ConfigError
        If a quote is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        problem = f"{name}: the line {line!r} cannot be read ({error})"
        raise ConfigError(problem, "Close the quote.") from error


def nearest(word: str, known: Sequence[str]) -> str:
    """Return the known word that is most like ``word``, "" when none is."""
    found = get_close_matches(word, known, 1, 0.6)
    return found[0] if found else ""


def environment_pair(word: str) -> tuple[str, str]:
    """Read ``NAME=VALUE`` for ``--env``."""
    name, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        message = f"'{word}' is not NAME=VALUE"
        raise argparse.ArgumentTypeError(message)
    return name, value


def seconds(word: str) -> float:
    """Read a number of seconds above 0."""
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        message = f"'{word}' is not a number of seconds above 0"
        raise argparse.ArgumentTypeError(message)
    return value


def variable(word: str) -> str:
    """Read the name of a Python variable."""
    if not word.isidentifier() or keyword.iskeyword(word):
        message = f"'{word}' is not the name of a variable"
        raise argparse.ArgumentTypeError(message)
    return word


def _plain(message: str) -> str:
    message = message.replace("invalid int value", "not a whole number")
    return message.removesuffix(".")


def given(words: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those options that the user typed."""
    return {
        name: value for name in names if (value := getattr(words, name)) is not None
    }
