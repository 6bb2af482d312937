"""Read skew (A5A): reading x before and y after a transaction that changed both. Forbidden.

    Ann    reads x … … … … … … reads y
    Bob             moves 10 from x to y

Ann must see the sum that was there before, or the one after, which is the same.
"""

from __future__ import annotations

import threading

import pytest
from stores import Gate, Ground, SeamStore, all_at_once, in_thread, stop_at

from percola import Repository, Table, Transaction

t = Table("t")
balance = t.column("balance", int)
TABLES = [t]
ROWS = [f"account {number}" for number in range(6)]


def start(repo: Repository) -> None:
    def fill(x: Transaction) -> None:
        for row in ROWS:
            x.set(balance, row, 100)

    repo.run(fill)


def move(x: Transaction, source: str, target: str, amount: int) -> None:
    x.set(balance, source, (x.get(balance, source) or 0) - amount)
    x.set(balance, target, (x.get(balance, target) or 0) + amount)


def test_two_reads_of_a_transaction_come_from_the_same_moment(repo: Repository) -> None:
    start(repo)
    ann = repo.transaction()
    first = ann.get(balance, ROWS[0])
    repo.run(lambda bob: move(bob, ROWS[0], ROWS[1], 10))
    second = ann.get(balance, ROWS[1])
    assert (first, second) == (100, 100)


@pytest.mark.parametrize("place", ["commit account 0", "commit account 1"])
def test_a_reader_in_the_middle_of_a_commit_sees_all_of_it_or_nothing(
    ground: Ground, place: str
) -> None:
    gate = Gate()
    phase, row = place.split(maxsplit=1)
    store = SeamStore(ground.store)
    bobs, annes = ground.repo(TABLES, store=store), ground.repo(TABLES)
    start(annes)
    earlier = annes.snapshot()
    store.hook = stop_at(phase, row, gate)
    bob = bobs.transaction(two_phase=True)
    move(bob, ROWS[0], ROWS[1], 10)
    committing = in_thread(bob.commit)
    gate.await_arrival()
    assert earlier.get_many([(balance, row) for row in ROWS[:2]]) == [100, 100]
    later = annes.snapshot()
    reading = in_thread(lambda: [later.get(balance, row) for row in ROWS[1::-1]])
    gate.open()
    committing.result(20)
    assert reading.result(20) == [110, 90]


def test_every_reader_sees_the_same_sum_while_others_move_money(repo: Repository) -> None:
    start(repo)
    stop = threading.Event()
    sums: list[int] = []

    def read() -> None:
        while not stop.is_set():
            x = repo.transaction()
            total = sum(x.get(balance, row) or 0 for row in ROWS[:3])
            total += sum(value or 0 for value in x.get_many([(balance, r) for r in ROWS[3:]]))
            sums.append(total)
            sums.append(sum(row[balance] for row in x.scan(t)))

    def transfer(number: int) -> None:
        try:
            for step in range(2000):
                if len(sums) > 300:
                    return
                source, target = ROWS[(number + step) % 6], ROWS[(number + 2 * step + 1) % 6]
                if source != target:
                    repo.run(lambda x, s=source, g=target: move(x, s, g, 1), attempts=1000)
        finally:
            stop.set()

    assert all_at_once([read, read, lambda: transfer(0), lambda: transfer(3)]) == [None] * 4
    assert len(sums) > 300 and set(sums) == {600}
