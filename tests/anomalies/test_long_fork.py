"""Long fork: two readers see two independent writes in opposite orders. Forbidden.

    Ann    writes x                   Carol    sees x but not y
    Bob    writes y                   Dave     sees y but not x

One oracle orders all commits, so every two snapshots are ordered too: the later one sees all
that the earlier one does.
"""

from __future__ import annotations

import itertools
import threading

from stores import DEADLINE, Gate, Ground, SeamStore, all_at_once, in_thread, stop_at

from percola import Repository, Table
from tests.anomalies.verdicts import Script, Verdict, judged

t = Table("t")
value = t.column("value", int)
TABLES = [t]

DIFFERENT = 40
"""Views that a reader under load has seen, each another one than the one before."""


def test_two_readers_never_see_two_writes_in_opposite_orders(repo: Repository) -> None:
    ann, bob = repo.transaction(), repo.transaction(two_phase=True)
    ann.set(value, "x", 1)
    bob.set(value, "y", 1)
    before = repo.transaction()
    ann.commit()
    carol = repo.transaction()
    bob.commit()
    dave = repo.transaction()
    views = [before, carol, dave]
    assert [view.get_many([(value, "x"), (value, "y")]) for view in views] == [
        [None, None],
        [1, None],
        [1, 1],
    ]


def test_a_commit_that_takes_long_is_not_overtaken_in_some_eyes_only(ground: Ground) -> None:
    """Ann has her commit_ts and stands still; Bob commits above it. Who sees Bob sees Ann."""
    gate, store = Gate(), SeamStore(ground.store)
    annes, repo = ground.repo(TABLES, store=store), ground.repo(TABLES)
    store.hook = stop_at("commit", "x", gate)
    ann = annes.transaction(two_phase=True)
    ann.set(value, "x", 1)
    committing = in_thread(ann.commit)
    gate.await_arrival()
    repo.run(lambda bob: bob.set(value, "y", 1))
    carol = repo.transaction()
    assert carol.get(value, "y") == 1
    reading = in_thread(lambda: carol.get(value, "x"))
    gate.open()
    assert committing.result(20) < carol.start_ts
    assert reading.result(20) == 1, "she saw the later write, and so must see the earlier one"


def test_all_snapshots_taken_under_load_are_ordered(repo: Repository) -> None:
    """Each writer counts its own row up; no two snapshots may disagree on who was ahead.

    The writers go on until both readers have seen enough: however the threads are scheduled,
    there are snapshots that differ.
    """
    rows = [f"writer {number}" for number in range(3)]
    enough = threading.Event()

    def write(row: str) -> None:
        for number in itertools.count(1):
            if enough.is_set():
                return
            repo.run(lambda x, n=number: x.set(value, row, n))

    def read() -> list[tuple[int, ...]]:
        seen: list[tuple[int, ...]] = []
        while len(seen) < DIFFERENT and not enough.is_set():
            values = repo.snapshot().get_many([(value, row) for row in rows])
            view = tuple(one or 0 for one in values)
            if not seen or view != seen[-1]:
                seen.append(view)
        return seen

    def read_both() -> list[tuple[int, ...]]:
        try:
            other = in_thread(read)
            return read() + other.result(DEADLINE)
        finally:
            enough.set()

    writers = [lambda row=row: write(row) for row in rows]
    seen, *ended = all_at_once([read_both, *writers])
    assert ended == [None] * 3
    assert len(seen) == 2 * DIFFERENT
    for earlier, later in itertools.pairwise(sorted(seen)):
        assert all(a <= b for a, b in zip(earlier, later, strict=True)), (earlier, later)


def play(repo: Repository) -> Verdict:
    ann, bob, dave = repo.transaction(), repo.transaction(), repo.transaction()
    ann.set(value, "x", 1)
    bob.set(value, "y", 1)
    dave_saw = [dave.get(value, "x")]
    ann.commit()
    carol = repo.transaction()
    carol_saw = [carol.get(value, "x"), carol.get(value, "y")]
    bob.commit()
    dave_saw.append(dave.get(value, "y"))
    assert carol_saw[0] == 1, "what was committed before she began is there"
    return judged(happened=carol_saw == [1, None] and dave_saw == [None, 1], conflicted=False)


SCRIPTS = [
    Script(
        "Long fork",
        "Long fork",
        "Carol sees Ann's commit and not Bob's, Dave sees Bob's and not Ann's.",
        play,
    )
]
