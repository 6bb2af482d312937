"""§2.4 Scanning: one look round the tables for dirty cells, and what it runs there.

    a random tablet, a random key          (N7: scanners spread out)
      │  notify entries in order           (N6: what is clean costs nothing)
      ▼
    all its observers wait to retry? ───▶  skip it                  (N5: its entry says how long)
      │
      ▼
    row locked by another scanner? ─────▶  jump to another random place
      │
      ▼
    the row's observers (`percola.observers.runner`)
      │
      ▼
    two seconds of work are over ───────▶  another table's turn; this one goes on where it was

Where little is dirty, one call finds all of a table, and a scanner begins at a random row of it.
Elsewhere it begins at a random key of a random tablet: rows are few of all the keys that could be,
and most of these fall before the first row of a tablet or behind the last, so that it is a key
between rows that this scanner has seen dirty, once it has seen any. Where there is always more to
do than can be done, beginning anew each time would leave the rest of a tablet to itself.

A table in which nothing was left to do is left out until there is news of it: a commit of this
process says in which tables it notified somebody (`transactions.change_counts.ChangeCounts`). When
another process wakes it, and once a second in any case (`WorkerOptions.rescan`), all tables are
looked at.

Columns whose observers may be put off (`Observer.defer`) are left out, but for a pass over them
alone when that time is over, or when the others have been clean for a quarter of a second: a gap in
a stream of changes is no rest. One whose observer may take only a share of the time
(`Observer.share`) rests after each run, but for as long as nothing else is found to do. Those that
run apart (`Observer.apart`) are left to a scanner of their own, in the worker that was first to
claim them by an advisory lock.

A pass that finds nothing looks for the locks of the dead now and then: a transaction that died past
its commit point owes its notify entries to whoever rolls it forward (rule N1). Where notify entries
stand apart, it has put them before (`percola.store.remote.notify_table`), and nothing is looked
for.

Nothing here waits and nothing starts a thread: `Scanner.look` goes round once and says for how long
there is nothing to do. `percola.observers.worker` calls it from threads, and sleeps in between.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from percola.cells import Cell, Kind
from percola.errors import StoreError
from percola.observers.metrics import WorkerMetrics
from percola.observers.observer import Observers
from percola.observers.runner import Found, GivenUpError, Row, Runner, WorkerOptions
from percola.observers.schedule import Address, Sweep
from percola.transactions.snapshot import TransactionContext

log = logging.getLogger("percola.worker")

_CHUNK: Final = 64
_STINT: Final = 2.0  # seconds
_BUSY_WAIT: Final = 0.02
_TELEPORTS: Final = 4
_UNDONE: Final = Found.HELD | Found.LATER | Found.SOON


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
        context: TransactionContext,
        observers: Observers,
        metrics: WorkerMetrics,
        options: WorkerOptions,
        runs: Runner,
        sweep: Sweep,
        rng: random.Random,
        *,
        apart: bool = False,
    ) -> None:
        self._context = context
        self._observers = observers
        self._metrics = metrics
        self._apart = apart
        self._options = options
        self._runs = runs
        self._sweep = sweep
        self._rng = rng
        self._misfortunes = 0
        self._left: dict[str, bytes] = {}
        # Where nothing was left to do, with which news (of
        # `percola.transactions.change_counts.ChangeCounts`) of the table.
        self._done: dict[tuple[frozenset[Address], str], int] = {}
        self._seen_wake_ups, self._since = 0, -math.inf
        self._seen: dict[str, tuple[bytes, bytes]] = {}  # The first dirty row, and the last.
        self._next_attempt = math.inf  # Seconds until the first of those that this look has met.
        # A batch is of rows that were found together.
        self._chunk = max([_CHUNK, *(one.batch for one in observers)])

    def look(self) -> float:
        """Go round once, and run what is dirty; seconds until it is worth looking again.

        0 says that there may be more to do at once; a wake-up may come before the time is over.

        Raises:
            GivenUpError: an observer took too long, and another scanner has taken this one's
                place (`Runner.give_up_late`).
            StoreError: the store has failed `WorkerOptions.attempts` times in a row.
        """
        clock, rescan = self._context.clock, self._options.rescan
        self._next_attempt = math.inf
        wake_ups = self._sweep.wake_ups_by_others()
        anew = wake_ups != self._seen_wake_ups or clock.monotonic() - self._since >= rescan
        if anew:
            self._done.clear()
            self._seen_wake_ups = wake_ups
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
        if anew:
            self._since = clock.monotonic()
        if Found.RAN in found:
            return 0.0
        wait = rest or min(rescan, max(_BUSY_WAIT, self._since + rescan - clock.monotonic()))
        if found & (Found.HELD | Found.SOON):
            wait = min(wait, _BUSY_WAIT)
        if self._observers.deferred:
            wait = min(wait, self._sweep.quiet_in() or wait)
        if Found.LATER in found:
            wait = min(wait, max(_BUSY_WAIT, self._next_attempt))
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
            found |= self._pass(frozenset(deferred))
        return found

    def _pass(self, columns: frozenset[Address]) -> Found:
        """Go once round the tables from a random one, and run what is dirty in these columns.

        Where another scanner is met, it jumps to another random place; having done so a few
        times for nothing, it goes round once more, past the others.
        """
        found = Found.NOTHING
        change_counts = self._context.change_counts
        until = self._context.clock.monotonic() + _STINT
        for jump in range(_TELEPORTS + 1):
            tables = sorted(
                table
                for table in {table for table, _ in columns}
                if self._done.get((columns, table)) != change_counts.of(table)
            )
            if not tables:
                return found
            first = self._rng.randrange(len(tables))
            stop_at_others = jump < _TELEPORTS
            met = False
            for table in tables[first:] + tables[:first]:
                known = change_counts.of(table)
                outcome = self._scan_table(columns, table, stop_at_others, until)
                found |= outcome
                if not (outcome & _UNDONE or table in self._left or self._runs.stopping):
                    self._done[columns, table] = known
                met = _has_met(outcome, stop_at_others)
                if met or self._runs.stopping:
                    break
                if Found.RAN in found and self._context.clock.monotonic() > until:
                    # The next stint may be another table's: none waits for another's end.
                    return found
            if not met or self._runs.stopping:
                return found
            self._metrics.teleports.inc()
            if Found.RAN in found:
                return found
        return found

    def _scan_table(
        self, columns: frozenset[Address], table: str, stop_at_others: bool, until: float
    ) -> Found:
        """Run what is dirty all round a table: from where a stint has ended, else from anywhere."""
        how = (columns, table, stop_at_others, until)
        start = self._left.pop(table, None)
        if start is None:
            entries, more = self._context.store.scan_kind(Kind.NOTIFY, table, limit=self._chunk)
            if more is None:
                # Mostly little is dirty: that was all, in one call.
                first = self._rng.choice(entries)[0].row if entries else b""
                entries = sorted(entries, key=lambda entry: entry[0].row < first)
                return self._work_entries(*how, entries, Found.NOTHING)
            start = self._random_start(table)
        found = self._scan_range(*how, start, b"")
        if start and not (table in self._left or _has_met(found, stop_at_others)):
            if Found.RAN in found and self._context.clock.monotonic() > until:
                self._left[table] = b""
            else:
                found |= self._scan_range(*how, b"", start)
        return found

    def _random_start(self, table: str) -> bytes:
        tablet = self._rng.choice(self._context.store.tablets(table))
        low, high = tablet.start, tablet.end
        if seen := self._seen.get(table):
            first, last = max(low, seen[0]), min(high or seen[1], seen[1])
            low, high = (first, last) if first < last else (low, high)
        return _random_key(low, high, self._rng)

    def _scan_range(
        self,
        columns: frozenset[Address],
        table: str,
        stop_at_others: bool,
        until: float,
        start: bytes,
        end: bytes,
    ) -> Found:
        """Run what is dirty in a range, for a stint; on request, up to the first other scanner."""
        found = Found.NOTHING
        position: bytes | None = start
        while position is not None and not self._runs.stopping:
            entries, position = self._context.store.scan_kind(
                Kind.NOTIFY, table, position, end, self._chunk
            )
            found = self._work_entries(columns, table, stop_at_others, until, entries, found)
            if table in self._left or _has_met(found, stop_at_others):
                break
        return found

    def _work_entries(
        self,
        columns: frozenset[Address],
        table: str,
        stop_at_others: bool,
        until: float,
        entries: Sequence[tuple[Cell, int, bytes]],
        found: Found,
    ) -> Found:
        """Run what these notify entries tell of; together with what was `found` before."""
        cells = [entry for entry in entries if (entry[0].table, entry[0].column) in columns]
        ahead = _newest(cells)  # What is dirty from here on, in order.
        if cells:
            known = [cell.row for cell in ahead] + [*self._seen.get(table, ())]
            self._seen[table] = min(known), max(known)
        for row, found_in_row in itertools.groupby(list(ahead), key=lambda cell: cell.row):
            if self._runs.stopping:
                break
            dirty = []
            for cell in found_in_row:
                if (raw := ahead.get(cell)) is None:
                    continue  # A batch has answered it.
                group = self._observers.of(cell) if raw else ()
                if raw and (wait := self._runs.failures.seconds_to_wait(group, raw)):
                    found |= Found.LATER
                    self._next_attempt = min(self._next_attempt, wait)
                    del ahead[cell]
                else:
                    dirty.append(cell)
            if not dirty:
                continue
            if Found.RAN in found and self._context.clock.monotonic() > until:
                self._left[table] = row
                break
            if not self._context.coordination.try_lock(table, row):
                found |= Found.HELD
                if stop_at_others:
                    break
                for cell in dirty:
                    del ahead[cell]
                continue
            found |= self._work_row(table, row, dirty, ahead)
        return found

    def _work_row(
        self, table: str, row: bytes, dirty: list[Cell], ahead: dict[Cell, bytes]
    ) -> Found:
        """Run what is dirty in a row whose lock is held, perhaps together with rows ahead.

        What needs no further look is taken out of `ahead`.
        """
        found = Found.NOTHING
        held: list[Row] = [(table, row)]
        clock, sharing = self._context.clock, self._observers.sharing
        try:
            for cell in dirty:
                raw = ahead.pop(cell)
                address = (table, cell.column)
                shares = address in sharing
                began = clock.monotonic() if shares else 0.0
                outcome = self._work_cell(cell, raw, ahead, held)
                if shares:
                    self._sweep.note_run(address, clock.monotonic() - began)
                if Found.LATER in outcome:
                    # One that has failed just now has recorded when it is due: the next look sees.
                    wait = self._runs.failures.until_next_attempt(raw)
                    self._next_attempt = min(self._next_attempt, wait)
                found |= outcome
        except GivenUpError:
            # The locks are the successor's business by now.
            held = []
            raise
        finally:
            self._give_back(held)
        return found

    def _work_cell(
        self, cell: Cell, raw: bytes, ahead: dict[Cell, bytes], held: list[Row]
    ) -> Found:
        """Run the observers of a cell; those of rows ahead with it, where they take batches.

        What has failed before, as the value `raw` of its notify entry says, joins no batch.
        """
        batched = not raw and self._runs.takes_batches(cell)
        others = self._others(cell, ahead) if batched else []
        if others:
            done = self._runs.work_batch(self._joining(cell, others, held), held)
            self._give_back(held[1:])
            del held[1:]
            for one in done:
                ahead.pop(one, None)
            if cell in done:
                return Found.RAN
        return self._runs.work_cell(cell, held)

    def _others(self, cell: Cell, ahead: dict[Cell, bytes]) -> list[Cell]:
        """The cells ahead that may be answered together with this one."""
        return [
            one
            for one, raw in ahead.items()
            if one.column == cell.column and not raw and self._runs.takes_batches(one)
        ]

    def _joining(self, cell: Cell, others: Iterable[Cell], held: list[Row]) -> Iterator[Cell]:
        """A cell whose row is locked, and then others of its column, each once it is locked too.

        Rows that another scanner works on are left out: their turn comes.
        """
        yield cell
        for other in others:
            if self._runs.stopping:
                return
            if self._context.coordination.try_lock(other.table, other.row):
                held.append((other.table, other.row))
                yield other

    def _give_back(self, rows: Iterable[Row]) -> None:
        for table, row in rows:
            self._context.coordination.unlock(table, row)


def _newest(entries: Iterable[tuple[Cell, int, bytes]]) -> dict[Cell, bytes]:
    """The value of each cell's newest notify entry, the cells in order."""
    found: dict[Cell, bytes] = {}
    newest: dict[Cell, int] = {}
    for cell, ts, raw in entries:
        if ts > newest.get(cell, -1):
            newest[cell], found[cell] = ts, raw
    return found


def _has_met(found: Found, stop_at_others: bool) -> bool:
    """Whether another scanner is in the way, if it is to be got out of."""
    return stop_at_others and Found.HELD in found


def _random_key(start: bytes, end: bytes, rng: random.Random) -> bytes:
    """A key somewhere between two keys, past what they have in common."""
    shared = 0
    while shared < min(len(start), len(end)) and start[shared] == end[shared]:
        shared += 1
    low = int.from_bytes(start[shared : shared + 8].ljust(8, b"\0"), "big")
    high = int.from_bytes((end[shared : shared + 8] or b"\xff" * 8).ljust(8, b"\0"), "big")
    if low >= high:
        return start
    return (end or start)[:shared] + rng.randint(low, high).to_bytes(8, "big")
