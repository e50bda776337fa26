"""Variables travel whole, or an answer says which cannot and why."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npu_notebook import bulk
from npu_notebook.messages import (
    BulkLayout,
    CommitValues,
    PulledValues,
    SendValues,
    StageValues,
    ValuesCommitted,
    ValuesStaged,
)
from tests.rank.driving import Desk, DrivenRank


@pytest.fixture(scope="module")
def rank(shared_desk: Desk) -> DrivenRank:
    return shared_desk.start("cpu")


def stage(rank: DrivenRank, values: dict[str, Any], folder: Path | None = None):
    """Stage values, through shared memory if a folder is given."""
    packed = bulk.pack(values)
    if folder is None:
        layout, payload = BulkLayout(sizes=packed.sizes), packed.parts
    else:
        layout, payload = packed.write(folder / "region"), []
    message = StageValues(request_id="r", names=tuple(values), layout=layout)
    staged = rank.ask(message, payload)
    if folder is not None:
        (folder / "region").unlink()
    assert isinstance(staged, ValuesStaged)
    return staged


def commit(rank: DrivenRank, *, keep: bool = True) -> None:
    answer = rank.ask(CommitValues(request_id="r", keep=keep))
    assert answer == ValuesCommitted(request_id="r", rank=0)


def pull(rank: DrivenRank, *names: str) -> dict[str, Any]:
    folder = str(bulk.shared_memory_dir())
    rank.send(SendValues(request_id="p", names=names, shared_memory_dir=folder))
    answer, payload = rank.desk.receive(0)
    assert isinstance(answer, PulledValues)
    assert (answer.missing, answer.problem) == ((), "")
    if answer.layout.path:
        payload = bulk.read_region(answer.layout)
        Path(answer.layout.path).unlink()
    return bulk.unpack(payload)


def refusal(rank: DrivenRank, *names: str) -> PulledValues:
    answer = rank.ask(SendValues(request_id="p", names=names, shared_memory_dir=""))
    assert answer.layout == BulkLayout(sizes=())
    return answer


class Exits:
    """Ends the process that unpacks it, if that lets it."""

    def __reduce__(self):
        return exec, ("raise SystemExit(3)",)


@pytest.mark.parametrize("count", [10, 1_000_000])
@pytest.mark.parametrize("shared", [False, True])
def test_pushed_arrays_can_be_written_to(
    rank: DrivenRank, tmp_path: Path, count: int, *, shared: bool
):
    pushed = np.arange(count, dtype=np.float64)
    assert stage(rank, {"a": pushed}, tmp_path if shared else None).error is None
    assert "a" not in rank.run("sorted(globals())").value.split("'")
    commit(rank)
    assert rank.run("a += 1; a.sort(); a[0] = 7; n = len(a)").error is None
    pulled = pull(rank, "a", "n")
    assert pulled["n"] == count
    assert pulled["a"][0] == 7
    assert pulled["a"][-1] == count
    assert pushed[0] == 0
    rank.run("del a, n")


def test_staged_values_can_be_dropped(rank: DrivenRank):
    stage(rank, {"dropped": 1})
    commit(rank, keep=False)
    assert rank.run("'dropped' in globals()").value == "False"


def test_what_cannot_be_unpacked_here_is_an_answer(rank: DrivenRank):
    parts = [memoryview(b"cnot_a_module\nf\n.")]
    layout = BulkLayout(sizes=(len(parts[0]),))
    staged = rank.ask(StageValues(request_id="r", names=("f",), layout=layout), parts)
    assert staged.error.kind == "ModuleNotFoundError"
    assert "not_a_module" in staged.error.message
    commit(rank, keep=False)


def test_functions_typed_in_the_notebook_arrive(rank: DrivenRank):
    def double(n):
        return 2 * n

    double.__module__ = "__main__"
    stage(rank, {"double": double})
    commit(rank)
    assert rank.run("double(4)").value == "8"


def test_tensors_of_all_kinds_leave(rank: DrivenRank):
    import torch

    rank.run(
        "import torch\n"
        "half = torch.ones(3, dtype=torch.bfloat16)\n"
        "leaf = torch.ones(2, requires_grad=True)\n"
        "state = torch.nn.Linear(2, 1).state_dict()"
    )
    pulled = pull(rank, "half", "leaf", "state")
    assert pulled["half"].dtype == torch.bfloat16
    assert pulled["leaf"].requires_grad
    assert pulled["state"]["weight"].shape == (1, 2)


def test_what_cannot_be_sent_is_named(rank: DrivenRank):
    rank.run(
        "import threading, torch\nlock = threading.Lock()\n"
        "empty = torch.ones(2, device='meta')\nfine = 1"
    )
    assert refusal(rank, "fine", "gone", "lost").missing == ("gone", "lost")
    problem = refusal(rank, "fine", "lock").problem
    assert problem.startswith("'lock': cannot be sent: type _thread.lock")
    problem = refusal(rank, "empty").problem
    assert problem.startswith("'empty': cannot be sent")
    assert "meta" in problem
    assert rank.run("fine").value == "1"


def test_an_exit_while_values_are_packed_or_unpacked_ends_no_rank(rank: DrivenRank):
    rank.run(
        "class Leaver:\n"
        "    def __reduce__(self):\n"
        "        raise SystemExit(3)\n"
        "leaver = Leaver()"
    )
    assert refusal(rank, "leaver").problem.startswith("'leaver': cannot be sent")
    arrived = stage(rank, {"x": Exits()})
    assert arrived.error.kind == "SystemExit"
    assert rank.run("1").value == "1"


def test_the_value_of_a_cell_can_be_fetched_once(rank: DrivenRank):
    cell_id = rank.submit("40 + 2", want_value=True)
    rank.wait(cell_id)
    name = f"_npu_value_{cell_id}"
    assert pull(rank, name) == {name: 42}
    assert refusal(rank, name).missing == (name,)


def test_a_cell_without_a_value_has_none(rank: DrivenRank):
    for code in ("x = 1", "5;", "None"):
        cell_id = rank.submit(code, want_value=True)
        rank.wait(cell_id)
        name = f"_npu_value_{cell_id}"
        assert pull(rank, name) == {name: 5 if code == "5;" else None}


def test_values_nobody_asked_for_are_not_kept(rank: DrivenRank):
    code = (
        "import weakref\nclass Big: pass\nmade = []\n"
        "def make():\n    big = Big(); made.append(weakref.ref(big)); return big\n"
        "make()"
    )
    rank.run(code)
    rank.run("1")  # takes the place of the value in _
    assert rank.run("made[0]()", want_value=True).displays == []
