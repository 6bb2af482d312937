"""Walks over ranges of rows: every row once, whoever is stopped, replaced or run twice."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import Counter
from collections.abc import Generator, Sequence

import pytest
from stores import Ground, ScriptedClock

import percola
from percola import Repository, Table, Transaction, observer, rerun
from percola.cells import Kind
from percola.errors import DamagedRecordError
from percola.gc.collector import GarbageCollector
from percola.ranges import Cursor, Here, TableRange, Unfinished, Walk, joined, turned, whole
from percola.store.base import SYSTEM_TABLE, Put, RowMutation, Store
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext

bank = Table("bank")
bal = bank.column("bal", int)
seen = bank.column("seen", int, observed=True)
small = Table("small")
number = small.column("number", int)
TABLES = [bank, small]
ROWS = 3000


class Cutting(Here):
    """Cuts each range at two of its rows, as a runner of many processes does."""

    def cut(self, store: Store, ranges: Sequence[TableRange]) -> list[TableRange]:
        found = []
        for table, start, end in ranges:
            rows = sorted({cell.row for cell, _, _ in walk_kind(store, Kind.WRITE, table)})
            inside = [row for row in rows if start < row and (not end or row < end)]
            cuts = inside[len(inside) // 3 :: max(1, len(inside) // 3)][:2] if inside else []
            bounds = [start, *cuts, end]
            found += [TableRange(table, *two) for two in itertools.pairwise(bounds)]
        return found


def fill(repo: Repository, versions: int) -> None:
    for value in range(versions):
        with repo.transaction() as t:
            for row in range(ROWS):
                t.set(bal, f"{row:05}", value)
            t.set(number, "only", value)


def test_collectors_in_ranges_and_in_whole_tables_take_over_from_each_other(
    ground: Ground, repo: Repository
) -> None:
    """Each is stopped after a look or two, and another one goes on; all together get everywhere."""
    fill(repo, 2)
    rng = random.Random(5)
    removed = []
    for attempt in range(40):
        # At another safe point each time, so that no cycle finds itself done.
        with repo.transaction() as t:
            t.set(number, f"row {attempt}", 1)
        looks = iter([False] * rng.randrange(1, 3))
        collector = GarbageCollector(
            repo.context, retention=0, runner=rng.choice([Cutting(), Here()])
        )
        removed.append(collector.collect(stopped=lambda looks=looks: next(looks, True)).versions)
        if sum(removed) == ROWS + 1:
            break
    assert sum(removed) == ROWS + 1
    assert max(removed) < ROWS
    left = Unfinished({})
    walk = Walk(ground.store, repo.context.clock, b"gc/walk")
    assert len((walk.unfinished() or left).left) <= 20, "what belongs together is joined again"
    assert repo.collect_garbage(retention=0).complete
    assert walk.unfinished() is None


def test_what_is_left_comes_first_and_every_row_once() -> None:
    rng = random.Random(1)
    tables = ["a", "b", "c"]
    order = whole(tables)
    for _ in range(200):
        stop = rng.randrange(len(order))
        table, start, end = order[stop]
        middle = start + b"m"
        if end and middle >= end:
            continue
        walk = Unfinished(
            {},
            left=[TableRange(table, middle, end), *order[stop + 1 :]],
            done=[*order[:stop], TableRange(table, start, middle)],
        )
        order = turned(walk, tables)
        assert (order[0].table, order[0].start) == (table, middle)
        assert joined(sorted(order)) == whole(tables)
        assert len(order) <= 8
    assert turned(walk, ["b", "d"])[0] == TableRange("d"), "a table that is new"


def test_a_run_that_was_replaced_stores_nothing_and_knows(repo: Repository) -> None:
    store, clock = repo.context.store, ScriptedClock()
    first, second = (Walk(store, clock, b"walk", every=0.0) for _ in range(2))
    ranges = [TableRange("bank", b"", b"k"), TableRange("bank", b"k")]
    assert first.unfinished() is None
    assert first.begin({"what": 1}, ranges)
    assert not second.begin({}, ranges), "it has not seen the first one"
    sent = pickle.loads(pickle.dumps(first)).on(store, clock)
    attempts = [Cursor(sent, 0, ranges[0]) for _ in range(2)]
    for attempt, row in zip(attempts, (b"d", b"c"), strict=True):
        attempt.counts["rows"] += 3
        assert attempt.move(row), "both attempts of a task may store how far they are"
    assert first.is_current()
    found = second.unfinished()
    assert found is not None
    assert (found.what, found.counts) == ({"what": 1}, Counter(rows=3))
    assert found.left == [TableRange("bank", b"c", b"k"), ranges[1]]
    assert found.done == [TableRange("bank", b"", b"c")]
    assert second.begin(found.what, found.left, found.counts)
    assert not first.is_current()
    assert not sent.is_current()
    assert not attempts[0].move(b"e")
    assert not first.end()
    theirs = Cursor(second, 0, found.left[0])
    assert theirs.following == b"c"
    assert theirs.move(b"j")
    # A task of the first run, which is run again, does not take their position for its own.
    assert Cursor(sent, 0, ranges[0]).following == b""
    assert second.end()
    assert not second.is_current()
    assert second.unfinished() is None


@pytest.mark.parametrize("column", [b"@walk", b"@range:0"])
@pytest.mark.parametrize("raw", [b'{"what": {}, "next": "6', b"\xff", b"", b"{}", b"[]"])
def test_positions_that_cannot_be_read_are_told_and_keep_no_garbage(
    column: bytes, raw: bytes
) -> None:
    """Where to begin is all that garbage collection takes from them."""
    repo = percola.open("memory:", TABLES)

    @observer(seen)
    def look(t: Transaction, row: str) -> None: ...

    store, clock = repo.context.store, ScriptedClock()
    for value in range(3):
        with repo.transaction() as t:
            t.set(bal, "a", value)
            t.set(seen, "a", value)
    for row in (b"gc/walk", b"rerun/look"):
        walk = Walk(store, clock, row)
        assert walk.begin({}, [TableRange("bank", b"", b"k")])
        assert walk.save(0, b"b", Counter(rows=1))
        put = Put(Kind.DATA, column, walk.run, raw)
        store.mutate([RowMutation(SYSTEM_TABLE, row, (), [put])])
    collected = repo.collect_garbage(retention=0)
    assert (collected.complete, collected.versions) == (True, 4)
    with pytest.raises(DamagedRecordError, match=r"rerun/look.*--restart"):
        rerun(repo, look)
    assert rerun(repo, look, restart=True).rows == 1
    assert rerun(repo, look).resumed == 0


def test_work_that_is_left_is_closed_before_its_runner_goes_on(repo: Repository) -> None:
    ended = []

    def work(context: TransactionContext, number: int, one: TableRange) -> Generator[int]:
        try:
            yield number
            yield number
        finally:
            ended.append(one.table)

    running = Here().run(repo.context, whole(["a", "b", "c"]), work, title="Working")
    assert [next(running) for _ in range(3)] == [(0, 0), (0, 0), (1, 1)]
    running.close()
    assert ended == ["a", "b"]
