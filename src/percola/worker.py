"""§2.4 The worker: threads that look for dirty cells and run observers on them.

Each thread scans the notify entries, a group of their own, so that looking costs in proportion
to what is dirty (rule N6). It starts at a random tablet and a random key, takes an advisory
lock for each dirty row, runs its observers (`percola.runs`), and jumps to another random place
when another scanner has the row: the paper's buses teleport instead of clumping (rule N7).

A pass that finds nothing waits for the bell: a commit in this process rings at once, one in
another process within milliseconds, and a slow scan makes up for what nobody heard.

A transaction that died past its commit point may have changed observed cells whose locks nobody
has met yet. Their notify entries come with the roll-forward (rule N1), so a worker looks for
locks too, rarely, and finishes what the dead have left.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from percola.cells import Cell, Kind
from percola.coordination.base import Coordination
from percola.errors import (
    ConflictingOptionsError,
    ObserverMismatchError,
    PercolaError,
    StoreError,
)
from percola.metrics import WorkerMetrics
from percola.observers import Observer, Observers
from percola.repository import Repository
from percola.runs import Found, GivenUpError, Runs, WorkerOptions

__all__ = ["Worker", "WorkerOptions"]

log = logging.getLogger("percola.worker")

_CHUNK: Final = 64
_STINT: Final = 2.0  # seconds
_LOOK: Final = 0.02
_BUSY_WAIT: Final = 0.02
_TELEPORTS: Final = 4


@dataclass
class _Shared:
    """What the threads of a worker share, under one condition."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    rings: int = 0
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
        self._services = repo.services
        self._observers = Observers(observers)
        if options is not None and fields:
            raise ConflictingOptionsError(
                f"A worker takes its options as WorkerOptions or by keyword ({', '.join(fields)}), "
                "not both."
            )
        self._options = options or WorkerOptions(**fields)
        self._options.check()
        for one in self._observers:
            repo.table(one.column.table.name).resolve(one.column.name)
        self.metrics = WorkerMetrics()
        self._shared = _Shared()
        self._threads: list[threading.Thread] = []
        self._runs = Runs(self._services, self._observers, self.metrics, self._options)
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._swept = time.monotonic()
        self._unlisten: Callable[[], None] | None = None
        self._announced = False
        self._failure: BaseException | None = None
        self._numbers = itertools.count(1)

    # --- Starting and stopping ----------------------------------------------------------

    def start(self) -> None:
        """Start the threads and return.

        Raises ObserverMismatchError if a live worker observes one of the columns otherwise.
        """
        coordination = self._services.coordination
        _announce(coordination, self._observers.announcement)
        self._announced = True
        self._unlisten = coordination.listen(self._ring)
        self._stopped.clear()
        self._runs.stopping = False
        threading.Thread(target=self._watch, name="percola-watch", daemon=True).start()
        for _ in range(self._options.threads):
            self._start_thread()

    def stop(self, *, wait: bool = True) -> None:
        """Let running observers finish, run no more; with `wait`, return when all have ended.

        Idempotent. An observer that does not end within its time limit is not waited for.
        """
        with self._shared.changed:
            self._shared.stopping = True
            self._shared.changed.notify_all()
        self._stopped.set()
        self._runs.stopping = True
        if wait:
            deadline = time.monotonic() + self._options.timeout
            for thread in list(self._threads):
                if thread is not threading.current_thread():
                    thread.join(max(0.0, deadline - time.monotonic()))
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if self._unlisten is not None:
                self._unlisten()
                self._unlisten = None
            if self._announced:
                self._announced = False
                _withdraw(self._services.coordination, self._observers.announcement)
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

        Cells on which an observer was set aside do not count: `percola.inspection.failures` lists
        them. It may be called again later.
        """
        self._work(self.is_idle)

    def _work(self, finished: Callable[[], bool]) -> None:
        done = False
        with self._signals():
            self.start()
            try:
                while not self._shared.stopping and not (done := finished()):
                    # Not the bell, which every commit rings: only the end is waited for here.
                    self._stopped.wait(_LOOK)
            finally:
                self.stop()
        if done:
            self._shared.stopping = False

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

        An entry goes only after its observer's commit, so a run under way counts as work; so
        does a lock on an observed cell, for its notify entry comes when it is resolved.
        """
        # The locks before the notify entries: a commit in between is then seen as an entry.
        return not (self._is_dirty() or self._finish_the_dead() or self._is_dirty())

    def _is_dirty(self) -> bool:
        return any(True for _ in self._observed(Kind.NOTIFY))

    def _finish_the_dead(self) -> bool:
        """Settle dead transactions' locks on observed cells; whether there were any locks."""
        found = settled = False
        for cell, start_ts, raw in self._observed(Kind.LOCK):
            found = True
            settled |= self._services.resolver.try_resolve(cell, start_ts, raw)
        if settled:
            self._ring()
        return found

    def _observed(self, kind: Kind) -> Iterator[tuple[Cell, int, bytes]]:
        """All entries of a kind on the columns that this worker observes."""
        for table in self._observers.tables:
            # Whether there is any is the usual question: the first call asks for one.
            entries = self._services.store.walk_kind(kind, table, first=1)
            yield from (entry for entry in entries if self._observers.of(entry[0]))

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
                idle = Found.RAN not in found
                if idle and self._is_time_to_sweep() and self._finish_the_dead():
                    continue
                misfortunes = 0
            except GivenUpError:
                return
            except StoreError as error:
                misfortunes += 1
                log.warning("scanning failed: %s", error)
                if misfortunes >= self._options.attempts:
                    self._end_with(error)
                    return
                found = Found.NOTHING
            except Exception as error:
                self._end_with(error)
                return
            if Found.RAN in found:
                continue
            wait = self._options.rescan
            if Found.HELD in found:
                wait = min(wait, _BUSY_WAIT)
            if Found.LATER in found:
                wait = min(wait, max(_BUSY_WAIT, self._runs.patience.until_due()))
            with self._shared.changed:
                if self._shared.rings == rings and not self._shared.stopping:
                    self._shared.changed.wait(wait)

    def _is_time_to_sweep(self) -> bool:
        with self._guard:
            now = time.monotonic()
            if now - self._swept < self._options.sweep:
                return False
            self._swept = now
            return True

    def _end_with(self, error: Exception) -> None:
        """Stop the worker; whoever runs or stops it gets the error."""
        self._failure = error
        self._shared.stopping = True
        self._ring()

    def _pass(self, chance: random.Random) -> Found:
        """Go once round the tables from a random place, and run what is dirty.

        Where another scanner is met, it jumps to another random place; having done so a few
        times for nothing, it goes round once more, past the others.
        """
        found = Found.NOTHING
        tables = self._observers.tables
        until = time.monotonic() + _STINT
        for jump in range(_TELEPORTS + 1):
            first = chance.randrange(len(tables))
            stop_at_others = jump < _TELEPORTS
            met = False
            for table in tables[first:] + tables[:first]:
                for start, end in self._ranges(table, chance):
                    outcome = self._scan_range(table, start, end, stop_at_others, until)
                    found |= outcome
                    met = stop_at_others and Found.HELD in outcome
                    if met or self._shared.stopping:
                        break
                if met or self._shared.stopping:
                    break
                if Found.RAN in found and time.monotonic() > until:
                    # The next stint begins elsewhere: no table waits for another to be clean.
                    return found
            if not met or self._shared.stopping:
                return found
            self.metrics.teleports.inc()
            if Found.RAN in found:
                return found
        return found

    def _ranges(self, table: str, chance: random.Random) -> list[tuple[bytes, bytes]]:
        """The whole table, beginning at a random key of a random tablet, and round."""
        tablet = chance.choice(self._services.store.tablets(table))
        start = _random_key(tablet.start, tablet.end, chance)
        return [(start, b""), (b"", start)] if start else [(b"", b"")]

    def _scan_range(
        self, table: str, start: bytes, end: bytes, stop_at_others: bool, until: float
    ) -> Found:
        """Run what is dirty in a range, for a stint; on request, up to the first other scanner."""
        found = Found.NOTHING
        position: bytes | None = start
        store = self._services.store
        while position is not None and not self._shared.stopping:
            entries, position = store.scan_kind(Kind.NOTIFY, table, position, end, _CHUNK)
            for row, group in itertools.groupby(entries, key=lambda entry: entry[0].row):
                if self._shared.stopping:
                    return found
                dirty = dict.fromkeys(cell for cell, _, _ in group if self._observers.of(cell))
                if not dirty:
                    continue
                if Found.RAN in found and time.monotonic() > until:
                    return found
                if not self._services.coordination.try_lock(table, row):
                    found |= Found.HELD
                    if stop_at_others:
                        return found
                    continue
                try:
                    for cell in dirty:
                        found |= self._runs.work_cell(cell)
                finally:
                    if threading.current_thread() in self._threads:
                        self._services.coordination.unlock(table, row)
        return found

    # --- Watching -----------------------------------------------------------------------

    def _watch(self) -> None:
        """Give up observers that run for too long, and put fresh threads in their place."""
        period = min(1.0, self._options.timeout / 4)
        while not self._stopped.wait(period):
            try:
                for thread, cell in self._runs.give_up_late():
                    self._threads.remove(thread)
                    self._services.coordination.unlock(cell.table, cell.row)
                    self._start_thread()
            except Exception as error:
                self._end_with(error)
                return


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


# --- What this process announces: the observers of all its workers ------------------------

_announcing = threading.Lock()
_announced: weakref.WeakKeyDictionary[Coordination, list[dict[str, list[str]]]] = (
    weakref.WeakKeyDictionary()
)

os.register_at_fork(after_in_child=_announced.clear)


def _announce(coordination: Coordination, mine: dict[str, list[str]]) -> None:
    with _announcing:
        others = _announced.setdefault(coordination, [])
        for column, names in mine.items():
            for other in others:
                if sorted(other.get(column, names)) != sorted(names):
                    raise ObserverMismatchError(
                        f"Another worker of this process observes {column} with "
                        f"{', '.join(other[column])}, and this one with {', '.join(names)}. All "
                        "workers of a repository run the same observers on a column."
                    )
        coordination.announce_observers(_merged([*others, mine]))
        others.append(mine)


def _withdraw(coordination: Coordination, mine: dict[str, list[str]]) -> None:
    with _announcing:
        others = _announced.setdefault(coordination, [])
        if mine in others:
            others.remove(mine)
            with contextlib.suppress(PercolaError, OSError):  # It may be closed by now.
                coordination.announce_observers(_merged(others))


def _merged(announcements: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    return {column: names for one in announcements for column, names in one.items()}
