"""Dirty write (P0): two transactions' writes are mixed. Forbidden.

    Ann    sets x and y to 1          Bob    sets x and y to 2

Whatever happens, x and y are equal afterwards: one of the two loses as a whole.
"""

from __future__ import annotations

import pytest
from stores import Gate, Ground, SeamStore, in_thread, stop_at

from percola import ConflictError, Repository, Table
from tests.anomalies.verdicts import Script, Verdict, commits, judged

t = Table("t")
value = t.column("value", int)
TABLES = [t]


def test_interleaved_writes_of_two_transactions_are_never_mixed(repo: Repository) -> None:
    ann, bob = repo.transaction(), repo.transaction()
    ann.set(value, "x", 1)
    bob.set(value, "x", 2)
    bob.set(value, "y", 2)
    ann.set(value, "y", 1)
    ann.commit()
    with pytest.raises(ConflictError):
        bob.commit()
    assert repo.snapshot().get_many([(value, "x"), (value, "y")]) == [1, 1]


@pytest.mark.parametrize("place", ["prewrite y", "commit x", "commit y"])
def test_a_writer_cannot_slip_into_the_middle_of_a_commit(ground: Ground, place: str) -> None:
    """Ann's commit stands still: before her second lock, at, and after her commit point."""
    gate = Gate()
    phase, row = place.split()
    store = SeamStore(ground.store)
    annes, bobs = ground.repo(TABLES, store=store), ground.repo(TABLES)
    store.hook = stop_at(phase, row, gate)
    ann = annes.transaction(two_phase=True)
    bob = bobs.transaction()
    for row in ("x", "y"):
        ann.set(value, row, 1)
        bob.set(value, row, 2)
    committing = in_thread(ann.commit)
    gate.await_arrival()
    with pytest.raises(ConflictError):
        bob.commit()
    gate.open()
    committing.result(20)
    assert bobs.snapshot().get_many([(value, "x"), (value, "y")]) == [1, 1]


def play(repo: Repository) -> Verdict:
    ann, bob = repo.transaction(), repo.transaction()
    ann.set(value, "x", 1)
    bob.set(value, "x", 2)
    bob.set(value, "y", 2)
    first = commits(bob)
    ann.set(value, "y", 1)
    second = commits(ann)
    x, y = repo.snapshot().get_many([(value, "x"), (value, "y")])
    return judged(happened=x != y, conflicted=not (first and second))


SCRIPTS = [
    Script(
        "G0",
        "Dirty write",
        "Writes of two cells interleave: one cell has Ann's value, the other Bob's.",
        play,
    )
]
