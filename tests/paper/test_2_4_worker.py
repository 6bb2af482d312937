"""§2.4: how workers find dirty cells, and keep out of each other's way (N6, N7)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from stores import (
    DEADLINE,
    Ground,
    PassingStore,
    at_work,
    die,
    heard,
    in_thread,
    notify,
    put,
    put_all,
)

from percola import (
    ObserverMismatchError,
    Repository,
    Table,
    Transaction,
    UsageError,
    Worker,
    observer,
)
from percola.cells import Kind
from percola.coordination.memory import MemoryCoordination
from percola.inspection import failures
from percola.observers import scanner
from percola.store.base import Tablet

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
size = docs.column("size", int)
poked = docs.weak_column("poked")
other = Table("other")
text = other.column("text", str, observed=True)
again = other.weak_column("again")
TABLES = [docs, other]


@observer(contents)
def measure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(contents, row) or ""))


def write(repo: Repository, *rows: str) -> None:
    for row in rows:
        repo.run(lambda t, row=row: t.set(contents, row, "text"))


# --- N6: finding work costs in proportion to what is dirty ------------------------------


def test_n6_finding_and_running_three_dirty_rows_costs_the_same_in_a_table_of_any_size(
    ground: Ground,
) -> None:
    costs, tablets = [], [0]
    for clean in (20, 4000):
        with ground.repo(TABLES).transaction() as t:
            for number in range(clean):
                t.set(size, f"clean {number:05}", number)
        repo = ground.repo(TABLES)
        write(repo, "a", "d", "z")
        calls: Counter[str] = Counter()
        store = heard(
            ground.store,
            read=lambda _, cells, ts, calls=calls: calls.update(read=1, cells=len(cells)),
            scan_kind=lambda found, *_, calls=calls: calls.update(scan_kind=1, found=len(found[0])),
            tablets=lambda found, *_: tablets.append(len(found)),
            **{
                one: lambda *_, one=one, calls=calls: calls.update([one])
                for one in ("entries", "scan", "mutate")
            },
        )
        Worker(ground.repo(TABLES, store=store), [measure], threads=1).run_until_idle()
        costs.append(calls)
    small, large = costs
    assert large["scan"] == small["scan"] == 0, "a worker never scans what is clean"
    assert large["found"] <= 3 * 12
    for name in ("read", "cells", "entries", "scan_kind", "mutate"):
        assert large[name] <= small[name] + 15, (name, small, large)
    assert max(tablets) <= 16


# --- Wake-ups, and the safety net -------------------------------------------------------


def test_a_local_commit_wakes_a_local_worker_at_once(
    repo: Repository, wait_until: Callable[..., object]
) -> None:
    # Nothing but a wake-up tells it of a change as long as the test lasts.
    worker = Worker(repo, [measure], threads=2, rescan=3600, sweep=3600)
    with at_work(worker):
        for number in range(10):
            write(repo, f"row {number}")
            wait_until(lambda n=number: repo.snapshot().get(size, f"row {n}") is not None)


def test_a_worker_that_works_again_finds_what_it_was_not_woken_for(repo: Repository) -> None:
    seen: list[str] = []
    note = observer(text, name="note")(lambda t, row: seen.append(row))
    worker = Worker(repo, [note], rescan=1e6)
    for row in ("a", "b"):
        put(repo, text, row, "x")
        working = in_thread(worker.run_until_idle)
        try:
            working.result(10)
        except TimeoutError:
            worker.stop()
            raise
    assert seen == ["a", "b"]


class Mute(MemoryCoordination):
    """Its wake-ups are lost."""

    def wake(self, tables: Iterable[str] | None = None) -> None:
        pass


def test_scanning_makes_up_for_a_lost_wake_up(
    ground: Ground, wait_until: Callable[..., object]
) -> None:
    repo = ground.repo(TABLES, coordination=Mute())
    worker = Worker(repo, [measure], threads=1, rescan=0.05)
    with at_work(worker):
        write(repo, "a")
        wait_until(lambda: repo.snapshot().get(size, "a") == 4)


# --- Advisory locks and teleports -------------------------------------------------------


class Blocking:
    """An observer that waits on some rows until it is let go."""

    def __init__(self, *rows: str) -> None:
        self.arrived = {row: threading.Event() for row in rows}
        self.go = threading.Event()
        self.observer = observer(contents, name="measure")(self._run)

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()

    def _run(self, t: Transaction, row: str) -> None:
        if row in self.arrived:
            self.arrived[row].set()
            assert self.go.wait(DEADLINE)
        measure.function(t, row)


def test_n7_a_scanner_that_meets_another_one_jumps_elsewhere(
    repo: Repository, wait_until: Callable[..., object]
) -> None:
    blocking = Blocking("m")
    worker = Worker(repo, [blocking.observer], threads=2, rescan=60)
    with at_work(worker), blocking:
        write(repo, "m")
        assert blocking.arrived["m"].wait(DEADLINE)
        write(repo, "a", "b", "x", "y")
        wait_until(lambda: len(list(repo.snapshot().scan(docs, columns=[size]))) == 4)
        wait_until(lambda: worker.metrics.counts()["scan_teleports"][""] > 0)
        assert repo.snapshot().get(size, "m") is None
    assert repo.snapshot().get(size, "m") == 4


def test_n7_a_row_right_behind_a_busy_one_is_not_starved(
    repo: Repository, wait_until: Callable[..., object]
) -> None:
    """No random key falls between the two: after some jumps a scanner goes past the others."""
    blocking = Blocking("https://example.org/page")
    worker = Worker(repo, [blocking.observer], threads=2, rescan=60)
    with at_work(worker), blocking:
        write(repo, "https://example.org/page")
        assert blocking.arrived["https://example.org/page"].wait(DEADLINE)
        write(repo, "https://example.org/page?1")
        wait_until(lambda: repo.snapshot().get(size, "https://example.org/page?1") == 4)


def test_n7_where_much_is_dirty_scanners_begin_at_random_places(ground: Ground) -> None:
    """Passes of one thread over a table with many dirty cells begin at many different keys, in
    every tablet; here they are others' to answer."""
    put_all(ground.repo(TABLES), contents, {f"{number:03}": "x" for number in range(200)})
    starts: list[bytes] = []

    def note(
        answer: Any, kind: Kind, table: str, start: bytes = b"", end: bytes = b"", *_: int
    ) -> None:
        if kind is Kind.NOTIFY and table == "docs" and not end and start not in found:
            starts.append(start)
        found.add(answer[1] or b"")

    @observer(poked)
    def look_up(t: Transaction, row: str) -> None:
        raise AssertionError("nobody pokes")

    found = {b""}
    repo = ground.repo(TABLES, store=heard(ground.store, scan_kind=note))
    worker = Worker(repo, [look_up], threads=1, rescan=0.001)
    with at_work(worker):
        deadline = time.monotonic() + DEADLINE
        while len(starts) < 60 and time.monotonic() < deadline:
            threading.Event().wait(0.005)
    assert len(set(starts)) > 30
    tablets = ground.store.tablets("docs")
    hit = {max(i for i, tablet in enumerate(tablets) if tablet.start <= key) for key in starts}
    assert len(hit) > len(tablets) / 2


def test_n7_scanners_begin_at_random_rows_of_clumps_too(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly all keys between these rows lie between two clumps of them."""
    rows = [f"{part}/{number:02}" for part in range(6) for number in range(20)]
    notify(ground.repo(TABLES), again, *rows)
    begun: list[bytes] = []
    enough = threading.Event()

    class Elsewhere(MemoryCoordination):
        """All rows are locked by others."""

        def try_lock(self, table: str, row: bytes) -> bool:
            begun.append(row)
            if len(begun) >= 200:
                enough.set()
            return False

    @observer(again)
    def serve(t: Transaction, row: str) -> None:
        raise AssertionError("others do")

    # A scan that skips what is locked, after some that have met others, is not asked about.
    monkeypatch.setattr(scanner, "_TELEPORTS", 1_000_000)
    worker = Worker(ground.repo(TABLES, coordination=Elsewhere()), [serve], threads=1, rescan=0.001)
    with at_work(worker):
        assert enough.wait(DEADLINE)
    assert len(set(begun[:200])) > 60  # Of 120.


class SplitStore(PassingStore):
    """A store whose tables are split at these rows."""

    cuts: Sequence[bytes] = ()

    def tablets(self, table: str) -> list[Tablet]:
        return [*map(Tablet, (b"", *self.cuts), (*self.cuts, b""))]


@pytest.mark.parametrize("tablets", [1, 6])
def test_n7_where_there_is_always_more_to_do_every_tablet_and_row_gets_its_turn(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, tablets: int
) -> None:
    # A stint is one row: so it is the stints that show, however quick the store is.
    monkeypatch.setattr(scanner, "_STINT", 0.0)
    # Scanners that meet go on at random rows, so there is always a row that has to wait: none does
    # for twelve turns of all.
    parts, rows, fewest, most = 6, 20, 12 if ground.near else 4, 12
    served: list[str] = []
    enough = threading.Event()

    @observer(again)
    def serve(t: Transaction, row: str) -> None:
        t.notify(again, row)  # Never clean.
        served.append(row)
        turns = len(served) / (parts * rows)
        if turns >= most or (turns >= fewest and len({*served}) == parts * rows):
            enough.set()

    store = SplitStore(ground.store)
    if tablets > 1:
        store.cuts = [f"{part}/".encode() for part in range(1, parts)]
    repo = ground.repo(TABLES, store=store)
    with repo.transaction() as t:
        for part in range(parts):
            for number in range(rows):
                t.notify(again, f"{part}/{number:02}")
    worker = Worker(repo, [serve], threads=4)
    with at_work(worker):
        assert enough.wait(4 * DEADLINE)
    by_row = Counter(served)
    by_part = Counter(row[0] for row in served)
    assert len(by_row) == parts * rows, f"{parts * rows - len(by_row)} rows were never served"
    # Scanners that began near each other serve the same rows soon one after the other.
    assert max(by_part.values()) <= 3 * len(served) / parts, by_part


def test_n7_no_two_scanners_of_a_repository_run_one_row_at_the_same_time(repo: Repository) -> None:
    guard = threading.Lock()
    busy: Counter[str] = Counter()
    clashes: list[str] = []

    @observer(contents)
    def careful(t: Transaction, row: str) -> None:
        with guard:
            busy[row] += 1
            if busy[row] > 1:
                clashes.append(row)
        threading.Event().wait(0.001)
        with guard:
            busy[row] -= 1
        t.set(size, row, 1)

    write(repo, *(f"row {number}" for number in range(40)))
    workers = [Worker(repo, [careful], threads=4) for _ in range(2)]
    running = [in_thread(worker.run_until_idle) for worker in workers]
    for one in running:
        one.result(DEADLINE)
    assert clashes == []
    assert len(list(repo.snapshot().scan(docs, columns=[size]))) == 40


# --- Starting and stopping --------------------------------------------------------------


def test_stop_lets_a_running_observer_finish_and_runs_no_more(repo: Repository) -> None:
    blocking = Blocking("a", "b", "c")
    write(repo, "a", "b", "c")
    worker = Worker(repo, [blocking.observer], threads=1)
    worker.start()
    while not any(event.wait(0.01) for event in blocking.arrived.values()):
        pass
    stopping = in_thread(worker.stop)
    while not worker._runs.stopping:
        threading.Event().wait(0.001)
    blocking.go.set()
    stopping.result(DEADLINE)
    assert len(list(repo.snapshot().scan(docs, columns=[size]))) == 1
    worker.stop()


def test_a_worker_that_is_to_end_says_for_which_runs_it_waits(
    repo: Repository,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wait_until: Callable[..., object],
) -> None:
    """Who has pressed Ctrl-C sees nothing for minutes, else, and kills it."""
    monkeypatch.setattr("percola.observers.worker._SAID_AFTER", 0.0)
    write(repo, "a")
    with Blocking("a") as blocking:
        worker = Worker(repo, [blocking.observer], threads=1)
        worker.start()
        assert blocking.arrived["a"].wait(DEADLINE)
        stopping = in_thread(worker.stop)
        told = "the worker is ending, and waits up to 300 s for runs that have begun: measure, for "
        wait_until(lambda: told in caplog.text, what="what it waits for")
    stopping.result(DEADLINE)


def test_a_worker_leaves_notifications_of_columns_that_others_observe(
    ground: Ground, repo: Repository
) -> None:
    read = observer(text, name="read")(lambda t, row: t.set(size, row, -1))

    write(repo, "a")
    repo.run(lambda t: t.set(text, "b", "x"))
    Worker(repo, [measure]).run_until_idle()
    assert len(ground.left_over(other, Kind.NOTIFY)) == 1
    Worker(repo, [read]).run_until_idle()
    assert ground.left_over(other, Kind.NOTIFY) == []
    assert repo.snapshot().get_many([(size, "a"), (size, "b")]) == [4, -1]


class NoException(BaseException):
    """As libraries have them: it passes `except Exception`."""


LEAVING = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, NoException]


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("kind", LEAVING)
def test_an_observer_that_exits_its_thread_counts_as_failing(
    repo: Repository, kind: type[BaseException], batch: int, wait_until: Callable[..., object]
) -> None:
    """Else the worker would silently lose a thread for each, and wait for ever."""

    @observer(contents, batch=batch)
    def leaves(t: Transaction, row: str) -> None:
        if row != "b":
            raise kind

    write(repo, "a", "b", "c")
    worker = Worker(repo, [leaves], threads=1, attempts=1)
    with at_work(worker):
        wait_until(worker.is_idle)
        assert sorted(one.cell.row for one in failures(repo)) == [b"a", b"c"]


def test_a_worker_settles_what_the_dead_left_without_being_asked(
    ground: Ground, wait_until: Callable[..., object]
) -> None:
    """A running worker looks for locks now and then: nobody has to read the cells."""
    die(ground, TABLES, 4, contents, {"a": "x", "b": "xy"})
    repo = ground.repo(TABLES, process="worker")
    worker = Worker(repo, [measure], threads=1, rescan=0.02, sweep=0.05)
    with at_work(worker):
        wait_until(lambda: not ground.left_over(docs, Kind.LOCK))
        wait_until(lambda: not ground.left_over(docs, Kind.NOTIFY))
    assert repo.snapshot().get_many([(size, "a"), (size, "b")]) == [1, 2]


# --- Which observers run on a column ----------------------------------------------------


def test_workers_with_different_observers_on_a_column_run_one_after_the_other_only(
    repo: Repository,
) -> None:
    """Each would take the other's notifications for answered; a stopped worker is no obstacle."""

    another = observer(contents, name="another")(lambda t, row: t.set(size, row, -1))

    first = Worker(repo, [measure], threads=1)
    second = Worker(repo, [another], threads=1)
    first.start()
    with pytest.raises(ObserverMismatchError, match=r"measure.*how teams share"):
        second.start()
    first.stop()
    assert [one["observers"] for one in repo.context.coordination.processes()] == [{}]
    write(repo, "a")
    Worker(repo, [another], threads=1).run_until_idle()
    assert repo.snapshot().get(size, "a") == -1


def test_a_worker_that_is_stopped_while_it_starts_stops(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(repo, [measure], threads=2)
    begin = threading.Thread.start
    stopped: list[str] = []

    def stop_first(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name.startswith("percola-scan") and not stopped:
            stopped.append(thread.name)
            stopping = threading.Thread(target=worker.stop)
            begin(stopping)

    monkeypatch.setattr(threading.Thread, "start", stop_first)
    worker.start()
    worker.stop()
    assert stopped
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("percola-sc")]


# --- A worker that was stopped --------------------------------------------------------------


def test_a_worker_that_was_stopped_refuses_to_start_again(ground: Ground) -> None:
    """It would start threads that end at once, and leave all work undone in silence."""
    repo = ground.repo(TABLES)
    write(repo, "a")
    worker = Worker(repo, [measure])
    worker.run_until_idle()
    worker.run_until_idle()
    worker.start()
    with pytest.raises(UsageError, match="runs already"):
        worker.start()
    worker.run_until_idle()
    worker.start()
    worker.stop()
    worker.stop()
    for again in (worker.start, worker.run, worker.run_until_idle):
        with pytest.raises(UsageError, match=r"was stopped.*make another Worker"):
            again()
    Worker(repo, [measure]).run_until_idle()


def test_a_worker_that_was_stopped_before_it_began_does_nothing(ground: Ground) -> None:
    """So that a program may stop a worker whose thread has not come so far yet."""
    repo = ground.repo(TABLES)
    write(repo, "a")
    worker = Worker(repo, [measure])
    worker.stop()
    worker.run()
    worker.run_until_idle()
    assert repo.pending() == {"docs.contents": 1}
    with pytest.raises(UsageError, match="make another Worker"):
        worker.start()
