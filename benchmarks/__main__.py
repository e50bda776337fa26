"""``python -m benchmarks [NAME ...] [--quick] [--markdown]``."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, cast

from benchmarks import table

if TYPE_CHECKING:
    from benchmarks.figures import Figure

#: What can be asked for, and its module: one row of the table of goals each.
BENCHMARKS = {
    "jupyter-cell": "jupyter_cell",
    "run-pass": "run_pass",
    "start": "start",
    "bulk-data": "bulk_data",
    "printed-lines": "printed_lines",
    "memory": "memory",
    "many-cells": "many_cells",
}


def measure(name: str, *, quick: bool) -> list[Figure]:
    """Run one benchmark; ``quick`` only shows that it works."""
    module = importlib.import_module(f"benchmarks.{BENCHMARKS[name]}")
    return cast("list[Figure]", module.measure(quick=quick))


def main(words: list[str] | None = None) -> None:
    """Run what was asked for and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="see that it works; the figures mean little",
    )
    parser.add_argument("--markdown", action="store_true", help="for the documentation")
    given = parser.parse_args(words)
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        known = ", ".join(BENCHMARKS)
        parser.error(f"no benchmark named {', '.join(unknown)}: choose of {known}")
    print(table.machine())
    figures: list[Figure] = []
    try:
        for name in given.names or BENCHMARKS:
            print(f"{name} ...", file=sys.stderr, flush=True)
            figures += measure(name, quick=given.quick)
    finally:  # one that fails does not take the figures of the others with it
        print()
        print(table.render(figures, markdown=given.markdown))


if __name__ == "__main__":
    main()
