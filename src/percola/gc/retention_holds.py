"""§2.1: retention holds, which protect a timestamp from garbage collection for a limited time.

An active snapshot is protected by its process, as long as the process lives
(`percola.transactions.active_snapshots`). A Spark frame, or a stream between two of its runs, reads
at a timestamp that no process protects all the time. So a hold with a name and an expiry is stored:

    @percola["hold/NAME"].@hold   version → {"ts": the timestamp, "until": wall clock in ms}

Each update of a hold is a new version, written on the condition that it is the next one, so that of
two concurrent updates one reads again. The collector compares its own clock with an expiry computed
from the holder's clock: if the clocks differ, the hold ends sooner or later than requested. As with
active snapshots, correctness does not depend on it: reads below the safe point fail with
SnapshotTooOldError and never return a wrong answer (rule P12).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from percola.cells import MAX_TS, Cell, Kind
from percola.clock import Clock
from percola.errors import ConflictingOptionsError, DamagedRecordError, SnapshotTooOldError
from percola.store.base import SYSTEM_TABLE, Condition, Delete, Put, RowMutation, Store
from percola.store.walks import walk_kind

RETENTION: Final = 24 * 3600.0
"""The default retention: seconds for which superseded versions are kept."""

MAX_SECONDS: Final = 1e9
"""The longest duration of a hold, in seconds."""

_PREFIX: Final = b"hold/"
_AFTER_PREFIX: Final = b"hold0"
_COLUMN: Final = b"@hold"
_NAME_BYTES: Final = 128


class RetentionHold(NamedTuple):
    """A retention hold: a timestamp that stays readable for a limited time.

    Attributes:
        name: the name of the hold.
        ts: the timestamp; the versions that its readers need are kept.
        until_ms: its expiry by the wall clock, in milliseconds since the epoch.
    """

    name: str
    ts: int
    until_ms: int


def hold(store: Store, clock: Clock, name: str, ts: int, seconds: float) -> None:
    """Hold `ts` for `seconds`, replacing an earlier hold of that name.

    Raises SnapshotTooOldError if `ts` is below the safe point, and ConflictingOptionsError for an
    invalid name or duration; an earlier hold stays then.
    """
    if not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SECONDS:
        raise ConflictingOptionsError(
            f"A timestamp cannot be held for {seconds!r} seconds: use 0 to {MAX_SECONDS:.0f}."
        )
    cell = _cell(name)
    store.check_safe_point(ts)
    while True:
        until = clock.wall_ms() + int(seconds * 1000)
        record = json.dumps({"ts": ts, "until": until}).encode()
        versions = store.entries(cell, Kind.DATA, 0, MAX_TS)
        if _say(store, cell, [at for at, _ in versions], record):
            break
    # It may have been raised meanwhile. Then what an earlier hold has held is gone as well, unless
    # that was of a later timestamp.
    if (safe_point := store.safe_point()) > ts:
        release(store, name)
        raise SnapshotTooOldError(ts, safe_point)


def release(store: Store, name: str) -> None:
    """Remove the hold of that name; harmless if there is none."""
    cell = _cell(name)
    while versions := store.entries(cell, Kind.DATA, 0, MAX_TS):
        if _say(store, cell, [at for at, _ in versions], None):
            return


def holds(store: Store, clock: Clock, *, remove_expired: bool = False) -> list[RetentionHold]:
    """The current holds, the oldest timestamp first.

    `remove_expired` removes the records of the others: for the collector.
    """
    now = clock.wall_ms()
    found: list[RetentionHold] = []
    for one, versions in _all(store):
        if one.until_ms > now:
            found.append(one)
        elif remove_expired:
            _say(store, _cell(one.name), versions, None)
    return sorted(found, key=lambda one: one.ts)


def _say(store: Store, cell: Cell, versions: list[int], record: bytes | None) -> bool:
    """Replace the versions read by a new one; False if there is a newer one already."""
    following = max(versions, default=0) + 1
    first = Condition(False, Kind.DATA, cell.column, following, MAX_TS)
    changes: list[Put | Delete] = [Delete(Kind.DATA, cell.column, at) for at in versions]
    if record is not None:
        changes.append(Put(Kind.DATA, cell.column, following, record))
    return store.mutate([RowMutation(cell.table, cell.row, [first], changes)])[0]


def _all(store: Store) -> Iterator[tuple[RetentionHold, list[int]]]:
    """All holds, including expired ones, with their versions, newest first."""
    found: dict[bytes, tuple[RetentionHold, list[int]]] = {}
    for cell, at, raw in walk_kind(store, Kind.DATA, SYSTEM_TABLE, _PREFIX, _AFTER_PREFIX):
        if cell.column == _COLUMN:
            if cell.row in found:
                found[cell.row][1].append(at)
            else:
                found[cell.row] = _decode(cell, raw), [at]
    yield from found.values()


def _decode(cell: Cell, raw: bytes) -> RetentionHold:
    try:
        record = json.loads(raw)
        ts, until = record["ts"], record["until"]
        if isinstance(ts, int) and isinstance(until, int):
            return RetentionHold(cell.row[len(_PREFIX) :].decode(), ts, until)
    except (ValueError, KeyError, TypeError):
        pass
    raise DamagedRecordError(f"{cell} holds {raw[:60]!r}, which is no hold: the store is damaged.")


def _cell(name: str) -> Cell:
    try:
        key = name.encode()
    except (AttributeError, UnicodeEncodeError):
        key = b""
    if not 0 < len(key) <= _NAME_BYTES or b"\0" in key:
        raise ConflictingOptionsError(
            f"{str(name)[:60]!r} cannot name a hold: use 1 to {_NAME_BYTES} bytes without NUL."
        )
    return Cell(SYSTEM_TABLE, _PREFIX + key, _COLUMN)
