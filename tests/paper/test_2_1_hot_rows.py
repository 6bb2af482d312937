"""Rule P12 where much has to go from one row: a cell that is written all the time, after a stop.

Stores bound how much of a row one mutation changes (Bigtable: 100,000), so it goes in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from stores import Crashed, Ground, SeamStore, cell_of

from percola import Repository, Table, Transaction, Worker, observer
from percola.cells import MAX_TS, Cell, Kind
from percola.gc import collector as gc
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


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "_CHANGES", MOST)


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
