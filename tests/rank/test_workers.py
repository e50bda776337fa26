"""Worker processes of torch and of Python inside a cell."""

import psutil
import pytest

from tests.rank.driving import Desk, DrivenRank

_DATA = (
    "import torch\n"
    "class Data(torch.utils.data.Dataset):\n"
    "    def __len__(self): return 6\n"
    "    def __getitem__(self, i):\n"
    "        print('item', i)\n"
    "        if slow: import time; time.sleep(60)\n"
    "        return i\n"
    "def load():\n"
    "    loader = torch.utils.data.DataLoader(Data(), num_workers=2)\n"
    "    return sum(int(batch) for batch in loader)\n"
)


@pytest.fixture(scope="module")
def rank(shared_desk: Desk) -> DrivenRank:
    return shared_desk.start("cpu")


def test_data_loader_workers_load_and_print(rank: DrivenRank):
    run = rank.run(f"{_DATA}slow = False\nload()")
    assert run.value == "15"
    assert sorted(run.text().splitlines()) == [f"item {i}" for i in range(6)]


def test_an_interrupt_ends_data_loader_workers_too(rank: DrivenRank):
    cell_id = rank.submit(f"{_DATA}slow = True\nload()")
    rank.receive()
    workers = psutil.Process(rank.process.pid).children()
    assert len(workers) == 2
    rank.interrupt()
    assert rank.wait(cell_id).error.interrupted
    _, alive = psutil.wait_procs(workers, 5.0)
    assert alive == []
    assert rank.run("slow = False\nload()").value == "15"


def test_an_interrupt_ends_a_pool(rank: DrivenRank):
    code = (
        "import multiprocessing as mp, time\n"
        "def nap(n):\n    print('nap'); time.sleep(60)\n"
        "with mp.get_context('fork').Pool(2) as pool:\n    pool.map(nap, [1, 2])"
    )
    cell_id = rank.submit(code)
    rank.receive()
    rank.interrupt()
    error = rank.wait(cell_id).error
    assert (error.kind, error.message) == ("KeyboardInterrupt", "")
    assert rank.run("1").value == "1"


def test_an_executor_of_forked_processes_runs_what_was_typed(rank: DrivenRank):
    code = (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "import multiprocessing as mp\n"
        "def double(n): return 2 * n\n"
        "with ProcessPoolExecutor(2, mp.get_context('fork')) as pool:\n"
        "    found = list(pool.map(double, [1, 2]))\n"
        "found"
    )
    assert rank.run(code).value == "[2, 4]"
