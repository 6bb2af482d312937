"""§2.4: a worker's schedule, shared by all of its scanners.

Which columns may wait, and for how long (`Observer.defer`, `Observer.share`); which columns on a
dedicated thread this worker has claimed; when to settle the locks of dead transactions; whether any
work is left; and in which tables there is none (`percola.observers.clean_tables`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Set
from typing import Final

from percola.cells import Cell, Kind
from percola.coordination.wake_ups import EVERY_TABLE
from percola.observers.clean_tables import CleanTables
from percola.observers.failures import DirtyCell, waits_for_paused
from percola.observers.observer import Observers
from percola.paused import paused_observers
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext

RESTS: Final = 9
"""For how many times as long as a scan without a wake-up took, and found nothing, none follows."""
LONGEST_REST: Final = 60.0
"""Seconds: a process may have been stopped during a scan."""

_QUIET: Final = 0.25  # seconds
_STEP: Final = 1024

Address = tuple[str, bytes]
"""A column: its table's name, and its key."""

_NONE: Final[frozenset[Address]] = frozenset()


class Schedule:
    """The schedule of the columns that a worker observes, shared by all of its scanners.

    Attributes:
        ending: the worker is draining: it waits until all work is done, debounced work included.
        clean: in which tables nothing is left to do.

    Args:
        every: seconds between scans for the locks of dead transactions.
        rescan: seconds between scans without a wake-up, and between checks of what is claimed.
        wake: wakes the worker's scanners.
    """

    def __init__(
        self,
        context: TransactionContext,
        observers: Observers,
        every: float,
        rescan: float,
        wake: Callable[[], None],
    ) -> None:
        self._context = context
        self._observers = observers
        self._every = every
        self._wake = wake
        self._guard = threading.Lock()
        now = context.clock.monotonic()
        self._sweep_at = now + every
        self._deferred = dict.fromkeys(observers.deferred, now)
        self._worked = -math.inf
        self._rested: dict[Address, float] = {}
        self._may_begin: dict[Address, float] = {}
        self._busy: set[object] = set()
        self._claims: dict[Address, Address] = {}
        self._rescan = rescan
        self._check_at = now + rescan
        self.clean = CleanTables(rescan, wake)
        self.ending = False

    def is_idle(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Whether no notify entry is left for these observers, in the whole repository.

        An entry is removed only after its observer's commit, so a run in progress counts as work;
        so does a lock on an observed cell, if resolving it puts the notify entry. What only paused
        observers have yet to handle does not count. Once `stopped`, it is False.
        """
        # The locks before the notify entries: a commit in between is then seen as an entry.
        return self._context.oracle.at_one_moment(
            lambda: (
                not (stopped() or self._is_dirty() or self.finish_the_dead() or self._is_dirty())
            )
        )

    def note_wake_up(self, wake_up: bytes = EVERY_TABLE) -> float:
        """A wake-up has arrived, from this process or another; see `Coordination.on_wake`.

        Returns for how many seconds no run may begin, and no other wake-up matters.
        """
        self.clean.note_wake_up(wake_up)
        self._wake()
        return self.begins_in(self._observers.addresses)

    def is_due(self) -> bool:
        """Whether the scan for locks of dead transactions is due; true once per period."""
        now = self._context.clock.monotonic()
        with self._guard:
            if now < self._sweep_at:
                return False
            self._sweep_at = now + self._every
            return True

    def overdue(self) -> frozenset[Address]:
        """The columns whose debounce time is over; each is returned once per period."""
        if not self._deferred:
            return _NONE
        now = self._context.clock.monotonic()
        with self._guard:
            found = [
                address
                for address, seconds in self._observers.deferred.items()
                if now - self._deferred[address] >= seconds
            ]
            self._deferred.update(dict.fromkeys(found, now))
        return frozenset(found)

    def note_work(self) -> None:
        """Note that there was work on a column that is not debounced."""
        self._worked = self._context.clock.monotonic()

    def quiet_in(self) -> float:
        """Seconds until debounced work may run if no other work arrives; 0 for at once."""
        if self.ending:
            return 0.0
        return max(0.0, self._worked + _QUIET - self._context.clock.monotonic())

    def note_busy(self, scanner: object, *, busy: bool) -> None:
        """Note whether a scanner found something to do in its last round."""
        with self._guard:
            (self._busy.add if busy else self._busy.discard)(scanner)

    def claimed(self) -> frozenset[Address]:
        """The columns on a dedicated thread that this worker has claimed.

        A worker claims each column for which there is a place, and keeps it until it stops: the
        others stand by. Columns of one observer are claimed together, by the first of them. A claim
        that was lost with the lock service, and taken by another worker, is given up.
        """
        apart, claims = self._observers.apart, self._claims
        now = self._context.clock.monotonic()
        if now >= self._check_at:
            self._check_at = now + self._rescan
            for first, claim in list(claims.items()):
                if not self._context.coordination.keep_lock(*claim):
                    del claims[first]
        for first, columns in apart.items():
            workers = max(self._observers.dedicated[one] for one in columns)
            for place in range(0 if first in claims else workers):
                claim = _claim(first, place)
                if self._context.coordination.try_lock(*claim):
                    claims[first] = claim
                    break
        return frozenset(one for first in claims for one in apart[first])

    def disclaim(self) -> None:
        """Release the claims on columns with a dedicated thread; idempotent."""
        while self._claims:
            self._context.coordination.unlock(*self._claims.popitem()[1])

    def note_run(self, address: Address, seconds: float) -> None:
        """Note how long the observers of a column with a cap on worker time ran."""
        sharing, now = self._observers.sharing, self._context.clock.monotonic()
        with self._guard:
            for one in self._observers.together[address] & sharing.keys():
                rested = now + seconds * (1 / sharing[one] - 1)
                self._rested[one] = max(rested, self._rested.get(one, rested))

    def note_begun(self, address: Address) -> float:
        """Note that a run begins on a column, unless its limit of runs a second is reached.

        Then another scanner has begun one meanwhile; returns the seconds until a run may begin.
        """
        limited = self._observers.limited
        if address not in limited:
            return 0.0
        with self._guard:
            now = self._context.clock.monotonic()
            if (wait := self._may_begin.get(address, now) - now) > 0:
                return wait
            for one in self._observers.together[address] & limited.keys():
                self._may_begin[one] = now + 1 / limited[one]
            return 0.0

    def begins_in(self, columns: Set[Address]) -> float:
        """Seconds until a run may begin on one of these columns; 0 for at once."""
        if not self._may_begin:
            return 0.0
        now = self._context.clock.monotonic()
        with self._guard:
            return max(0.0, min(self._may_begin.get(one, now) for one in columns) - now)

    def rests_for(self, columns: frozenset[Address]) -> float:
        """Seconds until one of these columns may run again under its cap; 0 for at once.

        All of them may run while no other scanner of this worker finds anything to do.
        """
        if self.ending or not self._busy or not columns <= self.resting():
            return 0.0
        now = self._context.clock.monotonic()
        with self._guard:
            return max(0.0, min(self._rested.get(one, now) for one in columns) - now)

    def resting(self) -> frozenset[Address]:
        """The columns that have reached their cap on worker time for now."""
        if not self._rested:
            return _NONE
        now = self._context.clock.monotonic()
        with self._guard:
            for address in [one for one, rested in self._rested.items() if rested <= now]:
                del self._rested[address]
            return frozenset(self._rested)

    def finish_the_dead(self) -> bool:
        """Settle dead transactions' locks on observed cells; return whether there were any locks.

        With a separate notify table there is nothing to do: notify entries were put before the
        commit point, and finding locks would take a scan of the whole table. Where it takes long,
        as there are many locks, the next scan for them is put off.
        """
        if self._context.store.has_notify_table:
            return False
        clock = self._context.clock
        began = clock.monotonic()
        # A Spark job's transaction has locked a million cells perhaps, until it commits.
        settled, undecided = self._context.resolver.try_resolve_all(self._observed(Kind.LOCK))
        if settled:
            self.note_wake_up()
        now = clock.monotonic()
        with self._guard:
            self._sweep_at = max(self._sweep_at, now + min(LONGEST_REST, RESTS * (now - began)))
        return bool(settled or undecided)

    def _is_dirty(self) -> bool:
        store = self._context.store
        paused = frozenset(paused_observers(store)) & {one.name for one in self._observers}
        if not paused:
            return any(True for _ in self._observed(Kind.NOTIFY, versions=1))
        asleep = self._observers.all_among(paused)
        for table in sorted({table for table, _ in self._observers.addresses - asleep}):
            entries = walk_kind(store, Kind.NOTIFY, table, first=1, limit=_STEP, versions=1)
            for cell, ts, raw in entries:
                group = self._observers.of(cell)
                if not group or (table, cell.column) in asleep:
                    continue
                dirty = DirtyCell.of(cell, [(ts, raw)])
                if not waits_for_paused(store, group, dirty, paused):
                    return True
        return False

    def _observed(
        self, kind: Kind, versions: int | None = None
    ) -> Iterator[tuple[Cell, int, bytes]]:
        """All entries of a kind on the columns that this worker observes: see `walk_kind`."""
        for table in self._observers.tables:
            # Callers often need only the first entry: the first call asks for one.
            entries = walk_kind(self._context.store, kind, table, first=1, versions=versions)
            yield from (entry for entry in entries if self._observers.of(entry[0]))


def _claim(address: Address, place: int) -> Address:
    """The advisory lock by which a worker claims a column with a dedicated thread; no row's."""
    table, column = address
    return table, b"\0apart\0" + column + (b"\0%d" % place if place else b"")
