r"""What a terminal would show of text with ``\r``, ``\b``, colours and cursor moves.

Progress bars redraw a line; a cell's output keeps only the state a person would see.
Pure: text in, lines out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, erase, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|[\r\b]"
)
_MOVE = re.compile(r"(\n|\x1b\[\d*[AB])")
_SGR = re.compile(r"\x1b\[([0-9;:]*)m")
_RESET = "\x1b[0m"
_UNSETS = {22: "weight", 23: "italic", 24: "line", 25: "blink", 27: "inverse"}
_SETS = {1: "weight", 2: "weight", 3: "italic", 4: "line", 5: "blink", 7: "inverse"}
_SETS |= dict.fromkeys((*range(30, 39), *range(90, 98)), "colour")
_SETS |= dict.fromkeys((*range(40, 49), *range(100, 108)), "ground")
_UNSETS |= {39: "colour", 49: "ground"}
_EXTENDED = (38, 48)  # followed by 5;N or 2;R;G;B


class Style:
    """The colours and attributes that are on.

    Source: ECMA-48, section 8.3.117 (SGR); the 256 and RGB colours as in xterm.
    """

    def __init__(self) -> None:
        self._on: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._on)

    def __str__(self) -> str:
        codes = ";".join(self._on.values())
        return f"\x1b[{codes}m" if codes else ""

    def apply(self, parameters: str) -> None:
        """Follow one SGR sequence, given the text between ``[`` and ``m``."""
        codes = [int(code) if code else 0 for code in re.split("[;:]", parameters)]
        at = 0
        while at < len(codes):
            code = codes[at]
            length = 1
            if code == 0:
                self._on.clear()
            elif code in _EXTENDED:
                length = 3 if codes[at + 1 : at + 2] == [5] else 5
                words = ";".join(str(part) for part in codes[at : at + length])
                self._on[_SETS[code]] = words
            elif code in _UNSETS:
                self._on.pop(_UNSETS[code], None)
            else:
                self._on[_SETS.get(code, f"code {code}")] = str(code)
            at += length


def close_colours(line: str, style: Style) -> str:
    r"""Return the line such that no colour runs on behind it.

    Parameters
    ----------
    line : str
        Text without line end.
    style : Style
        What the line before left on; changed to what this line leaves on.

    Examples
    --------
    >>> style = Style()
    >>> close_colours("\x1b[31mred", style)
    '\x1b[31mred\x1b[0m'
    >>> close_colours("still red\x1b[0m, plain", style)
    '\x1b[31mstill red\x1b[0m, plain'
    """
    before = str(style)
    for match in _SGR.finditer(line):
        style.apply(match[1])
    return before + line + (_RESET if style else "")


def last_state(line: str, style: Style | None = None) -> str:
    r"""Return what a terminal shows of one line after all its redraws.

    Examples
    --------
    >>> last_state("a\rb"), last_state("100\r5"), last_state("50%\r")
    ('b', '500', '50%')
    """
    style = Style() if style is None else style
    if "\r" not in line and "\b" not in line:
        return close_colours(line, style)
    if "\x1b" not in line and "\b" not in line and not style:
        return _last_plain_state(line)
    cells: list[tuple[str, str]] = []
    _draw(line, style, cells)
    return _join_cells(cells)


def _last_plain_state(line: str) -> str:
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown


def _draw(line: str, style: Style, cells: list[tuple[str, str]]) -> None:
    at = 0
    start = 0
    while start < len(line):
        match = _CONTROL.search(line, start)
        for char in line[start : match.start() if match else None]:
            cells[at:] = [(str(style), char), *cells[at + 1 :]]
            at += 1
        if match is None:
            break
        at = _obey(match[0], style, cells, at)
        start = match.end()


def _obey(control: str, style: Style, cells: list[tuple[str, str]], at: int) -> int:
    if control == "\r":
        return 0
    if control == "\b":
        return max(0, at - 1)
    if control.endswith("m") and (match := _SGR.fullmatch(control)):
        style.apply(match[1])
    elif control in ("\x1b[K", "\x1b[0K"):
        del cells[at:]
    elif control == "\x1b[2K":
        cells[:] = [("", " ")] * at
    return at


def _join_cells(cells: list[tuple[str, str]]) -> str:
    parts: list[str] = []
    current = ""
    for style, char in cells:
        if style != current:
            parts.append(_RESET if current else "")
            parts.append(style)
            current = style
        parts.append(char)
    if current:
        parts.append(_RESET)
    return "".join(parts)


@dataclass(slots=True)
class Screen:
    """The last lines of one stream of one rank, which may still change.

    ``rows`` are the lines that can be redrawn, ``row`` is where the cursor is;
    ``is_block`` once the cursor has gone up, as nested progress bars do.
    """

    rows: list[str] = field(default_factory=lambda: [""])
    row: int = 0
    is_block: bool = False
    style: Style = field(default_factory=Style)

    @property
    def is_empty(self) -> bool:
        """Whether nothing unfinished is left."""
        return not any(self.rows)

    @property
    def is_redrawn(self) -> bool:
        r"""Whether the unfinished part has had a ``\r``."""
        return self.is_block or self.row > 0 or any("\r" in row for row in self.rows)

    @property
    def is_plain(self) -> bool:
        """Whether `feed_plain` may take text without control characters."""
        return not self.row and not self.style and not self.is_redrawn

    def feed_plain(self, text: str) -> list[str]:
        """Do as `feed`, fast, for text without control characters."""
        lines = (self.rows[0] + text).split("\n")
        self.rows[0] = lines.pop()
        return lines

    def feed(self, text: str) -> list[str]:
        """Take text, return the lines that cannot change any more."""
        done: list[str] = []
        for part in _MOVE.split(text):
            if part == "\n":
                done += self._new_line()
            elif _MOVE.fullmatch(part):
                self._move(part)
            elif part:
                self._write(part)
        return done

    def settle(self) -> list[str]:
        """Give up redrawing what lies above the cursor and return it."""
        done = [self._show(row) for row in self.rows[: self.row]]
        del self.rows[: self.row]
        self.row = 0
        self.is_block = len(self.rows) > 1
        return done

    def finish(self) -> list[str]:
        """Return all that is left; trailing erased lines are dropped."""
        done = [self._show(row) for row in self.rows]
        while done and not done[-1].strip():
            done.pop()
        self.rows, self.row, self.is_block = [""], 0, False
        return done

    def peek(self) -> str:
        """Return what is on screen now, without its erased lines."""
        saved = Style()
        lines = [last_state(row, saved) for row in self.rows]
        return "\n".join(line for line in lines if line.strip())

    def _show(self, row: str) -> str:
        return last_state(row, self.style)

    def _write(self, text: str) -> None:
        row = self.rows[self.row] + text
        # Redraws pile up; keep only what is on screen.
        if row.count("\r") > 1:
            head, _, tail = row.rpartition("\r")
            row = f"{last_state(head, Style())}\r{tail}"
        self.rows[self.row] = row

    def _new_line(self) -> list[str]:
        redrawn = "\r" in self.rows[self.row]
        if not redrawn and not self.is_block and self.row == 0:
            done = [self._show(self.rows[0])]
            self.rows[0] = ""
            return done
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")
        elif self.rows[self.row]:
            self.rows[self.row] += "\r"
        # One line of grace: nested bars step down and at once up again.
        if self.row > 1 and not self.is_block:
            return self.settle()
        return []

    def _move(self, sequence: str) -> None:
        count = int(sequence[2:-1] or 1)
        if sequence.endswith("A"):
            self.is_block = self.is_block or self.row > 0
            self.row = max(0, self.row - count)
        else:
            self.row += count
            self.rows += [""] * (self.row + 1 - len(self.rows))


def strip_controls(text: str) -> str:
    """Return the text without colours and other terminal controls."""
    return _CONTROL.sub("", text)
