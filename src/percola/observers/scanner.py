"""§2.4 Scanning: one pass over the tables for dirty cells, running their observers.

    a random tablet, a random key          (N7: scanners spread out)
      │  notify entries in order           (N6: clean cells cost nothing)
      ▼
    all its observers in back-off? ─────▶  skip it                  (N5: its entry has the time)
      │
      ▼
    row locked by another scanner? ─────▶  jump to another random place
      │
      ▼
    the row's observers (`percola.observers.runner`)
      │
      ▼
    time slice of two seconds over ─────▶  another table's turn; this one resumes at its position

If little is dirty, one call returns all notify entries of a table, and the scanner begins at a
random one of them. Otherwise it begins near a random key of a random tablet. Rows fill little of
the key space, and most keys lie before the first row of a tablet or after the last, so once the
scanner has seen dirty rows, it picks a key between the first and the last of them. Rows also stand
in clumps, and most keys lie between two of these: so it begins at a random one of the next entries,
or all scanners would meet at the first rows of clumps, and hardly get to the last. It resumes from
its position: under permanent overload, a new random start each time would starve the rest of a
tablet.

A table in which nothing was left to do is skipped until there is a wake-up about it, by this
process or another; then only the rows that the wake-up names are scanned, and those in which
something was left. Once a second in any case (`WorkerOptions.rescan`), all tables are scanned, by
one of the worker's scanners: they share what they have found clean
(`percola.observers.clean_tables`). Where such a scan takes long, as it does with many tablets, the
next one is put off by up to a minute: if nothing is found, they take a tenth of the thread's time.

A column all of whose observers are paused (`percola.observers.pausing`) is skipped, and so is a
table with no other one. Where the scan has to go over cells that wait for a paused observer, since
the table has work for others, it takes larger steps over them.

Debounced columns (`Observer.defer`) are skipped until their time is over or the other columns have
been clean for a quarter of a second, since a short gap in a stream of changes is not idleness; then
a pass scans them alone. A column with a cap on worker time (`Observer.share`) is skipped for a
while after each run, unless there is nothing else to do. Columns on a dedicated thread
(`Observer.dedicated`) are left to a separate scanner, in the worker that was first to claim them by
an advisory lock.

A pass that finds nothing scans for the locks of dead transactions now and then: if a transaction
died past its commit point, the client that rolls it forward puts its notify entries (rule N1). With
a separate notify table (`percola.store.remote.notify_table`), these entries were put before the
commit point, and no scan is needed.

Rows of a column with an order (`Observer.order`) are scanned up to `_ORDERED` at a time, put into
that order, and scanned and ordered anew when the time slice ends. A column that has reached its
limit of runs (`Observer.rate`) is skipped until the next one may begin.

Nothing here waits and nothing starts a thread: `Scanner.look` makes one round and returns for how
long there is nothing to do. `percola.observers.worker` calls it from threads, and sleeps in
between.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
import random
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import TYPE_CHECKING, Final

from percola.cells import Cell, Kind
from percola.coordination.wake_ups import ROW_BYTES
from percola.errors import StoreError
from percola.observers.failures import Story, has_failed
from percola.observers.observer import Observers
from percola.observers.pausing import NOBODY
from percola.observers.runner import Found, GivenUpError, Row, Runner, WorkerOptions
from percola.observers.schedule import LONGEST_REST, RESTS, Address, Schedule
from percola.transactions.context import TransactionContext
from percola.transactions.snapshot import Snapshot, after_prefix

if TYPE_CHECKING:
    from percola.observers.metrics import WorkerMetrics

log = logging.getLogger("percola.worker")

_CHUNK: Final = 64
_ORDERED: Final = 10_000
_STINT: Final = 2.0  # seconds
_BUSY_WAIT: Final = 0.02
_MOST_IN_VAIN: Final = 16
_LONGEST_STEP: Final = 1024
_TELEPORTS: Final = 4
_TABLETS: Final = 60.0
"""For how many seconds a scanner remembers the tablets of a table."""
_NONE: Final[frozenset[Address]] = frozenset()
_UNDONE: Final = Found.HELD | Found.LATER | Found.SOON


class Scanner:
    """One scanner of a worker: it finds dirty cells and runs their observers.

    Args:
        runs: runs the observers; shared by the worker's scanners, as `schedule` is. While
            `runs.stopping` is set, a pass ends at the next row.
        rng: chooses where to begin, and where to jump to.
        dedicated: scan only the columns on a dedicated thread; if False, only the others.
    """

    def __init__(
        self,
        context: TransactionContext,
        observers: Observers,
        metrics: WorkerMetrics,
        options: WorkerOptions,
        runs: Runner,
        schedule: Schedule,
        rng: random.Random,
        *,
        dedicated: bool = False,
    ) -> None:
        self._context = context
        self._observers = observers
        self._metrics = metrics
        self._dedicated = dedicated
        self._options = options
        self._runs = runs
        self._schedule = schedule
        self._rng = rng
        self._misfortunes = 0
        self._in_vain = 0  # Looks in a row that found nothing but rows of other scanners.
        # Where each table's next time slice resumes; None: from another place.
        self._left: dict[str, bytes | None] = {}
        self._clean = schedule.clean
        self._seen_calls = 0
        self._seen: dict[str, tuple[bytes, bytes]] = {}  # The first dirty row, and the last.
        # Of the scan of a table: rows in which there is more to do; whether it was cut short; and
        # whether other rows that it was told of are still ahead.
        self._undone: set[bytes] = set()
        self._is_cut = self._has_more = False
        self._starts: dict[str, tuple[float, list[bytes]]] = {}
        self._next_attempt = math.inf  # Seconds until the earliest attempt met in this round.
        self._tried = 0  # Rows with something to run.
        self._paused, self._asleep = NOBODY, _NONE
        # The rows of a batch come from one chunk.
        self._chunk = max([_CHUNK, *(one.batch for one in observers)])

    @property
    def is_well(self) -> bool:
        """Whether the last look did not fail."""
        return not self._misfortunes

    def look(self) -> float:
        """Scan once and run what is dirty; return the seconds until the next scan is due.

        0 means that there may be more to do at once; a wake-up may arrive before the time is over.

        Raises:
            GivenUpError: an observer took too long, and another scanner has replaced this one
                (`Runner.give_up_late`).
            StoreError: the store has failed `WorkerOptions.attempts` times in a row.
        """
        clock, rescan = self._context.clock, self._options.rescan
        self._next_attempt = math.inf
        calls, began = self._clean.calls, clock.monotonic()
        is_called, self._seen_calls = calls != self._seen_calls, calls
        has_turn = self._clean.take_turn(began)
        try:
            self._note_paused(anew=is_called)  # Which a pause does.
            if self._dedicated:
                found, rest = self._pass_dedicated()
            else:
                found, rest = self._passes(), 0.0
                if Found.RAN not in found and self._schedule.is_due():
                    # Settling the locks may have put notify entries.
                    found |= Found.RAN if self._schedule.finish_the_dead() else Found.NOTHING
                self._schedule.note_busy(self, busy=Found.RAN in found)
            self._misfortunes = 0
        except GivenUpError:
            self._schedule.note_busy(self, busy=False)
            raise
        except StoreError as error:
            self._misfortunes += 1
            log.warning("scanning failed: %s", error)
            if self._misfortunes >= self._options.attempts:
                raise
            found, rest, has_turn = Found.NOTHING, 0.0, False  # It may have waited for the store.
        now = clock.monotonic()
        if has_turn and Found.RAN not in found:
            self._clean.put_off(now + min(LONGEST_REST, RESTS * (now - began)))
        if Found.RAN in found:
            self._in_vain = 0
            return 0.0
        # At least once per `rescan`, as observers may be resumed.
        wait = rest or min(rescan, max(_BUSY_WAIT, self._clean.next_turn() - now))
        if found & (Found.SOON | Found.ELSEWHERE):
            wait = min(wait, _BUSY_WAIT)
        elif Found.HELD in found:
            # The run there may take minutes, and ends with a look of its own scanner.
            wait = min(wait, _BUSY_WAIT * 2**self._in_vain)
        self._in_vain = min(self._in_vain + 1, _MOST_IN_VAIN) if Found.HELD in found else 0
        if self._observers.deferred:
            wait = min(wait, self._schedule.quiet_in() or wait)
        if Found.LATER in found:
            wait = min(wait, max(_BUSY_WAIT, self._next_attempt))
        return wait

    def _note_paused(self, *, anew: bool) -> None:
        """Read which observers are paused; if others than before are, every table is due."""
        paused = self._runs.paused.names(anew=anew)
        if paused != self._paused:
            self._paused = paused
            self._asleep = self._observers.all_among(paused)
            self._clean.forget()

    def _pass_dedicated(self) -> tuple[Found, float]:
        """Scan the columns on the dedicated thread; return also the seconds they must rest."""
        columns = self._schedule.claimed()
        if not columns:
            return Found.NOTHING, 0.0
        rest = self._schedule.rests_for(columns)
        if rest:
            return Found.NOTHING, rest
        return self._pass(columns - self._schedule.resting() or columns), 0.0

    def _passes(self) -> Found:
        """Scan overdue debounced columns, then the prompt ones; if those are clean, the rest."""
        found = Found.NOTHING
        if overdue := self._schedule.overdue():
            found = self._pass(overdue)
            if Found.RAN in found:
                return found  # The next look, which follows at once, is not overdue.
        # Then the prompt ones: every look may be overdue if nothing wakes the worker.
        resting = self._schedule.resting()
        found |= self._pass(self._observers.prompt - resting)
        busy = Found.RAN | Found.HELD | Found.ELSEWHERE
        if resting and not found & busy and not self._runs.stopping:
            found |= self._pass(self._observers.prompt & resting)
        deferred = self._observers.deferred
        if deferred and found & (Found.RAN | Found.HELD):
            self._schedule.note_work()
        elif deferred and not (found & busy or self._schedule.quiet_in() or self._runs.stopping):
            found |= self._pass(frozenset(deferred))
        return found

    def _pass(self, columns: frozenset[Address]) -> Found:
        """Scan all tables once, from a random one, and run what is dirty in these columns.

        On meeting another scanner, it jumps to another random place; after a few jumps without
        success, it scans once more and skips the rows locked by others.
        """
        found = Found.NOTHING
        columns -= self._asleep
        until = self._context.clock.monotonic() + _STINT
        for jump in range(_TELEPORTS + 1):
            tables = sorted(
                table
                for table in {table for table, _ in columns}
                if self._clean.is_due(columns, table)
            )
            if not tables:
                return found
            first = self._rng.randrange(len(tables))
            stop_at_others = jump < _TELEPORTS
            met = False
            for table in tables[first:] + tables[:first]:
                look = self._clean.begin(columns, table, self)
                if look is None:
                    found |= Found.ELSEWHERE
                    continue
                left = None
                try:
                    outcome = self._scan_table(columns, table, look.rows, stop_at_others, until)
                    met = _has_met(outcome, stop_at_others)
                    if not (met or self._is_cut or table in self._left or self._runs.stopping):
                        left = frozenset(row[:ROW_BYTES] for row in self._undone)
                finally:
                    self._clean.end(columns, table, self, look, left)
                found |= outcome
                if met or self._runs.stopping:
                    break
                if Found.RAN in found and self._context.clock.monotonic() > until:
                    # The next time slice may be another table's: no table waits for another's end.
                    return found
            if not met or self._runs.stopping:
                return found
            self._metrics.teleports.inc()
            if Found.RAN in found:
                return found
        return found

    def _scan_table(
        self,
        columns: frozenset[Address],
        table: str,
        rows: Set[bytes] | None,
        stop_at_others: bool,
        until: float,
    ) -> Found:
        """Run what is dirty in a table, from where a time slice ended or else a random place.

        If `rows` are given, and no time slice was over, it is all in these.
        """
        how = (columns, table, stop_at_others, until)
        mine = {address for address in columns if address[0] == table}
        self._undone = set()
        self._is_cut = self._has_more = False
        if wait := self._schedule.begins_in(mine):
            self._is_cut = True
            return self._later(wait)
        if rows is not None and table not in self._left:
            return self._scan_rows(*how, rows)
        start = self._left.pop(table, None)
        if start is None:
            entries, more = self._newest(table, limit=self._chunk_of(mine))
            if more is None:
                # Usually little is dirty: one call has returned all of it.
                first = self._rng.choice(entries)[0].row if entries else b""
                entries = sorted(entries, key=lambda entry: entry[0].row < first)
                return self._work_entries(*how, entries, Found.NOTHING)
            start = self._random_start(table, entries)
        found = self._scan_range(*how, start, b"")
        if start and not (table in self._left or _has_met(found, stop_at_others)):
            if Found.RAN in found and self._context.clock.monotonic() > until:
                self._left[table] = b""
            else:
                found |= self._scan_range(*how, b"", start)
        return found

    def _scan_rows(
        self,
        columns: frozenset[Address],
        table: str,
        stop_at_others: bool,
        until: float,
        rows: Set[bytes],
    ) -> Found:
        """Run what is dirty in these rows, in random order of tablets: each takes one call."""
        found = Found.NOTHING
        starts = self._starts_of(table) if len(rows) > 1 else []
        grouped: dict[int, list[bytes]] = {}
        for row in rows:
            grouped.setdefault(bisect.bisect_right(starts, row), []).append(row)
        tablets = list(grouped.values())
        self._rng.shuffle(tablets)
        for number, tablet in enumerate(tablets, 1):
            self._has_more = number < len(tablets)
            first, last = min(tablet), max(tablet)
            # Of a row that is as long as this a wake-up may have only the beginning.
            end = after_prefix(last) if len(last) >= ROW_BYTES else last + b"\0"
            found |= self._scan_range(columns, table, stop_at_others, until, first, end)
            if table in self._left or _has_met(found, stop_at_others) or self._runs.stopping:
                break
        return found

    def _starts_of(self, table: str, *, anew: bool = False) -> list[bytes]:
        """Where the tablets of a table start, but for the first.

        As it was a minute ago or less, unless it is asked `anew`.
        """
        now = self._context.clock.monotonic()
        known_until, starts = self._starts.get(table, (-math.inf, []))
        if anew or now >= known_until:
            starts = sorted(one.start for one in self._context.store.tablets(table) if one.start)
            self._starts[table] = now + _TABLETS, starts
        return starts

    def _random_start(self, table: str, entries: Sequence[tuple[Cell, int, bytes]]) -> bytes:
        """A random dirty row near a random key; `entries` are the table's first notify entries."""
        # Without a network between, it costs next to nothing to ask.
        bounds = [b"", *self._starts_of(table, anew=self._context.prefetch is None), b""]
        start, end = low, high = self._rng.choice([*itertools.pairwise(bounds)])
        if seen := self._seen.get(table):
            first, last = max(low, seen[0]), min(high or seen[1], seen[1])
            low, high = (first, last) if first < last else (low, high)
        key = _random_key(low, high, self._rng)
        most = self._chunk
        near = self._newest(table, key, end, most)[0]
        if len(near) < most:  # Or the last rows of a tablet would be begun at more often.
            near += self._newest(table, start, key, most - len(near))[0]
        # From the end of a tablet without dirty rows all would go to the very first ones.
        near = near or [*entries]
        return self._rng.choice(near)[0].row if near else key

    def _scan_range(
        self,
        columns: frozenset[Address],
        table: str,
        stop_at_others: bool,
        until: float,
        start: bytes,
        end: bytes,
    ) -> Found:
        """Run what is dirty in a range until the time slice ends or, if asked, a row is locked."""
        found = Found.NOTHING
        position: bytes | None = start
        step = chunk = self._chunk_of(address for address in columns if address[0] == table)
        while position is not None and not self._runs.stopping:
            entries, position = self._newest(table, position, end, step)
            tried = self._tried
            found = self._work_entries(columns, table, stop_at_others, until, entries, found)
            skips = self._paused and self._tried == tried
            step = max(chunk, min(2 * step, _LONGEST_STEP)) if skips else chunk
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
        """Run the cells of these notify entries; the result includes what was `found` before."""
        # The dirty cells still ahead, in order.
        ahead = {cell: raw for cell, _, raw in entries if (cell.table, cell.column) in columns}
        if ahead:
            known = [cell.row for cell in ahead] + [*self._seen.get(table, ())]
            self._seen[table] = min(known), max(known)
            self._clean.found(columns, table, self, several=len(ahead) > 1 or self._has_more)
        ahead = self._in_order(ahead)
        mine = {address for address in columns if address[0] == table}
        for row, found_in_row in itertools.groupby(list(ahead), key=lambda cell: cell.row):
            if self._runs.stopping:
                break
            dirty = []
            for cell in found_in_row:
                if (raw := ahead.get(cell)) is None:
                    continue  # A batch has answered it.
                group = self._observers.of(cell) if raw else ()
                if raw and (wait := self._runs.failures.seconds_to_wait(group, raw, self._paused)):
                    if wait < math.inf:
                        found |= self._later(wait, row)
                    del ahead[cell]
                elif wait := self._schedule.begins_in({(table, cell.column)}):
                    found |= self._later(wait, row)
                    del ahead[cell]
                else:
                    dirty.append(cell)
            if not dirty:
                if self._schedule.begins_in(mine):
                    self._left[table] = None
                    break
                continue
            self._tried += 1
            if Found.RAN in found and self._context.clock.monotonic() > until:
                self._left[table] = None if mine & self._observers.ordered.keys() else row
                break
            if not self._context.coordination.try_lock(table, row):
                found |= Found.HELD
                self._undone.add(row)
                if stop_at_others:
                    break
                for cell in dirty:
                    del ahead[cell]
                continue
            outcome = self._work_row(table, row, dirty, ahead)
            if outcome & _UNDONE:
                self._undone.add(row)
            found |= outcome
        return found

    def _newest(
        self, table: str, start: bytes = b"", end: bytes = b"", limit: int = 256
    ) -> tuple[list[tuple[Cell, int, bytes]], bytes | None]:
        """The newest notify entry of each dirty cell of a range: a call of `Store.scan_kind`."""
        return self._context.store.scan_kind(Kind.NOTIFY, table, start, end, limit, versions=1)

    def _chunk_of(self, columns: Iterable[Address]) -> int:
        """How many dirty cells one call of the store returns."""
        return self._chunk if self._observers.ordered.keys().isdisjoint(columns) else _ORDERED

    def _later(self, wait: float, *rows: bytes) -> Found:
        """Note that there is something to do in so many seconds, and in which row."""
        self._undone.update(rows)
        self._next_attempt = min(self._next_attempt, wait)
        return Found.LATER

    def _in_order(self, ahead: dict[Cell, bytes]) -> dict[Cell, bytes]:
        """The cells, those first whose observer knows in which order they are to run."""
        if not self._observers.ordered:
            return ahead
        first: dict[Cell, bytes] = {}
        for (table, column), one in self._observers.ordered.items():
            mine = {
                cell.row: cell for cell in ahead if (cell.table, cell.column) == (table, column)
            }
            if len(mine) < 2 or one.order is None:
                continue
            decode, encode = one.table.decode_row, one.table.encode_row
            try:
                with Snapshot(self._context, self._context.oracle.read_timestamp()) as now:
                    rows = [encode(row) for row in one.order(now, [decode(row) for row in mine])]
            except StoreError:
                raise
            except BaseException as error:  # As in `Runner`: else the thread would end.
                message = self._runs.failures.message(one, Story.of(error))
                log.warning("observer %s cannot order its rows:%s", one.name, message)
                continue
            first |= {mine[row]: ahead[mine[row]] for row in rows if row in mine}
        return {**first, **ahead}

    def _work_row(
        self, table: str, row: bytes, dirty: list[Cell], ahead: dict[Cell, bytes]
    ) -> Found:
        """Run what is dirty in a row whose lock is held, perhaps in a batch with rows ahead.

        Cells that have been handled are removed from `ahead`.
        """
        found = Found.NOTHING
        held: list[Row] = [(table, row)]
        clock, sharing = self._context.clock, self._observers.sharing
        try:
            for cell in dirty:
                raw = ahead.pop(cell)
                address = (table, cell.column)
                shares = address in sharing
                if wait := self._schedule.note_begun(address):
                    found |= self._later(wait, row)
                    continue
                began = clock.monotonic() if shares else 0.0
                outcome = self._work_cell(cell, raw, ahead, held)
                if shares:
                    self._schedule.note_run(address, clock.monotonic() - began)
                if Found.LATER in outcome:
                    # A failure in this run has recorded its due time: the next scan reads it.
                    wait = self._runs.failures.until_next_attempt(raw, self._paused)
                    self._next_attempt = min(self._next_attempt, wait)
                found |= outcome
        except GivenUpError:
            # `Worker._watch` releases the locks.
            held = []
            raise
        finally:
            self._give_back(held)
        return found

    def _work_cell(
        self, cell: Cell, raw: bytes, ahead: dict[Cell, bytes], held: list[Row]
    ) -> Found:
        """Run the observers of a cell, in a batch with rows ahead where that is possible.

        A cell that has failed before, according to the value `raw` of its notify entry, joins no
        batch.
        """
        batched = not has_failed(raw) and self._runs.takes_batches(cell)
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
            if one.column == cell.column and not has_failed(raw) and self._runs.takes_batches(one)
        ]

    def _joining(
        self, cell: Cell, others: Iterable[Cell], held: list[Row]
    ) -> Callable[[int], list[Cell]]:
        """A function that returns up to so many cells, their rows locked; none at the end.

        It begins with a cell whose row is locked already; then come others of its column, whose
        rows are locked in one call. Rows that are locked by another scanner are skipped.
        """
        first, waiting = [cell], iter(others)

        def take(most: int) -> list[Cell]:
            taken, first[:] = first[:], []
            while len(taken) < most and not self._runs.stopping:
                more = list(itertools.islice(waiting, most - len(taken)))
                if not more:
                    break
                rows = [(one.table, one.row) for one in more]
                locked = self._context.coordination.try_lock_many(rows)
                held.extend(itertools.compress(rows, locked))
                # Another scanner's batch may have failed with it until it gave back the lock.
                mine = itertools.compress(more, locked)
                taken += [one for one in mine if self._runs.takes_batches(one)]
            return taken

        return take

    def _give_back(self, rows: Collection[Row]) -> None:
        if rows:
            self._context.coordination.unlock_many(rows)


def _has_met(found: Found, stop_at_others: bool) -> bool:
    """Whether the scan has met another scanner and is to stop there."""
    return stop_at_others and Found.HELD in found


def _random_key(start: bytes, end: bytes, rng: random.Random) -> bytes:
    """A random key between two keys, randomised after their common prefix."""
    shared = 0
    while shared < min(len(start), len(end)) and start[shared] == end[shared]:
        shared += 1
    low = int.from_bytes(start[shared : shared + 8].ljust(8, b"\0"), "big")
    high = int.from_bytes((end[shared : shared + 8] or b"\xff" * 8).ljust(8, b"\0"), "big")
    if low >= high:
        return start
    return (end or start)[:shared] + rng.randint(low, high).to_bytes(8, "big")
