"""§2.4 on Bigtable: notify entries stand apart from their rows; looking for them costs little."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from emulator import Emulator, repository
from stores import put

from percola import Table, Transaction, Worker, observer
from percola.cells import MAX_TS, Cell, Kind
from percola.errors import OutcomeUnknownError
from percola.observers.causes import causes, effects
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.store.bigtable.store import BigtableStore
from percola.store.walks import walk_kind
from percola.testing.conformance.fixtures import lock

COLUMN = b"c"
CELL = Cell("t", b"r", COLUMN)

pages = Table("pages")
body = pages.column("body", str, observed=True)
size = pages.column("size", int)


@observer(body)
def measure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(body, row) or ""))


def asked(store: BigtableStore, monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Which calls are made on which tables from now on."""
    made: Counter[tuple[str, str]] = Counter()
    make = store._calls._make

    def noted(name: str, method: Any, request: Any, **options: Any) -> Any:
        made[name, getattr(request, "table_name", "").rpartition("/")[2]] += 1
        return make(name, method, request, **options)

    monkeypatch.setattr(store._calls, "_make", noted)
    return made


def test_looking_for_work_asks_nothing_of_the_tables_themselves(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N6: it costs what is dirty. One scan of what holds nothing but notify entries."""
    store = emulator.store()
    repo = repository(store, [pages])
    with repo.transaction() as t:
        for number in range(300):
            t.set(size, f"clean {number:03}", number)
        t.set(body, "dirty", "x")
    made = asked(store, monkeypatch)
    assert not repo.is_idle()
    assert repo.pending() == {"pages.body": 1}
    assert [cell.row for cell, _, _ in walk_kind(store, Kind.NOTIFY, "pages")] == [b"dirty"]
    assert not Worker(repo, [measure]).is_idle()
    # A worker also reads which observers are paused: one cell of Percola's own table.
    assert {table for _, table in made} == {"1-pages", "0-percola"}
    made.clear()
    Worker(repo, [measure], threads=1).run_until_idle()
    assert repo.snapshot().get(size, "dirty") == 1
    asked_of_rows = {name for name, table in made if table == "pages"}
    assert "SampleRowKeys" not in asked_of_rows
    assert made["ReadRows", "pages"] <= 4, "what the observer reads, and no scan"


def test_a_commit_puts_its_notify_entries_between_its_locks_and_its_commit_point(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = emulator.store()
    repo = repository(store, [pages])
    made: list[str] = []
    make = store._calls._make

    def noted(name: str, method: Any, request: Any, **options: Any) -> Any:
        made.append(f"{name} {request.table_name.rpartition('/')[2]}")
        return make(name, method, request, **options)

    with repo.transaction() as t:
        t.set(body, "a", "x")
        t.set(size, "a", 1)
        monkeypatch.setattr(store._calls, "_make", noted)
    assert [one for one in made if not one.startswith("ReadRows")] == [
        "CheckAndMutateRow pages",
        "MutateRows 1-pages",
        "CheckAndMutateRow pages",
    ]
    assert [ts for _, ts, _ in walk_kind(store, Kind.NOTIFY, "pages")] == [t.commit_ts]


def test_a_refused_mutation_leaves_no_more_than_a_hint_and_deletes_nothing(
    emulator: Emulator,
) -> None:
    store = emulator.store(tables=["t"])
    first = [Put(Kind.NOTIFY, COLUMN, 1, b""), lock(COLUMN, 5)]
    assert store.mutate([RowMutation("t", b"r", (), first)]) == [True]
    absent = [Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)]
    changes = [
        Put(Kind.NOTIFY, COLUMN, 2, b""),
        Delete(Kind.NOTIFY, COLUMN, 1),
        Put(Kind.FAILED, COLUMN, 2, b"x"),
    ]
    assert store.mutate([RowMutation("t", b"r", absent, changes)]) == [False]
    assert [ts for ts, _ in store.entries(CELL, Kind.NOTIFY, 0, MAX_TS)] == [2, 1]
    assert store.entries(CELL, Kind.FAILED, 0, MAX_TS) == []
    clean = [Condition(False, Kind.NOTIFY, COLUMN, 0, MAX_TS)]
    assert store.mutate([RowMutation("t", b"r", clean, changes)]) == [False]
    assert store.entries(CELL, Kind.FAILED, 0, MAX_TS) == []
    held = [Condition(True, Kind.LOCK, COLUMN, 5, 5)]
    assert store.mutate([RowMutation("t", b"r", held, changes)]) == [True]
    assert [ts for ts, _ in store.entries(CELL, Kind.NOTIFY, 0, MAX_TS)] == [2]
    assert store.entries(CELL, Kind.FAILED, 0, MAX_TS) == [(2, b"x")]


def test_notify_entries_that_cannot_be_deleted_are_no_refusal_of_what_was_changed(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = emulator.store(tables=["t"])
    send_many = store._calls.send_many

    def refused(name: str, request: Any, *args: Any) -> Any:
        request.table_name += "-gone"
        return send_many(name, request, *args)

    monkeypatch.setattr(store._calls, "send_many", refused)
    absent = [Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)]
    changes = [lock(COLUMN, 5), Delete(Kind.NOTIFY, COLUMN, 1)]
    with pytest.raises(OutcomeUnknownError, match="may still be there"):
        store.mutate([RowMutation("t", b"r", absent, changes)])
    assert [ts for ts, _ in store.entries(CELL, Kind.LOCK, 0, MAX_TS)] == [5]


def test_the_sender_of_a_weak_notification_is_found_among_the_records_of_runs(
    emulator: Emulator,
) -> None:
    """§2.4 `percola why`, where the feed of records is stored in their rows."""
    poke = pages.weak_column("poke")
    poked = pages.column("poked", int)

    send = observer(body, name="send")(lambda t, row: t.notify(poke, "all"))

    @observer(poke)
    def receive(t: Transaction, row: str) -> None:
        t.set(poked, row, (t.get(poked, row) or 0) + 1)

    repo = repository(emulator.store(), [pages])
    repo.record_runs()
    put(repo, body, "a", "x")
    Worker(repo, [send, receive], threads=1).run_until_idle()
    [received] = causes(repo, poked, "all").runs
    [sent] = received.changes[0].runs
    assert (received.observer, sent.observer, sent.row) == ("receive", "send", b"a")
    assert sent.changes[0].end.startswith("not written by an observer")
    [again] = effects(repo, body, "a").runs
    assert [one.op for one in again.changes] == ["notify"]
