"""§2.1: the log of wall-clock times and timestamps, for retention (P12) and for time travel.

    @percola["gc"].@time   timestamp → wall clock in ms, steady clock in ms, machine

An entry's timestamp was drawn before its clocks were read: all timestamps up to it were drawn by
then. Workers write an entry once a minute, and `percola gc` one each time, unless their retention
is 0: then there is no past to read. Their number is bounded (`_ENTRIES`), so for a long retention
they are further apart.

**Time travel** (`timestamp_at`) finds the newest timestamp that is certainly not newer than a time.
Clocks jump, and machines' clocks differ, so the times of the entries need not ascend. The log's own
time at an entry is therefore the latest time of all entries up to it: it stands still while a clock
that was ahead is back. A commit counts from the log's time at the first entry at or above its
commit_ts; then no snapshot at a time contains a commit that counts from a later one.

**Retention.** A collector finds the newest timestamp that is older than the retention. Ages come
from wall clocks, and a wall clock may be wrong: one that is two days ahead would make everything
two days older, for all clients. So an entry's age is

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

import itertools
import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from percola.cells import MAX_TS, Cell, Kind
from percola.clock import Clock
from percola.errors import DamagedRecordError, UsageError
from percola.store.base import SYSTEM_TABLE, Delete, Put, RowMutation, Store

log = logging.getLogger("percola.gc")

_CELL: Final = Cell(SYSTEM_TABLE, b"gc", b"@time")

_ENTRIES: Final = 1_440
"""The number of log entries per retention: with a retention of a day, one a minute."""

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
        retention: in seconds, more than 0; None: everything is kept, and nothing is older.
    """

    def __init__(self, store: Store, clock: Clock, retention: float | None) -> None:
        self._store = store
        self._clock = clock
        self._retention = math.inf if retention is None else retention * 1000
        self._every = 60_000.0 if retention is None else self._retention / _ENTRIES
        self._warned = False

    def newest_older(self, latest: int) -> tuple[int, str]:
        """The newest timestamp that is known to be older than the retention, or 0.

        Also returns why it is not newer, as a text, if a clock may be wrong. Records that the
        repository is at `latest` now, and removes entries that are not needed any more.
        """
        entries = read_log(self._store)
        now = Entry(latest, self._clock.wall_ms(), self._clock.steady_ms(), self._clock.machine)
        found, why = self._older(entries, now)
        changes: list[Put | Delete] = []
        every = max(1.0, self._every)
        newest = entries[0] if entries else None
        if newest is None or (latest > newest.ts and abs(now.wall - newest.wall) >= every):
            text = f"{now.wall} {now.steady} {now.machine}".encode()
            changes.append(Put(Kind.DATA, _CELL.column, latest, text))
        changes += [Delete(Kind.DATA, _CELL.column, ts) for ts in _superfluous(entries, found)]
        if changes:
            self._store.mutate([RowMutation(_CELL.table, _CELL.row, (), changes)])
        return found, why

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


def read_log(store: Store) -> list[Entry]:
    """The whole log, newest first."""
    return [_decode(ts, raw) for ts, raw in store.entries(_CELL, Kind.DATA, 0, MAX_TS)]


def copy_log(source: Store, target: Store, upto: int) -> None:
    """Copy the entries up to a timestamp into the log of another repository."""
    entries = source.entries(_CELL, Kind.DATA, 0, upto)
    for at in range(0, len(entries), _ENTRIES):
        puts = [Put(Kind.DATA, _CELL.column, *entry) for entry in entries[at : at + _ENTRIES]]
        target.mutate([RowMutation(_CELL.table, _CELL.row, (), puts)])


# --- Time travel ------------------------------------------------------------------------


class Moment(NamedTuple):
    """A timestamp, and the log's time at it.

    Attributes:
        ts: the timestamp.
        time: when it was logged, in UTC: everything that had committed by then is visible at `ts`.
    """

    ts: int
    time: datetime


class CommitTimes:
    """When transactions committed, as far as the log tells; reads the log once."""

    def __init__(self, store: Store) -> None:
        entries = read_log(store)[::-1]
        self._timestamps = [entry.ts for entry in entries]
        self._walls = list(itertools.accumulate((entry.wall for entry in entries), max))

    def of(self, ts: int) -> tuple[datetime | None, datetime | None]:
        """The log's times before and after `ts` was drawn, in UTC; None where it has none.

        A commit at `ts` counts from the second one.
        """
        at = bisect_left(self._timestamps, ts)
        before = _datetime(self._walls[at - 1]) if at else None
        return before, _datetime(self._walls[at]) if at < len(self._walls) else None

    def at(self, clock: Clock, when: datetime) -> Moment:
        """The newest timestamp in the log whose time is at or before `when`.

        A time without a zone is local time. Raises UsageError for a time in the future, or before
        the log.
        """
        wall, now = _milliseconds(when), clock.wall_ms()
        if wall > now:
            raise UsageError(
                f"There is no snapshot at {when.isoformat()} yet: it is "
                f"{show_time(_datetime(now))} now."
            )
        if not self._walls:
            raise UsageError(
                "The repository has no log of times yet, so it can be read as of a timestamp only: "
                "workers write the log once a minute, and 'percola gc' does; with a retention of 0 "
                "neither does."
            )
        # The log's times ascend: the first one that is later ends what can be taken.
        at = bisect_right(self._walls, wall)
        if not at:
            raise UsageError(
                f"The log of times begins at {show_time(_datetime(self._walls[0]))}: what was the "
                f"newest timestamp at {when.isoformat()} is not known."
            )
        return Moment(self._timestamps[at - 1], _datetime(self._walls[at - 1]))


def show_time(time: datetime) -> str:
    """A time to the second in the local zone, as `--at` takes it."""
    return time.astimezone().replace(microsecond=0).isoformat()


def _datetime(wall: int) -> datetime:
    return datetime.fromtimestamp(wall / 1000, UTC)


def _milliseconds(when: datetime) -> int:
    """The time in whole milliseconds since the epoch, rounded down.

    Raises UsageError for a local time that is outside of the years 1 to 9999 in UTC.
    """
    try:
        zoned = when if when.utcoffset() is not None else when.astimezone()
    except (OverflowError, ValueError):
        raise UsageError(f"No snapshot can be found at {when.isoformat()} in local time.") from None
    # A time with a zone is not converted to UTC: it may be outside of these years there.
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


# --- Retention --------------------------------------------------------------------------


def _unconfirmed(entry: Entry, later: Entry) -> int:
    """The unconfirmed part of the wall clock's step from one entry to a later one."""
    step = later.wall - entry.wall
    if entry.machine and entry.machine == later.machine:
        step -= max(0, later.steady - entry.steady)
    return max(0, step)


def _superfluous(entries: Sequence[Entry], used: int) -> list[int]:
    """The timestamps of the entries to remove: those older than the one that is used, and every
    other one if there are too many, as after a change from a short to a long retention.

    Of two neighbours the one of the later time stays, so that no commit counts from an earlier
    time than before.
    """
    gone = [entry.ts for entry in entries if entry.ts < used]
    kept = [entry for entry in entries if entry.ts > used]
    if len(kept) > 2 * _ENTRIES:
        gone += [
            min(two, key=lambda one: one.wall).ts
            for two in zip(kept[2::2], kept[1::2], strict=False)
        ]
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
