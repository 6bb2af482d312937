"""§2.1, §2.2: `empty` deletes what is in a table, by transactions, on every store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from stores import Ground

from percola import Column, Repository, Table, Transaction, UsageError, Worker, observer
from percola.catalog import RUNS
from percola.cells import Kind
from percola.cli.json_output import row_json
from percola.maintenance import empty as emptying
from percola.maintenance.check import Severity, check
from percola.maintenance.empty import Emptied, empty
from percola.recipes import Sums

docs = Table("docs")
text = docs.column("text", str, observed=True)
size = docs.column("size", int)
links = docs.family("links", int)
other = Table("other")
note = other.column("note", str)
TABLES = [docs, other]
LONG = "x" * 300
ROWS = [f"{letter}/{number}" for letter in "ab" for number in range(3)]


@observer(text)
def measure(t: Transaction, row: str) -> None:
    found = t.get(text, row)
    if found is None:
        t.delete(size, row)
    else:
        t.set(size, row, len(found))


def fill(repo: Repository, rows: Iterable[str] = ROWS) -> int:
    with repo.transaction() as t:
        for row in rows:
            t.set(text, row, f"{row}{LONG}")
            t.set(size, row, 0)
        t.set(note, "a/0", "stays")
    assert t.commit_ts is not None
    return t.commit_ts


def left(repo: Repository, ts: int | None = None) -> dict[str, int]:
    """How many cells each row of the table has."""
    with repo.snapshot(ts) as now:
        return {row.key: len(list(row.items())) for row in now.scan(docs)}


def assert_sound(repo: Repository) -> None:
    assert [str(one) for one in check(repo) if one.severity is not Severity.NOTE] == []


def test_an_emptied_table_is_empty_and_older_snapshots_are_not(repo: Repository) -> None:
    before = fill(repo)
    told: list[Emptied] = []
    assert empty(repo, docs, dry_run=True) == Emptied(6, 12)
    assert left(repo) == left(repo, before) == dict.fromkeys(ROWS, 2)
    assert empty(repo, docs, progress=told.append) == told[-1] == Emptied(6, 12)
    assert left(repo) == {} and left(repo, before) == dict.fromkeys(ROWS, 2)
    assert repo.snapshot().get(note, "a/0") == "stays"
    assert empty(repo, docs) == Emptied()
    assert_sound(repo)


def test_of_an_emptied_table_garbage_collection_leaves_nothing_once_its_observers_have_run(
    ground: Ground, repo: Repository
) -> None:
    fill(repo)
    Worker(repo, [measure]).run_until_idle()
    empty(repo, docs)
    repo.collect_garbage(retention=0)
    assert ground.left_over(docs, Kind.WRITE), "the observer has yet to see the deletes"
    Worker(repo, [measure]).run_until_idle()
    repo.collect_garbage(retention=0)
    for kind in (Kind.WRITE, Kind.DATA, Kind.NOTIFY, Kind.LOCK):
        assert ground.left_over(docs, kind) == []
    assert ground.left_over(other, Kind.WRITE)


def test_without_notifications_no_observer_runs_and_nothing_is_left_for_one(
    ground: Ground, repo: Repository
) -> None:
    fill(repo)
    Worker(repo, [measure]).run_until_idle()
    assert empty(repo, docs, notify=False) == Emptied(6, 12)
    assert repo.is_idle()
    repo.collect_garbage(retention=0)
    assert ground.left_over(docs, Kind.WRITE) == []
    assert_sound(repo)


def test_only_the_named_columns_and_rows_are_emptied(repo: Repository) -> None:
    fill(repo)
    with repo.transaction() as t:
        t.set(links["p"], "a/1", 1)
        t.set(links["q"], "a/1", 2)
    assert empty(repo, docs, [links], prefix="a/") == Emptied(1, 2)
    assert empty(repo, docs, [text], prefix="b/") == Emptied(3, 3)
    assert left(repo) == {row: 2 if row < "b" else 1 for row in ROWS}


def test_a_row_of_hundreds_of_columns_is_emptied_by_several_transactions(repo: Repository) -> None:
    names = [f"a-name-of-letters-{number:03}" for number in range(250)]
    for at in range(0, 250, 125):
        with repo.transaction() as t:
            for name in names[at : at + 125]:
                t.set(links[name], "wide", 1)
    fill(repo)
    told: list[Emptied] = []
    empty(repo, docs, progress=told.append)
    assert told == [Emptied(7, 112), Emptied(7, 212), Emptied(7, 262)]
    assert left(repo) == {}


def test_what_is_written_meanwhile_stays_but_for_cells_that_were_there(repo: Repository) -> None:
    fill(repo)

    def write(so_far: Emptied) -> None:
        if so_far.cells == 2:
            with repo.transaction() as t:
                t.set(size, "a/0", 1)
                t.set(size, "b/2", 2)
                t.set(links["p"], "b/2", 3)
                t.set(size, "c", 4)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("percola.maintenance.empty._CELLS", 2)
        empty(repo, docs, progress=write)
    assert left(repo) == {"a/0": 1, "b/2": 1, "c": 1}
    assert repo.snapshot().get(links["p"], "b/2") == 3


def test_a_cell_that_others_write_all_the_time_does_not_hold_up_the_others(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(repo)
    sizes: list[int] = []

    def beside(t: Transaction, cells: Sequence[Any]) -> None:
        delete(t, cells)
        sizes.append(len(cells))
        # As by programs that have committed before all of these are deleted.
        if len(cells) > 1 and (size, "b/1") in cells:
            repo.run(lambda other: other.set(size, "b/1", len(sizes)))

    delete = emptying._delete
    monkeypatch.setattr(emptying, "_delete", beside)
    assert empty(repo, docs) == Emptied(6, 12)
    assert left(repo) == {}
    assert sizes == [12] * 3 + [6] + [6] * 3 + [3] * 3 + [1] + [2] * 3 + [1, 1, 3]


def test_what_was_interrupted_is_finished_by_the_next_call(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percola.maintenance.empty._CELLS", 4)
    fill(repo)

    def stop(so_far: Emptied) -> None:
        if so_far.rows == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        empty(repo, docs, progress=stop)
    assert left(repo) == dict.fromkeys(ROWS[4:], 2)
    assert empty(repo, docs) == Emptied(2, 4)
    assert left(repo) == {}


orders = Table("orders")
euros = orders.column("euros", int, observed=True)
spent = Sums("spent", orders, {"euros": int})


@observer(euros)
def add_up(t: Transaction, order: str) -> None:
    paid = t.get(euros, order)
    spent.contribute(t, order, {} if paid is None else {"all": {"euros": paid}})


def test_a_recipe_keeps_its_record_of_a_row_of_which_a_program_takes_all_columns(
    ground: Ground,
) -> None:
    repo = ground.repo([orders, *spent.tables])
    worker = [add_up, *spent.observers]

    def after(change: Callable[[Transaction, Column[str, Any], Any], None]) -> tuple[int, int]:
        with repo.transaction() as t:
            for column, value in t.get_row(orders, "o1").items():
                change(t, column, value)
        Worker(repo, worker).run_until_idle()
        now = spent.get(repo.snapshot(), "all")
        return now.count, now["euros"]

    repo.run(lambda t: t.set(euros, "o1", 3))
    Worker(repo, worker).run_until_idle()
    row = repo.snapshot().get_row(orders, "o1")
    assert row[spent.applied.column] == {"all": {"euros": 3}}
    assert row_json(row)["columns"].keys() == {"euros", "applied.spent"}, "people see it"
    assert after(lambda t, column, value: t.set(column, "o2", value)) == (2, 6)
    assert after(lambda t, column, value: t.delete(column, "o1")) == (1, 3)


def test_what_others_need_of_a_table_is_not_deleted_with_it(ground: Ground) -> None:
    repo = ground.repo([orders, *spent.tables])
    worker = [add_up, *spent.observers]
    with repo.transaction() as t:
        t.set(euros, "o1", 3)
    Worker(repo, worker).run_until_idle()
    with pytest.raises(UsageError, match=r"orders\.applied\.spent has what its rows contributed"):
        empty(repo, orders)
    name: Any = orders.name
    with pytest.raises(UsageError, match="'orders' is not a Table: pass the one"):
        empty(repo, name, [euros])
    with pytest.raises(UsageError, match="The prefix is empty, as of a variable that is not set"):
        empty(repo, orders, [euros], prefix="")
    assert empty(repo, orders, [euros]) == Emptied(1, 1)
    Worker(repo, worker).run_until_idle()
    assert list(repo.snapshot().scan(orders)) == []
    assert not spent.get(repo.snapshot(), "all")
    repo.record_runs()
    with pytest.raises(UsageError, match="garbage collection removes"):
        empty(ground.repo([RUNS]), RUNS)
