"""What flows through the controller: floods, bulk data, peers that are gone."""

import re
import time
from pathlib import Path

from npu_notebook import messages, wire
from npu_notebook.messages import BulkLayout
from tests.controller.scripted import ScriptedCluster, wait_for

PIECE = ("x" * 99 + "\n") * 655  # what a rank joins at most, 64 KiB


def peak_nbytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


def test_an_interrupt_passes_a_flood_and_no_byte_of_it_is_lost(make_cluster):
    cluster: ScriptedCluster = make_cluster(num_ranks=4)
    notebook = cluster.start()
    cluster.run_cell(notebook, "c1")
    pieces = 400  # 26 MB a rank
    for rank, peer in enumerate(cluster.ranks):
        text = messages.StreamText(cell_id="c1", rank=rank, stream="stdout", text=PIECE)
        frames = wire.encode(text)
        for _ in range(pieces):
            peer.dealer.send_multipart(frames)
    began_s = time.monotonic()
    notebook.send(messages.InterruptCell(level=1))
    for peer in cluster.ranks:
        peer.expect(messages.InterruptRank)
    assert time.monotonic() - began_s < 5
    cluster.end_cell("c1")
    shown = [0] * 4
    while not isinstance(update := notebook.next(), messages.CellFinished):
        if isinstance(update, messages.StreamText):
            assert update.text.endswith("\n")
            shown[update.rank] += len(update.text)
    cap = cluster.spec.output_cap_nbytes
    assert all(cap - len(PIECE) < nbytes <= cap for nbytes in shown)
    for outcome in update.outcomes:
        lines = pieces * 655
        assert outcome.hidden_lines == lines - shown[outcome.rank] // 100
        assert Path(outcome.spool_path).read_text() == PIECE * pieces
    assert peak_nbytes(cluster.process.pid) < 120e6


def test_short_output_leaves_nothing_behind(make_cluster):
    cluster: ScriptedCluster = make_cluster()
    notebook = cluster.start()
    for cell_id in ("c1", "c2"):
        cluster.run_cell(notebook, cell_id)
        text = messages.StreamText(
            cell_id=cell_id, rank=1, stream="stderr", text="hi\n"
        )
        cluster.ranks[1].send(text)
        cluster.end_cell(cell_id)
        assert notebook.expect(messages.StreamText) == text
        assert notebook.expect(messages.CellFinished).cell_id == cell_id
    assert list(cluster.paths.spool.iterdir()) == []


def test_output_for_a_notebook_that_left_is_whole_in_the_file(make_cluster):
    cluster: ScriptedCluster = make_cluster()
    notebook = cluster.start()
    cluster.run_cell(notebook, "c1")
    notebook.send(messages.LeaveNotebook(reason="kernel restarts"))
    other = cluster.notebook()
    other.expect(messages.Welcome)
    text = messages.StreamText(
        cell_id="c1", rank=0, stream="stdout", text="nobody sees this\n"
    )
    cluster.ranks[0].send(text)
    cluster.end_cell("c1")
    file = cluster.paths.spool / "cell-1-rank-0.txt"
    wait_for(lambda: file.exists() and file.read_text() == text.text, "the file")


def test_a_chunk_passes_byte_for_byte(make_cluster):
    cluster: ScriptedCluster = make_cluster()
    notebook = cluster.start()
    data = bytes(range(256)) * (1 << 16)  # 16 MiB
    chunk = messages.BulkChunk(
        transfer_id="t", host="a", offset=0, total_nbytes=len(data)
    )
    notebook.send(chunk, (data,))
    assert cluster.agent.expect(messages.BulkChunk) == chunk
    assert cluster.agent.payload == [data]
    credit = messages.BulkCredit(transfer_id="t", host="a", upto=len(data))
    cluster.agent.send(credit)
    assert notebook.expect(messages.BulkCredit) == credit


def test_values_travel_in_the_message_both_ways(make_cluster):
    cluster: ScriptedCluster = make_cluster()
    notebook = cluster.start()
    layout = BulkLayout(sizes=(3, 2))
    push = messages.PushValues(
        request_id="p", transfer_id="p", names=("x",), ranks=(0, 1), layout=layout
    )
    notebook.send(push, (b"abc", b"de"))
    for number, rank in enumerate(cluster.ranks):
        assert rank.expect(messages.StageValues).names == ("x",)
        assert rank.payload == [b"abc", b"de"]
        rank.send(messages.ValuesStaged(request_id="p", rank=number))
    for number, rank in enumerate(cluster.ranks):
        assert rank.expect(messages.CommitValues).keep
        rank.send(messages.ValuesCommitted(request_id="p", rank=number))
    assert notebook.expect(messages.RequestDone).problem == ""
    notebook.send(messages.PullValues(request_id="q", names=("x",), ranks=(1,)))
    cluster.ranks[1].expect(messages.SendValues)
    answer = messages.PulledValues(request_id="q", rank=1, layout=layout)
    cluster.ranks[1].send(answer, (b"abc", b"de"))
    assert notebook.expect(messages.PulledValues) == answer
    assert notebook.payload == [b"abc", b"de"]


def test_a_peer_that_is_gone_breaks_nothing(make_cluster):
    cluster: ScriptedCluster = make_cluster()
    notebook = cluster.start()
    cluster.ranks[1].close()
    cell = messages.SubmitCell(cell_id="c1", code="x = 1", ranks=(0, 1))
    notebook.send(cell)
    cluster.ranks[0].expect(messages.RunCell)
    exited = messages.RankExited(host="a", rank=1, incarnation=0, pid=9, returncode=-9)
    cluster.agent.send(exited)
    done = messages.CellDone(cell_id="c1", rank=0, elapsed_ns=1)
    cluster.ranks[0].send(done)
    finished = notebook.expect(messages.CellFinished)
    assert [one.lost for one in finished.outcomes] == [False, True]


def test_a_rank_may_be_replaced_at_the_same_number(make_cluster):
    cluster: ScriptedCluster = make_cluster()
    notebook = cluster.start()
    notebook.send(messages.RestartRanks(request_id="r", ranks=(1,)))
    assert cluster.agent.expect(messages.EndRanks).ranks == (1,)
    exited = messages.RankExited(host="a", rank=1, incarnation=0, pid=9, returncode=-15)
    cluster.agent.send(exited)
    (spec,) = cluster.agent.expect(messages.StartRanks).ranks
    assert spec.incarnation == 1
    cluster.ranks[1] = cluster.join_rank(spec)
    assert notebook.expect(messages.RequestDone).problem == ""
    cluster.run_cell(notebook, "c1")
    cluster.end_cell("c1")
    notebook.expect(messages.CellFinished)
