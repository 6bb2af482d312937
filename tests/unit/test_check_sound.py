"""What the protocol leaves behind breaks no rule, whoever died when; nor does what goes on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from stores import (
    Crashed,
    CrashingStore,
    Gate,
    Ground,
    PassingStore,
    ScriptedCoordination,
    SeamStore,
    cell_of,
    in_thread,
    stop_at,
)

from percola import Repository, Table, Transaction, Worker, inspection, observer
from percola.cells import Kind, LastChange, Op, encode_write
from percola.maintenance.check import Counts, Finding, Severity, check
from percola.maintenance.row_rules import Columns, Entries, judge
from percola.schema import Schema
from percola.store.base import Put, RowMutation
from tests.unit.checked import (
    LARGE,
    TABLES,
    bal,
    bank,
    broken,
    contents,
    measure,
    member,
    recluster,
    size,
    sound,
    title,
    work,
    write,
)


def errors(found: Iterable[Finding]) -> list[Finding]:
    return [one for one in found if one.severity is Severity.ERROR]


# --- What is not ------------------------------------------------------------------------


def test_nothing_is_wrong_with_an_empty_repository(repo: Repository) -> None:
    assert sound(repo).rows == 0


def test_what_is_walked_is_counted(repo: Repository) -> None:
    write(repo, contents, "a", LARGE)
    write(repo, contents, "b", b"small")
    with repo.transaction() as t:
        t.set(member["m:1"], "b", 1)
        t.notify(recluster, "c")
    counts = sound(repo)
    assert (counts.tables, counts.rows, counts.cells) == (2, 3, 4)
    assert (counts.writes, counts.data, counts.notifications) == (3, 1, 3)
    assert (counts.pending, counts.left, counts.failures) == (0, 0, 0)
    assert counts.last_ts == repo.context.oracle.read_timestamp()


def test_observers_that_ran_failed_and_were_retried_leave_nothing_wrong(repo: Repository) -> None:
    for row in ("a", "b"):
        write(repo, contents, row, b"body")
        write(repo, contents, row, b"new")
    sound(repo)
    work(repo, measure)
    sound(repo)
    write(repo, contents, "a", b"newer")
    work(repo, broken)
    assert sound(repo).failures == 1
    assert inspection.retry_failures(repo) == 1
    assert [one.rule for one in check(repo)] == ["notification-without-reason"]
    work(repo, measure)
    sound(repo)


def test_a_weak_notification_needs_no_reason(repo: Repository) -> None:
    repo.run(lambda t: t.notify(recluster, "r"))
    assert sound(repo).notifications == 1


def test_reads_for_update_deletes_and_many_versions_are_in_order(repo: Repository) -> None:
    for value in range(5):
        write(repo, bal, "Bob", value)
        with repo.transaction() as t:
            t.get_for_update(bal, "Bob")
            t.set(bal, "Joe", value)
        with repo.transaction() as t:
            t.delete(bal, "Joe")
            t.set(contents, "r", LARGE * value)
            t.delete(contents, "s")
    sound(repo)


class Stamp(int):
    """A timestamp that counts how often one is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Stamp.compared += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        Stamp.compared += 1
        return int(self) > other


def test_a_cell_that_was_locked_between_its_versions_costs_in_proportion_to_these() -> None:
    def comparisons(versions: int) -> int:
        cell = Entries()
        for ts in range(2, 4 * versions, 4):
            put = encode_write(Op.PUT, ts - 1, b"1")
            cell.write[Stamp(ts)] = put
            lock = encode_write(Op.LOCK, ts + 1, last_change=LastChange(ts, put))
            cell.write[Stamp(ts + 2)] = lock
        before = Stamp.compared
        found = judge(bank.name, b"Bob", {bal.key: cell}, Columns(Schema(TABLES)), lambda ts: ts)
        assert list(found) == []
        return Stamp.compared - before

    assert 0 < comparisons(400) < 3 * comparisons(200)


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("after", range(9))
def test_a_writer_that_stops_before_any_row_mutation_leaves_nothing_wrong(
    ground: Ground, after: int, alive: bool
) -> None:
    known: set[str] = set()
    repo = ground.repo(TABLES, coordination=ScriptedCoordination("looker", known))
    write(repo, bal, "Bob", 10)
    write(repo, contents, "old", LARGE)
    coordination = ScriptedCoordination("dying", known)
    store = CrashingStore(ground.store, after + 1)
    dying = ground.repo(TABLES, store=store, coordination=coordination, one_step=False)
    t = dying.transaction()
    t.set(bal, "Bob", 3)
    t.set(contents, "new", LARGE)
    t.delete(contents, "old")
    t.get_for_update(bal, "Joe")
    t.notify(recluster, "r")
    store.armed = True
    try:
        t.commit()
    except Crashed:
        pass
    else:
        assert after >= 9, "the crash never came"
    if not alive:
        known.remove("dying")
    counts = sound(repo)
    locks = len([one for table in TABLES for one in ground.left_over(table, Kind.LOCK)])
    assert (counts.pending, counts.left) == ((locks, 0) if alive else (0, locks))
    assert locks == [0, 1, 2, 3, 4, 4, 3, 2, 1][after]
    known.discard("dying")
    looker = repo.snapshot()
    for column, row in ((bal, "Bob"), (contents, "new"), (contents, "old"), (bal, "Joe")):
        looker.get(column, row)
    assert sound(repo).left == 0


@pytest.mark.parametrize("after", range(4))
def test_an_observer_that_dies_anywhere_leaves_nothing_wrong(ground: Ground, after: int) -> None:
    known: set[str] = set()
    repo = ground.repo(TABLES, coordination=ScriptedCoordination("looker", known))
    write(repo, contents, "r", b"body")
    store = CrashingStore(ground.store, after + 1)
    coordination = ScriptedCoordination("dying", known)
    dying = ground.repo(TABLES, store=store, coordination=coordination, one_step=False)
    notified = [ts for ts, _ in ground.entries(contents, "r", Kind.NOTIFY)]
    store.armed = True
    died = False
    try:
        measure.run(dying.context, b"r", {cell_of(contents, "r"): notified})
    except Crashed:
        died = True
    assert died is (after < 2)
    known.discard("dying")
    sound(repo)
    work(repo, measure)
    sound(repo)
    assert repo.snapshot().get(size, "r") == 4


def test_a_column_that_another_program_added_meanwhile_is_not_unknown(ground: Ground) -> None:
    repo = ground.repo(TABLES)
    more = Table("docs")
    added = more.column("added", int, observed=True)
    other = ground.repo([more])
    write(other, added, "r", 1)
    sound(repo)
    Worker(other, [observer(added, name="o")(lambda t, row: None)], threads=1).run_until_idle()
    other.run(lambda t: t.delete(added, "r"))
    sound(repo)


def test_a_column_that_another_program_has_begun_to_observe_is_not_an_unobserved_one(
    ground: Ground,
) -> None:
    repo = ground.repo(TABLES)
    title = Table("docs").column("title", str, observed=True)
    other = ground.repo([title.table])
    write(other, title, "r", "new")
    sound(repo)
    Worker(other, [observer(title, name="o")(lambda t, row: None)], threads=1).run_until_idle()
    sound(repo)


# --- Beside others ----------------------------------------------------------------------


class MovingStore(PassingStore):
    """Something happens to a row between any two calls that read of it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.move: Callable[[], None] = lambda: None

    def scan_kind(self, *args: Any, **more: Any) -> Any:
        found = super().scan_kind(*args, **more)
        self.move()
        return found

    def entries(self, *args: Any, **more: Any) -> Any:
        found = super().entries(*args, **more)
        self.move()
        return found


READS = 16
"""Calls of a walk over one row, and of the readings after it."""


class Change:
    """A write of a cell that stops before it commits, and the observer's run that answers it."""

    def __init__(self, ground: Ground, column: Any, value: Any) -> None:
        self._ground = ground
        self._column, self._value = column, value
        self._gate = Gate()
        self._seam = SeamStore(ground.store)
        self._writer = ground.repo(TABLES, store=self._seam, one_step=False)
        self._running: Future[Any] | None = None

    def prewrite(self) -> None:
        self._seam.hook = stop_at("commit", "r", self._gate)
        self._running = in_thread(lambda: write(self._writer, self._column, "r", self._value))
        self._gate.await_arrival()

    def commit(self) -> None:
        assert self._running is not None
        self._gate.open()
        self._running.result(20)

    def observe(self) -> None:
        notified = [ts for ts, _ in self._ground.entries(contents, "r", Kind.NOTIFY)]
        if self._column is contents:
            measure.run(self._ground.repo(TABLES).context, b"r", {cell_of(contents, "r"): notified})


@pytest.mark.parametrize("prewrite", range(READS))
@pytest.mark.parametrize(("column", "value"), [(contents, LARGE), (title, LARGE.decode())])
def test_a_change_that_comes_and_goes_between_the_reads_is_no_false_alarm(
    tmp_path: Path, prewrite: int, column: Any, value: Any
) -> None:
    whole = 0
    for commit, observe in itertools.combinations_with_replacement(range(prewrite, READS), 2):
        with ExitStack() as stack:
            ground = Ground("memory", False, tmp_path, stack)
            moving = MovingStore(ground.store)
            repo = ground.repo(TABLES, store=moving)
            # Worth a note, so that the row is read again, whatever else there is.
            ground.store.mutate(
                [RowMutation("docs", b"r", (), (Put(Kind.NOTIFY, b"contents", 1, b""),))]
            )
            change = Change(ground, column, value)
            steps = {prewrite: [change.prewrite]}
            steps.setdefault(commit, []).append(change.commit)
            steps.setdefault(observe, []).append(change.observe)
            calls = itertools.count()

            def move(steps: Any = steps, calls: Any = calls) -> None:
                for step in steps.pop(next(calls), ()):
                    step()

            moving.move = move
            assert errors(check(repo)) == [], (prewrite, commit, observe)
            whole += not steps
    assert whole or prewrite > 10, "the row was read less often than was thought"


def test_a_row_that_changes_between_the_readings_is_read_again(ground: Ground) -> None:
    moving = MovingStore(ground.store)
    repo = ground.repo(TABLES, store=moving)
    writer = ground.repo(TABLES)
    write(writer, contents, "r", LARGE)
    moves = iter(range(20))

    def move() -> None:
        if next(moves, None) is not None:
            write(writer, contents, "r", LARGE)

    moving.move = move
    counts = sound(repo)
    assert next(moves, None) is None, "the row did not move"
    assert counts.rows == 1


def test_a_row_that_never_stands_still_is_counted_not_reported(ground: Ground) -> None:
    moving = MovingStore(ground.store)
    repo = ground.repo(TABLES, store=moving)
    writer = ground.repo(TABLES)
    write(writer, contents, "r", LARGE)
    moving.move = lambda: write(writer, contents, "r", LARGE) and None
    counts = Counts()
    assert list(check(repo, counts=counts)) == []
    assert (counts.unsettled, counts.errors) == (1, 0)


@pytest.mark.timeout(360)
def test_there_is_no_false_alarm_beside_writers_a_worker_and_a_collector(ground: Ground) -> None:
    repo = ground.repo(TABLES)
    stop = threading.Event()
    rounds, counts = 0, Counts()

    def transfer(number: int) -> None:
        mine = ground.repo(TABLES, one_step=ground.one_step and number == 0)
        value = 0
        while not stop.is_set():
            value += 1

            def change(t: Transaction, value: int = value) -> None:
                t.set(contents, f"{value % 7}", LARGE * (value % 3))
                t.set(bal, f"{value % 5}", (t.get(bal, f"{value % 5}") or 0) + 1)
                t.get_for_update(bal, f"{(value + 1) % 5}")
                if value % 3 == 0:
                    t.notify(recluster, f"{value % 7}")
                if value % 4 == 0:
                    t.delete(contents, f"{(value + 1) % 7}")

            mine.run(change, attempts=1000)

    def collect() -> None:
        mine = ground.repo(TABLES)
        while not stop.is_set():
            mine.collect_garbage(retention=0)

    weak = observer(recluster, name="weak")(lambda t, row: t.set(title, row, "seen"))
    worker = Worker(ground.repo(TABLES), [measure, weak], threads=2, rescan=0.01)
    running = [in_thread(lambda n=n: transfer(n)) for n in range(2)]
    running += [in_thread(worker.run), in_thread(collect)]
    try:
        # Until they have all done something beside it.
        while (
            rounds < 12
            or counts.last_ts < 2000
            or not repo.context.store.safe_point()
            or not worker.metrics.counts().get("observer_runs")
        ):
            counts = Counts()
            assert errors(check(repo, counts=counts)) == []
            rounds += 1
    finally:
        stop.set()
        worker.stop()
        for one in running:
            one.result(60)
    work(repo, measure, weak)
    sound(repo)
