"""The link of a notebook or a rank: order, threads, signals."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from npu_notebook import wire
from npu_notebook.link import Link
from npu_notebook.messages import BulkChunk, Heartbeat, RankCommand, RunCell

IDENTITY = wire.rank_identity(0, 1)
PATIENCE_S = 20.0


class Peer:
    """The controller's end and what the link has heard."""

    def __init__(self, endpoint: str):
        self.context = zmq.Context()
        self.router = wire.open_router(self.context, endpoint, None)
        self.heard: list[RankCommand] = []
        self.heard_enough = threading.Event()
        self.enough = 0
        self.link = Link(
            endpoint, IDENTITY, read=wire.read_rank_command, on_message=self.hear
        )
        self.link.start()

    def hear(self, message: RankCommand, _payload: list) -> None:
        self.heard.append(message)
        if len(self.heard) == self.enough:
            self.heard_enough.set()

    def read(self, count: int) -> list:
        messages = []
        for _ in range(count):
            assert self.router.poll(PATIENCE_S * 1000)
            messages.append(wire.read_to_controller(self.router.recv_multipart())[1])
        return messages

    def close(self) -> None:
        self.link.close()
        self.router.close()
        self.context.term()


@pytest.fixture
def peer(tmp_path) -> Iterator[Peer]:
    one = Peer(f"ipc://{tmp_path}/s")
    yield one
    one.close()


def beat(number: int) -> Heartbeat:
    return Heartbeat(rank=0, cell_id=str(number))


def test_messages_of_one_thread_keep_their_order_with_and_without_payload(peer: Peer):
    for number in range(1000):
        if number % 3:
            peer.link.send(beat(number))
        else:
            chunk = BulkChunk(
                transfer_id="t", host="", offset=number, total_nbytes=1000
            )
            peer.link.send(chunk, [b"x"])
    numbers = [
        message.offset if isinstance(message, BulkChunk) else int(message.cell_id)
        for message in peer.read(1000)
    ]
    assert numbers == list(range(1000))


def test_what_arrives_while_others_send_is_heard_at_once(peer: Peer):
    count = peer.enough = 500
    peer.link.send(beat(0))
    peer.read(1)  # the router knows the identity now
    senders = [
        threading.Thread(target=lambda: [peer.link.send(beat(1)) for _ in range(count)])
        for _ in range(3)
    ]
    for sender in senders:
        sender.start()
    for number in range(count):
        frames = wire.encode(RunCell(cell_id=str(number), code=""))
        peer.router.send_multipart([IDENTITY, *frames])
    assert peer.heard_enough.wait(PATIENCE_S)
    assert [command.cell_id for command in peer.heard] == [
        str(number) for number in range(count)
    ]
    for sender in senders:
        sender.join()
    assert len(peer.read(3 * count)) == 3 * count


def test_a_signal_handler_may_send_while_its_thread_does(peer: Peer):
    sent = 0

    def send_one(*_: object) -> None:
        nonlocal sent
        peer.link.send(beat(-1))
        sent += 1

    before = signal.signal(signal.SIGALRM, send_one)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for number in range(3000):
            peer.link.send(beat(number))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    numbers = [int(message.cell_id) for message in peer.read(3000 + sent)]
    assert [number for number in numbers if number >= 0] == list(range(3000))


def test_a_forked_child_disturbs_nothing(peer: Peer):
    peer.link.send(beat(0))
    peer.read(1)
    pid = os.fork()
    if pid == 0:
        peer.link.send(beat(1))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    before_s = time.process_time()
    assert not peer.router.poll(1000)
    assert time.process_time() - before_s < 0.5, "the link does not sleep any more"
    peer.link.send(beat(2))
    assert [message.cell_id for message in peer.read(1)] == ["2"]


def test_what_was_sent_just_before_the_end_arrives(peer: Peer):
    for number in range(100):
        peer.link.send(beat(number))
    peer.link.close()
    assert len(peer.read(100)) == 100
