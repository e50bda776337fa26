"""The mailbox: nothing is lost, order is kept, a poller wakes up."""

from __future__ import annotations

import select
import threading

from npu_notebook.mailbox import Mailbox


def test_what_many_threads_put_arrives_once_and_in_each_threads_order():
    mailbox: Mailbox[tuple[int, int]] = Mailbox()
    per_thread = 5000

    def put_all(thread: int) -> None:
        for number in range(per_thread):
            mailbox.put((thread, number))

    threads = [threading.Thread(target=put_all, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    taken: list[tuple[int, int]] = []
    while len(taken) < 4 * per_thread:
        readable, _, _ = select.select([mailbox], [], [], 5)
        assert readable, f"not woken with {len(mailbox)} items waiting"
        taken += mailbox.drain()
    for thread in threads:
        thread.join()
    for number in range(4):
        mine = [item for thread, item in taken if thread == number]
        assert mine == list(range(per_thread))
    mailbox.close()


def test_a_drained_mailbox_does_not_wake_its_poller():
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    mailbox.put(2)
    assert mailbox.drain() == [1, 2]
    assert select.select([mailbox], [], [], 0)[0] == []
    mailbox.close()


def test_a_closed_mailbox_takes_items_without_an_error():
    mailbox: Mailbox[int] = Mailbox()
    mailbox.close()
    mailbox.put(1)
    mailbox.close()
