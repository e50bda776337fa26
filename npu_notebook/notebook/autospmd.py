"""``%autospmd``: plain cells run on all ranks, without ``%%spmd`` on top.

Works on the text of a cell before IPython does; lines keep their numbers.
"""

from __future__ import annotations

import re

LOCAL = "%%local"

# `%%time` and `%%timeit` wrap the cell's own Python; all others do something of theirs.
_REMOTE_CELL_MAGICS = ("%%time", "%%timeit")
_LINE_MAGIC = re.compile(r"%([A-Za-z_][\w.]*)")
OWN_MAGICS = frozenset({"npu_cluster", "push", "pull", "spmd", "autospmd"})
_LOCAL_MAGICS = OWN_MAGICS | {"load_ext", "reload_ext", "unload_ext"}


def transform(lines: list[str], *, enabled: bool) -> list[str]:
    r"""Return the cell as IPython shall run it.

    Parameters
    ----------
    lines : list of str
        The cell's lines with their ends.
    enabled : bool
        Whether plain cells go to the ranks.

    Examples
    --------
    >>> transform(["x = 1\n"], enabled=True)
    ["get_ipython().run_cell_magic('spmd', '', 'x = 1\\n')\n"]
    >>> transform(["%%local\n", "x = 1\n"], enabled=True)
    ['\n', 'x = 1\n']
    """
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return lines
    head = lines[first].split()
    if head[0] == LOCAL:
        return [*lines[:first], "\n", *lines[first + 1 :]]
    is_magic = head[0].startswith("%%") and head[0] not in _REMOTE_CELL_MAGICS
    if not enabled or is_magic or _asks_for_help(lines[first:]):
        return lines
    return _split(lines)


def _asks_for_help(lines: list[str]) -> bool:
    """Whether the cell is ``%push?`` or the like: the notebook's own magics."""
    words = "".join(lines).strip()
    name = words.strip("?%")
    return len(words.splitlines()) == 1 and "?" in words and name in _LOCAL_MAGICS


def _split(lines: list[str]) -> list[str]:
    """Send runs of plain lines to the ranks, keep our magics here, in their order."""
    result: list[str] = []
    run: list[str] = []
    run_start = 0
    for number, line in enumerate(lines):
        match = _LINE_MAGIC.match(line)
        if match is None or match[1] not in _LOCAL_MAGICS:
            if not run:
                run_start = number
            run.append(line)
            continue
        result += _remote(run, run_start)
        run = []
        result.append(line)
    return result + _remote(run, run_start)


def _remote(run: list[str], start: int) -> list[str]:
    if not any(line.strip() for line in run):
        return []
    # IPython drops leading empty lines, and with them the line numbers.
    cell = ("#" + "\n" * start if start else "") + "".join(run)
    if run[0].startswith("%%"):
        cell = "".join(run)  # a cell magic has to stay on top
    return [f"get_ipython().run_cell_magic('spmd', '', {cell!r})\n"]
