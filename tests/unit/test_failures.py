import pytest

from npu_notebook.failures import MAX_BLOCKS, MAX_MESSAGES, describe_failure
from npu_notebook.messages import ErrorInfo, FrameFact, RankOutcome

LOGS = {rank: f"/logs/rank-{rank}.log" for rank in range(64)}


def frame(line: int, function: str = "<module>", file: str = "Cell In[1]") -> FrameFact:
    return FrameFact(file=file, line=line, function=function)


def failed(rank: int, kind: str, message: str, *lines: int) -> RankOutcome:
    frames = tuple(frame(line) for line in lines)
    trace = f"Traceback of {kind} on {rank}"
    error = ErrorInfo(kind=kind, message=message, traceback=trace, frames=frames)
    return RankOutcome(rank=rank, error=error)


def ended(rank: int, reason: str) -> RankOutcome:
    error = ErrorInfo(kind="RankLostError", message=reason)
    return RankOutcome(rank=rank, error=error, lost=True)


def describe(
    *outcomes: RankOutcome, timeout_s: float | None = None
) -> tuple[list[str], list[str]]:
    timed_out = timeout_s is not None
    summary, text = describe_failure(outcomes, LOGS, timed_out, timeout_s)
    return summary.splitlines(), text.splitlines()


def test_ranks_with_the_same_error_share_one_block():
    outcomes = [failed(rank, "ZeroDivisionError", "by zero", 5, 2) for rank in range(3)]
    outcomes.append(failed(3, "IndexError", "out of range", 5))
    summary, text = describe(*outcomes)
    assert summary == [
        "ranks 0-2: ZeroDivisionError: by zero",
        "rank 3: IndexError: out of range",
    ]
    assert text == [
        "ranks 0-2: ZeroDivisionError: by zero",
        "Traceback of ZeroDivisionError on 0",
        "",
        "rank 3: IndexError: out of range",
        "Traceback of IndexError on 3",
    ]


def test_the_same_type_at_another_line_is_another_error():
    summary, _ = describe(
        failed(0, "ValueError", "x", 1), failed(1, "ValueError", "x", 2)
    )
    assert len(summary) == 2


def test_messages_that_differ_are_listed_below_one_headline():
    outcomes = [
        failed(rank, "ValueError", f"boom on {rank % 2}", 1) for rank in range(4)
    ]
    summary, text = describe(*outcomes)
    assert summary == ["ranks 0-3: ValueError: boom on 0 (and 1 other message)"]
    assert text[1:3] == ["  ranks 0,2: boom on 0", "  ranks 1,3: boom on 1"]
    assert text[3] == "Traceback of ValueError on 0"


def test_many_messages_are_listed_shortly():
    outcomes = [failed(rank, "ValueError", f"at {rank}", 1) for rank in range(20)]
    _, text = describe(*outcomes)
    assert f"  and {20 - MAX_MESSAGES} more" in text


def test_without_frames_the_message_tells_errors_apart():
    summary, _ = describe(failed(0, "SyntaxError", "a"), failed(1, "SyntaxError", "b"))
    assert len(summary) == 2


def test_hundreds_of_different_errors_do_not_bring_hundreds_of_tracebacks():
    outcomes = [failed(rank, "ValueError", "x", rank + 1) for rank in range(64)]
    summary, text = describe(*outcomes)
    assert len(summary) == 64
    assert sum(line.startswith("Traceback") for line in text) == MAX_BLOCKS
    assert f"first {MAX_BLOCKS} of 64" in text[-1]


def test_a_long_message_is_cut_in_the_headline():
    summary, _ = describe(failed(0, "ValueError", "x" * 5000 + "\nsecond line", 1))
    assert len(summary) == 1
    assert len(summary[0]) < 300


def test_exit_names_code_line_and_all_logs():
    error = ErrorInfo(kind="SystemExit", message="3", frames=(frame(2),), exit_code=3)
    summary, text = describe(RankOutcome(rank=0, error=error), RankOutcome(rank=1))
    assert summary[0].startswith("rank 0 called exit with code 3 at line 2")
    assert text[-1] == "Logs of the ranks: /logs/ (rank-0.log, rank-1.log)"


def test_exit_inside_a_file_names_the_file():
    frames = (frame(1), frame(7, "main", "/home/me/train.py"))
    error = ErrorInfo(kind="SystemExit", message="0", frames=frames, exit_code=0)
    summary, _ = describe(RankOutcome(rank=0, error=error))
    assert "with code 0 at line 7 of /home/me/train.py" in summary[0]


def interrupted(rank: int, line: int) -> RankOutcome:
    error = ErrorInfo(
        kind="KeyboardInterrupt", message="", frames=(frame(line),), interrupted=True
    )
    return RankOutcome(rank=rank, error=error)


def test_an_interrupt_is_one_line_for_all_ranks():
    outcomes = [interrupted(rank, 2 if rank < 3 else 5) for rank in range(4)]
    summary, text = describe(*outcomes)
    assert summary == text
    assert summary == [
        "Interrupted: ranks 0-2 at line 2; rank 3 at line 5. Variables are kept."
    ]


def test_ranks_that_were_restarted_need_no_advice():
    lost = [
        ended(rank, f"rank {rank} (a, pid {rank}) was replaced by a restart")
        for rank in (0, 1)
    ]
    summary, _ = describe(*lost)
    (line,) = summary
    assert line.startswith("ranks 0-1 (a, pid 0; a, pid 1) were replaced by a restart.")
    assert "Run" not in line


def test_a_time_limit_is_named():
    summary, _ = describe(interrupted(0, 2), timeout_s=60)
    assert summary == [
        "Stopped after 60 s, the limit given for this cell: rank 0 at line 2. "
        "Variables are kept."
    ]


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        (
            [ended(2, "rank 2 (a, pid 7) ended by signal 9; often the OOM killer")],
            "rank 2 (a, pid 7) ended by signal 9; often the OOM killer. "
            "Run `%npu_cluster restart --ranks 2` to replace it",
        ),
        (
            [ended(rank, f"rank {rank} (a, pid {rank}) went") for rank in (1, 2)],
            "ranks 1-2 (a, pid 1; a, pid 2) went. "
            "Run `%npu_cluster restart --ranks 1-2` to replace them",
        ),
        (
            [
                ended(rank, f"rank {rank} (a, pid {rank}) is lost with its host: off")
                for rank in (1, 2)
            ],
            "ranks 1-2 (a, pid 1; a, pid 2) are lost with their host: off. Run",
        ),
        (
            [
                ended(0, "rank 0 (a, pid 5) was replaced by a restart"),
                ended(1, "rank 1 (a, pid 6) exited with code 1"),
            ],
            "rank 0 (a, pid 5) was replaced by a restart; rank 1 (a, pid 6) exited "
            "with code 1. Run `%npu_cluster restart --ranks 1` to replace it",
        ),
        ([ended(0, "its host is gone")], "rank 0 is lost: its host is gone. Run"),
        ([RankOutcome(rank=0, lost=True)], "rank 0 is lost. Run"),
    ],
)
def test_lost_ranks_are_one_line_with_the_remedy(
    outcomes: list[RankOutcome], words: str
):
    summary, _ = describe(*outcomes, RankOutcome(rank=9))
    assert len(summary) == 1
    assert summary[0].startswith(words)
    assert "Log: /logs/" in summary[0]


def test_a_lost_rank_stands_above_the_errors_it_causes():
    summary, _ = describe(failed(0, "RuntimeError", "peer", 1), ended(1, "gone"))
    assert summary[0].startswith("rank 1 is lost: gone")


def test_colours_of_the_ranks_colour_the_headline_and_the_ruler_goes():
    trace = "\x1b[31m" + "-" * 75 + "\x1b[39m\n\x1b[31mValueError\x1b[39m: x"
    error = ErrorInfo(kind="ValueError", message="x", traceback=trace, frames=())
    _, text = describe(RankOutcome(rank=0, error=error))
    assert text == [
        "\x1b[1;31mrank 0: ValueError: x\x1b[0m",
        "\x1b[31mValueError\x1b[39m: x",
    ]
