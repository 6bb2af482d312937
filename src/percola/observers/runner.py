"""§2.4: running the observers of a dirty cell.

A run that conflicts is repeated a few times after short waits; this does not count as a failure. A
run that raises is repeated after a back-off; when its attempts are used up, the change is
dead-lettered, and the other observers continue (`percola.observers.failures`, rule N5). A change
whose run exceeds the time limit is dead-lettered at once: the thread cannot be stopped, but its
transaction is given up. It reads and commits nothing more, and garbage collection does not wait for
it.

If several observers observe one column, the last of them answers a notify entry, once every
other has run or the change is dead-lettered for it. The paper avoids the case; here no observer
answers for another. If an observer has several columns, a run for one dirty cell includes the row's
other dirty cells of these columns, and answers those that no other observer observes.

No run of a paused observer begins (`percola.observers.pausing`). The others of its columns run, and
its notify entries stay.

A batch of several rows of a column is one transaction. If it conflicts or one of its rows raises,
nothing of it was committed, and each row runs alone, by the rules above: no row fails, or is
dead-lettered, because of another. A row joins no batch until it has run successfully.

The size of an observer's batches follows its queue and its failures, as a TCP connection's window
follows the network. It doubles with each batch that fills it, up to `Observer.batch`; after a batch
that failed, the next runs are single ones, and it doubles up to half of what failed and then grows
by one (`_BatchSize`).
"""

from __future__ import annotations

import itertools
import logging
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Any, Final, Self

from percola.cells import MAX_TS, Cell, Kind
from percola.clock import backoff
from percola.errors import (
    ConflictingOptionsError,
    SnapshotTooOldError,
    StoreError,
    TransientError,
)
from percola.gc.retention_holds import RETENTION
from percola.observers.draw_times import DrawTimes
from percola.observers.failures import DirtyCell, Failures, Story
from percola.observers.observer import Observer, Observers, ObserverTransaction, Watch
from percola.observers.pausing import PausedNames
from percola.store.counting import calling_for
from percola.transactions.context import TransactionContext

if TYPE_CHECKING:
    from percola.observers.metrics import WorkerMetrics

log = logging.getLogger("percola.worker")

_MOST_THREADS: Final = 1_000
_CONFLICTS: Final = 8
_MANY_CONFLICTS: Final = 10
"""How often a cell is left for later since its run conflicts, before that is logged."""
_FIRST_BATCH: Final = 8
_REMEMBERED: Final = 10_000
_TOGETHER: Final = 64
_FIRST_REACHED: Final = 16
_CROWD: Final = 8
_BESIDE_PAUSED: Final = 256
"""How many notify entries of a cell are read while one of its observers is paused."""
_LONGEST: Final = 1_000_000_000  # Seconds; a thread cannot wait for an infinite time.

Row = tuple[str, bytes]
"""A table's name and an encoded row."""


@dataclass
class WorkerOptions:
    """Options of a worker.

    Attributes:
        threads: number of threads that scan and run observers.
        attempts: how often an observer may fail on a change before it is dead-lettered; the
            attempts of all workers count.
        first_wait: seconds until the second attempt; the wait doubles with each failure.
        longest_wait: upper bound of the wait in seconds.
        timeout: seconds after which a running observer is given up and its change dead-lettered;
            those in which the whole process is stopped do not count.
        rescan: seconds between scans without a wake-up, in case a wake-up was lost.
        sweep: seconds between scans for locks that dead processes left on observed columns.
        retention: seconds for which superseded versions stay readable; the worker removes
            older ones (`percola.gc.collector`). Among several workers the shortest counts. None:
            this worker does not collect garbage.
        collect: seconds between cycles of garbage collection.
        survey: seconds between surveys of what waits and is dead-lettered, for the metrics; one
            worker does it for all that have the same observers. None: no survey, and latencies
            are not measured either, unless it reports. `percola worker --metrics-port` has it do
            so every 15 seconds.
        report: seconds between reports of its numbers, for `percola serve`
            (`percola.observers.reports`). None: it reports nothing. `percola worker` has it do so
            every 5 seconds, and so does `run_workers` unless it is given options.
        warn_unobserved: log, when the worker starts and when `run_until_idle` ends, which columns
            have dirty cells and no observer in any worker.
    """

    threads: int = 4
    attempts: int = 5
    first_wait: float = 0.1
    longest_wait: float = 10.0
    timeout: float = 300.0
    rescan: float = 1.0
    sweep: float = 5.0
    retention: float | None = RETENTION
    collect: float = 60.0
    survey: float | None = None
    report: float | None = None
    warn_unobserved: bool = True

    def check(self) -> None:
        """Raise ConflictingOptionsError for a value that cannot work."""
        for name in ("threads", "attempts"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConflictingOptionsError(
                    f"A worker's {name} must be at least 1, not {value!r}: it is a whole number."
                )
        if self.threads > _MOST_THREADS:
            raise ConflictingOptionsError(
                f"A worker's threads must be at most {_MOST_THREADS:,}, not {self.threads:,}: they "
                "share one processor, so start more processes instead."
            )
        for name in ("first_wait", "longest_wait", "timeout", "rescan", "sweep", "collect"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value <= _LONGEST:
                raise ConflictingOptionsError(
                    f"A worker's {name} must be more than 0 seconds, and at most {_LONGEST:,}, not "
                    f"{value!r}."
                )
        for name in ("survey", "report"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value <= _LONGEST):
                raise ConflictingOptionsError(
                    f"A worker's {name} must be None or more than 0 seconds, and at most "
                    f"{_LONGEST:,}, not {value!r}."
                )
        kept = self.retention
        if kept is not None and not (isinstance(kept, int | float) and kept >= 0):
            raise ConflictingOptionsError(
                f"A worker's retention must be None or 0 seconds or more, not {kept!r}."
            )
        if self.first_wait > self.longest_wait:
            raise ConflictingOptionsError(
                f"A worker's first_wait ({self.first_wait} s) is longer than its longest_wait "
                f"({self.longest_wait} s)."
            )


class Found(Flag):
    """What a scan has found."""

    NOTHING = 0
    RAN = auto()  # an observer ran, or a notify entry was answered
    HELD = auto()  # a dirty row that is locked by another scanner
    LATER = auto()  # a dirty cell whose observer has failed and waits for its next attempt
    SOON = auto()  # a dirty cell whose observer keeps conflicting with other transactions
    ELSEWHERE = auto()  # a table at which another scanner of this worker is looking

    def __or__(self, other: Self) -> Self:
        # A fast path, as the same flag is usually added again: Flag.__or__ is measurably slow.
        if other is self or not other._value_:
            return self
        return type(self)(self._value_ | other._value_)


class Outcome(Enum):
    """The outcome of an observer's run on a cell."""

    RAN = auto()  # it committed
    IDLE = auto()  # it had acknowledged the change already
    LATER = auto()  # it failed, and will run again after its back-off
    SOON = auto()  # it conflicted
    DEAD = auto()  # it failed too often: the change is dead-lettered


_UNSETTLED: Final = {Outcome.LATER: Found.LATER, Outcome.SOON: Found.SOON}


class GivenUpError(Exception):
    """This thread's observer exceeded the time limit; another thread has replaced this one."""


@dataclass
class _Run(Watch):
    """A run in progress, with what the worker's watch thread needs.

    It may be given up only while its function is `called`; in a batch, during one row's call.

    Attributes:
        dirty: the row's dirty cells for which a failure of this run counts.
        answers: the row's cells that it answers, with the notify entries that it removes.
        given_up: the reason why it was given up, or empty.
    """

    observer: Observer[Any]
    dirty: list[DirtyCell]
    answers: dict[Cell, list[int]]
    held: list[Row]
    guard: threading.Lock
    thread: threading.Thread = field(default_factory=threading.current_thread)
    transaction: ObserverTransaction | None = None
    began: float = 0.0
    called: bool = False
    given_up: str = ""

    def begun(self, transaction: ObserverTransaction) -> None:
        # In this order: `give_up_late` sets `given_up` first and reads `transaction` second.
        self.transaction = transaction
        if self.given_up:
            transaction.give_up(self.given_up)

    def is_given_up(self) -> bool:
        with self.guard:
            self.called = False
            return bool(self.given_up)


def _reads_too_far_back(error: TransientError, run: _Run) -> bool:
    """Whether the function has read a snapshot of its own that is too old, and will remain so."""
    transaction = run.transaction
    return (
        isinstance(error, SnapshotTooOldError)
        and transaction is not None
        and error.ts != transaction.start_ts
    )


class _BatchSize:
    """How many rows an observer's next batch may have.

    Threads that change it at once may lose a change of it, which costs nothing but time.

    Args:
        most: the observer's own limit.

    Attributes:
        rows: the most rows of the next batch; 1: rows run alone.
    """

    __slots__ = ("_doubles_to", "_most", "rows")

    def __init__(self, most: int) -> None:
        self._most = self._doubles_to = most
        self.rows = min(_FIRST_BATCH, most)

    def succeeded(self, rows: int) -> None:
        """A batch of so many rows has committed, or a row that ran alone."""
        if rows >= self.rows < self._most:
            grown = 2 * self.rows if self.rows < self._doubles_to else self.rows + 1
            self.rows = min(grown, self._most)

    def failed(self, rows: int) -> None:
        """A batch of so many rows has conflicted, or one of its rows has raised."""
        self._doubles_to = rows // 2
        self.rows = 1


class Runner:
    """Runs a worker's observers, for all of its threads.

    Args:
        rng: randomises the waits of conflicting runs.
        times: when timestamps were drawn, if latencies are measured.

    Attributes:
        failures: counts failed attempts, and dead-letters changes.
        paused: which of the observers are paused.
        stopping: set while the worker stops: scanners stop at the next row, and a run that
            conflicts is not repeated.
    """

    def __init__(
        self,
        context: TransactionContext,
        observers: Observers,
        metrics: WorkerMetrics,
        options: WorkerOptions,
        rng: random.Random,
        times: DrawTimes | None = None,
    ) -> None:
        self._context = context
        self._times = times
        self._clock = context.clock
        self._observers = observers
        self._metrics = metrics
        self._options = options
        self._rng = rng
        self._running: dict[int, _Run] = {}
        self._guard = threading.Lock()
        self._alone: set[Cell] = set()  # Cells kept out of batches for now.
        # How often a cell's run has been left for later since it conflicts, by observer.
        self._conflicting: dict[tuple[str, Cell], int] = {}
        self._sizes = {one.name: _BatchSize(one.batch) for one in observers}
        self._reached: dict[str, int] = {}  # The rows in its last batch, by observer.
        self.stopping = False
        self.paused = PausedNames(context, observers, options.rescan)
        self.failures = Failures(
            context,
            metrics,
            rng,
            attempts=options.attempts,
            first_wait=options.first_wait,
            longest_wait=options.longest_wait,
        )

    def work_cell(self, cell: Cell, held: list[Row]) -> Found:
        """Run a dirty cell's observers; its row's advisory lock is among those `held`.

        The last one answers the notify entries, and only if every other has handled the change or
        the change is dead-lettered for it: no observer answers for another.
        """
        # The cell may be clean by now: the scan read the entries before the lock was taken.
        dirty = self._look(cell)
        return self._work(dirty, held) if dirty is not None else Found.NOTHING

    def _look(self, cell: Cell) -> DirtyCell | None:
        most = None
        if (paused := self.paused.known) and any(
            one.name in paused for one in self._observers.of(cell)
        ):
            most = _BESIDE_PAUSED  # None is answered, and each change of the cell adds one.
        entries = self._context.store.entries(cell, Kind.NOTIFY, 0, MAX_TS, most)
        return DirtyCell.of(cell, entries) if entries else None

    def _work(self, dirty: DirtyCell, held: list[Row]) -> Found:
        group = self._observers.of(dirty.cell)
        if dirty.attempts:
            group = [one for one in group if not self.failures.is_dead_lettered(one, dirty)]
        if not group:
            # Dead-lettered for all; an observer that no worker runs any more left the entry.
            self.failures.answer(dirty)
            return Found.RAN
        found = Found.NOTHING
        settled = MAX_TS  # The changes up to which the observers so far are done with.
        handled: list[str] = []
        waits = False
        for one in group:
            # Asked before each: the run of the one before it may have been long.
            if one.name in self.paused.names():
                waits, settled = True, 0  # The notify entries stay.
                continue
            outcome = Outcome.LATER
            if not dirty.attempts or self.failures.is_due(one, dirty):
                upto = settled if one is group[-1] else 0
                answered = [ts for ts in dirty.notified if ts <= upto]
                outcome = self._run_observer(one, dirty, answered, held)
                if outcome not in _UNSETTLED:
                    self._alone.discard(dirty.cell)
                elif one.batch > 1:
                    self._keep_alone(dirty.cell)
            if outcome in _UNSETTLED:
                settled = min(settled, self.failures.dead_lettered_up_to(one, dirty))
                found |= _UNSETTLED[outcome]
            elif outcome is Outcome.RAN:
                found |= Found.RAN
            if outcome in (Outcome.RAN, Outcome.IDLE):
                handled.append(one.name)
        if waits:
            self.failures.note_handled(handled, dirty)
        return found

    def _row_of(
        self, one: Observer[Any], dirty: DirtyCell, answered: list[int]
    ) -> tuple[list[DirtyCell], dict[Cell, list[int]]]:
        """What a run for a dirty cell handles: see `_Run.dirty` and `_Run.answers`.

        If the observer has several columns, the row's other dirty cells are included, and those
        that no other observer has to handle are answered.
        """
        changes, answers = [dirty], {dirty.cell: answered}
        if not one.others:
            return changes, answers
        for cell in one.cells(dirty.cell.row):
            other = self._look(cell) if cell != dirty.cell else None
            if other is None or self.failures.is_dead_lettered(one, other):
                continue
            answers[cell] = other.notified if len(self._observers.of(cell)) == 1 else []
            if self.failures.is_due(one, other):
                changes.append(other)
        return changes, answers

    def _run_observer(
        self, one: Observer[Any], dirty: DirtyCell, answered: list[int], held: list[Row]
    ) -> Outcome:
        """Run one observer for one dirty cell; repeat if it conflicts."""
        run = _Run(one, *self._row_of(one, dirty, answered), held, self._guard)
        try:
            for attempt in itertools.count(1):
                began = self._clock.monotonic()
                with self._guard:
                    run.began, run.called = began, True
                    self._running[id(run)] = run
                try:
                    with calling_for(one.name):
                        ran = one.run(self._context, dirty.cell.row, run.answers, run)
                except TransientError as error:
                    if run.is_given_up():
                        raise GivenUpError from None
                    if _reads_too_far_back(error, run):
                        raise
                    self._metrics.conflicts.labels(one.name).inc()
                    if attempt >= _CONFLICTS or self.stopping:
                        self._note_conflicts(one, dirty.cell, error)
                        return Outcome.SOON
                    wait = backoff(self._rng, attempt, first=0.001, most=0.1)
                    self._clock.sleep(wait)
                    continue
                if self._conflicting:
                    self._conflicting.pop((one.name, dirty.cell), None)
                if ran:
                    self._metrics.committed(one.name, 1, self._clock.monotonic() - began)
                    # Others of its column may have kept entries that it has answered.
                    alone = len(self._observers.of(dirty.cell)) == 1
                    self._answered(run, began, [dirty.notified[-1] if alone else dirty.newest])
                    self._sizes[one.name].succeeded(1)
                return Outcome.RAN if ran or answered else Outcome.IDLE
        except GivenUpError:
            raise
        except StoreError:
            if run.is_given_up():
                raise GivenUpError from None
            self._say_where(one, dirty.cell)
            raise
        except BaseException as error:  # Such as asyncio.CancelledError: it is the function's.
            if run.is_given_up():
                raise GivenUpError from None
            dead = self.failures.failed(one, run.dirty, run.answers, Story.of(error))
            return Outcome.DEAD if dead else Outcome.LATER
        finally:
            with self._guard:
                self._running.pop(id(run), None)
        raise AssertionError("unreachable")

    def _say_where(self, one: Observer[Any], cell: Cell) -> None:
        """Log in which run the store has failed; the scanner logs how."""
        log.warning(
            "observer %s: the store failed in its run on %s. If it fails for no other row, "
            "'percola observers pause %s' keeps the worker from ending",
            *(one.name, self._context.shown(cell), one.name),
        )

    def _note_conflicts(self, one: Observer[Any], cell: Cell, error: TransientError) -> None:
        """Log that the runs for a cell do nothing but conflict; at growing intervals."""
        if len(self._conflicting) >= _REMEMBERED:
            self._conflicting.clear()
        key = one.name, cell
        times = self._conflicting[key] = self._conflicting.get(key, 0) + 1
        tens, rest = divmod(times, _MANY_CONFLICTS)
        if not rest and tens.bit_count() == 1:  # 10, 20, 40, …
            log.warning(
                "observer %s goes on trying on %s: %d runs in a row have conflicted, the last one "
                "so: %s",
                *(one.name, self._context.shown(cell), times * _CONFLICTS, error),
            )

    def _answered(self, run: _Run, began: float, timestamps: Iterable[int]) -> None:
        """Measure how long changes waited that a run has answered, which began then."""
        if (times := self._times) is None:
            return
        if run.transaction is not None:
            times.note(run.transaction.start_ts)
        took = self._clock.monotonic() - began
        ages = [max(took, age) for age in times.ages(timestamps)]
        self._metrics.latency.answered(run.observer.name, ages)

    # --- Several rows in one transaction --------------------------------------------------

    def takes_batches(self, cell: Cell) -> bool:
        """Whether a cell's observer may answer it in a batch with other cells of its column."""
        group = self._observers.of(cell)
        return len(group) == 1 and self._sizes[group[0].name].rows > 1 and cell not in self._alone

    def work_batch(self, take: Callable[[int], list[Cell]], held: list[Row]) -> set[Cell]:
        """Run a column's only observer for several of its dirty cells in one transaction.

        `take` returns up to so many of them, when it is their turn, and has added the rows'
        advisory locks to `held` by then; none if there are no more. Returns the cells that were
        answered. If the batch fails, the cells that have joined it join no other until each has run
        alone. If its first row raises, there is no other row yet, and the failure counts as that of
        a run.
        """
        ahead: list[bytes] = []
        dirty = self._still_dirty(take, ahead)
        first = next(dirty, None)
        if first is None:
            return set()
        [one] = self._observers.of(first.cell)
        if one.name in self.paused.names():
            return set()
        run = _Run(one, [], {}, held, self._guard)
        joined: list[DirtyCell] = []

        def turns() -> Iterator[tuple[bytes, dict[Cell, list[int]]]]:
            for cell in itertools.chain([first], dirty):
                joined.append(cell)
                changes, answers = self._row_of(one, cell, cell.notified)
                with self._guard:
                    run.dirty, run.answers = changes, answers
                    run.began, run.called = self._clock.monotonic(), True
                yield cell.cell.row, answers
                if run.is_given_up():
                    raise GivenUpError

        size = self._sizes[one.name]
        began = self._clock.monotonic()
        with self._guard:
            self._running[id(run)] = run
        try:
            with calling_for(one.name):
                rows, runs = one.run_batch(self._context, turns(), size.rows, run, ahead)
        except GivenUpError:
            raise
        except BaseException as error:
            # Whether a row's run raised it, and nothing shared with other rows: not the commit, nor
            # the look for the next row, nor, on a network store, reading ahead.
            was_called = run.called
            called = was_called and self._context.prefetch is None
            if run.is_given_up():
                raise GivenUpError from None
            if isinstance(error, StoreError):
                if was_called and joined:
                    self._say_where(one, joined[-1].cell)
                raise
            if isinstance(error, TransientError):
                self._metrics.conflicts.labels(one.name).inc()
            elif called and len(joined) == 1:
                self.failures.failed(one, run.dirty, run.answers, Story.of(error))
        else:
            if runs:
                self._metrics.committed(one.name, runs, self._clock.monotonic() - began)
            size.succeeded(len(rows))
            self._reached[one.name] = max(1, len(rows))
            answered = set(rows)
            done = [cell for cell in joined if cell.cell.row in answered]
            self._answered(run, began, [cell.notified[-1] for cell in done])
            return {cell.cell for cell in done}
        finally:
            with self._guard:
                self._running.pop(id(run), None)
        if len(joined) > 1:
            self._metrics.split.labels(one.name).inc()
            size.failed(len(joined))
            for cell in joined:
                self._keep_alone(cell.cell)
        return set()

    def _still_dirty(
        self, take: Callable[[int], list[Cell]], ahead: list[bytes]
    ) -> Iterator[DirtyCell]:
        """The cells that have notify entries once their rows are locked, and no failed attempt.

        On a network store, many rows are locked in one call and checked in another; the rows of the
        dirty cells are added to `ahead`.
        """
        calls_are_dear = self._context.prefetch is not None
        most = 1
        while group := take(most):
            if calls_are_dear:
                # If batches end after a few rows, few rows are locked and checked in vain.
                [one] = self._observers.of(group[0])
                reached = self._reached.get(one.name, _FIRST_REACHED)
                most = min(_TOGETHER, self._sizes[one.name].rows, 2 * reached)
                group += take(most - len(group))
            found = [self._look(group[0])] if len(group) == 1 else self._look_together(group)
            dirty = [one for one in found if one is not None and not one.has_failed]
            ahead += [one.cell.row for one in dirty]
            yield from dirty

    def _look_together(self, cells: Sequence[Cell]) -> list[DirtyCell | None]:
        """`_look` for cells of one column, in one call unless there are too many entries."""
        rows = [cell.row for cell in cells]
        found: dict[Cell, list[tuple[int, bytes]]] = {cell: [] for cell in cells}
        entries, following = self._context.store.scan_kind(
            Kind.NOTIFY, cells[0].table, min(rows), max(rows) + b"\0", _CROWD * len(cells)
        )
        for cell, ts, raw in entries:
            if cell in found:
                found[cell].append((ts, raw))
        return [
            self._look(cell)
            if following is not None and cell.row >= following
            else (DirtyCell.of(cell, found[cell]) if found[cell] else None)
            for cell in cells
        ]

    def _keep_alone(self, cell: Cell) -> None:
        """Keep a cell out of batches until it has run."""
        if len(self._alone) >= _REMEMBERED:
            self._alone.clear()  # Another process may have run them without our knowing.
        self._alone.add(cell)

    # --- Watching -------------------------------------------------------------------------

    def running(self) -> list[tuple[str, float]]:
        """The runs in progress: the observer, and for how many seconds this row's run has gone on.

        A batch counts from its current row on.
        """
        now = self._clock.monotonic()
        with self._guard:
            return [(one.observer.name, now - one.began) for one in self._running.values()]

    def leave_parent(self) -> None:
        """In a forked child: end the thread that has forked when its observer returns there.

        All that was under way is the parent's.
        """
        self.stopping = True
        self._guard = threading.Lock()
        for run in self._running.values():
            run.guard = self._guard
            run.given_up = f"{run.observer.name} has forked this process, which is no worker."

    def excuse(self, seconds: float) -> None:
        """Have these seconds, in which the process stood still, count towards no time limit."""
        now = self._clock.monotonic()
        with self._guard:
            for run in self._running.values():
                run.began = min(now, run.began + seconds)

    def give_up_late(self) -> list[tuple[threading.Thread, list[Row]]]:
        """Give up runs that exceed the time limit, and dead-letter their changes.

        Returns the lost threads, and the rows whose advisory locks they hold. Each thread gets a
        GivenUpError as soon as its observer ends; nothing of the run is committed.
        """
        now, most = self._clock.monotonic(), self._options.timeout
        with self._guard:
            late = [
                run
                for run in self._running.values()
                if now - run.began > most and not run.given_up and run.called
            ]
            for run in late:
                run.given_up = (
                    f"{run.observer.name} ran for longer than {most:g} s; its transaction will not "
                    "commit."
                )
        for run in late:
            name, why = run.observer.name, run.given_up
            frame = sys._current_frames().get(run.thread.ident or 0)
            where = "".join(traceback.format_stack(frame)) if frame else ""
            if run.transaction is not None:
                run.transaction.give_up(why)
            error = f"ObserverTimeoutError: {why}"
            story = Story(error, f"It still ran here after {most:g} s:\n{where}{error}")
            self._metrics.failures.labels(name).inc()
            for dirty in run.dirty:
                answered = run.answers[dirty.cell]
                count = dirty.attempts[name].failed if name in dirty.attempts else 0
                try:
                    self.failures.dead_letter(run.observer, dirty, answered, story, count + 1)
                except StoreError as reason:
                    # Its notify entry stays: it runs once more, and is given up once more.
                    shown = self._context.shown(dirty.cell)
                    log.warning(
                        "observer %s cannot be dead-lettered on %s: %s", name, shown, reason
                    )
        return [(run.thread, run.held) for run in late]
