"""Lost update (P4): both read, both write, one of the writes is as if never made. Forbidden.

    Ann    reads 100, adds 20         Bob    reads 100, adds 30

The balance must not end at 120 or 130 with both told that they committed.
"""

from __future__ import annotations

import pytest
from stores import all_at_once

from percola import ConflictError, Repository, Table
from tests.anomalies.verdicts import Script, Verdict, commits, judged

t = Table("t")
balance = t.column("balance", int)
tag = t.family("tag", int)
TABLES = [t]


def add(repo: Repository, amount: int) -> None:
    repo.run(lambda x: x.set(balance, "x", (x.get(balance, "x") or 0) + amount), attempts=1000)


@pytest.mark.parametrize("two_phase", [(False, False), (False, True), (True, False), (True, True)])
def test_the_second_of_two_read_modify_writes_conflicts(
    repo: Repository, two_phase: tuple[bool, bool]
) -> None:
    add(repo, 100)
    ann, bob = (repo.transaction(two_phase=one) for one in two_phase)
    ann.set(balance, "x", (ann.get(balance, "x") or 0) + 20)
    bob.set(balance, "x", (bob.get(balance, "x") or 0) + 30)
    bob.commit()
    with pytest.raises(ConflictError):
        ann.commit()
    assert repo.snapshot().get(balance, "x") == 130


def test_an_update_is_not_lost_to_a_delete_and_a_new_write(repo: Repository) -> None:
    """The value is the same as Ann read it, but it is not the same write (ABA)."""
    add(repo, 100)
    ann = repo.transaction()
    assert ann.get(balance, "x") == 100
    repo.run(lambda x: x.delete(balance, "x"))
    add(repo, 100)
    ann.set(balance, "x", 120)
    with pytest.raises(ConflictError):
        ann.commit()


def test_writing_without_reading_conflicts_as_well(repo: Repository) -> None:
    ann, bob = repo.transaction(), repo.transaction()
    ann.set(balance, "x", 1)
    bob.delete(balance, "x")
    bob.commit()
    with pytest.raises(ConflictError):
        ann.commit()


def test_writes_to_different_columns_of_a_row_do_not_conflict(repo: Repository) -> None:
    """A cell, not a row, is what transactions conflict on."""
    ann, bob = repo.transaction(), repo.transaction()
    ann.set(tag["a"], "x", 1)
    bob.set(tag["b"], "x", 2)
    ann.commit()
    bob.commit()
    assert repo.snapshot().get_row(t, "x").family(tag) == {"a": 1, "b": 2}


def test_concurrent_deposits_all_arrive(repo: Repository) -> None:
    def deposit() -> None:
        for _ in range(8):
            add(repo, 1)

    assert all_at_once([deposit] * 5) == [None] * 5
    assert repo.snapshot().get(balance, "x") == 40


def play(repo: Repository) -> Verdict:
    add(repo, 100)
    ann, bob = repo.transaction(), repo.transaction()
    ann.set(balance, "x", (ann.get(balance, "x") or 0) + 20)
    bob.set(balance, "x", (bob.get(balance, "x") or 0) + 30)
    added = (20 if commits(ann) else 0) + (30 if commits(bob) else 0)
    final = repo.snapshot().get(balance, "x")
    return judged(happened=final != 100 + added, conflicted=added != 50)


SCRIPTS = [
    Script(
        "P4",
        "Lost update",
        "Both read a cell, write it and commit: one of the writes is lost.",
        play,
    )
]
