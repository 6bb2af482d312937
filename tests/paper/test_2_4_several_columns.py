"""§2.4: an observer of several columns: one run for the changes of a row (N1 … N5)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from stores import DEADLINE, Ground, ShiftedClock, at_work, cell_of

from percola import (
    ConflictError,
    Observer,
    ObserverError,
    ObserverMismatchError,
    Repository,
    Table,
    Transaction,
    Worker,
    observer,
)
from percola.cells import Cell, Kind, ack_column, decode_ts
from percola.inspection import failures

items = Table("items")
price = items.column("price", int, observed=True)
category = items.column("category", str, observed=True)
refresh = items.weak_column("refresh")
label = items.column("label", str)
runs = items.column("runs", int)
plain = items.column("plain", int)
tags = items.family("tag", str)
other = Table("other").column("seen", observed=True)
TABLES = [items]

QUICK = {"attempts": 3, "first_wait": 0.01, "longest_wait": 0.02, "threads": 1}
ROWS = [f"item {number}" for number in range(6)]


def relabel(t: Transaction, row: str) -> None:
    t.set(label, row, f"{t.get(category, row)} at {t.get(price, row)}")
    t.set(runs, row, (t.get(runs, row) or 0) + 1)


def make(function: Callable[[Transaction, str], object] = relabel, **options: Any) -> Observer[str]:
    return observer(price, category, refresh, name="relabel", **options)(function)


def change(repo: Repository, *rows: str, both: bool = True) -> None:
    with repo.transaction() as t:
        for row in rows:
            t.set(price, row, 7)
            if both:
                t.set(category, row, "book")


def acknowledged(ground: Ground, column: Any, row: str) -> list[int]:
    """The start timestamps that the observer's committed runs have acknowledged."""
    cell = cell_of(column, row)
    ack = Cell(cell.table, row.encode(), ack_column("relabel", cell.column))
    lock, _, value = ground.store.read([ack], 2**62)[0]
    assert lock is None
    return [] if value is None else [decode_ts(value)]


@pytest.mark.parametrize("batch", [1, 32])
def test_one_run_answers_the_changes_of_several_columns_of_a_row(
    ground: Ground, repo: Repository, batch: int
) -> None:
    change(repo, *ROWS)
    repo.run(lambda t: t.notify(refresh, ROWS[0]))
    Worker(repo, [make(batch=batch)], **QUICK).run_until_idle()
    snapshot = repo.snapshot()
    assert [snapshot.get(runs, row) for row in ROWS] == [1] * 6
    assert snapshot.get(label, ROWS[0]) == "book at 7"
    assert ground.left_over(items, Kind.NOTIFY) == []
    for row in ROWS:
        assert acknowledged(ground, price, row) == acknowledged(ground, category, row) != []


@pytest.mark.parametrize("column", [price, category, refresh])
def test_a_change_of_any_of_its_columns_runs_it_and_only_what_changed_is_acknowledged(
    ground: Ground, repo: Repository, column: Any
) -> None:
    with repo.transaction() as t:
        if column is price:
            t.set(price, "a", 7)
        elif column is category:
            t.set(category, "a", "book")
        else:
            t.notify(refresh, "a")
    worker = Worker(repo, [make()], **QUICK)
    worker.run_until_idle()
    assert repo.snapshot().get(runs, "a") == 1
    assert bool(acknowledged(ground, price, "a")) is (column is price)
    assert bool(acknowledged(ground, category, "a")) is (column is category)
    worker.run_until_idle()
    assert repo.snapshot().get(runs, "a") == 1


@pytest.mark.parametrize("first", [price, category])
def test_n3_two_runs_that_saw_one_change_meet_at_its_acknowledgment(
    ground: Ground, repo: Repository, first: Any
) -> None:
    """Each was started for another column; both saw both changes."""
    change(repo, "a")
    second = category if first is price else price
    one = observer(price, category, name="relabel")(lambda t, row: t.set(label, row, "x"))
    notified = {
        column: {cell_of(column, "a"): [ts for ts, _ in ground.entries(column, "a", Kind.NOTIFY)]}
        for column in (price, category)
    }

    def overtaken(t: Transaction, row: str) -> None:
        assert one.run(repo.context, b"a", notified[second])
        t.set(plain, row, 1)

    slow = observer(price, category, name="relabel")(overtaken)
    with pytest.raises(ConflictError):
        slow.run(repo.context, b"a", notified[first])
    assert repo.snapshot().get(plain, "a") is None
    assert not one.run(repo.context, b"a", notified[first]), "both changes have been seen"
    assert ground.left_over(items, Kind.NOTIFY) == []


def test_n2_it_answers_no_column_for_another_observer(ground: Ground, repo: Repository) -> None:
    audited: list[str] = []

    # A scan comes to the category first: the price is what the run takes along.
    @observer(price)
    def audit(t: Transaction, row: str) -> None:
        audited.append(row)
        t.set(plain, row, t.get(price, row) or 0)

    change(repo, "a", "b")
    for observers in ([make(), audit], [audit, make()]):
        change(repo, "c")
        Worker(repo, observers, **QUICK).run_until_idle()
    assert sorted(audited) == ["a", "b", "c", "c"]
    snapshot = repo.snapshot()
    assert [snapshot.get(runs, row) for row in "abc"] == [1, 1, 2]
    assert [snapshot.get(plain, row) for row in "abc"] == [7, 7, 7]
    assert ground.left_over(items, Kind.NOTIFY) == []


def test_n5_a_row_that_fails_is_tried_so_many_times_and_not_so_many_for_each_column(
    ground: Ground, repo: Repository
) -> None:
    calls: list[str] = []

    def broken(t: Transaction, row: str) -> None:
        calls.append(row)
        raise ValueError("cannot")

    change(repo, "a")
    one = observer(price, category, name="relabel")(broken)
    Worker(repo, [one], **QUICK).run_until_idle()
    assert calls == ["a"] * 3
    found = [(str(one.cell), one.attempts) for one in failures(repo)]
    assert sorted(found) == [("items['a'].category", 3), ("items['a'].price", 3)]
    assert ground.left_over(items, Kind.NOTIFY) == []
    # A run that succeeds has seen both, whichever column it was started for.
    change(repo, "a", both=False)
    Worker(repo, [make()], **QUICK).run_until_idle()
    assert list(failures(repo)) == []


def test_n5_a_run_that_is_given_up_dead_letters_all_changes_that_it_was_to_answer(
    ground: Ground, wait_until: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    clock = ShiftedClock(monkeypatch)
    repo = ground.repo(TABLES, clock=clock)
    change(repo, "a")

    @observer(price, category, name="relabel")
    def hang(t: Transaction, row: str) -> None:
        begun.set()
        go.wait()

    worker = Worker(repo, [hang], threads=1, timeout=DEADLINE)
    worker.start()
    try:
        assert begun.wait(DEADLINE)
        clock.overrun()
        wait_until(lambda: len(list(failures(repo))) == 2)
        # A store with a table of its own for notify entries removes them a call later.
        wait_until(worker.is_idle)
    finally:
        go.set()
        worker.stop()
    assert acknowledged(ground, price, "a") == acknowledged(ground, category, "a") == []


# --- Declaring --------------------------------------------------------------------------


def test_stacked_decorators_are_one_error_that_names_the_right_form() -> None:
    with pytest.raises(
        ObserverError,
        match=r"^'relabel' is an observer already\..* @observer\(price, category\)\.$",
    ):
        observer(price)(observer(category)(relabel))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ((price, plain), "items.plain, which is not observed"),
        ((price, price), "names a column twice"),
        ((price, other), "tables items, other"),
        ((price, "category"), "not a column that can be observed"),
        ((price, tags), "as families cannot: .* notify a weak column"),
        ((tags["x"],), "items.tag:x cannot be observed, as families cannot"),
    ],
)
def test_columns_that_no_observer_can_have_are_refused(columns: Any, said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        observer(*columns)(relabel)


def test_workers_agree_only_if_an_observer_has_the_same_columns_in_both(
    ground: Ground, repo: Repository
) -> None:
    first = Worker(repo, [make()], threads=1)
    with at_work(first):
        same = observer(refresh, category, price, name="relabel")(relabel)
        with_same = Worker(repo, [same], threads=1)
        with_same.start()
        with_same.stop()
        fewer = observer(price, category, name="relabel")(relabel)
        for one in (fewer, observer(price, name="relabel")(relabel)):
            with pytest.raises(ObserverMismatchError, match="relabel"):
                Worker(repo, [one], threads=1).start()
