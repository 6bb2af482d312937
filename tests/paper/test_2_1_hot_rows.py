"""Rule P12 where much has to go from one row: a cell that is written all the time, after a stop.

Stores bound how much of a row one mutation changes (Bigtable: 100,000), so it goes in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from stores import Crashed, Ground, SeamStore, cell_of, heard

from percola import Repository, Table, Transaction, Worker, observer
from percola.cells import MAX_TS, Cell, Kind
from percola.gc import collector as gc
from percola.maintenance.check import check
from percola.store.base import RowMutation

bank = Table("bank")
bal = bank.column("bal", int)
note = bank.column("note", str, observed=True)
TABLES = [bank]
LONG = "long enough not to stand in its write record: " + "x" * 300
MOST = 7


@observer(note)
def look(t: Transaction, row: str) -> None:
    t.get(note, row)


@pytest.fixture(autouse=True, params=[3, 1000], ids=["in parts", "at once"])
def few_at_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Few changes in a mutation, and of a cell few records in a call."""
    monkeypatch.setattr(gc, "MOST_CHANGES", MOST)
    monkeypatch.setattr(gc, "_VERSIONS", request.param)


def fill(ground: Ground, *, last: str | None) -> None:
    """A row of two columns in 12 versions each; `last` is the newest note, None a delete."""
    repo = ground.repo(TABLES)
    for i in range(12):
        with repo.transaction() as t:
            t.set(bal, "hot", i)
            t.set(note, "hot", f"{i}{LONG}")
        if i % 5 == 0:
            with repo.transaction() as t:
                t.get_for_update(bal, "hot")
                t.set(bal, "other", i)
    with repo.transaction() as t:
        t.delete(bal, "hot")
        if last is None:
            t.delete(note, "hot")
        else:
            t.set(note, "hot", last)
    Worker(repo, [look], retention=None).run_until_idle()


def seen(repo: Repository) -> object:
    with repo.snapshot() as now:
        return now.get(bal, "hot"), now.get(note, "hot"), [row.key for row in now.scan(bank)]


def entries(ground: Ground) -> Iterator[tuple[Cell, Kind, int]]:
    for column in (bal, note):
        cell = cell_of(column, "hot")
        for kind in (Kind.WRITE, Kind.DATA):
            for ts, _ in ground.store.entries(cell, kind, 0, MAX_TS):
                yield cell, kind, ts


@pytest.mark.parametrize("last", ["the last one", None], ids=["kept", "deleted"])
def test_a_row_with_much_to_remove_goes_in_parts_and_reads_the_same_in_between(
    ground: Ground, last: str | None
) -> None:
    fill(ground, last=last)
    sizes: list[int] = []

    def watch(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if mutation.table != "bank":
            return apply()
        sizes.append(len(mutation.changes))
        applied = apply()
        assert seen(reader) == before
        assert list(check(reader)) == []
        return applied

    store = SeamStore(ground.store)
    collector, reader = ground.repo(TABLES, store=store), ground.repo(TABLES)
    before = seen(reader)
    store.hook = watch
    assert collector.collect_garbage(retention=0).complete
    assert max(sizes) <= MOST
    assert len(sizes) > 5
    left = list(entries(ground))
    assert len(left) == (0 if last is None else 1)


@pytest.mark.parametrize("last", ["the last one", None], ids=["kept", "deleted"])
def test_a_collector_that_is_killed_between_the_parts_leaves_nothing_that_the_next_one_misses(
    ground: Ground, last: str | None
) -> None:
    fill(ground, last=last)
    reader = ground.repo(TABLES)
    before = seen(reader)
    parts = 0
    while True:
        left = 1

        def die(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
            nonlocal left
            if mutation.table == "bank":
                left -= 1
                if left < 0:
                    raise Crashed
            return apply()

        store = SeamStore(ground.store)
        collector = ground.repo(TABLES, store=store)
        store.hook = die
        try:
            done = collector.collect_garbage(retention=0).complete
        except Crashed:
            parts += 1
            assert seen(reader) == before
            # No value whose record is gone: nothing would find it any more.
            found = list(entries(ground))
            values = {(cell, ts) for cell, kind, ts in found if kind is Kind.DATA}
            assert len(values) <= sum(kind is Kind.WRITE for _, kind, _ in found)
            continue
        assert done
        break
    assert parts > 5
    assert len(list(entries(ground))) == (0 if last is None else 1)


def test_of_a_cell_with_many_versions_few_are_read_at_once(
    ground: Ground, few_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "_VERSIONS", 4)
    fill(ground, last="the last one")
    most = 0

    def count(found: Any, *where: object) -> None:
        nonlocal most
        cells = found[0] if isinstance(found, tuple) else found
        most = max(most, len(cells))

    watched = heard(ground.store, scan_kind=count, entries=count)
    assert ground.repo(TABLES, store=watched).collect_garbage(retention=0).versions >= 20
    # The row has four columns: two of them are acknowledgments.
    assert most <= 4 * 4
    assert len(list(entries(ground))) == 1


def test_the_removals_of_a_cell_do_not_gather_in_memory(
    ground: Ground, few_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "_VERSIONS", 3)
    fill(ground, last="the last one")
    pages: list[Cell] = []
    most = 0

    def page(found: object, cell: Cell, kind: Kind, *_: object) -> None:
        if cell.table == "bank" and kind is Kind.WRITE:
            pages.append(cell)

    def mutated(found: object, batch: Sequence[RowMutation]) -> None:
        nonlocal most
        if batch[0].table == "bank":
            most = max(most, len(pages))
            pages.clear()

    watched = heard(ground.store, entries=page, mutate=mutated)
    assert ground.repo(TABLES, store=watched).collect_garbage(retention=0).complete
    # Three pages of three records are more than a mutation takes.
    assert 0 < most <= 3
