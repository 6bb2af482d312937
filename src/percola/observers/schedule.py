"""§2.4: what a worker has left to do: all of its scanners share that.

Which columns may wait, and for how long (`Observer.defer`, `Observer.share`); which run apart and
are this worker's; what the dead owe; whether anything is left at all; and other wake-ups.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Final

from percola.cells import Cell, Kind
from percola.observers.observer import Observers
from percola.transactions.snapshot import TransactionContext

_QUIET: Final = 0.25  # seconds

Address = tuple[str, bytes]
"""A column: its table's name, and its key."""

_NONE: Final[frozenset[Address]] = frozenset()


class Sweep:
    """What is left to do on the columns that a worker observes; for all of its scanners.

    Attributes:
        ending: the worker is only waiting for the end of all work, deferred work included.

    Args:
        every: seconds between looks for the locks of the dead.
        wake: called when settling a lock may have put a notify entry.
    """

    def __init__(
        self,
        context: TransactionContext,
        observers: Observers,
        every: float,
        wake: Callable[[], None],
    ) -> None:
        self._context = context
        self._observers = observers
        self._every = every
        self._wake = wake
        self._guard = threading.Lock()
        self._swept = context.clock.monotonic()
        self._deferred = dict.fromkeys(observers.deferred, self._swept)
        self._worked = -math.inf
        self._rested: dict[Address, float] = {}
        self._busy: set[object] = set()
        self._claims: set[Address] = set()
        self._wake_ups = 0
        self.ending = False

    def is_idle(self) -> bool:
        """Whether no notify entry is left for these observers, in the whole repository.

        An entry goes only after its observer's commit, so a run under way counts as work; so
        does a lock on an observed cell, if its notify entry comes when it is resolved.
        """
        # The locks before the notify entries: a commit in between is then seen as an entry.
        return self._context.oracle.at_one_moment(
            lambda: not (self._is_dirty() or self.finish_the_dead() or self._is_dirty())
        )

    def note_wake_up(self) -> None:
        """A wake-up has arrived, from this process or another."""
        with self._guard:
            self._wake_ups += 1

    def wake_ups_by_others(self) -> int:
        """A number that changes with every wake-up of another process."""
        return self._wake_ups - self._context.change_counts.told

    def is_due(self) -> bool:
        """Whether it is time to look for the locks of the dead; true once each time."""
        now = self._context.clock.monotonic()
        with self._guard:
            if now - self._swept < self._every:
                return False
            self._swept = now
            return True

    def overdue(self) -> frozenset[Address]:
        """The columns that have been put off for as long as they may; true once each time."""
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
        """There was something to do that may not be put off."""
        self._worked = self._context.clock.monotonic()

    def quiet_in(self) -> float:
        """Seconds until what was put off may be done, if nothing else comes; 0 for at once."""
        if self.ending:
            return 0.0
        return max(0.0, self._worked + _QUIET - self._context.clock.monotonic())

    def note_busy(self, scanner: object, *, busy: bool) -> None:
        """Whether a scanner found something to do when it went round last."""
        with self._guard:
            (self._busy.add if busy else self._busy.discard)(scanner)

    def claimed(self) -> frozenset[Address]:
        """The columns of observers that run apart which are this worker's to look after.

        A worker takes what no other has, and keeps it until it stops: the others stand by.
        """
        for address in self._observers.apart - self._claims:
            if self._context.coordination.try_lock(*_claim(address)):
                self._claims.add(address)
        return frozenset(self._claims)

    def disclaim(self) -> None:
        """Leave what runs apart to other workers; idempotent."""
        while self._claims:
            self._context.coordination.unlock(*_claim(self._claims.pop()))

    def note_run(self, address: Address, seconds: float) -> None:
        """The observers of a column that may take only a share of the time took so many."""
        share = self._observers.sharing[address]
        rested = self._context.clock.monotonic() + seconds * (1 / share - 1)
        with self._guard:
            self._rested[address] = max(rested, self._rested.get(address, rested))

    def rests_for(self, columns: frozenset[Address]) -> float:
        """Seconds until one of some columns may take more of the time; 0 if one may at once.

        They all may while no other scanner of this worker finds anything to do.
        """
        if self.ending or not self._busy or not columns <= self.resting():
            return 0.0
        now = self._context.clock.monotonic()
        with self._guard:
            return max(0.0, min(self._rested.get(one, now) for one in columns) - now)

    def resting(self) -> frozenset[Address]:
        """The columns that have taken their share of the time for now."""
        if not self._rested:
            return _NONE
        now = self._context.clock.monotonic()
        with self._guard:
            for address in [one for one, rested in self._rested.items() if rested <= now]:
                del self._rested[address]
            return frozenset(self._rested)

    def finish_the_dead(self) -> bool:
        """Settle dead transactions' locks on observed cells; whether there were any locks.

        Not where notify entries stand apart: then the dead owe none, and looking costs the table.
        """
        if self._context.store.has_notify_table:
            return False
        found = settled = False
        for cell, start_ts, raw in self._observed(Kind.LOCK):
            found = True
            settled |= self._context.resolver.try_resolve(cell, start_ts, raw)
        if settled:
            self._wake()
        return found

    def _is_dirty(self) -> bool:
        return any(True for _ in self._observed(Kind.NOTIFY))

    def _observed(self, kind: Kind) -> Iterator[tuple[Cell, int, bytes]]:
        """All entries of a kind on the columns that this worker observes."""
        for table in self._observers.tables:
            # Whether there is any is the usual question: the first call asks for one.
            entries = self._context.store.walk_kind(kind, table, first=1)
            yield from (entry for entry in entries if self._observers.of(entry[0]))


def _claim(address: Address) -> tuple[str, bytes]:
    """The advisory lock that says which worker looks after a column apart: no row's."""
    table, column = address
    return table, b"\0apart\0" + column
