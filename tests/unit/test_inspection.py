"""What operators are shown is what the store holds: on every store, however it commits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import (
    Crashed,
    CrashingStore,
    Ground,
    ScriptedClock,
    ScriptedCoordination,
    at_work,
    cell_of,
    heard,
    put_all,
)

import percola
from percola import Observer, Repository, UsageError, Worker, inspection
from percola.cells import Kind, Op, decode_lock
from percola.store.counting import CountedStore, StoreCalls
from percola.store.forwarding import ForwardingStore
from tests.unit.checked import (
    TABLES,
    bal,
    bank,
    contents,
    docs,
    links,
    recluster,
    size,
    title,
    work,
    write,
)


def measure(t: percola.Transaction, row: str) -> None:
    body = t.get(contents, row)
    t.set(size, row, len(body or b""))


def abandon(ground: Ground, *, after: int) -> None:
    """Begin to move 7 from Bob to Joe in two phases, and die after so many row mutations."""
    store = CrashingStore(ground.store, after + 1)
    dying = ground.repo(TABLES, store=store, one_step=False)
    transfer = dying.transaction()
    transfer.set(bal, "Bob", 3)
    transfer.set(bal, "Joe", 9)
    store.armed = True
    with pytest.raises(Crashed):
        transfer.commit()


# --- History ----------------------------------------------------------------------------


def test_history_has_data_at_start_ts_and_its_write_record_at_commit_ts(repo: Repository) -> None:
    starts, commits = zip(*(write(repo, bal, "Bob", value) for value in (10, 3)), strict=True)
    versions = inspection.history(repo, bal, "Bob")
    data = {one.ts: one.data for one in versions if one.data is not None}
    writes = {one.ts: one.write[:2] for one in versions if one.write is not None}
    assert data == {starts[0]: b"10", starts[1]: b"3"}
    assert writes == {commits[0]: (Op.PUT, starts[0]), commits[1]: (Op.PUT, starts[1])}
    assert [one.ts for one in versions] == sorted({*starts, *commits}, reverse=True)


@pytest.mark.parametrize("length", [0, 256, 257, 100_000])
def test_history_shows_values_of_every_length(repo: Repository, length: int) -> None:
    write(repo, contents, "a", b"x" * length)
    assert [v.data for v in inspection.history(repo, contents, "a") if v.data is not None] == [
        b"x" * length
    ]


def test_history_shows_every_version_that_a_snapshot_can_read(repo: Repository) -> None:
    for value in ("one", "two", None, "three"):
        with repo.transaction() as t:
            if value is None:
                t.delete(title, "a")
            else:
                t.set(title, "a", value)
    versions = inspection.history(repo, title, "a")
    data = {one.ts: one.data for one in versions}
    for one in versions:
        if one.write is not None:
            read = repo.snapshot(one.ts).get(title, "a")
            assert (read and read.encode()) == data.get(one.write.start_ts)
    assert sum(one.write is not None for one in versions) == 4


def test_history_shows_a_delete_and_a_lock_that_wrote_nothing(repo: Repository) -> None:
    write(repo, title, "a", "T")
    with repo.transaction() as t:
        t.get_for_update(title, "a")
        t.set(title, "b", "other")
    locked_at = t.commit_ts
    with repo.transaction() as t:
        t.delete(title, "a")
    ops = [(v.ts, v.write.op) for v in inspection.history(repo, title, "a") if v.write]
    assert ops[:2] == [(t.commit_ts, Op.DELETE), (locked_at, Op.LOCK)]


def test_figure_4_between_prewrite_and_commit(ground: Ground) -> None:
    repo = ground.repo(TABLES)
    for row, value in (("Bob", 10), ("Joe", 2)):
        write(repo, bal, row, value)
    abandon(ground, after=2)
    primary, secondary = (inspection.history(repo, bal, row)[0] for row in ("Bob", "Joe"))
    assert primary.ts == secondary.ts
    assert (primary.data, secondary.data) == (b"3", b"9")
    assert primary.write is None and secondary.write is None
    assert primary.lock is not None and secondary.lock is not None
    assert primary.lock.primary == secondary.lock.primary == cell_of(bal, "Bob")


def test_history_shows_a_rollback_and_no_data_of_it(ground: Ground) -> None:
    abandon(ground, after=1)
    alive: set[str] = set()
    reader = ground.repo(TABLES, coordination=ScriptedCoordination("reader", alive))
    assert reader.snapshot().get(bal, "Bob") is None
    (version,) = inspection.history(reader, bal, "Bob")
    assert version.write is not None and version.write.op is Op.ROLLBACK
    assert version.data is None and version.lock is None


def test_history_shows_what_is_dirty_and_who_has_acknowledged(repo: Repository) -> None:
    _, changed = write(repo, contents, "a", b"hello")
    write(repo, contents, "b", b"another row")
    assert [v.ts for v in inspection.history(repo, contents, "a") if v.notify] == [changed]
    write(repo, links, "a", b"another column")
    work(
        repo,
        Observer(contents, measure, "measure"),
        Observer(contents, look, "second"),
        Observer(links, look, "third"),
    )
    versions = inspection.history(repo, contents, "a")
    assert not any(one.notify for one in versions)
    seen = {name: one.ts for one in versions for name in one.acknowledged}
    assert set(seen) == {"measure", "second"}
    assert min(seen.values()) >= changed


def look(t: percola.Transaction, row: str) -> None:
    """Look at a row and change nothing."""


def test_history_of_a_weak_column_has_its_notifications(repo: Repository) -> None:
    with repo.transaction() as t:
        t.notify(recluster, "a")
    (version,) = inspection.history(repo, recluster, "a")
    assert version.notify and version.ts == t.commit_ts


def test_history_keeps_rows_and_columns_apart(repo: Repository) -> None:
    write(repo, title, "a", "T")
    for column, row in ((title, "a\0"), (title, "aa"), (contents, "a")):
        assert inspection.history(repo, column, row) == []


def test_the_newest_versions_are_those_of_the_whole_history_and_no_others_are_read(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(24):
        write(repo, contents, "a", b"x" * (1000 if number % 3 else 10))
        if number % 5 == 0:
            work(repo, Observer(contents, measure, "measure"), Observer(contents, look, "second"))
    with repo.transaction(two_phase=True) as t:
        t.get_for_update(contents, "a")
    with repo.transaction() as t:
        t.delete(contents, "a")
    whole = inspection.history(repo, contents, "a")
    assert sum(one.write is not None for one in whole) == 26
    assert sum(len(one.acknowledged) for one in whole) == 10

    store, read = repo.context.store, 0
    entries = store.entries

    def counted(*arguments: Any) -> list[tuple[int, bytes]]:
        nonlocal read
        found = entries(*arguments)
        read += len(found)
        return found

    monkeypatch.setattr(store, "entries", counted)
    for limit in range(1, len(whole) + 2):
        read = 0
        assert inspection.history(repo, contents, "a", limit) == whole[:limit]
        assert read <= 5 * limit + 2


def test_history_refuses_a_row_that_no_store_could_hold(repo: Repository) -> None:
    with pytest.raises(percola.RowTooLongError):
        inspection.history(repo, title, "x" * 100_000)
    with pytest.raises(percola.WrongTypeError):
        inspection.history(repo, title, "")


# --- Locks ------------------------------------------------------------------------------


def test_locks_lists_each_lock_and_resolves_none(ground: Ground) -> None:
    repo = ground.repo(TABLES)
    abandon(ground, after=2)
    for _ in range(2):
        found = list(inspection.locks(repo))
        assert [one.cell for one in found] == [cell_of(bal, "Bob"), cell_of(bal, "Joe")]
        assert [one.is_primary for one in found] == [True, False]
        assert len({one.start_ts for one in found}) == 1
        assert ground.lock_holders(bal, "Joe") == [found[0].start_ts]


def test_locks_says_whose_owner_has_ended_and_how_old_they_are(ground: Ground) -> None:
    abandon(ground, after=1)
    ((_, raw),) = ground.entries(bal, "Bob", Kind.LOCK)
    lock = decode_lock(raw)
    clock = ScriptedClock()
    clock.now = lock.wall_ms / 1000 + 90
    for alive in ({lock.owner}, set[str]()):
        coordination = ScriptedCoordination("operator", alive)
        repo = ground.repo(TABLES, clock=clock, coordination=coordination)
        (found,) = inspection.locks(repo)
        assert found.owner_alive is (lock.owner in alive)
        assert found.age_seconds == pytest.approx(90, abs=0.01)


@pytest.mark.parametrize(("after", "joe"), [(2, 2), (3, 9)])
def test_what_the_dead_left_locked_is_undone_or_finished_though_nobody_reads_it(
    ground: Ground, after: int, joe: int
) -> None:
    """Dead before its commit point, and after it."""
    write(ground.repo(TABLES), bal, "Joe", 2)
    abandon(ground, after=after)
    ((start_ts, raw),) = ground.entries(bal, "Joe", Kind.LOCK)
    owner = decode_lock(raw).owner

    def settled_with(alive: set[str]) -> int:
        coordination = ScriptedCoordination("operator", alive)
        return inspection.settle_the_dead(ground.repo(TABLES, coordination=coordination))

    if after == 2:
        assert settled_with({owner}) == 0, "it may yet commit"
        assert ground.lock_holders(bal, "Joe") == [start_ts]
    assert settled_with(set()) == 4 - after
    assert ground.left_over(bank, Kind.LOCK) == []
    assert ground.repo(TABLES).snapshot().get(bal, "Joe") == joe
    assert settled_with(set()) == 0


# --- Notifications and failures ---------------------------------------------------------


def test_notifications_lists_each_dirty_cell_once_with_all_its_timestamps(repo: Repository) -> None:
    first, second = (write(repo, contents, "a", body)[1] for body in (b"1", b"2"))
    with repo.transaction() as t:
        t.notify(recluster, "z")
        t.set(title, "a", "not observed")
    found = {str(one.cell): one.timestamps for one in inspection.notifications(repo)}
    assert found == {
        str(cell_of(contents, "a")): (first, second),
        "docs['z'].recluster": (t.commit_ts,),
    }


def test_notifications_reads_more_than_one_chunk(repo: Repository) -> None:
    with repo.transaction() as t:
        for number in range(700):
            t.set(contents, f"{number:04}", b"")
    rows = [one.cell.row.decode() for one in inspection.notifications(repo)]
    assert rows == [f"{number:04}" for number in range(700)]


class Breakable:
    """An observer's function that can be mended."""

    def __init__(self) -> None:
        self.broken = True

    def __call__(self, t: percola.Transaction, row: str) -> None:
        if self.broken:
            raise ValueError(f"cannot digest {row}")
        measure(t, row)


def test_a_failure_is_listed_with_its_cell_attempts_and_traceback(repo: Repository) -> None:
    write(repo, contents, "a", b"hello")
    work(repo, Observer(contents, Breakable(), "index"))
    (failure,) = inspection.failures(repo)
    assert failure.cell == cell_of(contents, "a")
    assert (failure.observer, failure.attempts) == ("index", 2)
    assert failure.error == "ValueError: cannot digest a"
    assert "Traceback" in failure.traceback and "__call__" in failure.traceback
    assert failure.at_ms > 0


def test_retry_runs_a_mended_observer_again_and_forgets_the_failure(repo: Repository) -> None:
    write(repo, contents, "a", b"hello")
    function = Breakable()
    index = Observer(contents, function, "index")
    work(repo, index)
    function.broken = False
    work(repo, index)
    assert repo.snapshot().get(size, "a") is None, "it was dead-lettered"
    assert inspection.retry_failures(repo) == 1
    assert list(inspection.failures(repo)) == []
    assert len(list(inspection.notifications(repo))) == 1
    work(repo, index)
    assert repo.snapshot().get(size, "a") == 5
    assert inspection.retry_failures(repo) == 0


def test_retry_of_one_that_still_fails_sets_it_aside_again(repo: Repository) -> None:
    write(repo, contents, "a", b"hello")
    index = Observer(contents, Breakable(), "index")
    work(repo, index)
    inspection.retry_failures(repo)
    work(repo, index)
    assert [one.observer for one in inspection.failures(repo)] == ["index"]
    assert list(inspection.notifications(repo)) == []


def test_retry_takes_only_the_observer_table_or_row_it_is_told(repo: Repository) -> None:
    with repo.transaction() as t:
        for row in ("a", "a\0", "b"):
            t.set(contents, row, b"")
    two = Observer(contents, Breakable(), "two")
    work(repo, Observer(contents, Breakable(), "one"), two)
    assert len(list(inspection.failures(repo))) == 6
    assert inspection.retry_failures(repo, observer="three") == 0
    assert inspection.retry_failures(repo, table=bank) == 0
    with pytest.raises(UsageError, match="Name the table of the row 'a'"):
        inspection.retry_failures(repo, row="a")
    assert inspection.retry_failures(repo, observer="one", table=docs, row="a") == 1
    assert inspection.retry_failures(repo, table=docs, row="a") == 1
    assert [one.cell.row for one in inspection.failures(repo)] == [b"a\0", b"a\0", b"b", b"b"]
    with pytest.raises(UsageError, match="is no observer"):
        inspection.retry_failures(repo, observer=contents)  # type: ignore[arg-type]
    assert len(list(inspection.failures(repo, observer=two))) == 2, "or by its name"
    assert inspection.retry_failures(repo, observer="two") == 2
    assert {one.observer for one in inspection.failures(repo)} == {"one"}


def test_retry_of_many_costs_a_few_calls_and_makes_the_cells_dirty_one_by_one(
    ground: Ground, repo: Repository
) -> None:
    rows = [f"row {n:03}" for n in range(300)]
    put_all(repo, contents, dict.fromkeys(rows, b""))
    work(repo, Observer(contents, Breakable(), "one"), Observer(contents, Breakable(), "two"))
    calls: list[Any] = []
    store = heard(ground.store, mutate=lambda *_: calls.append(0), draw=lambda *_: calls.append(0))
    progress: list[int] = []
    assert (
        inspection.retry_failures(ground.repo(TABLES, store=store), progress=progress.append) == 600
    )
    assert progress[-1] == 600 and len(progress) > 1
    assert len(calls) < 20
    assert list(inspection.failures(repo)) == []
    dirty = list(inspection.notifications(repo))
    assert [(one.cell.row.decode(), len(one.timestamps)) for one in dirty] == [
        (row, 2) for row in rows
    ], "each observer's letter in an entry of its own"


# --- Status -----------------------------------------------------------------------------


def test_status_counts_what_there_is(ground: Ground) -> None:
    repo = ground.repo(TABLES)
    for row in ("a", "b"):
        write(repo, contents, row, b"hello")
    work(repo, Observer(contents, Breakable(), "index"))
    inspection.retry_failures(repo, table=docs, row="a")
    with repo.transaction() as t:
        t.notify(recluster, "z")
    abandon(ground, after=2)
    status = inspection.status(repo)
    assert status.notifications == {"docs.contents": 1, "docs.recluster": 1}
    assert (status.failures, status.locks, status.dead_locks) == (1, 2, 0)
    assert {table.name for table in status.tables} == {"docs", "bank"}
    assert t.commit_ts is not None and status.last_ts > t.commit_ts
    assert status.format == 1


def test_status_tells_no_calls_of_this_process_for_what_is_in_a_network_store(
    ground: Ground,
) -> None:
    class Remote(ForwardingStore):
        def statistics(self) -> dict[str, int]:
            return {"get": 6, "scan": 4}

    counted = CountedStore(Remote(ground.store), StoreCalls())
    repo = ground.repo(TABLES, store=counted, one_step=False)
    assert inspection.status(repo).statistics == {}


def test_status_names_durability_and_live_observers_of_a_repository_on_disk(tmp_path: Path) -> None:
    with percola.open(tmp_path / "repo", schema=TABLES, durability="relaxed") as repo:
        with at_work(Worker(repo, [Observer(contents, measure, "measure")], threads=1)):
            (process,) = inspection.status(repo).processes
            assert process.observers == {"docs.contents": ["measure"]}
        status = inspection.status(repo)
        assert status.durability == "relaxed"
        assert status.statistics["bytes"] > 0
        assert status.address == str(tmp_path / "repo")
    with percola.open("memory:", schema=TABLES) as repo:
        assert inspection.status(repo).durability is None


def test_an_empty_repository_has_nothing_to_show(repo: Repository) -> None:
    assert list(inspection.locks(repo)) == []
    assert list(inspection.notifications(repo)) == []
    assert list(inspection.failures(repo)) == []
    assert inspection.status(repo).notifications == {}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda repo: inspection.history(repo, "contents", "a"), "'contents' is not a column"),
        (lambda repo: inspection.is_dirty(repo, "contents", "a"), "'contents' is not a column"),
        (lambda repo: list(inspection.notifications(repo, table="docs")), "'docs' is not a Table"),
        (lambda repo: list(inspection.failures(repo, table="docs")), "'docs' is not a Table"),
        (
            lambda repo: inspection.retry_failures(repo, table="docs", row="a"),
            "'docs' is not a Table",
        ),
    ],
)
def test_a_name_in_place_of_a_table_or_a_column_is_refused(
    repo: Repository, call: Callable[[Repository], object], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        call(repo)
