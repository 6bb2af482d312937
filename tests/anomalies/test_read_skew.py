"""Read skew (A5A): reading x before and y after a transaction that changed both. Forbidden.

    Ann    reads x … … … … … … reads y
    Bob             moves 10 from x to y

Ann must see the sum that was there before, or the one after, which is the same.
"""

from __future__ import annotations

import itertools
import threading

import pytest
from stores import Gate, Ground, SeamStore, all_at_once, in_thread, stop_at

from percola import Repository, Table, Transaction
from tests.anomalies.verdicts import Script, Verdict, commits, judged

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
        try:
            while not stop.is_set():
                x = repo.transaction()
                total = sum(x.get(balance, row) or 0 for row in ROWS[:3])
                total += sum(value or 0 for value in x.get_many([(balance, r) for r in ROWS[3:]]))
                sums.append(total)
                sums.append(sum(row[balance] for row in x.scan(t)))
        finally:
            stop.set()

    def transfer(number: int) -> None:
        try:
            for step in itertools.count():
                if stop.is_set() or (step >= 100 and len(sums) > 300):
                    return
                source, target = ROWS[(number + step) % 6], ROWS[(number + 2 * step + 1) % 6]
                if source != target:
                    repo.run(lambda x, s=source, g=target: move(x, s, g, 1), attempts=1000)
        finally:
            stop.set()

    assert all_at_once([read, read, lambda: transfer(0), lambda: transfer(3)]) == [None] * 4
    assert len(sums) > 300 and set(sums) == {600}


def bob_moves_ten(repo: Repository) -> None:
    repo.run(lambda bob: move(bob, ROWS[0], ROWS[1], 10))


def play(repo: Repository) -> Verdict:
    start(repo)
    ann = repo.transaction()
    first = ann.get(balance, ROWS[0]) or 0
    bob_moves_ten(repo)
    second = ann.get(balance, ROWS[1]) or 0
    return judged(happened=first + second != 200, conflicted=False)


def play_condition(repo: Repository) -> Verdict:
    """Ann asks who has 100, then reads one of them; Bob changes both in between."""
    start(repo)
    ann = repo.transaction()
    found = [row.key for row in ann.scan(t, columns=[balance]) if row[balance] == 100]
    bob_moves_ten(repo)
    again = [ann.get(balance, row) for row in found]
    return judged(happened=again != [100] * len(ROWS), conflicted=False)


def play_write(repo: Repository) -> Verdict:
    """Ann reads one account, and empties the other, which Bob has changed meanwhile."""
    start(repo)
    ann = repo.transaction()
    first = ann.get(balance, ROWS[0]) or 0
    bob_moves_ten(repo)
    second = ann.get(balance, ROWS[1]) or 0
    ann.set(balance, ROWS[1], 0)
    committed = commits(ann)
    wrote_over_what_she_missed = committed and (first, second) == (100, 100)
    return judged(happened=wrote_over_what_she_missed, conflicted=not committed)


SCRIPTS = [
    Script(
        "G-single",
        "Read skew",
        "Ann reads one cell before and another after a commit that changed both.",
        play,
    ),
    Script(
        "G-single, condition",
        "Read skew by a condition",
        "Ann scans for rows, Bob changes them, and Ann reads one of them again.",
        play_condition,
    ),
    Script(
        "G-single, write",
        "Read skew by a write",
        "Ann reads one cell, Bob changes two, and Ann overwrites the other one.",
        play_write,
    ),
]


def test_what_a_scan_found_is_still_so_when_it_is_read(repo: Repository) -> None:
    assert play_condition(repo) is Verdict.UNSEEN


def test_writing_over_a_change_that_was_not_seen_conflicts(repo: Repository) -> None:
    assert play_write(repo) is Verdict.CONFLICT
