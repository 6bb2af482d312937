"""§2.5: what past transactions read next comes with the first read, and changes no result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from borrowed import only_near
from holders import Holder
from stores import DEADLINE, Ground, PassingStore, ScriptedClock, in_thread, notify, put, put_all

from percola import Observer, Repository, Table, Transaction, Worker, observer
from percola.cells import Cell
from percola.coordination.memory import MemoryCoordination
from percola.errors import DamagedRecordError
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import CellState
from percola.store.counting import CountedStore, StoreCalls, calling_for
from percola.store.memory import MemoryStore
from percola.transactions.prefetch import BYTES, CELLS, COLUMNS, HABITS, WORTH, Prefetch

pages = Table("pages")
url = pages.column("url", str, observed=True)
title = pages.column("title", str)
body = pages.column("body", bytes)
language = pages.column("language", str)
rank = pages.column("rank", int)
notes = pages.family("note", str)
due = pages.weak_column("due")
tallies = Table("tallies")
tally = tallies.column("tally", int)
TABLES = [pages, tallies]


class ReadStore(PassingStore):
    """Notes what each call reads."""

    def __init__(self, inner: PassingStore) -> None:
        super().__init__(inner)
        self.calls: list[list[str]] = []
        self.damaged: set[bytes] = set()

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        self.calls.append([f"{cell.row.decode()}.{cell.column.decode()}" for cell in cells])
        if any(cell.column in self.damaged for cell in cells):
            raise DamagedRecordError("this cell is damaged")
        return self.inner.read(cells, ts)


def filled(ground: Ground, rows: int = 40, **options: Any) -> tuple[ReadStore, Repository]:
    """A repository that prefetches, and its rows r00, r01, …"""
    with ground.repo(TABLES).transaction() as t:
        for number in range(rows):
            row = f"r{number:02}"
            t.set(title, row, f"title {number}")
            t.set(body, row, b"b" * 300)
            t.set(language, row, "en")
            t.set(rank, row, number)
            t.set(tally, row, number)
    store = ReadStore(ground.store)
    repo = ground.repo(TABLES, store=store, prefetches=True, **options)
    store.calls.clear()
    return store, repo


def visit(repo: Repository, row: str, *columns: Any) -> None:
    """A transaction that reads columns of a row one after the other."""
    with repo.transaction() as t:
        for column in columns:
            t.get(column, row)


# --- What is learnt ---------------------------------------------------------------------


def test_what_past_transactions_read_next_comes_with_the_first_read(ground: Ground) -> None:
    store, repo = filled(ground)
    visit(repo, "r00", title, body, language)
    assert store.calls == [["r00.title"], ["r00.body"], ["r00.language"]]
    store.calls.clear()
    visit(repo, "r01", title, body, language)
    assert store.calls == [["r01.title", "r01.body", "r01.language"]]


def test_a_column_that_is_not_read_any_more_is_not_fetched_any_more(ground: Ground) -> None:
    store, repo = filled(ground)
    for number in range(10):
        visit(repo, f"r{number:02}", title, body, language)
    for number in range(10, 20):
        visit(repo, f"r{number:02}", title, language)
    store.calls.clear()
    visit(repo, "r20", title, language)
    assert store.calls == [["r20.title", "r20.language"]]
    assert sum("body" in cell for call in store.calls for cell in call) == 0


def test_a_habit_that_changes_is_followed(ground: Ground) -> None:
    store, repo = filled(ground)
    for number in range(10):
        visit(repo, f"r{number:02}", title, body)
    visit(repo, "r10", title, rank)
    store.calls.clear()
    visit(repo, "r11", title, rank)
    assert len(store.calls) == 1, "after one that read it, it comes along"


def test_a_large_value_is_not_fetched_on_a_guess_for_ever(ground: Ground) -> None:
    """Read by two in five, a short value comes along and a long one does not."""
    store, repo = filled(ground)
    put_all(repo, body, {f"r{number:02}": b"x" * 3 * WORTH for number in range(40)})
    for number in range(35):
        columns = (title, body, language) if number % 5 in (0, 2) else (title,)
        visit(repo, f"r{number:02}", *columns)
    store.calls.clear()
    visit(repo, "r39", title)
    assert store.calls == [["r39.title", "r39.language"]]


def test_each_caller_has_habits_of_its_own(ground: Ground) -> None:
    store, repo = filled(ground)
    for number in range(3):
        with calling_for("one"):
            visit(repo, f"r{number:02}", title, body)
        with calling_for("another"):
            visit(repo, f"r{number:02}", title, rank)
    store.calls.clear()
    with calling_for("one"):
        visit(repo, "r05", title, body)
    with calling_for("another"):
        visit(repo, "r06", title, rank)
    assert store.calls == [["r05.title", "r05.body"], ["r06.title", "r06.rank"]]


def test_a_function_that_is_run_is_a_caller(ground: Ground) -> None:
    store, repo = filled(ground)

    def read(t: Transaction, row: str) -> tuple[str | None, int | None]:
        return t.get(title, row), t.get(rank, row)

    assert repo.run(lambda t: read(t, "r01")) == ("title 1", 1)
    store.calls.clear()
    for row in ("r02", "r03"):
        repo.run(lambda t, row=row: read(t, row))
    assert store.calls == [["r02.title", "r02.rank"], ["r03.title", "r03.rank"]]
    visit(repo, "r04", title)
    assert store.calls[-1] == ["r04.title"], "nobody in particular has no such habit"


def test_columns_of_families_are_not_guessed(ground: Ground) -> None:
    """Their names are data: another row has others."""
    store, repo = filled(ground)
    for number in range(4):
        visit(repo, f"r{number:02}", title, notes[f"{number}"])
    visit(repo, "r09", title, notes["9"])
    assert store.calls[-2:] == [["r09.title"], ["r09.note:9"]]


def test_own_writes_and_what_has_been_read_do_not_come_again(ground: Ground) -> None:
    store, repo = filled(ground)
    visit(repo, "r00", title, body, language)
    store.calls.clear()
    with repo.transaction() as t:
        t.set(body, "r01", b"mine")
        assert t.get(title, "r01") == "title 1"
        assert t.get(body, "r01") == b"mine"
        assert t.get(title, "r01") == "title 1"
    assert store.calls == [["r01.title", "r01.language"]]


def test_habits_columns_and_what_comes_ahead_are_bounded() -> None:
    prefetch = Prefetch()
    for number in range(HABITS + 10):
        prefetch.learn([((f"caller {number}", None), [("t", b"c")])], [], 0, 0)
        assert len(prefetch._habits) <= HABITS
    wide = [("t", b"%d" % number) for number in range(2 * COLUMNS)]
    prefetch.learn([(("wide", None), wide)], [], 0, 0)
    assert len(prefetch.likely(("wide", None))) == COLUMNS
    with calling_for("wide"):
        ahead = prefetch.begin()
    rows = [b"%d" % number for number in range(2 * CELLS)]
    ahead.expect(rows)
    assert len(ahead.guess([Cell("t", rows[0], b"0")], ())) == CELLS
    prefetch.learn([(("long", None), [("t", b"long")])] * 20, [(("t", b"long"), BYTES // 10)], 0, 0)
    with calling_for("long"):
        ahead = prefetch.begin()
    ahead.expect(rows)
    assert len(ahead.guess([Cell("t", rows[0], b"other")], ())) == 10


# --- It changes no result ---------------------------------------------------------------


def test_a_prefetched_lock_blocks_nobody(ground: Ground) -> None:
    """A live transaction holds what would come along: who does not ask for it does not wait."""
    store, repo = filled(ground, lock_wait_seconds=0.0)
    visit(repo, "r00", title, language)
    holder = Holder(ground, TABLES, language, "r01")
    holder.lock()
    store.calls.clear()
    with repo.transaction() as t:
        assert t.get(title, "r01") == "title 1"
    assert store.calls == [["r01.title", "r01.language"]]
    assert ground.lock_holders(language, "r01") == [holder.start_ts], "nor is it resolved"


def test_what_a_lock_hid_when_it_came_ahead_is_seen_when_it_is_asked_for(ground: Ground) -> None:
    """The lock was of a transaction that commits below start_ts: what it wrote is to be seen."""
    store, repo = filled(ground)
    visit(repo, "r00", title, language)
    holder = Holder(ground, TABLES, language, "r01")
    commit_ts = holder.lock()
    with repo.transaction(two_phase=True) as t:
        assert t.start_ts > commit_ts
        store.calls.clear()
        assert t.get(title, "r01") == "title 1"
        holder.commit(commit_ts)
        assert t.get(language, "r01") == "new"
    assert store.calls == [["r01.title", "r01.language"], ["r01.language"]]


def test_damage_to_a_cell_that_was_only_guessed_reaches_nobody(ground: Ground) -> None:
    store, repo = filled(ground)
    visit(repo, "r00", title, body)
    store.damaged = {body.key}
    with repo.transaction() as t:
        assert t.get(title, "r01") == "title 1"
        with pytest.raises(DamagedRecordError):
            t.get(body, "r01")


# --- Observers --------------------------------------------------------------------------


def test_what_an_observer_reads_of_its_row_comes_with_its_acknowledgment(ground: Ground) -> None:
    store, repo = filled(ground)

    @observer(url)
    def index(t: Transaction, row: str) -> None:
        t.get(title, row)
        t.get(language, row)
        t.get(tally, row)

    changed(repo, "r00")
    work(repo, index)
    for number in range(1, 6):
        changed(repo, f"r{number:02}")
        store.calls.clear()
        work(repo, index)
        row = f"r{number:02}"
        [call] = store.calls
        assert call == [
            f"{row}.url",
            f"{row}.@ack:index:url",
            f"{row}.title",
            f"{row}.language",
            f"{row}.tally",
        ]


def test_what_an_observer_reads_of_its_rows_comes_for_a_whole_batch(ground: Ground) -> None:
    store, repo = filled(ground, clock=ScriptedClock())

    @observer(due, batch=32)
    def add(t: Transaction, row: str) -> None:
        t.set(tally, row, (t.get(tally, row) or 0) + (t.get(rank, row) or 0))

    notify(repo, due, "r00")
    work(repo, add)
    notify(repo, due, *(f"r{number:02}" for number in range(1, 31)))
    store.calls.clear()
    work(repo, add)
    assert len(store.calls) <= 4, "a scan begins at a random row and goes round"
    assert sorted(cell for call in store.calls for cell in call) == sorted(
        f"r{number:02}.{name}" for number in range(1, 31) for name in ("rank", "tally")
    )
    now = repo.snapshot()
    assert [now.get(tally, f"r{number:02}") for number in range(31)] == [
        2 * number for number in range(31)
    ]


def test_the_acknowledgments_of_a_batch_come_together(ground: Ground) -> None:
    store, repo = filled(ground, clock=ScriptedClock())

    index = observer(url, batch=32, name="index")(lambda t, row: t.get(title, row))

    changed(repo, "r00")
    work(repo, index)
    for number in range(1, 31):
        changed(repo, f"r{number:02}")
    store.calls.clear()
    work(repo, index)
    assert len(store.calls) <= 4, "a scan begins at a random row and goes round"
    assert len([cell for call in store.calls for cell in call]) == 3 * 30


def test_the_row_locks_of_a_batch_are_taken_together_and_given_back_together(
    ground: Ground,
) -> None:
    taken, given_back = [], []

    class Noting(MemoryCoordination):
        def try_lock_many(self, rows: Sequence[tuple[str, bytes]]) -> list[bool]:
            taken.append(list(rows))
            return super().try_lock_many(rows)

        def unlock_many(self, rows: Iterable[tuple[str, bytes]]) -> None:
            given_back.append(list(rows))
            super().unlock_many(given_back[-1])

    _, repo = filled(ground, clock=ScriptedClock(), coordination=Noting())

    @observer(due, batch=32)
    def nothing(t: Transaction, row: str) -> None:
        pass

    notify(repo, due, *(f"r{number:02}" for number in range(40)))
    work(repo, nothing)
    assert len(taken) <= 6, "a scan begins at a random row; the first batch locks a few"
    assert max(map(len, taken)) >= 15
    # Each once, also those that begin a batch and are locked alone.
    assert sorted(row for rows in given_back for row in rows) == [
        ("pages", b"r%02d" % number) for number in range(40)
    ]


def test_rows_that_join_later_come_without_those_that_have_been_read() -> None:
    prefetch = Prefetch()
    ahead = prefetch.begin()
    rows = [b"a"]
    ahead.expect(rows)
    first = Cell("t", b"a", b"c")
    assert ahead.guess([first], ()) == []
    ahead.read(first, (None, 1, b"x"))
    prefetch.learn([(("", None), [("t", b"c"), ("t", b"d")])] * 2, [], 0, 0)
    rows += [b"b", b"e"]
    assert ahead.guess([Cell("t", b"b", b"c")], ()) == [
        Cell("t", b"b", b"d"),
        Cell("t", b"e", b"c"),
        Cell("t", b"e", b"d"),
    ]


def test_where_very_many_rows_are_dirty_each_of_a_batch_is_still_found_dirty(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call looks at all of its rows, and stops where others make it long."""
    monkeypatch.setattr("percola.observers.runner._CROWD", 1)
    _, repo = filled(ground)

    @observer(due, batch=8)
    def nothing(t: Transaction, row: str) -> None:
        pass

    rows = [f"r{number:02}" for number in range(6)]
    for _ in range(3):
        notify(repo, due, *rows)
    found = Worker(repo, [nothing])._runs._look_together(
        [Cell("pages", row.encode(), due.key) for row in rows]
    )
    assert [dirty and len(dirty.notified) for dirty in found] == [3] * 6


def changed(repo: Repository, row: str) -> None:
    put(repo, url, row, f"http://{row}")


def work(repo: Repository, one: Observer[str]) -> Worker:
    worker = Worker(repo, [one], threads=1, retention=None)
    worker.run_until_idle()
    return worker


# --- The counts -------------------------------------------------------------------------


def test_calls_are_counted_by_caller_and_kind_and_told_to_who_asks_the_worker() -> None:
    memory, calls = MemoryStore(), StoreCalls()
    repo = Repository(
        "counted",
        CountedStore(memory, calls),
        EmbeddedOracle(memory),
        MemoryCoordination(),
        TABLES,
        prefetches=True,
    )

    @observer(due, batch=8)
    def add(t: Transaction, row: str) -> None:
        t.set(tally, row, (t.get(tally, row) or 0) + (t.get(rank, row) or 0))

    for row in ("a", "b"):
        notify(repo, due, row)
        worker = work(repo, add)
    counts = calls.counts()
    assert counts["add", "read"] == (3, 4, 4), "tally, rank; then both at once"
    assert counts["add", "mutate"].calls == 8, "prewrite and commit of the tally and the due row"
    told = worker.metrics.counts()
    assert told["store_calls"]["add/read"] == 3
    assert told["store_cells"]["add/read"] == 4
    assert told["prefetched_cells"][""] == 1
    assert told["prefetched_cells_used"][""] == 1


@only_near("it is about stores that are not behind a network")
def test_an_embedded_store_is_neither_counted_nor_read_ahead(ground: Ground) -> None:
    context = ground.repo(TABLES).context
    assert context.store is ground.store
    assert (context.calls, context.prefetch, context.caches_reads) == (None, None, False)


def test_a_snapshot_that_ends_while_its_thread_learns_from_another_waits_for_nothing() -> None:
    # Python's garbage collection ends snapshots at any point, inside the prefetch's own code too.
    prefetch = Prefetch()
    visit = (("caller", None), [("t", b"c")])

    def visits() -> Iterator[tuple[tuple[str, None], list[tuple[str, bytes]]]]:
        prefetch.learn([visit], [], 1, 1)
        assert prefetch.likely(("caller", None)) == ()
        yield visit

    future = in_thread(lambda: prefetch.learn(visits(), [], 2, 1))
    future.result(DEADLINE)
    assert prefetch.counts() == (2, 1)
    assert prefetch.likely(("caller", None))
