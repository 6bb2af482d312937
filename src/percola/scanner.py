"""§2.4 Scanning: one look round the tables for dirty cells, and what it runs there.

    a random tablet, a random key          (N7: scanners spread out)
      │  notify entries in order           (N6: what is clean costs nothing)
      ▼
    row locked by another scanner? ─────▶  jump to another random place
      │
      ▼
    the row's observers (`percola.runs`)
      │
      ▼
    two seconds of work are over ───────▶  another table's turn; this one goes on where it was

Rows are few of all the keys that could be, and most of these fall before the first row of a tablet
or behind the last: so a random key is one between rows that this scanner has seen dirty, once it
has seen any. Where there is always more to do than can be done, beginning anew each time would
leave the rest of a tablet to itself.

Columns whose observers may be put off (`Observer.defer`) are left out, but for a pass over them
alone when that time is over, or when the others have been clean for a quarter of a second: a gap in
a stream of changes is no rest. Then they get some seconds, in short passes with a look at the
others between them: what these find is mostly what the deferred ones have changed. One whose
observer may take only a share of the time (`Observer.share`) rests after each run, but for as long
as nothing else is found to do. Those that run apart (`Observer.apart`) are left to a scanner of
their own, in the worker that was first to claim them by an advisory lock.

A pass that finds nothing looks for the locks of the dead now and then: a transaction that died
past its commit point owes its notify entries to whoever rolls it forward (rule N1).

Nothing here waits and nothing starts a thread: `Scanner.look` goes round once and says for how
long there is nothing to do. `percola.worker` calls it from threads, and sleeps to the bell.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from percola.cells import Cell, Kind
from percola.errors import StoreError
from percola.metrics import WorkerMetrics
from percola.observers import Observers
from percola.runs import Found, GivenUpError, Row, Runs, WorkerOptions
from percola.snapshot import Services

log = logging.getLogger("percola.worker")

_CHUNK: Final = 64
_STINT: Final = 2.0  # seconds
_SHORT_STINT: Final = 0.2
_QUIET: Final = 0.25
_QUIET_LASTS: Final = 4.0
_BUSY_WAIT: Final = 0.02
_TELEPORTS: Final = 4

Address = tuple[str, bytes]
"""A column: its table's name, and its key."""

_NONE: Final[frozenset[Address]] = frozenset()


class Sweep:
    """What is left to do on the columns that a worker observes; for all of its scanners.

    Attributes:
        ending: the worker is only waiting for the end of all work, deferred work included.

    Args:
        every: seconds between looks for the locks of the dead.
        ring: called when settling a lock may have put a notify entry.
    """

    def __init__(
        self, services: Services, observers: Observers, every: float, ring: Callable[[], None]
    ) -> None:
        self._services = services
        self._observers = observers
        self._every = every
        self._ring = ring
        self._guard = threading.Lock()
        self._swept = services.clock.monotonic()
        self._deferred = dict.fromkeys(observers.deferred, self._swept)
        self._worked = -math.inf
        self._quiet_until = -math.inf
        self._rested: dict[Address, float] = {}
        self._busy: set[Scanner] = set()
        self._claims: set[Address] = set()
        self.ending = False

    def is_idle(self) -> bool:
        """Whether no notify entry is left for these observers, in the whole repository.

        An entry goes only after its observer's commit, so a run under way counts as work; so
        does a lock on an observed cell, for its notify entry comes when it is resolved.
        """
        # The locks before the notify entries: a commit in between is then seen as an entry.
        return self._services.oracle.at_one_moment(
            lambda: not (self._is_dirty() or self.finish_the_dead() or self._is_dirty())
        )

    def is_due(self) -> bool:
        """Whether it is time to look for the locks of the dead; true once each time."""
        now = self._services.clock.monotonic()
        with self._guard:
            if now - self._swept < self._every:
                return False
            self._swept = now
            return True

    def overdue(self) -> frozenset[Address]:
        """The columns that have been put off for as long as they may; true once each time."""
        if not self._deferred:
            return _NONE
        now = self._services.clock.monotonic()
        with self._guard:
            found = [
                address
                for address, seconds in self._observers.deferred.items()
                if now - self._deferred[address] >= seconds
            ]
            self._deferred.update(dict.fromkeys(found, now))
        return frozenset(found)

    def note_work(self) -> None:
        """There was something to do that may not be put off."""
        self._worked = self._services.clock.monotonic()

    def quiet_in(self) -> float:
        """Seconds until what was put off may be done, if nothing else comes; 0 for at once."""
        now = self._services.clock.monotonic()
        if self.ending or now < self._quiet_until:
            return 0.0
        return max(0.0, self._worked + _QUIET - now)

    def note_quiet(self) -> None:
        """What was put off is begun: it may go on for a while, though it makes work for others."""
        now = self._services.clock.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_LASTS

    def note_busy(self, scanner: Scanner, *, busy: bool) -> None:
        """Whether a scanner found something to do when it went round last."""
        with self._guard:
            (self._busy.add if busy else self._busy.discard)(scanner)

    def claimed(self) -> frozenset[Address]:
        """The columns of observers that run apart which are this worker's to look after.

        A worker takes what no other has, and keeps it until it stops: the others stand by.
        """
        for address in self._observers.apart - self._claims:
            if self._services.coordination.try_lock(*_claim(address)):
                self._claims.add(address)
        return frozenset(self._claims)

    def disclaim(self) -> None:
        """Leave what runs apart to other workers; idempotent."""
        while self._claims:
            self._services.coordination.unlock(*_claim(self._claims.pop()))

    def note_run(self, address: Address, seconds: float) -> None:
        """The observers of a column that may take only a share of the time took so many."""
        share = self._observers.sharing[address]
        rested = self._services.clock.monotonic() + seconds * (1 / share - 1)
        with self._guard:
            self._rested[address] = max(rested, self._rested.get(address, rested))

    def rests_for(self, columns: frozenset[Address]) -> float:
        """Seconds until one of some columns may take more of the time; 0 if one may at once.

        They all may while no other scanner of this worker finds anything to do.
        """
        if self.ending or not self._busy or not columns <= self.resting():
            return 0.0
        now = self._services.clock.monotonic()
        with self._guard:
            return max(0.0, min(self._rested.get(one, now) for one in columns) - now)

    def resting(self) -> frozenset[Address]:
        """The columns that have taken their share of the time for now."""
        if not self._rested:
            return _NONE
        now = self._services.clock.monotonic()
        with self._guard:
            for address in [one for one, rested in self._rested.items() if rested <= now]:
                del self._rested[address]
            return frozenset(self._rested)

    def finish_the_dead(self) -> bool:
        """Settle dead transactions' locks on observed cells; whether there were any locks."""
        found = settled = False
        for cell, start_ts, raw in self._observed(Kind.LOCK):
            found = True
            settled |= self._services.resolver.try_resolve(cell, start_ts, raw)
        if settled:
            self._ring()
        return found

    def _is_dirty(self) -> bool:
        return any(True for _ in self._observed(Kind.NOTIFY))

    def _observed(self, kind: Kind) -> Iterator[tuple[Cell, int, bytes]]:
        """All entries of a kind on the columns that this worker observes."""
        for table in self._observers.tables:
            # Whether there is any is the usual question: the first call asks for one.
            entries = self._services.store.walk_kind(kind, table, first=1)
            yield from (entry for entry in entries if self._observers.of(entry[0]))


class Scanner:
    """One scanner of a worker: it looks for dirty cells and runs their observers.

    Args:
        runs: runs the observers; shared by the worker's scanners, as `sweep` is. While
            `runs.stopping` is set, a pass ends at the next row.
        chance: where to begin, and where to jump to.
        apart: look after what runs apart, and nothing else; without it, after all else.
    """

    def __init__(
        self,
        services: Services,
        observers: Observers,
        metrics: WorkerMetrics,
        options: WorkerOptions,
        runs: Runs,
        sweep: Sweep,
        chance: random.Random,
        *,
        apart: bool = False,
    ) -> None:
        self._services = services
        self._observers = observers
        self._metrics = metrics
        self._apart = apart
        self._options = options
        self._runs = runs
        self._sweep = sweep
        self._chance = chance
        self._misfortunes = 0
        self._left: dict[str, bytes] = {}
        self._seen: dict[str, tuple[bytes, bytes]] = {}  # The first dirty row, and the last.
        # A batch is of rows that were found together.
        self._chunk = max([_CHUNK, *(one.batch for one in observers)])

    def look(self) -> float:
        """Go round once, and run what is dirty; seconds until it is worth looking again.

        0 says that there may be more to do at once; a bell may ring before the time is over.

        Raises:
            GivenUpError: an observer took too long, and another scanner has taken this one's
                place (`Runs.give_up_late`).
            StoreError: the store has failed `WorkerOptions.attempts` times in a row.
        """
        try:
            if self._apart:
                found, rest = self._pass_apart()
            else:
                found, rest = self._passes(), 0.0
                if Found.RAN not in found and self._sweep.is_due():
                    # Notify entries, if its settling brought any, stand there now.
                    found |= Found.RAN if self._sweep.finish_the_dead() else Found.NOTHING
                self._sweep.note_busy(self, busy=Found.RAN in found)
            self._misfortunes = 0
        except GivenUpError:
            self._sweep.note_busy(self, busy=False)
            raise
        except StoreError as error:
            self._misfortunes += 1
            log.warning("scanning failed: %s", error)
            if self._misfortunes >= self._options.attempts:
                raise
            found, rest = Found.NOTHING, 0.0
        if Found.RAN in found:
            return 0.0
        wait = rest or self._options.rescan
        if Found.HELD in found:
            wait = min(wait, _BUSY_WAIT)
        if self._observers.deferred:
            wait = min(wait, self._sweep.quiet_in() or wait)
        if Found.LATER in found:
            wait = min(wait, max(_BUSY_WAIT, self._runs.patience.until_due()))
        return wait

    def _pass_apart(self) -> tuple[Found, float]:
        """Go round what runs apart and is this worker's; and seconds for which it may not."""
        columns = self._sweep.claimed()
        if not columns:
            return Found.NOTHING, 0.0
        rest = self._sweep.rests_for(columns)
        if rest:
            return Found.NOTHING, rest
        return self._pass(columns - self._sweep.resting() or columns), 0.0

    def _passes(self) -> Found:
        """Go round what may not be put off, or is not any longer; if that is clean, the rest."""
        if overdue := self._sweep.overdue():
            return self._pass(overdue)
        resting = self._sweep.resting()
        found = self._pass(self._observers.prompt - resting)
        if resting and not found & (Found.RAN | Found.HELD) and not self._runs.stopping:
            found |= self._pass(self._observers.prompt & resting)
        deferred = self._observers.deferred
        if deferred and found & (Found.RAN | Found.HELD):
            self._sweep.note_work()
        elif deferred and not self._sweep.quiet_in() and not self._runs.stopping:
            # Not for long: what comes meanwhile, and may not be put off, shall not wait for it.
            self._sweep.note_quiet()
            found |= self._pass(frozenset(deferred), _SHORT_STINT)
        return found

    def _pass(self, columns: frozenset[Address], stint: float = _STINT) -> Found:
        """Go once round the tables from a random one, and run what is dirty in these columns.

        Where another scanner is met, it jumps to another random place; having done so a few
        times for nothing, it goes round once more, past the others.
        """
        found = Found.NOTHING
        tables = sorted({table for table, _ in columns})
        if not tables:
            return found
        until = self._services.clock.monotonic() + stint
        for jump in range(_TELEPORTS + 1):
            first = self._chance.randrange(len(tables))
            stop_at_others = jump < _TELEPORTS
            met = False
            for table in tables[first:] + tables[:first]:
                for start, end in self._ranges(table):
                    outcome = self._scan_range(columns, table, start, end, stop_at_others, until)
                    found |= outcome
                    met = stop_at_others and Found.HELD in outcome
                    if met or self._runs.stopping:
                        break
                    if Found.RAN in found and self._services.clock.monotonic() > until:
                        # The next stint may be another table's: none waits for another's end.
                        return found
                if met or self._runs.stopping:
                    break
            if not met or self._runs.stopping:
                return found
            self._metrics.teleports.inc()
            if Found.RAN in found:
                return found
        return found

    def _ranges(self, table: str) -> list[tuple[bytes, bytes]]:
        """The whole table and round: from where a stint has ended, else from a random key."""
        start = self._left.pop(table, None)
        if start is None:
            tablet = self._chance.choice(self._services.store.tablets(table))
            low, high = tablet.start, tablet.end
            if seen := self._seen.get(table):
                first, last = max(low, seen[0]), min(high or seen[1], seen[1])
                low, high = (first, last) if first < last else (low, high)
            start = _random_key(low, high, self._chance)
        return [(start, b""), (b"", start)] if start else [(b"", b"")]

    def _scan_range(
        self,
        columns: frozenset[Address],
        table: str,
        start: bytes,
        end: bytes,
        stop_at_others: bool,
        until: float,
    ) -> Found:
        """Run what is dirty in a range, for a stint; on request, up to the first other scanner."""
        found = Found.NOTHING
        position: bytes | None = start
        store, coordination = self._services.store, self._services.coordination
        while position is not None and not self._runs.stopping:
            entries, position = store.scan_kind(Kind.NOTIFY, table, position, end, self._chunk)
            cells = [cell for cell, _, _ in entries if (cell.table, cell.column) in columns]
            ahead = dict.fromkeys(cells)  # What is dirty from here on, in order.
            if cells:
                first, last = self._seen.get(table, (cells[0].row, cells[0].row))
                self._seen[table] = min(first, cells[0].row), max(last, cells[-1].row)
            for row, group in itertools.groupby(cells, key=lambda cell: cell.row):
                if self._runs.stopping:
                    return found
                dirty = [cell for cell in dict.fromkeys(group) if cell in ahead]
                if not dirty:
                    continue
                if Found.RAN in found and self._services.clock.monotonic() > until:
                    self._left[table] = row
                    return found
                if not coordination.try_lock(table, row):
                    found |= Found.HELD
                    if stop_at_others:
                        return found
                    for cell in dirty:
                        del ahead[cell]
                    continue
                found |= self._work_row(table, row, dirty, ahead)
        return found

    def _work_row(
        self, table: str, row: bytes, dirty: list[Cell], ahead: dict[Cell, None]
    ) -> Found:
        """Run what is dirty in a row whose lock is held, perhaps together with rows ahead.

        What needs no further look is taken out of `ahead`.
        """
        found = Found.NOTHING
        held: list[Row] = [(table, row)]
        clock, sharing = self._services.clock, self._observers.sharing
        try:
            for cell in dirty:
                del ahead[cell]
                address = (table, cell.column)
                if address not in sharing:
                    found |= self._work_cell(cell, ahead, held)
                    continue
                began = clock.monotonic()
                found |= self._work_cell(cell, ahead, held)
                self._sweep.note_run(address, clock.monotonic() - began)
        except GivenUpError:
            # The locks are the successor's business by now.
            held = []
            raise
        finally:
            self._give_back(held)
        return found

    def _work_cell(self, cell: Cell, ahead: dict[Cell, None], held: list[Row]) -> Found:
        """Run the observers of a cell; those of rows ahead with it, where they take batches."""
        others = self._others(cell, ahead) if self._runs.takes_batches(cell) else []
        if others:
            done = self._runs.work_batch(self._joining(cell, others, held), held)
            self._give_back(held[1:])
            del held[1:]
            for one in done:
                ahead.pop(one, None)
            if cell in done:
                return Found.RAN
        return self._runs.work_cell(cell, held)

    def _others(self, cell: Cell, ahead: Iterable[Cell]) -> list[Cell]:
        """The cells ahead that may be answered together with this one."""
        return [one for one in ahead if one.column == cell.column and self._runs.takes_batches(one)]

    def _joining(self, cell: Cell, others: Iterable[Cell], held: list[Row]) -> Iterator[Cell]:
        """A cell whose row is locked, and then others of its column, each once it is locked too.

        Rows that another scanner works on are left out: their turn comes.
        """
        yield cell
        for other in others:
            if self._runs.stopping:
                return
            if self._services.coordination.try_lock(other.table, other.row):
                held.append((other.table, other.row))
                yield other

    def _give_back(self, rows: Iterable[Row]) -> None:
        for table, row in rows:
            self._services.coordination.unlock(table, row)


def _claim(address: Address) -> Row:
    """The advisory lock that says which worker looks after a column apart: no row's."""
    table, column = address
    return table, b"\0apart\0" + column


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
