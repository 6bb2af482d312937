"""§2.5: rows that are read whole: many in one call, and with one of a batch the others ahead."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from holders import Holder
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Ground, PassingStore, ScriptedClock, in_memory, notify, put, put_all

from percola import Repository, Table, Transaction, UnknownTableError, Worker, observer
from percola.cells import Cell
from percola.errors import DamagedRecordError
from percola.store.base import CellState
from percola.store.counting import calling_for
from percola.transactions.prefetch import BYTES, CELLS, ROW_CELLS, WORTH, Prefetch, shape_of
from percola.transactions.read_cache import READ_CACHE_CELLS, ReadCache

links = Table("links")
source = links.family("source", str)
tally = links.column("tally", int)
label = links.column("label", str)
kind = links.column("kind", str)
due = links.weak_column("due")
notes = Table("notes")
note = notes.family("note", str)
TABLES = [links, notes]

Columns = Sequence[tuple[bytes, bool]] | None


class RowStore(PassingStore):
    """Notes the rows that each call reads whole."""

    def __init__(self, inner: PassingStore) -> None:
        super().__init__(inner)
        self.calls: list[list[str]] = []
        self.damaged: set[bytes] = set()

    def scan_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        ts: int,
        *,
        columns: Columns = None,
        limit: int = 256,
    ) -> dict[bytes, list[tuple[Cell, CellState]]]:
        self.calls.append([row.decode() for row in rows])
        if self.damaged & set(rows):
            raise DamagedRecordError("this row is damaged")
        return self.inner.scan_rows(table, rows, ts, columns=columns, limit=limit)


def filled(ground: Ground, rows: int = 40, **options: Any) -> tuple[RowStore, Repository]:
    """A repository that prefetches, and its rows r00, r01, … of three cells each."""
    with ground.repo(TABLES).transaction() as t:
        for number in range(rows):
            t.set(source["a"], f"r{number:02}", f"a {number}")
            t.set(source["b"], f"r{number:02}", f"b {number}")
            t.set(tally, f"r{number:02}", number)
    store = RowStore(ground.store)
    repo = ground.repo(TABLES, store=store, **{"prefetches": True, **options})
    store.calls.clear()
    return store, repo


def sources(t: Transaction, row: str) -> dict[str, str]:
    return t.get_row(links, row, [source]).family(source)


def visit(repo: Repository, *rows: str) -> list[dict[str, str]]:
    """A transaction that is about some rows, and reads a family of one after the other."""
    with repo.transaction() as t:
        t._expect([row.encode() for row in rows])
        return [sources(t, row) for row in rows]


# --- Many rows in one call --------------------------------------------------------------


@pytest.mark.parametrize("caches_reads", [False, True])
def test_many_rows_are_read_in_one_call_each_as_get_row_finds_it(
    ground: Ground, caches_reads: bool
) -> None:
    store, repo = filled(ground, prefetches=False, caches_reads=caches_reads)
    names = ["r07", "none", "r03", "r07"]
    with repo.transaction() as t:
        t.set(source["c"], "r03", "mine")
        t.delete(source["a"], "r07")
        t.set(tally, "none", 1)
        found = t.get_rows(links, names, [source])
        assert store.calls == [["r07", "none", "r03"]]
        assert [row.key for row in found] == names
        assert [row.family(source) for row in found] == [
            {"b": "b 7"},
            {},
            {"a": "a 3", "b": "b 3", "c": "mine"},
            {"b": "b 7"},
        ]
        assert not found[1]
        for name, row in zip(names, t.get_rows(links, names), strict=True):
            assert list(row.items()) == list(t.get_row(links, name).items())
        assert t.get_rows(links, []) == []
        with pytest.raises(UnknownTableError):
            t.get_rows(Table("other"), ["r01"])


def test_a_row_that_has_been_read_is_not_asked_for_again(ground: Ground) -> None:
    store, repo = filled(ground, prefetches=False, caches_reads=True)
    with repo.transaction() as t:
        assert sources(t, "r01") == {"a": "a 1", "b": "b 1"}
        assert sources(t, "none") == {}
        t.set(source["a"], "r01", "mine")
        t.set(source["x"], "none", "mine")
        assert sources(t, "r01") == {"a": "mine", "b": "b 1"}
        assert sources(t, "none") == {"x": "mine"}
        assert store.calls == [["r01"], ["none"]]
        assert t.get_row(links, "r01", [tally]).get(tally) == 1, "other columns are asked for"
        assert t.get_row(links, "r01", [source["a"]]).get(source["a"]) == "mine"
        assert not t.get_row(links, "r01", [])
        assert len(store.calls) == 5


def test_whichever_columns_are_asked_for_they_are_told_from_all_others() -> None:
    asked: list[Columns] = [
        None,
        [],
        [(b"f:", True)],
        [(b"f:", False)],
        [(b"f:*", False)],
        [(b"a", False), (b"b", False)],
        [(b"a", False)],
        [(b"a", False), (b"b", True)],
        [(b"ab", False)],
    ]
    assert len({shape_of("t", columns) for columns in asked}) == len(asked)
    one, other = (b"a", False), (b"b", True)
    assert shape_of("t", [one, other]) == shape_of("t", [other, one])


def test_rows_in_the_cache_are_bounded() -> None:
    cache, state = ReadCache(), (None, 1, b"x")
    for number in range(30):
        row = b"%d" % number
        cells = [(Cell("t", row, b"f:%d" % at), state) for at in range(READ_CACHE_CELLS // 10)]
        cache.keep_rows("t", None, {row: cells}, {row})
        cache.keep(Cell("t", row, b"c"), state)
        assert len(cache) + cache._rows_cells <= READ_CACHE_CELLS
        assert cache.look_up_rows("t", [row], None) == {row: cells}
    cells = [(Cell("t", b"r", b"f:%d" % at), state) for at in range(READ_CACHE_CELLS)]
    cache.keep_rows("t", None, {b"r": cells}, {b"r"})
    assert cache.look_up_rows("t", [b"r"], None) == {}, "one that does not fit is not kept"


# --- Ahead ------------------------------------------------------------------------------


def test_a_family_that_an_observer_reads_comes_for_a_whole_batch(ground: Ground) -> None:
    store, repo = filled(ground, clock=ScriptedClock())

    @observer(due, batch=32)
    def add(t: Transaction, row: str) -> None:
        t.set(tally, row, len(sources(t, row)))

    for rows in (range(1), range(1, 31)):
        store.calls.clear()
        notify(repo, due, *(f"r{number:02}" for number in rows))
        Worker(repo, [add], threads=1, retention=None).run_until_idle()
    assert len(store.calls) <= 4, "a scan begins at a random row and goes round"
    assert sorted(row for call in store.calls for row in call) == [f"r{n:02}" for n in range(1, 31)]
    now = repo.snapshot()
    assert [now.get(tally, f"r{number:02}") for number in range(31)] == [2] * 31


def test_a_batch_learns_from_its_first_row(ground: Ground) -> None:
    store, repo = filled(ground)
    assert visit(repo, "r01", "r02", "r03")[2] == {"a": "a 3", "b": "b 3"}
    assert store.calls == [["r01"], ["r02", "r03"]]


def test_only_rows_that_somebody_expects_come_ahead(ground: Ground) -> None:
    store, repo = filled(ground)
    visit(repo, "r00", "r01")
    store.calls.clear()
    with repo.transaction() as t:
        t._expect([b"r02", b"r03"])
        sources(t, "r09")
        sources(t, "r02")
    assert store.calls == [["r09"], ["r02", "r03"]]


def test_a_family_that_is_not_read_any_more_is_not_fetched_any_more(ground: Ground) -> None:
    store, repo = filled(ground)
    visit(repo, "r00", "r01")
    for number in range(2, 12):
        with repo.transaction() as t:
            t._expect([b"r%02d" % number])
            t.get(tally, f"r{number:02}")
    store.calls.clear()
    with repo.transaction() as t:
        t._expect([b"r20", b"r21"])
        sources(t, "r20")
    assert store.calls == [["r20"]]


def test_rows_that_are_long_for_how_seldom_they_are_read_do_not_come_ahead(ground: Ground) -> None:
    store, repo = filled(ground)
    put_all(repo, source["long"], {f"r{number:02}": "x" * 3 * WORTH for number in range(40)})
    for number in range(36):
        with repo.transaction() as t:
            t._expect([b"r%02d" % number])
            t.get(tally, f"r{number:02}")
            if number % 3 == 0:
                sources(t, f"r{number:02}")
    store.calls.clear()
    with repo.transaction() as t:
        t._expect([b"r38", b"r39"])
        sources(t, "r38")
    assert store.calls == [["r38"]]


def test_what_comes_ahead_of_rows_is_bounded_in_rows_cells_and_bytes() -> None:
    prefetch = Prefetch()
    shape = shape_of("t", None)
    rows = [b"%d" % number for number in range(2 * CELLS)]
    prefetch.learn([(("short", None), [shape])] * 20, [(shape, 1)], 0, 0)
    assert len(_following(prefetch, "short", rows).guess_rows(rows[:1], shape)) == CELLS
    long = shape_of("long", None)
    prefetch.learn([(("long", None), [long])] * 20, [(long, BYTES // 10)], 0, 0)
    ahead = _following(prefetch, "long", rows)
    assert len(ahead.guess_rows(rows[:1], long)) == 10
    cache = ReadCache(ahead)
    state = (None, 1, b"x" * (BYTES // 4))
    found = {row: [(Cell("long", row, b"c"), state)] for row in rows[:9]}
    cache.keep_rows("long", None, found, rows[:1])
    kept = cache.look_up_rows("long", rows, None)
    assert list(kept) == rows[:4], "the one that was asked for, and as many as there is room for"


def test_a_row_of_very_many_cells_is_not_waited_for_unless_it_is_asked_for(ground: Ground) -> None:
    store, repo = filled(ground)
    with ground.repo(TABLES).transaction() as t:
        for number in range(2 * ROW_CELLS):
            t.set(source[f"{number:05}"], "r05", "x")
    visit(repo, "r00", "r01")
    store.calls.clear()
    found = visit(repo, "r04", "r05", "r06", "r07")
    assert [len(one) for one in found] == [2, 2 * ROW_CELLS + 2, 2, 2]
    assert store.calls == [["r04", "r05", "r06", "r07"], ["r06", "r07"]]


def _following(prefetch: Prefetch, caller: str, rows: Collection[bytes]) -> Any:
    with calling_for(caller):
        ahead = prefetch.begin()
    ahead.expect(rows)
    return ahead


# --- It changes no result ---------------------------------------------------------------


UNWRITTEN = source["new"]
"""A column in which no row has a write yet."""


def test_a_lock_in_a_row_that_comes_ahead_blocks_nobody(ground: Ground) -> None:
    store, repo = filled(ground, lock_wait_seconds=0.0)
    visit(repo, "r00", "r01")
    holder = Holder(ground, TABLES, UNWRITTEN, "r03")
    holder.lock()
    store.calls.clear()
    with repo.transaction() as t:
        t._expect([b"r02", b"r03", b"r04"])
        assert sources(t, "r02") == {"a": "a 2", "b": "b 2"}
        assert sources(t, "r04") == {"a": "a 4", "b": "b 4"}
    assert store.calls == [["r02", "r03", "r04"]]
    assert ground.lock_holders(source["new"], "r03") == [holder.start_ts], "nor is it resolved"


def test_a_row_that_came_ahead_and_is_locked_does_not_come_again_unasked(ground: Ground) -> None:
    store, repo = filled(ground, lock_wait_seconds=0.0)
    visit(repo, "r00", "r01")
    Holder(ground, TABLES, UNWRITTEN, "r03").lock()
    store.calls.clear()
    rows = [b"r02", b"r03"]
    with repo.transaction() as t:
        t._expect(rows)
        sources(t, "r02")
        rows += [b"r04", b"r05"]
        sources(t, "r04")
    assert store.calls == [["r02", "r03"], ["r04", "r05"]]


def test_what_a_lock_hid_in_a_row_that_came_ahead_is_seen_when_it_is_asked_for(
    ground: Ground,
) -> None:
    store, repo = filled(ground)
    visit(repo, "r00", "r01")
    holder = Holder(ground, TABLES, UNWRITTEN, "r03")
    commit_ts = holder.lock()
    with repo.transaction(two_phase=True) as t:
        assert t.start_ts > commit_ts
        store.calls.clear()
        t._expect([b"r02", b"r03"])
        sources(t, "r02")
        holder.commit(commit_ts)
        assert sources(t, "r03") == {"a": "a 3", "b": "b 3", "new": "new"}
    assert store.calls == [["r02", "r03"], ["r03"]]


def test_damage_to_a_row_that_was_only_guessed_reaches_nobody(ground: Ground) -> None:
    store, repo = filled(ground)
    visit(repo, "r00", "r01")
    store.damaged = {b"r03"}
    with repo.transaction() as t:
        t._expect([b"r02", b"r03"])
        assert sources(t, "r02") == {"a": "a 2", "b": "b 2"}
        with pytest.raises(DamagedRecordError):
            sources(t, "r03")


Step = tuple[str, int, int]

COLUMNS_USED = (label, kind, source["a"], tally)
WANTED: tuple[Any, ...] = ([source], [source["a"], tally], None, [label])


@pytest.mark.parametrize(
    ("expects", "words"),
    [
        (False, ["get", "many", "row", "set", "delete", "update", "other"]),
        (True, ["row", "row", "rows", "all", "get", "set", "delete", "other"]),
    ],
    ids=["cells", "rows"],
)
def test_prefetch_never_changes_what_is_read(expects: bool, words: list[str]) -> None:
    """The same steps on two repositories, of which one prefetches, see the same."""
    step = st.tuples(st.sampled_from(words), st.integers(0, 3), st.integers(0, 3))

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.lists(step, max_size=12), min_size=2, max_size=6))
    def play(transactions: list[list[Step]]) -> None:
        plain, ahead = (
            in_memory(TABLES, one_step=False, prefetches=prefetches) for prefetches in (False, True)
        )
        for steps in transactions:
            assert _played(plain, steps, expects) == _played(ahead, steps, expects)

    play()


def _played(repo: Repository, steps: Sequence[Step], expects: bool) -> list[object]:
    """What a transaction sees while others commit beside it; `expects`: it is about four rows."""
    seen: list[object] = []
    names = [f"r{number}" for number in range(4)]
    t = repo.transaction()
    if expects:
        t._expect([name.encode() for name in names])
    for what, row_number, number in steps:
        row, column = names[row_number], COLUMNS_USED[number]
        if what == "row":
            seen.append(_told(t.get_row(links, row, WANTED[number])))
        elif what == "rows":
            found = t.get_rows(links, names[row_number:], WANTED[number])
            seen.append([_told(one) for one in found])
        elif what == "all":
            seen.append([_told(t.get_row(links, name, WANTED[number])) for name in names])
        elif what == "get":
            seen.append(t.get(column, row))
        elif what == "many":
            seen.append(t.get_many([(one, row) for one in COLUMNS_USED[number:]]))
        elif what == "update":
            seen.append(t.get_for_update(column, row))
        elif what == "set":
            t.set(column, row, _value(column, t.start_ts))
        elif what == "delete":
            t.delete(column, row)
        else:
            put(repo, column, row, _value(column, repo.context.oracle.read_timestamp()))
    try:
        t.commit()
    except Exception as error:
        seen.append(type(error))
    return seen


def _value(column: Any, number: int) -> Any:
    return number if column is tally else f"{number}"


def _told(row: Any) -> list[tuple[str, object]]:
    return [(column.name, value) for column, value in row.items()]
