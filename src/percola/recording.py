"""Whether observers' runs are recorded (`percola.observers.run_records`), in the system table.

    @percola["runs"].@recording   version → {"on": true, "since": TS, "until": TS}

Every run whose transaction began at or after `since` and committed at or before `until` is
recorded: so of a change in that time without a record it is certain that no run wrote it.

    on    `since` is drawn a second after this is written. A run that was not told of it had read
          the cell at most half a second before it had its start_ts (`RecordingSwitch`), so that
          start_ts was drawn before `since`
    off   `until` is drawn before this is written, so before any run could know of it and draw the
          commit_ts of a transaction without a record

Clocks are compared with themselves alone. A machine that is suspended as a whole, within that half
second, is what this does not hold for: its clock stands still meanwhile.
"""

from __future__ import annotations

import json
import math
from typing import Final, NamedTuple

from percola.catalog import RUNS, keep_feeds, newest_version, reconcile, write_version
from percola.cells import Cell
from percola.clock import Clock
from percola.errors import DamagedRecordError
from percola.oracle.base import Oracle
from percola.schema import Schema
from percola.store.base import SYSTEM_TABLE, Store

_CELL: Final = Cell(SYSTEM_TABLE, b"runs", b"@recording")
_FRESH: Final = 0.5
_SETTLED: Final = 1.0


class Recording(NamedTuple):
    """Whether runs are recorded, and of which time all runs are.

    Attributes:
        on: whether workers record them now.
        since: all runs whose transactions have this start_ts or a later one are recorded; None if
            that is not known, as while recording is being turned on.
        until: and whose commit_ts is not above this one, if recording was turned off.
    """

    on: bool = False
    since: int | None = None
    until: int | None = None

    def covers(self, start_ts: int, commit_ts: int) -> bool:
        """Whether a run with these timestamps is surely recorded."""
        began = self.since is not None and start_ts >= self.since
        return began and (self.on or (self.until is not None and commit_ts <= self.until))


class RecordingSwitch:
    """Tells a process whether to record a run; costs one read of a cell in half a second."""

    def __init__(self) -> None:
        self._read = (-math.inf, False)

    def is_on(self, store: Store, clock: Clock) -> bool:
        """Whether to record a run whose transaction has its start_ts already. Raises StoreError."""
        began, on = self._read
        now = clock.monotonic()
        if now - began >= _FRESH:
            on = recording(store).on
            # An older read that took longer may replace a newer one: it is as old as it says.
            self._read = (now, on)
        return on


def recording(store: Store) -> Recording:
    """Whether runs are recorded; costs one read of one cell."""
    return _decode(newest_version(store, _CELL)[1])


def start(store: Store, oracle: Oracle, clock: Clock) -> Recording:
    """Have all workers record runs, and return since when they do; it takes a second."""
    declared = Schema([RUNS])
    store.create_tables([RUNS.name])
    reconcile(store, declared)
    keep_feeds(store, oracle, declared)
    while True:
        version, raw = newest_version(store, _CELL)
        found = _decode(raw)
        if found.on and found.since is not None:
            return found
        # If a process ended before it drew `since`, this one does.
        if found.on or _write(store, version, Recording(on=True)):
            break
    clock.sleep(_SETTLED)
    since = oracle.timestamp()
    while True:
        version, raw = newest_version(store, _CELL)
        found = _decode(raw)
        if not found.on or found.since is not None:
            return found
        found = Recording(on=True, since=since)
        if _write(store, version, found):
            return found


def stop(store: Store, oracle: Oracle) -> Recording:
    """Have no worker record runs any more, and return until when they all did."""
    while True:
        version, raw = newest_version(store, _CELL)
        found = _decode(raw)
        if not found.on:
            return found
        found = Recording(since=found.since, until=oracle.read_timestamp())
        if _write(store, version, found):
            return found


def copy_recording(source: Store, target: Store, copied_ts: int) -> None:
    """Have runs be recorded in a copy as in the source, from the timestamp that was copied on."""
    if recording(source).on != recording(target).on:
        version, _ = newest_version(target, _CELL)
        on = recording(source).on
        _write(target, version, Recording(on, copied_ts if on else None))


def _write(store: Store, version: int, found: Recording) -> bool:
    return write_version(store, _CELL, version, json.dumps(found._asdict()))


def _decode(raw: bytes) -> Recording:
    if not raw:
        return Recording()
    try:
        return Recording(**json.loads(raw))
    except (ValueError, TypeError):
        raise DamagedRecordError(
            f"{_CELL} holds {raw[:60]!r}, which is no state of recording: the store is damaged."
        ) from None
