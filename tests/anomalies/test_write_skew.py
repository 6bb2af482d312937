"""Write skew (A5B): two read what the other writes, and both commit. Permitted.

    Ann    sees that Bob is on call, and goes off
    Bob    sees that Ann is on call, and goes off

Nobody is on call, though either alone would have kept the rule: snapshot isolation permits it.
`get_for_update` closes it for the cells it names: whoever reads that way conflicts with whoever
writes there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stores import all_at_once

from percola import ConflictError, Repository, Table, Transaction
from tests.anomalies.verdicts import Script, Verdict, commits, judged

t = Table("t")
on_call = t.column("on-call", bool)
guard = t.column("guard", int)
TABLES = [t]


def everybody_on_call(repo: Repository) -> None:
    def fill(x: Transaction) -> None:
        for name in ("ann", "bob"):
            x.set(on_call, name, True)

    repo.run(fill)


def leave(x: Transaction, name: str, other: str) -> None:
    """Goes off call if the other one is on: a rule across two rows."""
    if x.get(on_call, other):
        x.set(on_call, name, False)


def leave_for_update(x: Transaction, name: str, other: str) -> None:
    """The same, so that nobody changes what it has read."""
    x.get_for_update(on_call, other)
    leave(x, name, other)


def how_many(repo: Repository) -> int:
    return sum(row[on_call] for row in repo.snapshot().scan(t, columns=[on_call]))


def test_snapshot_isolation_permits_write_skew(repo: Repository) -> None:
    """So the paper says; a test that fails here would be good news, and worth a sentence."""
    everybody_on_call(repo)
    ann, bob = repo.transaction(), repo.transaction()
    leave(ann, "ann", "bob")
    leave(bob, "bob", "ann")
    ann.commit()
    bob.commit()
    assert how_many(repo) == 0


@pytest.mark.parametrize("two_phase", [(False, False), (False, True), (True, False), (True, True)])
def test_get_for_update_closes_write_skew(repo: Repository, two_phase: tuple[bool, bool]) -> None:
    everybody_on_call(repo)
    ann, bob = (repo.transaction(two_phase=one) for one in two_phase)
    leave_for_update(ann, "ann", "bob")
    leave_for_update(bob, "bob", "ann")
    ann.commit()
    with pytest.raises(ConflictError):
        bob.commit()
    assert how_many(repo) == 1


def test_get_for_update_keeps_the_rule_under_concurrency(repo: Repository) -> None:
    for _ in range(15):
        everybody_on_call(repo)
        attempts: list[Callable[[], None]] = [
            lambda: repo.run(lambda x: leave_for_update(x, "ann", "bob")),
            lambda: repo.run(lambda x: leave_for_update(x, "bob", "ann")),
        ]
        assert all_at_once(attempts) == [None, None]
        assert how_many(repo) == 1


def test_two_that_only_lock_the_same_cell_conflict_as_well(repo: Repository) -> None:
    """A guard cell that nobody changes serialises those who name it."""
    ann, bob = repo.transaction(), repo.transaction()
    ann.get_for_update(guard, "shift")
    bob.get_for_update(guard, "shift")
    ann.set(on_call, "ann", False)
    bob.set(on_call, "bob", False)
    bob.commit()
    with pytest.raises(ConflictError):
        ann.commit()


def play(repo: Repository, leave: Callable[[Transaction, str, str], None] = leave) -> Verdict:
    everybody_on_call(repo)
    ann, bob = repo.transaction(), repo.transaction()
    leave(ann, "ann", "bob")
    leave(bob, "bob", "ann")
    both = commits(ann) and commits(bob)
    return judged(happened=how_many(repo) == 0, conflicted=not both)


SCRIPTS = [
    Script(
        "G2-item",
        "Write skew",
        "Each reads what the other writes, and both commit: an invariant of two cells is broken.",
        play,
        lambda repo: play(repo, leave_for_update),
        "`get_for_update` of the cell that was only read",
    )
]
