"""§2.1: the log of wall-clock times and timestamps, from which retention is computed (P12).

    @percola["gc"].@time   timestamp → wall clock in ms, steady clock in ms, machine

A collector finds the newest timestamp that is older than the retention. Ages come from wall clocks,
and a wall clock may be wrong: one that is two days ahead would make everything two days older, for
all clients. So an entry's age is

    wall clock now - wall clock then - the largest step forward since then that is not confirmed

where a step leads from one entry to the next, and from the last one to now. A step is confirmed as
far as the steady clock of the same machine measured it too. Between two machines, and across a
restart, nothing is confirmed; then the longest pause between two collections does not count. So:

* One clock that is ahead, by any amount, makes nothing older. Nor does one that is set forward
  and back again, for steps back count as well.
* If collections are regular, the longest pause is short, and ages are right except for that.
* Two clocks that are ahead by different amounts are not fully covered: the smaller step counts.

Ages are never greater than by the wall clocks alone, so never more is removed than by them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from percola.catalog import SYSTEM_TABLE
from percola.cells import MAX_TS, Cell, Kind
from percola.clock import Clock
from percola.errors import DamagedRecordError
from percola.store.base import Delete, Put, RowMutation, Store

log = logging.getLogger("percola.gc")

_CELL: Final = Cell(SYSTEM_TABLE, b"gc", b"@time")

_ENTRIES: Final = 1_000
"""The number of log entries per retention, which makes it precise to a thousandth."""

_DELETED_AT_ONCE: Final = 10_000
_NOTABLE: Final = 0.1
"""An unconfirmed step of at least this fraction of the retention is logged."""


class Entry(NamedTuple):
    """The clocks' readings at a timestamp.

    Attributes:
        wall: the wall clock, in milliseconds since the epoch.
        steady: the steady clock, in milliseconds since an arbitrary start on the machine.
        machine: the machine of the steady clock; empty if it was not recorded.
    """

    ts: int
    wall: int
    steady: int
    machine: str


class TimeLog:
    """Finds the newest timestamp older than a retention, and maintains the log.

    Args:
        retention: in seconds, more than 0.
    """

    def __init__(self, store: Store, clock: Clock, retention: float) -> None:
        self._store = store
        self._clock = clock
        self._retention = retention * 1000
        self._warned = False

    def newest_older(self, latest: int) -> tuple[int, str]:
        """The newest timestamp that is known to be older than the retention, or 0.

        Also returns why it is not newer, as a text, if a clock may be wrong. Records that the
        repository is at `latest` now, and removes entries that are not needed any more.
        """
        entries = self._entries()
        now = Entry(latest, self._clock.wall_ms(), self._clock.steady_ms(), self._clock.machine)
        found, why = self._older(entries, now)
        changes: list[Put | Delete] = []
        every = max(1.0, self._retention / _ENTRIES)
        newest = entries[0] if entries else None
        if newest is None or (latest > newest.ts and abs(now.wall - newest.wall) >= every):
            text = f"{now.wall} {now.steady} {now.machine}".encode()
            changes.append(Put(Kind.DATA, _CELL.column, latest, text))
        changes += [Delete(Kind.DATA, _CELL.column, ts) for ts in _superfluous(entries, found)]
        if changes:
            self._store.mutate([RowMutation(_CELL.table, _CELL.row, (), changes)])
        return found, why

    def _entries(self) -> list[Entry]:
        """The whole log, newest first."""
        return [_decode(ts, raw) for ts, raw in self._store.entries(_CELL, Kind.DATA, 0, MAX_TS)]

    def _older(self, entries: Sequence[Entry], now: Entry) -> tuple[int, str]:
        later, largest = now, 0
        by_wall_clocks = 0
        for entry in entries:
            if entry.wall > now.wall:
                continue  # A clock was ahead then, or is behind now: the age is unknown.
            largest = max(largest, _unconfirmed(entry, later))
            later = entry
            age = now.wall - entry.wall
            if not by_wall_clocks and age >= self._retention:
                by_wall_clocks = entry.ts
            if age - largest >= self._retention:
                return entry.ts, self._explain(largest, by_wall_clocks > entry.ts)
        return 0, self._explain(largest, by_wall_clocks > 0)

    def _explain(self, step: int, matters: bool) -> str:
        if not matters or step < self._retention * _NOTABLE:
            return ""
        why = (
            f"the clock went {step / 1000:.0f} s ahead at once, which no other clock confirms, "
            "so that this time does not count"
        )
        if not self._warned:
            self._warned = True
            log.warning(
                "garbage collection keeps more than the retention of %g s: %s. Check the clocks of "
                "the machines that run workers or 'percola gc'. If nobody has collected garbage "
                "for so long, or a machine was started again, nothing is wrong.",
                self._retention / 1000,
                why,
            )
        return why


def _unconfirmed(entry: Entry, later: Entry) -> int:
    """The unconfirmed part of the wall clock's step from one entry to a later one."""
    step = later.wall - entry.wall
    if entry.machine and entry.machine == later.machine:
        step -= max(0, later.steady - entry.steady)
    return max(0, step)


def _superfluous(entries: Sequence[Entry], used: int) -> list[int]:
    """The timestamps of the entries to remove: those older than the one that is used, and every
    other one if there are too many, as after a change from a short to a long retention.
    """
    gone = [entry.ts for entry in entries if entry.ts < used]
    kept = [entry.ts for entry in entries if entry.ts > used]
    if len(kept) > 2 * _ENTRIES:
        gone += kept[1::2]
    return gone[:_DELETED_AT_ONCE]


def _decode(ts: int, raw: bytes) -> Entry:
    wall, *rest = raw.split(b" ", 2)
    try:
        if not rest:  # An older version has recorded only the wall clock.
            return Entry(ts, int(wall), 0, "")
        steady, machine = rest
        return Entry(ts, int(wall), int(steady), machine.decode())
    except ValueError:
        raise DamagedRecordError(
            f"{_CELL} holds {raw[:60]!r}, which is no time: the store is damaged."
        ) from None
