"""§2.4 The worker: threads that look for dirty cells and run observers on them.

Each thread scans the notify entries, a group of their own, so that looking costs in proportion
to what is dirty (rule N6). It starts at a random tablet and a random key, takes an advisory
lock for each dirty row, and jumps to another random place when another scanner has the row:
the paper's buses teleport instead of clumping (rule N7).

A pass that finds nothing waits for the bell: a commit in this process rings at once, one in
another process within milliseconds, and a slow scan makes up for what nobody heard.

An observer that raises is tried again after a growing while, then set aside: a `failed` entry
with its traceback takes the place of the notify entry, in one row mutation, and the others go
on (rule N5). One that conflicts is run again at once, a few times; that is not a failure. One
that never ends is set aside too: its thread cannot be stopped, but its transaction can no
longer commit, and another thread takes its place.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from percola.cells import FAILED_TS, Cell, Kind, failed_column
from percola.clock import backoff
from percola.errors import (
    ConflictingOptionsError,
    ObserverTimeoutError,
    StoreError,
    TransientError,
)
from percola.metrics import WorkerMetrics
from percola.observers import Observer, Observers
from percola.repository import Repository
from percola.store.base import Delete, Put, RowMutation

log = logging.getLogger("percola.worker")

_CHUNK: Final = 64
_BUSY_WAIT: Final = 0.02
_CONFLICTS: Final = 8
_TELEPORTS: Final = 4


@dataclass
class _Run:
    """An observer that is running now: what a watch over it needs to know."""

    observer: Observer[Any]
    cell: Cell
    notified: list[int]
    began: float
    thread: threading.Thread
    abandoned: bool = False


@dataclass
class _Patience:
    """A dirty cell that an observer failed on: how often, and when to try again."""

    attempts: int = 0
    due: float = 0.0
    ts: int = 0


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
    """

    threads: int = 4
    attempts: int = 5
    first_wait: float = 0.1
    longest_wait: float = 10.0
    timeout: float = 300.0
    rescan: float = 1.0

    def check(self) -> None:
        """Raise ConflictingOptionsError for a value that cannot work."""
        for name in ("threads", "attempts"):
            if getattr(self, name) < 1:
                raise ConflictingOptionsError(
                    f"A worker's {name} must be at least 1, not {getattr(self, name)}."
                )
        for name in ("first_wait", "longest_wait", "timeout", "rescan"):
            if not getattr(self, name) > 0:
                raise ConflictingOptionsError(
                    f"A worker's {name} must be more than 0 seconds, not {getattr(self, name)}."
                )
        if self.first_wait > self.longest_wait:
            raise ConflictingOptionsError(
                f"A worker's first_wait ({self.first_wait} s) is longer than its longest_wait "
                f"({self.longest_wait} s)."
            )


@dataclass
class _Shared:
    """What the threads of a worker share, under one condition."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    rings: int = 0
    busy: int = 0
    stopping: bool = False


class Worker:
    """Runs observers on a repository until it is stopped.

        percola.Worker(repo, observers=[index]).run()

    Any number of workers, in any number of processes, may serve one repository; those that
    observe a column run the same observers on it.

    Args:
        repo: an open repository.
        observers: every observer that this process runs, named here and nowhere else.
        options: see `WorkerOptions`; its fields may be given by keyword instead.

    Raises:
        ObserverError: observers that cannot work together, or with this schema.
        ConflictingOptionsError: options out of range.
    """

    def __init__(
        self,
        repo: Repository,
        observers: Iterable[Observer[Any]],
        options: WorkerOptions | None = None,
        **fields: Any,
    ) -> None:
        self._repo = repo
        self._services = repo.services
        self._observers = Observers(observers)
        self._options = options or WorkerOptions(**fields)
        self._options.check()
        for one in self._observers:
            repo.table(one.column.table.name).resolve(one.column.name)
        self.metrics = WorkerMetrics()
        self._shared = _Shared()
        self._threads: list[threading.Thread] = []
        self._running: dict[int, _Run] = {}
        self._patience: dict[tuple[Cell, str], _Patience] = {}
        self._guard = threading.Lock()
        self._unlisten: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        self._numbers = itertools.count(1)

    # --- Starting and stopping ----------------------------------------------------------

    def start(self) -> None:
        """Start the threads and return.

        Raises ObserverMismatchError if a live worker observes one of the columns otherwise.
        """
        coordination = self._services.coordination
        coordination.announce_observers(self._observers.announcement)
        self._unlisten = coordination.listen(self._ring)
        for _ in range(self._options.threads):
            self._start_thread()

    def stop(self, *, wait: bool = True) -> None:
        """Let running observers finish, run no more; with `wait`, return when all have ended.

        Idempotent. An observer that does not end within its time limit is not waited for.
        """
        with self._shared.changed:
            self._shared.stopping = True
            self._shared.changed.notify_all()
        if wait:
            deadline = time.monotonic() + self._options.timeout
            for thread in list(self._threads):
                if thread is not threading.current_thread():
                    thread.join(max(0.0, deadline - time.monotonic()))
            if self._unlisten is not None:
                self._unlisten()
                self._unlisten = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop`; let running observers finish, then return.

        Signals are handled only in a program's main thread. Raises StoreError if the store
        fails for good.
        """
        self._work(lambda: False)

    def run_until_idle(self) -> None:
        """Work until no notification is left that these observers answer, then return.

        Cells on which an observer was set aside do not count: `Repository` lists them.
        """
        self._work(self.is_idle)

    def _work(self, finished: Callable[[], bool]) -> None:
        with self._signals():
            self.start()
            try:
                while not self._shared.stopping and not finished():
                    self._watch()
                    with self._shared.changed:
                        if not self._shared.stopping:
                            self._shared.changed.wait(0.05)
            finally:
                self.stop()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _: Any) -> None:
            # No lock here: the main thread may hold it. It looks every few milliseconds.
            self._shared.stopping = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def is_idle(self) -> bool:
        """Whether no notify entry is left for this worker's observers, in the whole repository.

        An entry goes only after its observer's commit, so a run under way counts as work.
        """
        for table in self._observers.tables:
            position: bytes | None = b""
            while position is not None:
                entries, position = self._services.store.scan_kind(Kind.NOTIFY, table, position)
                if any(self._observers.of(cell) for cell, _, _ in entries):
                    return False
        return True

    # --- Scanning -----------------------------------------------------------------------

    def _start_thread(self) -> None:
        thread = threading.Thread(
            target=self._scan_forever, name=f"percola-scan-{next(self._numbers)}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _ring(self) -> None:
        with self._shared.changed:
            self._shared.rings += 1
            self._shared.changed.notify_all()

    def _scan_forever(self) -> None:
        chance = random.Random()
        misfortunes = 0
        while not self._shared.stopping:
            rings = self._shared.rings
            try:
                found = self._pass(chance)
                misfortunes = 0
            except StoreError as error:
                misfortunes += 1
                log.warning("scanning failed: %s", error)
                if misfortunes >= self._options.attempts:
                    self._failure = error
                    self._shared.stopping = True
                    self._ring()
                    return
                found = False
            if threading.current_thread() not in self._threads:
                return  # It was given up on, and has been replaced.
            if found is True:
                continue
            with self._shared.changed:
                if self._shared.rings == rings and not self._shared.stopping:
                    # Dirty rows that others work on, or that are not due yet: look again soon.
                    patience = self._options.rescan if found is False else _BUSY_WAIT
                    self._shared.changed.wait(patience)

    def _pass(self, chance: random.Random) -> bool | None:
        """Go once round the table from a random place, and run what is dirty.

        True if an observer ran, None if there were dirty rows but others hold them or they
        are not due yet, False if there was nothing.
        """
        ran: bool | None = False
        tables = self._observers.tables
        for _ in range(_TELEPORTS):
            first = chance.randrange(len(tables))
            clash = False
            for table in tables[first:] + tables[:first]:
                for start, end in self._ranges(table, chance):
                    outcome = self._scan_range(table, start, end)
                    if outcome is None:
                        clash = True
                        break
                    ran = outcome or ran
                if clash or self._shared.stopping:
                    break
            if ran or not clash:
                return ran
            self.metrics.teleports.inc()
            ran = None
        return ran

    def _ranges(self, table: str, chance: random.Random) -> list[tuple[bytes, bytes]]:
        """The whole table, beginning at a random key of a random tablet, and round."""
        tablet = chance.choice(self._services.store.tablets(table))
        start = _random_key(tablet.start, tablet.end, chance)
        return [(start, b""), (b"", start)] if start else [(b"", b"")]

    def _scan_range(self, table: str, start: bytes, end: bytes) -> bool | None:
        """Run what is dirty in a range; None if another scanner was met."""
        ran = False
        waiting = False
        position: bytes | None = start
        store = self._services.store
        while position is not None and not self._shared.stopping:
            entries, position = store.scan_kind(Kind.NOTIFY, table, position, end, _CHUNK)
            for row, group in itertools.groupby(entries, key=lambda entry: entry[0].row):
                if self._shared.stopping:
                    return ran
                dirty: dict[Cell, list[int]] = {}
                for cell, ts, _ in group:
                    if self._observers.of(cell):
                        dirty.setdefault(cell, []).append(ts)
                if not dirty:
                    continue
                if not self._services.coordination.try_lock(table, row):
                    return ran or None
                try:
                    outcome = self._work_row(table, row, dirty)
                finally:
                    self._services.coordination.unlock(table, row)
                ran = ran or outcome is True
                waiting = waiting or outcome is None
        return ran or (None if waiting else False)

    def _work_row(self, table: str, row: bytes, dirty: dict[Cell, list[int]]) -> bool | None:
        """Run the observers of a row's dirty cells, under the row's advisory lock."""
        ran: bool | None = False
        for cell in dirty:
            # It may be clean by now: the entries were read before the lock was taken.
            notified = [
                ts for ts, _ in self._services.store.entries(cell, Kind.NOTIFY, 0, 2**63 - 1)
            ]
            if not notified:
                continue
            for one in self._observers.of(cell):
                if not self._is_due(cell, one, max(notified)):
                    ran = ran or None
                    continue
                ran = self._run_observer(one, cell, notified) or ran
        return ran

    # --- Running ------------------------------------------------------------------------

    def _run_observer(self, one: Observer[Any], cell: Cell, notified: list[int]) -> bool:
        """Run one observer for one dirty cell; True if its transaction committed."""
        thread = threading.current_thread()
        run = _Run(one, cell, notified, time.monotonic(), thread)
        with self._guard:
            self._running[id(run)] = run
        answered = notified if self._is_last(one, cell) else []
        try:
            for attempt in itertools.count(1):
                try:
                    began = time.perf_counter()
                    ran = one.run(self._services, cell.row, answered, lambda: run.abandoned)
                except TransientError:
                    self.metrics.conflicts.labels(one.name).inc()
                    if attempt >= _CONFLICTS or self._shared.stopping:
                        return False
                    wait = backoff(random, attempt, first=0.001, most=0.1)  # type: ignore[arg-type]
                    self._services.clock.sleep(wait)
                    continue
                self._patience.pop((cell, one.name), None)
                if ran:
                    self.metrics.runs.labels(one.name).inc()
                    self.metrics.seconds.labels(one.name).observe(time.perf_counter() - began)
                return True
        except StoreError:
            raise
        except ObserverTimeoutError:
            return False
        except Exception:
            self._fail(one, cell, notified, traceback.format_exc())
            return False
        finally:
            with self._guard:
                self._running.pop(id(run), None)
        return False

    def _is_last(self, one: Observer[Any], cell: Cell) -> bool:
        """Whether this observer's run answers the notify entry: the last of its column's does.

        With several observers on a column, the earlier ones have acknowledged by then, unless
        they failed: then the entry has to stay.
        """
        group = self._observers.of(cell)
        others = group[:-1]
        if one is not group[-1]:
            return False
        return not any((cell, other.name) in self._patience for other in others)

    def _is_due(self, cell: Cell, one: Observer[Any], newest: int) -> bool:
        patience = self._patience.get((cell, one.name))
        return patience is None or newest > patience.ts or time.monotonic() >= patience.due

    def _fail(self, one: Observer[Any], cell: Cell, notified: list[int], story: str) -> None:
        """Note a failure: try again later, or set the observer aside on this cell (rule N5)."""
        options = self._options
        self.metrics.failures.labels(one.name).inc()
        newest = max(notified)
        patience = self._patience.setdefault((cell, one.name), _Patience())
        if newest > patience.ts:
            patience.attempts, patience.ts = 0, newest
        patience.attempts += 1
        wait = backoff(
            random,  # type: ignore[arg-type]
            patience.attempts,
            first=options.first_wait,
            most=options.longest_wait,
        )
        patience.due = time.monotonic() + wait
        if patience.attempts < options.attempts:
            return
        self._set_aside(one, cell, notified, story, patience.attempts)
        self._patience.pop((cell, one.name), None)

    def _set_aside(
        self, one: Observer[Any], cell: Cell, notified: list[int], story: str, attempts: int
    ) -> None:
        last_line = story.strip().splitlines()[-1]
        log.error("%s was set aside on %s: %s", one.name, cell, last_line)
        self.metrics.set_aside.labels(one.name).inc()
        entry = {
            "observer": one.name,
            "column": cell.column.decode(),
            "attempts": attempts,
            "at_ms": self._services.clock.wall_ms(),
            "error": last_line,
            "traceback": story,
        }
        column = failed_column(one.name, cell.column)
        changes: list[Put | Delete] = [
            Put(Kind.FAILED, column, FAILED_TS, json.dumps(entry).encode())
        ]
        changes += [Delete(Kind.NOTIFY, cell.column, ts) for ts in notified]
        self._services.store.mutate([RowMutation(cell.table, cell.row, (), changes)])

    def _watch(self) -> None:
        """Set aside what runs for longer than it may, and put a fresh thread in its place."""
        now = time.monotonic()
        with self._guard:
            late = [
                run
                for run in self._running.values()
                if now - run.began > self._options.timeout and not run.abandoned
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
            self.metrics.failures.labels(run.observer.name).inc()
            self._set_aside(run.observer, run.cell, run.notified, story, 1)
            self._services.coordination.unlock(run.cell.table, run.cell.row)
            self._threads.remove(run.thread)
            self._start_thread()


def _random_key(start: bytes, end: bytes, chance: random.Random) -> bytes:
    """A key somewhere between two keys, past what they have in common."""
    shared = 0
    while shared < min(len(start), len(end)) and start[shared] == end[shared]:
        shared += 1
    low = int.from_bytes(start[shared : shared + 8].ljust(8, b"\0"), "big")
    high = int.from_bytes((end[shared : shared + 8] or b"\xff" * 8).ljust(8, b"\0"), "big")
    if low >= high:
        return start
    return (end or start)[:shared] + chance.randint(low, high).to_bytes(8, "big")
