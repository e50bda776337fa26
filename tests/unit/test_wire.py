"""The wire: every message survives it, identities name peers, TCP is never open."""

from __future__ import annotations

import threading
from typing import get_args

import pytest
import zmq

from npu_notebook import messages, wire
from npu_notebook.errors import ProtocolError
from npu_notebook.link import Link

ERROR = messages.ErrorInfo(
    kind="ValueError",
    message="boom",
    traceback="Cell In[1], line 2",
    frames=(messages.FrameFact(file="Cell In[1]", line=2, function="<module>"),),
)
LAYOUT = messages.BulkLayout(sizes=(10, 100))
RANK = messages.RankFact(
    rank=0, host="a", local_rank=0, state=messages.RankState.IDLE, pid=7
)
CLUSTER = messages.ClusterFact(
    name="c",
    state=messages.ClusterState.READY,
    world_size=1,
    provider="simulated",
    label="simulated NPU",
    backend="cpu:gloo,npu:hccl",
    epoch=1,
    ranks=(RANK,),
    linger_s=None,
    age_s=2.5,
)
RECORD = messages.CollectiveRecord(
    cell_id="c",
    op="all_reduce",
    group="0",
    sequence=17,
    nbytes=4096,
    dtype="float32",
    shape=(1024,),
    start_ns=1,
)

EXAMPLES: list[messages.Message] = [
    messages.JoinNotebook(
        protocol_version=1,
        package_version="0.1.0",
        python="3.11.7",
        host="a",
        pid=1,
        process_start_s=1.5,
        memory_key="m",
    ),
    messages.LeaveNotebook(reason="restart"),
    messages.NotebookAlive(),
    messages.SubmitCell(cell_id="c", code="x = 1", ranks=(0, 1)),
    messages.InterruptCell(level=1),
    messages.PushValues(
        request_id="r", transfer_id="t", names=("x",), ranks=(0,), layout=LAYOUT
    ),
    messages.PullValues(request_id="r", names=("x",), ranks=(0,)),
    messages.RestartRanks(request_id="r", ranks=(2,)),
    messages.AskState(request_id="r"),
    messages.StopCluster(reason="done"),
    messages.BulkChunk(transfer_id="t", host="a", offset=0, total_nbytes=9),
    messages.BulkCredit(transfer_id="t", host="a", upto=9),
    messages.Welcome(protocol_version=1, package_version="0.1.0", fact=CLUSTER),
    messages.StateChanged(fact=CLUSTER),
    messages.Notice(text="No Ascend NPU found."),
    messages.StartFailed(what="rank 2", reason="it ended"),
    messages.CellFinished(
        cell_id="c", outcomes=(messages.RankOutcome(rank=0, error=ERROR),)
    ),
    messages.RequestDone(request_id="r"),
    messages.StateAnswer(request_id="r", fact=CLUSTER),
    messages.ClusterEnded(reason="stopped"),
    messages.FormGroup(
        epoch=1,
        master_address="127.0.0.1",
        master_port=29500,
        world_size=4,
        timeout_s=60.0,
    ),
    messages.RunCell(cell_id="c", code="x = 1"),
    messages.InterruptRank(level=2, cell_id="c"),
    messages.StageValues(request_id="r", names=("x",), layout=LAYOUT),
    messages.CommitValues(request_id="r", keep=True),
    messages.SendValues(request_id="r", names=("x",), shared_memory_dir="/memory"),
    messages.EndRank(),
    messages.RankJoined(
        rank=0,
        incarnation=0,
        host="a",
        pid=7,
        python="3.11.7",
        torch="2.13.0",
        device="npu:0",
        protocol_version=1,
    ),
    messages.RankFailed(rank=0, incarnation=0, error=ERROR),
    messages.GroupFormed(rank=0, epoch=1, elapsed_ns=5),
    messages.Heartbeat(rank=0, doing="running line 12"),
    messages.CellStarted(rank=0, cell_id="c"),
    messages.StreamText(cell_id="c", rank=0, stream="stdout", text="é\r\n \x1b[0m"),
    messages.DisplayOutput(
        cell_id="c", rank=0, kind="display", data={"text/plain": "x", "j": {"a": [1]}}
    ),
    messages.CellDone(cell_id="c", rank=0, elapsed_ns=5, error=ERROR),
    messages.ValuesStaged(request_id="r", rank=0),
    messages.ValuesCommitted(request_id="r", rank=0),
    messages.PulledValues(request_id="r", rank=0, layout=LAYOUT, missing=("x",)),
    messages.CollectivesRecorded(rank=0, records=(RECORD,)),
    messages.PrepareHost(provider="cpu", env={"A": "1"}),
    messages.StartStore(address="127.0.0.1", port=0, world_size=4),
    messages.StartRanks(
        provider="cpu",
        endpoint="ipc:///s",
        ranks=(
            messages.RankSpec(
                rank=0, local_rank=0, incarnation=0, env={}, cwd="/", log_path="/l"
            ),
        ),
    ),
    messages.EndRanks(ranks=(0,), grace_s=2.0),
    messages.EndHost(grace_s=2.0),
    messages.AgentAlive(host="a"),
    messages.SendRegion(transfer_id="t", path="/memory/x"),
    messages.AgentJoined(
        protocol_version=1,
        fact=messages.HostFact(
            name="a",
            address="127.0.0.1",
            agent_pid=3,
            memory_key="m",
            python="3.11.7",
            torch="2.13.0",
            cpu_count=2,
            inventories=(messages.DeviceInventory(provider="cpu", count=64),),
        ),
    ),
    messages.AgentNotice(host="a", text="building"),
    messages.HostPrepared(host="a"),
    messages.StoreStarted(host="a", port=29500),
    messages.RankSpawned(host="a", rank=0, incarnation=0, pid=7),
    messages.RankExited(host="a", rank=0, incarnation=0, pid=7, returncode=-9),
    messages.HostEnded(host="a"),
    messages.RegionStored(transfer_id="t", host="a", path="/memory/x"),
]

READERS = {
    "update": (messages.Update, wire.read_update),
    "rank command": (messages.RankCommand, wire.read_rank_command),
    "agent command": (messages.AgentCommand, wire.read_agent_command),
    "to the controller": (
        messages.ToController,
        lambda frames: wire.read_to_controller([b"rank/0/0", *frames])[1:],
    ),
}


@pytest.mark.parametrize("family", READERS)
def test_every_message_of_a_family_has_an_example_and_survives_the_wire(family):
    union, read = READERS[family]
    by_class = {type(example): example for example in EXAMPLES}
    for member in get_args(union):
        example = by_class[member]
        frames = wire.encode(example, [b"one", memoryview(b"two")])
        message, payload = read(frames)
        assert message == example
        assert [bytes(part) for part in payload] == [b"one", b"two"]


def test_the_tag_on_the_wire_is_the_class_name():
    assert b"LeaveNotebook" in bytes(wire.encode(EXAMPLES[1])[0])


@pytest.mark.parametrize(
    "frames",
    [[b"rank/0/0"], [b"rank/0/0", b""], [b"rank/0/0", b"\xc1"], [b"x", b"\x81\xa1t"]],
)
def test_what_cannot_be_read_is_a_protocol_error(frames):
    with pytest.raises(ProtocolError):
        wire.read_to_controller(frames)


@pytest.mark.parametrize(
    ("identity", "peer"),
    [
        (wire.rank_identity(12, 3), wire.Peer("rank", "12", 3)),
        (wire.agent_identity("h/1"), wire.Peer("agent", "h/1", 0)),
    ],
)
def test_an_identity_names_its_peer(identity, peer):
    assert wire.parse_identity(identity) == peer


@pytest.mark.parametrize(
    "identity", [b"", b"rank", b"rank//0", b"who/1/0", b"\xff/1/0"]
)
def test_a_foreign_identity_is_refused(identity):
    with pytest.raises(ProtocolError):
        wire.parse_identity(identity)


def test_tcp_without_keys_is_never_opened():
    with zmq.Context() as context:
        with pytest.raises(ProtocolError, match="without encryption"):
            wire.open_router(context, "tcp://127.0.0.1:*", None)
        with pytest.raises(ProtocolError, match="without encryption"):
            wire.open_dealer(context, "tcp://127.0.0.1:1", b"rank/0/0")


def _curve_pair() -> tuple[bytes, bytes]:
    return zmq.curve_keypair()


@pytest.mark.parametrize("right_key", [True, False])
def test_a_tcp_peer_is_heard_only_with_the_clusters_keys(right_key):
    server_public, server_secret = _curve_pair()
    public, secret = _curve_pair()
    believed = server_public if right_key else _curve_pair()[0]
    with zmq.Context() as context:
        keys = wire.CurveKeys(server_public, server_secret, server_public)
        router = wire.open_router(context, "tcp://127.0.0.1:*", keys)
        endpoint = router.getsockopt(zmq.LAST_ENDPOINT).decode()
        peer = wire.CurveKeys(public, secret, believed)
        dealer = wire.open_dealer(context, endpoint, b"rank/0/0", peer)
        dealer.send_multipart(wire.encode(messages.Heartbeat(rank=0)))
        assert bool(router.poll(3000 if right_key else 500)) is right_key
        router.close(0)
        dealer.close(0)


def test_a_link_carries_both_ways_in_order_and_flushes_at_the_end(tmp_path):
    endpoint = f"ipc://{tmp_path}/s"
    commands: list[messages.RankCommand] = []
    got_ten = threading.Event()

    def take(message, _payload):
        commands.append(message)
        if len(commands) == 10:
            got_ten.set()

    with zmq.Context() as context:
        router = wire.open_router(context, endpoint, None)
        identity = wire.rank_identity(0, 0)
        link = Link(endpoint, identity, read=wire.read_rank_command, on_message=take)
        link.start()
        for number in range(1000):
            link.send(messages.Heartbeat(rank=number))
        seen = []
        while len(seen) < 1000:
            assert router.poll(5000)
            sender, message, _ = wire.read_to_controller(router.recv_multipart())
            assert sender == identity
            seen.append(message.rank)
        assert seen == list(range(1000))
        for number in range(10):
            frames = wire.encode(messages.RunCell(cell_id=str(number), code=""))
            router.send_multipart([identity, *frames])
        assert got_ten.wait(5)
        assert [command.cell_id for command in commands] == [str(n) for n in range(10)]
        link.send(messages.Heartbeat(rank=-1))
        link.close()
        assert router.poll(5000)
        assert wire.read_to_controller(router.recv_multipart())[1].rank == -1
        router.close(0)
