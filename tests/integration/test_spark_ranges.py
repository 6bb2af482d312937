"""Work on whole tables as Spark jobs finds and leaves the same as one process alone."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from stores import delete, put_all

import percola
from percola import Repository, Rerun, Table, Transaction, Worker, decimal_of, observer, rerun
from percola.cells import Cell, Kind, LockRecord, Op, encode_lock, encode_write
from percola.maintenance import copy
from percola.maintenance.check import Counts, Finding, check
from percola.maintenance.copy import Copied, copy_repository
from percola.ranges import whole
from percola.recipes import MAX, Distinct, Export, Index, Sums, Tree
from percola.recipes import check as check_recipes
from percola.spark import OnSpark
from percola.store.base import SYSTEM_TABLE, Delete, Put, RowMutation, Store
from percola.store.walks import walk_kind

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
title = docs.column("title", str)
fed = Table("fed", feed=True)
number = fed.column("number", int)
late = Table("late")
late_number = late.column("number", int)
TABLES = [docs, fed, late]
ROWS = 400
RANGES = 4


@observer(contents)
def measure(t: Transaction, row: str) -> None:
    t.set(title, row, str(len(t.get(contents, row) or "")))


def row(at: int) -> str:
    return f"row-{at:04d}"


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repo = percola.open(tmp_path / "repo", TABLES, durability="relaxed")
    for first in range(0, ROWS, 50):
        with repo.transaction() as t:
            for at in range(first, first + 50):
                t.set(title, row(at), "long" * 100 if at % 2 else "short")
                t.set(number, row(at), at)
                t.set(late_number, row(at), at)
    return repo


def on(spark: SparkSession, repo: Repository, table: str = "docs") -> OnSpark:
    runner = OnSpark(spark, repo, ranges=RANGES)
    assert len(runner.cut(repo.context.store, whole([table]))) == RANGES
    return runner


def copies(repo: Repository, tmp_path: Path, *names: str) -> list[Repository]:
    """The repository, closed, several times over."""
    repo.close()
    for name in names:
        shutil.copytree(tmp_path / "repo", tmp_path / name)
    return [percola.open(tmp_path / name, TABLES, durability="relaxed") for name in names]


def everything(store: Store) -> set[tuple[Cell, Kind, int, bytes]]:
    """All entries of all tables."""
    return {
        (cell, kind, ts, raw)
        for table in TABLES
        for kind in Kind
        for cell, ts, raw in walk_kind(store, kind, table.name)
    }


def checked(repo: Repository, runner: OnSpark | None = None) -> tuple[list[Finding], Counts]:
    counts = Counts()
    more = {} if runner is None else {"runner": runner}
    return list(check(repo, counts=counts, **more)), counts


def damage(repo: Repository) -> None:
    """Break rules of rows, of two rows, of feeds, and leave what is only unusual."""
    store = repo.context.store

    def change(table: str, at: int, *changes: Put | Delete) -> None:
        assert store.mutate([RowMutation(table, row(at).encode(), (), changes)]) == [True]

    def written(table: str, column: str, at: int) -> int:
        cell = Cell(table, row(at).encode(), column.encode())
        return store.entries(cell, Kind.WRITE, 0, 2**62)[0][0]

    for at in range(9, ROWS, 100):
        ts = written("docs", "title", at)
        cell = Cell("docs", row(at).encode(), b"title")
        [(data, _)] = store.entries(cell, Kind.DATA, 0, 2**62)
        change("docs", at, Delete(Kind.DATA, b"title", data))
        change("docs", at + 1, Put(Kind.WRITE, b"title", ts + 10**6, encode_write(Op.PUT, ts, b"")))
        change("docs", at + 2, Put(Kind.WRITE, b"title", ts - 1, b"?"))
        # Its primary is in another range.
        primary = Cell("docs", row((at + 150) % ROWS).encode(), b"title")
        lock = encode_lock(LockRecord(Op.PUT, primary, "999999-0", 0, 10, False, b"1"))
        change("docs", at + 3, Put(Kind.LOCK, b"title", repo.context.oracle.timestamp(), lock))
        change("docs", at + 4, Put(Kind.NOTIFY, b"contents", ts, b""))
        change("docs", at + 5, Put(Kind.WRITE, b"contents", ts, encode_write(Op.PUT, ts - 1, b"")))
        change("fed", at, Delete(Kind.WRITE, b"number", written("fed", "number", at)))
    # A feed that pretends to have been kept from the beginning.
    store.keep_feed("late")
    since = Put(Kind.DATA, b"@since:late", 1, b"")
    store.mutate([RowMutation(SYSTEM_TABLE, b"feed", (), [since])])


def leave_locked(repo: Repository) -> None:
    """What a dead process's transaction leaves that was not committed."""
    primary = Cell("docs", row(1).encode(), b"title")
    lock = encode_lock(LockRecord(Op.PUT, primary, "1-1", 0, 10, False, b"1"))
    put = Put(Kind.LOCK, b"title", repo.context.oracle.timestamp(), lock)
    repo.context.store.mutate([RowMutation("docs", primary.row, (), [put])])


def test_a_check_finds_the_same_broken_rules_as_one_process(
    spark: SparkSession, repo: Repository
) -> None:
    runner = on(spark, repo)
    assert checked(repo, runner) == checked(repo)
    damage(repo)
    expected = checked(repo)
    assert {one.rule for one in expected[0]} == {
        "write-without-data",
        "timestamp-from-the-future",
        "undecodable-write",
        "lock-without-primary",
        "notification-without-reason",
        "lost-notification",
        "change-without-write",
        "unlisted-change",
    }
    assert len(expected[0]) > 350
    found = checked(repo, runner)
    assert found == expected


def test_garbage_collection_leaves_the_same_cells_as_one_process(
    spark: SparkSession, repo: Repository, tmp_path: Path
) -> None:
    for at in range(0, ROWS, 3):
        with repo.transaction() as t:
            t.set(title, row(at), f"newer {at}")
            t.get_for_update(number, row(at))
            if at % 2:
                t.delete(number, row(at))
                t.set(contents, row(at), "observed")
    delete(repo, contents, row(3))
    leave_locked(repo)
    alone, shared = copies(repo, tmp_path, "alone", "shared")
    before = everything(alone.context.store)
    expected = alone.collect_garbage(retention=0)
    assert shared.collect_garbage(retention=0, runner=on(spark, shared)) == expected
    assert min(expected.versions, expected.deleted, expected.records, expected.locks) > 0
    assert expected.complete
    left = everything(shared.context.store)
    assert left == everything(alone.context.store)
    assert len(left) < len(before)
    again = shared.collect_garbage(retention=0, runner=on(spark, shared))
    assert (again.complete, again.cells) == (True, 0)


def test_a_copy_that_one_process_began_is_finished_by_spark_and_is_the_same_as_alone(
    spark: SparkSession, repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with repo.transaction() as t:
        for at in range(0, ROWS, 7):
            t.set(contents, row(at), "observed")
            t.delete(number, row(at))
    repo.pause_observer(measure, reason="wrong")
    leave_locked(repo)

    def stop(copied: Copied) -> None:
        if copied.table == "fed":
            raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(copy, "_RECORDS", 64)
        patch.setattr(copy, "_SAVED_EVERY", 0.0)
        with pytest.raises(StoppedError):
            copy_repository(repo, str(tmp_path / "shared"), progress=stop)
    with repo.transaction() as t:
        t.set(title, row(5), "newer than the copy")
    shared = copy_repository(repo, str(tmp_path / "shared"), runner=on(spark, repo))
    alone = copy_repository(repo, str(tmp_path / "alone"), at=shared.ts)
    assert (shared.ts, shared.rows) == (alone.ts, alone.rows)
    assert 0 < shared.resumed < shared.rows
    with (
        percola.open(tmp_path / "shared", TABLES) as found,
        percola.open(tmp_path / "alone", TABLES) as expected,
    ):
        left = everything(found.context.store)
        assert left == everything(expected.context.store)
        assert len(left) > 2 * ROWS
        assert found.paused_observers() == repo.paused_observers() != []
        assert found.pending() == repo.pending() != {}
        assert checked(found)[0] == []
    assert repo.holds() == []


def test_a_rerun_marks_what_one_process_marks_and_goes_on_with_what_one_has_left(
    spark: SparkSession, repo: Repository
) -> None:
    put_all(repo, contents, {row(at): "text" for at in range(ROWS)})

    def work() -> None:
        Worker(repo, [measure], rescan=0.01).run_until_idle()

    work()
    prefixes = ["row-01", "row-030", "row-031"]
    assert rerun(repo, measure, prefixes=prefixes, runner=on(spark, repo)).rows == 120
    assert repo.pending() == {"docs.contents": 120}
    work()

    def stop(so_far: Rerun) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        rerun(repo, measure, progress=stop)
    done = rerun(repo, measure, runner=on(spark, repo))
    assert 0 < done.resumed < done.rows == ROWS
    assert repo.pending() == {"docs.contents": ROWS}
    work()
    assert repo.pending() == {}
    assert checked(repo)[0] == []


class StoppedError(Exception):
    """The copy ends here."""


@pytest.mark.long  # Eleven jobs.
def test_a_check_of_recipes_finds_the_same_differences_as_one_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    facts = Table("facts")
    sums = Sums("sums", facts, {"n": int, "price": decimal_of(10, 2)})
    seen = Distinct("seen", facts)
    best: Tree[str] = Tree("best", facts, MAX)
    by_key = Index("by_key", facts)
    queue = Export("queue")
    recipes: list[Any] = [sums, seen, best, by_key, queue]
    tables = [facts, *(table for one in recipes for table in one.tables)]
    with percola.open(tmp_path / "recipes", tables, durability="relaxed") as repo:
        for first in range(0, ROWS, 50):
            with repo.transaction() as t:
                for at in range(first, first + 50):
                    group = f"g{at % 3}"
                    price = Decimal(at) / 100
                    sums.contribute(t, row(at), {group: {"n": at, "price": price}})
                    seen.contribute(t, row(at), {group: [f"v{at % 7}"]})
                    best.contribute(t, row(at), {"all": [at, row(at)]})
                    by_key.register(t, row(at), [f"k{at % 5}"])
                    queue.enter(t, row(at))
        Worker(repo, [one for r in recipes[:4] for one in r.observers], threads=1).run_until_idle()

        def damage(t: Transaction) -> None:
            t.set(sums.count, "g0", ROWS)  # One row was counted twice.
            t.set(sums.measures["price"], "g1", Decimal("0.01"))  # And others not at all.
            t.delete(sums.count, "g2")
            t.set(seen._refs, "g0/v0", 1)
            t.delete(seen.counts.count, "g1")
            nodes = best._nodes
            node, digit = next(
                (one.key, next(iter(subs)))
                for one in t.scan(best.table, columns=[nodes.sub])
                if (subs := one.family(nodes.sub))
            )
            t.set(nodes.sub[digit], node, [0, "stale"])
            inner = next(t.scan(best.table, prefix="all/", columns=[nodes.entry]))
            owner = next(iter(inner.family(nodes.entry)))
            t.delete(nodes.entry[owner], inner.key)
            t.set(by_key._owner, "k0/gone", "gone")
            t.delete(by_key._owner, f"k1/{row(1)}")
            entries = list(t.scan(queue.table, columns=[queue.entry]))
            t.delete(queue.entry, entries[-1].key)

        # The job is at one timestamp: what is damaged once it has begun it does not see.
        late = [damage]
        damaging = OnSpark(spark, repo, ranges=4, show=lambda _: late and repo.run(late.pop()))
        assert check_recipes(repo, recipes, runner=damaging) == []
        assert not late
        expected = check_recipes(repo, recipes)
        assert [one.split("[")[0] for one in expected] == [
            *["sums"] * 3,
            *["seen.values", "seen"],
            *["best"] * 2,
            *["by_key"] * 2,
            "queue",
        ], expected
        runner = on(spark, repo, "facts")
        found = check_recipes(repo, recipes, runner=runner)
        assert sorted(found) == sorted(expected)
        found = check_recipes(repo, [sums], runner=runner, most=1)
        assert found[0] in expected[:3]
        assert found[1:] == ["2 more differences were found."]
