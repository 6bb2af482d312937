"""§2.4: running the observers of a dirty cell.

An observer that conflicts is run again at once, a few times: that is no failure. One that raises
is tried again later and then set aside, and the others go on (`percola.patience`, rule N5). One
that runs for too long is set aside as well: its thread cannot be stopped, but its transaction can
no longer commit.

Where several observers have one column, the last of them answers the notify entry, once every
other has run or been set aside. The paper avoids the case; here none answers for another.

A batch, of several rows of a column, is one transaction. If it conflicts or one of its rows
raises, nothing of it was committed, and each of its rows is run alone, with all that is said
above: no row fails, or is set aside, for another. A row joins no batch until that has gone well,
and an observer whose batches conflict has smaller ones for a while.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any, Final, Self

from percola.calls import calling_for
from percola.cells import MAX_TS, Cell, Kind
from percola.clock import backoff
from percola.errors import (
    ConflictingOptionsError,
    ObserverTimeoutError,
    RepositoryError,
    TransientError,
)
from percola.gc import RETENTION
from percola.metrics import WorkerMetrics
from percola.observers import Observer, Observers
from percola.patience import Patience
from percola.snapshot import Services

_CONFLICTS: Final = 8
_SMALLEST: Final = 2
_REMEMBERED: Final = 10_000
_TOGETHER: Final = 64
_FIRST_REACHED: Final = 16
_CROWD: Final = 8

Row = tuple[str, bytes]
"""A table's name and an encoded row."""


@dataclass
class WorkerOptions:
    """How a worker works.

    Attributes:
        threads: how many scan and run observers.
        attempts: how often an observer may fail on a change before it is set aside.
        first_wait: seconds until the second attempt; they double from there.
        longest_wait: seconds that they double up to.
        timeout: seconds after which a running observer is set aside.
        rescan: seconds between scans when no bell rings: the safety net.
        sweep: seconds between looks for locks that dead processes left on observed columns.
        retention: seconds for which superseded versions stay readable; the worker removes
            older ones (`percola.gc`). Of several workers' the shortest counts. None: it leaves
            garbage collection to others.
        collect: seconds between cycles of garbage collection.
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

    def check(self) -> None:
        """Raise ConflictingOptionsError for a value that cannot work."""
        for name in ("threads", "attempts"):
            if getattr(self, name) < 1:
                raise ConflictingOptionsError(
                    f"A worker's {name} must be at least 1, not {getattr(self, name)}."
                )
        for name in ("first_wait", "longest_wait", "timeout", "rescan", "sweep", "collect"):
            if not getattr(self, name) > 0:
                raise ConflictingOptionsError(
                    f"A worker's {name} must be more than 0 seconds, not {getattr(self, name)}."
                )
        if self.retention is not None and not self.retention >= 0:
            raise ConflictingOptionsError(
                f"A worker's retention must be None or 0 seconds or more, not {self.retention}."
            )
        if self.first_wait > self.longest_wait:
            raise ConflictingOptionsError(
                f"A worker's first_wait ({self.first_wait} s) is longer than its longest_wait "
                f"({self.longest_wait} s)."
            )


class Found(Flag):
    """What a scan has come across."""

    NOTHING = 0
    RAN = auto()  # an observer ran, or a notify entry was answered
    HELD = auto()  # a dirty row that another scanner works on
    LATER = auto()  # a dirty cell whose observer is to be tried again in a while

    def __or__(self, other: Self) -> Self:
        # Mostly the same is added again; Flag's own way takes so long that every run shows it.
        if other is self or not other._value_:
            return self
        return type(self)(self._value_ | other._value_)


class Outcome(Enum):
    """What has become of an observer's run on a cell."""

    RAN = auto()  # it committed
    IDLE = auto()  # it had seen the change already
    LATER = auto()  # it conflicted or failed, and will be tried again
    ASIDE = auto()  # it failed, and will not


class GivenUpError(Exception):
    """This thread's observer took too long; another thread has taken its place."""


@dataclass
class _Run:
    """An observer that is running now: what a watch over it needs to know.

    Only while its function is `called` may it be given up; of a batch, that is one row's turn.
    """

    observer: Observer[Any]
    cell: Cell
    notified: list[int]
    answered: list[int]
    held: list[Row]
    thread: threading.Thread
    began: float = 0.0
    called: bool = False
    abandoned: bool = False


class Runs:
    """Runs a worker's observers, for all of its threads.

    Args:
        chance: how long runs that conflict wait for each other.

    Attributes:
        patience: which observers failed, and when to try them again.
        stopping: set while the worker stops: scanners go no further, and a run that conflicts
            is left for later.
    """

    def __init__(
        self,
        services: Services,
        observers: Observers,
        metrics: WorkerMetrics,
        options: WorkerOptions,
        chance: random.Random,
    ) -> None:
        self._services = services
        self._clock = services.clock
        self._observers = observers
        self._metrics = metrics
        self._options = options
        self._chance = chance
        self._running: dict[int, _Run] = {}
        self._guard = threading.Lock()
        # Cells that are to run alone for now; and how many rows an observer's batch may have.
        self._alone: set[Cell] = set()
        self._most: dict[str, int] = {}
        self._reached: dict[str, int] = {}  # And how many its last batch had.
        self.stopping = False
        self.patience = Patience(
            services,
            metrics,
            chance,
            attempts=options.attempts,
            first_wait=options.first_wait,
            longest_wait=options.longest_wait,
        )

    def work_cell(self, cell: Cell, held: list[Row]) -> Found:
        """Run a dirty cell's observers, under its row's advisory lock, one of those `held`.

        The last one answers the notify entries, and only if every other has dealt with the
        change: none answers for another.
        """
        notified = self._notified(cell)
        return self._work(cell, notified, held) if notified else Found.NOTHING

    def _notified(self, cell: Cell) -> list[int]:
        # It may be clean by now: the entries were read before the lock was taken.
        return [ts for ts, _ in self._services.store.entries(cell, Kind.NOTIFY, 0, MAX_TS)]

    def _work(self, cell: Cell, notified: list[int], held: list[Row]) -> Found:
        newest = max(notified)
        everyone = self._observers.of(cell)
        group = [one for one in everyone if not self.patience.is_aside(one, cell, newest)]
        found = Found.NOTHING
        settled = True
        for one in group:
            outcome = Outcome.LATER
            if self.patience.is_due(one, cell, newest):
                answered = notified if settled and one is group[-1] else []
                outcome = self._run_observer(one, cell, notified, answered, held)
                if outcome is not Outcome.LATER:
                    self._alone.discard(cell)
                elif one.batch > 1:
                    self._keep_alone(cell)
            if outcome is Outcome.LATER:
                settled = False
                found |= Found.LATER
            elif outcome is Outcome.RAN:
                found |= Found.RAN
        if settled:
            self.patience.settled(cell, everyone)
        return found

    def _run_observer(
        self,
        one: Observer[Any],
        cell: Cell,
        notified: list[int],
        answered: list[int],
        held: list[Row],
    ) -> Outcome:
        """Run one observer for one dirty cell, again if it conflicts."""
        run = _Run(one, cell, notified, answered, held, threading.current_thread())
        try:
            for attempt in itertools.count(1):
                began = self._clock.monotonic()
                with self._guard:
                    run.began, run.called = began, True
                    self._running[id(run)] = run
                try:
                    with calling_for(one.name):
                        ran = one.run(
                            self._services, cell.row, answered, lambda: self._is_abandoned(run)
                        )
                except TransientError:
                    if self._is_abandoned(run):
                        raise GivenUpError from None
                    self._metrics.conflicts.labels(one.name).inc()
                    if attempt >= _CONFLICTS or self.stopping:
                        self.patience.conflicted(one, cell, max(notified))
                        return Outcome.LATER
                    wait = backoff(self._chance, attempt, first=0.001, most=0.1)
                    self._clock.sleep(wait)
                    continue
                self.patience.succeeded(one, cell)
                if ran:
                    self._metrics.committed(one.name, 1, self._clock.monotonic() - began)
                return Outcome.RAN if ran or answered else Outcome.IDLE
        except ObserverTimeoutError:
            raise GivenUpError from None
        except GivenUpError:
            raise
        except RepositoryError:
            if self._is_abandoned(run):
                raise GivenUpError from None
            raise
        except (Exception, SystemExit):
            if self._is_abandoned(run):
                raise GivenUpError from None
            story = traceback.format_exc()
            aside = self.patience.failed(one, cell, notified, answered, story)
            return Outcome.ASIDE if aside else Outcome.LATER
        finally:
            with self._guard:
                self._running.pop(id(run), None)
        raise AssertionError("unreachable")

    def _is_abandoned(self, run: _Run) -> bool:
        """Whether the watch has given up the run; if not, it will not do so from here on."""
        with self._guard:
            run.called = False
            return run.abandoned

    # --- Several rows in one transaction --------------------------------------------------

    def takes_batches(self, cell: Cell) -> bool:
        """Whether a cell's observer may answer it together with others of its column."""
        group = self._observers.of(cell)
        return len(group) == 1 and group[0].batch > 1 and cell not in self._alone

    def work_batch(self, cells: Iterable[Cell], held: list[Row]) -> set[Cell]:
        """Run a column's only observer for several of its dirty cells in one transaction.

        `cells` hands them out one by one, when it is a cell's turn, and has added the row's
        advisory lock to `held` by then. Returns those that were answered. If it is none, those
        that were handed out take no batches until each has run alone.
        """
        ahead: list[bytes] = []
        dirty = self._still_dirty(cells, ahead)
        first = next(dirty, None)
        if first is None:
            return set()
        (table, _, column), _ = first
        [one] = self._observers.of(first[0])
        run = _Run(one, *first, first[1], held, threading.current_thread())
        joined: list[Cell] = []

        def turns() -> Iterator[tuple[bytes, list[int]]]:
            for cell, notified in itertools.chain([first], dirty):
                joined.append(cell)
                with self._guard:
                    run.cell, run.notified, run.answered = cell, notified, notified
                    run.began, run.called = self._clock.monotonic(), True
                yield cell.row, notified
                if self._is_abandoned(run):
                    raise GivenUpError

        most = self._most.get(one.name, one.batch)
        began = self._clock.monotonic()
        with self._guard:
            self._running[id(run)] = run
        try:
            with calling_for(one.name):
                rows = one.run_batch(
                    self._services, turns(), most, lambda: self._is_abandoned(run), ahead
                )
        except ObserverTimeoutError:
            raise GivenUpError from None
        except GivenUpError:
            raise
        except (Exception, SystemExit) as error:
            if self._is_abandoned(run):
                raise GivenUpError from None
            if isinstance(error, RepositoryError):
                raise
            if isinstance(error, TransientError):
                self._metrics.conflicts.labels(one.name).inc()
                self._most[one.name] = max(_SMALLEST, len(joined) // 2)
        else:
            self._metrics.committed(one.name, len(rows), self._clock.monotonic() - began)
            self._most[one.name] = min(one.batch, most + 1)
            self._reached[one.name] = max(1, len(rows))
            return {Cell(table, row, column) for row in rows}
        finally:
            with self._guard:
                self._running.pop(id(run), None)
        self._metrics.split.labels(one.name).inc()
        for cell in joined:
            self._keep_alone(cell)
        return set()

    def _still_dirty(
        self, cells: Iterable[Cell], ahead: list[bytes]
    ) -> Iterator[tuple[Cell, list[int]]]:
        """The cells that have notify entries once their rows are locked, and these entries.

        Where a call is dear, many are locked and then looked at in one call; `ahead` gets the
        rows of those that are dirty.
        """
        calls_are_dear = self._services.prefetch is not None
        waiting = iter(cells)
        for cell in waiting:
            most = 1
            if calls_are_dear:
                # Where a batch ends after a few rows, no more than that are looked at in vain.
                [one] = self._observers.of(cell)
                most = min(_TOGETHER, 2 * self._reached.get(one.name, _FIRST_REACHED))
            group = [cell, *itertools.islice(waiting, most - 1)]
            if len(group) == 1:
                found = {group[0]: self._notified(group[0])}
            else:
                found = self._all_notified(group)
            dirty = [(cell, notified) for cell in group if (notified := found.get(cell))]
            ahead += [cell.row for cell, _ in dirty]
            yield from dirty

    def _all_notified(self, cells: Sequence[Cell]) -> dict[Cell, list[int]]:
        """The notify entries of cells of one column, in one call but for those of a crowd."""
        rows = [cell.row for cell in cells]
        found: dict[Cell, list[int]] = {cell: [] for cell in cells}
        entries, following = self._services.store.scan_kind(
            Kind.NOTIFY, cells[0].table, min(rows), max(rows) + b"\0", _CROWD * len(cells)
        )
        for cell, ts, _ in entries:
            if cell in found:
                found[cell].append(ts)
        if following is not None:
            found.update({one: self._notified(one) for one in cells if one.row >= following})
        return found

    def _keep_alone(self, cell: Cell) -> None:
        """Keep a cell out of batches until it has run."""
        if len(self._alone) >= _REMEMBERED:
            self._alone.clear()  # Another process may have run them: nothing tells us.
        self._alone.add(cell)

    # --- Watching -------------------------------------------------------------------------

    def give_up_late(self) -> list[tuple[threading.Thread, list[Row]]]:
        """Set aside what runs for longer than it may; the threads that are lost to it, and the
        rows whose advisory locks they hold.

        Each gets a GivenUpError as soon as its observer ends; nothing of that is committed.
        """
        now = self._clock.monotonic()
        with self._guard:
            late = [
                run
                for run in self._running.values()
                if now - run.began > self._options.timeout and not run.abandoned and run.called
            ]
            for run in late:
                run.abandoned = True
        for run in late:
            frame = sys._current_frames().get(run.thread.ident or 0)
            where = "".join(traceback.format_stack(frame)) if frame else ""
            story = (
                f"It still ran here after {self._options.timeout:g} s:\n{where}"
                f"ObserverTimeoutError: {run.observer.name} ran for longer than "
                f"{self._options.timeout:g} s; its transaction will not commit."
            )
            self._metrics.failures.labels(run.observer.name).inc()
            self.patience.set_aside(run.observer, run.cell, run.notified, run.answered, story, 1)
        return [(run.thread, run.held) for run in late]
