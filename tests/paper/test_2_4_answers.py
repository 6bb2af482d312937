"""§2.4: the notify entries that a run answers are removed once it has committed (rule N2).

Their removal may fail without the commit failing; a worker must neither lose them nor spin on them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stores import Ground, SeamStore, cell_of, notify, phase, put

from percola import OutcomeUnknownError, StoreError, Table, Transaction, Worker, observer
from percola.cells import Kind
from percola.observers import failures
from percola.store.base import Delete, Put, RowMutation
from percola.transactions import two_phase

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
size = docs.column("size", int)
poke = docs.weak_column("poke")
TABLES = [docs]


def removes_notify_entries(mutation: RowMutation) -> bool:
    return any(isinstance(one, Delete) and one.kind is Kind.NOTIFY for one in mutation.changes)


@pytest.mark.parametrize("batch", [1, 8], ids=["alone", "batched"])
def test_while_the_store_refuses_to_remove_what_is_answered_a_worker_pauses_and_then_ends(
    ground: Ground, batch: int
) -> None:
    refused: list[RowMutation] = []

    def refuse(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        # It gives in at last, or a worker that spins would do so for ever.
        if not mutation.conditions and removes_notify_entries(mutation) and len(refused) < 200:
            refused.append(mutation)
            raise StoreError("no removals today")
        return apply()

    measure = observer(contents, name="measure", batch=batch)(lambda t, row: t.get(contents, row))

    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store, one_step=False)
    put(repo, contents, "a", "text")
    # Answered with the acknowledgment, in one mutation; then told once more: a look.
    Worker(repo, [measure], retention=None).run_until_idle()
    again = Put(Kind.NOTIFY, cell_of(contents, "a").column, 1, b"")
    ground.store.mutate([RowMutation("docs", b"a", (), [again])])
    store.hook = refuse
    worker = Worker(repo, [measure], attempts=3, rescan=0.01, threads=1, retention=None)
    with pytest.raises(StoreError, match="no removals today"):
        worker.run_until_idle()
    assert 3 <= len(refused) <= 6
    # Nothing is lost: once the store takes them, they are answered.
    store.hook = None
    Worker(repo, [measure], retention=None).run_until_idle()
    assert ground.entries(contents, "a", Kind.NOTIFY) == []


@pytest.mark.parametrize("does", ["reads", "writes its row", "raises"])
def test_a_cell_that_was_notified_more_often_than_one_mutation_may_change_is_answered(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    monkeypatch.setattr(two_phase, "MOST_CHANGES", 10)
    monkeypatch.setattr(failures, "MOST_CHANGES", 10)
    largest: list[int] = []

    def bound(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        largest.append(len(mutation.changes))
        if len(mutation.changes) > 15:
            raise StoreError("too many changes of one row")
        return apply()

    @observer(poke)
    def measure(t: Transaction, row: str) -> None:
        if does == "raises":
            raise ValueError(row)
        if does == "writes its row":
            t.set(size, row, 1)
            t.set(size, row + " and another", 1)

    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store, one_step=False)
    for _ in range(35):
        notify(repo, poke, "a")
    assert len(ground.entries(poke, "a", Kind.NOTIFY)) == 35
    store.hook = bound
    worker = Worker(repo, [measure], threads=1, attempts=2, first_wait=0.001, retention=None)
    worker.run_until_idle()
    assert ground.entries(poke, "a", Kind.NOTIFY) == []
    assert 10 <= max(largest) <= 15
    assert repo.snapshot().get(size, "a") == (1 if does == "writes its row" else None)
    assert repo.dead_lettered() == (does == "raises")


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_n5_a_run_of_which_it_is_unknown_whether_it_has_committed_is_no_failed_attempt(
    ground: Ground, applied: bool
) -> None:
    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store, one_step=False, lock_ttl_seconds=0.02)
    unknown: list[RowMutation] = []

    def lose(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) != "commit" or len(unknown) == 3:
            return apply()
        if applied:
            apply()
        unknown.append(mutation)
        store.entries = away  # type: ignore[method-assign]
        raise OutcomeUnknownError("It does not answer.")

    def away(*_: object) -> list[tuple[int, bytes]]:
        del store.entries
        raise StoreError("It is away.")

    @observer(poke)
    def measure(t: Transaction, row: str) -> None:
        t.set(size, row, 1)

    notify(repo, poke, "a")
    store.hook = lose
    worker = Worker(repo, [measure], threads=1, attempts=5, rescan=0.01, retention=None)
    worker.run_until_idle()
    assert len(unknown) == (1 if applied else 3)
    assert worker.metrics.counts().get("observer_failures", {}) == {}
    assert repo.snapshot().get(size, "a") == 1
    assert ground.entries(poke, "a", Kind.NOTIFY) == []
