"""Dirty read: seeing what is not committed, or never will be. Forbidden.

G1a   aborted read          Ann writes x, Bob reads x, Ann rolls back
G1b   intermediate read     Ann writes x twice, Bob must not see the first
G1c   circular flow         Ann and Bob must not both see what the other wrote
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stores import Gate, Ground, ListeningClock, SeamStore, in_thread, stop_at

from percola import Repository, RepositoryError, StoreError, Table
from percola.transactions.snapshot import Snapshot

t = Table("t")
value = t.column("value", int)
TABLES = [t]

READS: list[Callable[[Snapshot], object]] = [
    lambda view: view.get(value, "x"),
    lambda view: view.get_many([(value, "x")])[0],
    lambda view: view.get_row(t, "x").get(value),
    lambda view: next((row[value] for row in view.scan(t)), None),
]


def test_what_is_rolled_back_was_never_seen(repo: Repository) -> None:
    ann = repo.transaction()
    ann.set(value, "x", 1)
    for read in READS:
        assert read(repo.transaction()) is None
    ann.rollback()
    for read in READS:
        assert read(repo.transaction()) is None


def test_what_a_failing_commit_wrote_is_never_seen(ground: Ground) -> None:
    """Her commit gets as far as both locks and both values in the store, and no further."""
    store, gate = SeamStore(ground.store), Gate()
    repo, bobs = ground.repo(TABLES, store=store), ground.repo(TABLES)
    ann = repo.transaction(two_phase=True)
    ann.set(value, "x", 1)
    ann.set(value, "y", 1)
    stop = stop_at("prewrite", "y", gate)

    def fail(mutation: object, apply: Callable[[], bool]) -> bool:
        stop(mutation, lambda: True)  # type: ignore[arg-type]
        if getattr(mutation, "row", b"") == b"y":
            raise StoreError("no room")
        return apply()

    store.hook = fail
    committing = in_thread(ann.commit)
    gate.await_arrival()
    clock = ListeningClock()
    bob = ground.repo(TABLES, clock=clock).transaction()
    reading = in_thread(lambda: bob.get(value, "x"))
    assert clock.slept.wait(20), "he must wait for her to decide"
    gate.open()
    assert isinstance(committing.exception(20), RepositoryError)
    assert reading.result(20) is None
    assert list(bobs.snapshot().scan(t)) == []


def test_an_intermediate_value_is_never_seen(repo: Repository) -> None:
    ann, bob = repo.transaction(), repo.transaction()
    ann.set(value, "x", 1)
    assert bob.get(value, "x") is None
    ann.set(value, "x", 2)
    ann.commit()
    assert bob.get(value, "x") is None
    for read in READS:
        assert read(repo.transaction()) == 2


@pytest.mark.parametrize("two_phase", [False, True])
def test_no_two_transactions_see_each_others_writes(repo: Repository, two_phase: bool) -> None:
    ann, bob = repo.transaction(), repo.transaction(two_phase=two_phase)
    ann.set(value, "x", 1)
    bob.set(value, "y", 2)
    assert ann.get(value, "y") is None
    assert bob.get(value, "x") is None
    ann.commit()
    assert bob.get(value, "x") is None
    bob.commit()
