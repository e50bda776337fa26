"""Each benchmark works; how fast things are is not a test."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import printed_lines, table
from benchmarks.figures import Figure
from benchmarks.kernel import CellRun

ROOT = Path(benchmarks.__file__).parents[1]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", benchmarks.BENCHMARKS)
def test_a_quick_run_measures_ours_beside_the_reference(name: str):
    figures = benchmarks.measure(name, quick=True)
    assert any(figure.limit is not None for figure in figures)
    for figure in figures:
        samples = [*figure.ours, *figure.reference]
        assert all(math.isfinite(sample) and sample >= 0 for sample in samples)
        assert figure.what
        assert figure.unit
        assert bool(figure.reference) == bool(figure.reference_name)
        if figure.limit is not None:
            assert figure.passed is not None
        if figure.unit == "lines":
            assert figure.median == 0
    assert len(table.render(figures).splitlines()) >= 2 + len(figures)


def test_an_unknown_name_is_answered_with_the_known_ones():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "jupyter-cel"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "no benchmark named jupyter-cel" in done.stderr
    assert "jupyter-cell, run-pass" in done.stderr


@pytest.mark.parametrize(
    ("figure", "passed"),
    [
        (Figure("a", "s", (1.0, 2.0, 9.0), (2.0,), "b", limit=1.0), True),
        (Figure("a", "s", (2.1,), (2.0,), "b", limit=1.0), False),
        (Figure("a", "MB", (24.0,), limit=25, limit_of="value"), True),
        (Figure("a", "MB", (26.0,), (99.0,), "b", limit=25, limit_of="value"), False),
        (Figure("a", "s", (1.0,), (2.0,), "b"), None),
    ],
)
def test_a_goal_is_about_the_median_ratio_or_the_median(figure: Figure, passed: object):
    assert figure.passed is passed


def test_the_table_says_ratio_goal_and_verdict():
    figures = [
        Figure("fast", "ms", (2.0,), (4.0,), "other", limit=0.7, note="Mind this."),
        Figure("slow", "ms", (4.0,), (4.0,), "other", limit=0.7),
    ]
    assert table.render(figures).splitlines()[2:] == [
        "fast [1]  2.0 ms  4.0 ms other  0.50   ratio <= 0.7  met",
        "slow      4.0 ms  4.0 ms other  1.00   ratio <= 0.7  MISSED",
        "",
        "[1] Mind this.",
    ]
    assert (
        "| slow | 4.0 ms | 4.0 ms other | 1.00 | ratio <= 0.7 | MISSED |"
        in table.render(figures, markdown=True)
    )


def test_missing_doubled_and_swapped_lines_are_counted():
    def stream(*lines: str) -> dict:
        text = "".join(f"{line}\n" for line in lines)
        return {"msg_type": "stream", "content": {"name": "stdout", "text": text}}

    complete = [f"out{r}:{n}" for r in range(4) for n in range(3)]
    assert printed_lines.count_lost(CellRun(outputs=[stream(*complete)]), 3, 0) == 0
    missing = CellRun(outputs=[stream(*complete[1:])])
    assert printed_lines.count_lost(missing, 3, 0) == 1
    doubled = CellRun(outputs=[stream(*complete), stream(complete[-1])])
    assert printed_lines.count_lost(doubled, 3, 0) == 1
    swapped = [complete[1], complete[0], *complete[2:]]
    assert printed_lines.count_lost(CellRun(outputs=[stream(*swapped)]), 3, 0) == 1


def test_a_line_in_a_live_display_counts_where_it_is_shown():
    def message(kind: str, **content: object) -> dict:
        return {"msg_type": kind, "content": content}

    live = {"display_id": "a"}
    lines = [f"out{r}:{n}" for r in range(4) for n in range(3)]
    head, tail = "\n".join(lines[:1]), "\n".join(lines[2:])
    outputs = [
        message("stream", name="stdout", text=head[:4]),
        message("stream", name="stdout", text=head[4:] + "\n"),
        message("display_data", data={"text/plain": lines[1][:5]}, transient=live),
        message("stream", name="stdout", text=tail),
        message("update_display_data", data={"text/plain": lines[1]}, transient=live),
    ]
    assert printed_lines.count_lost(CellRun(outputs=outputs), 3, 0) == 0
