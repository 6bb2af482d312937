"""§2.1, §2.2, §2.4: invariants of the entries of one row, whatever process crashed when.

A transaction passes through few states, and each row mutation is atomic, so a cell can be in only
few states at any moment, even with kill -9 at every boundary:

    entry              always stands together with
    -----------------  -----------------------------------------------------------------------
    data @ s           a lock at s, or a write record that names s
    lock @ s           its data, but for the primary's row on a store with `has_volatile_writes`;
                       no other lock; no write at or above s but rollbacks of others
    write @ c → s      s < c; its data; the write before it in time committed at or before s
    rollback @ s       names itself: it stands at the start_ts of what it forbids, and no write
                       record has that start_ts
    last change in a   no newer put or delete below that record; the put itself, unless a newer
    record             change stands above
    ack @ c → s        its value is s: an observer has seen everything up to its own start_ts
    observed write @ c a notify entry at c or later, or an acknowledgment of c or later, or the
                       change was dead-lettered there (N1, N2, N5), or its record says that it
                       was to notify nobody

Garbage collection removes whole versions, data and record in one mutation, and never the newest
(P12), so it preserves all of these. Checks that involve another row, a lock's primary, are in
`percola.maintenance.check`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from percola.cells import (
    SYSTEM_MARK,
    Cell,
    Kind,
    LockRecord,
    Op,
    WriteRecord,
    ack_column,
    acknowledged_column,
    decode_lock,
    decode_ts,
    decode_write,
    failed_column,
)
from percola.errors import DamagedRecordError, PercolaError, WrongTypeError
from percola.schema import Column, Schema, WeakColumn

LOST: Final = "lost-notification"
"""The rule that is broken by a change which no observer will look at: a rerun mends that."""

_ACK: Final = ack_column("", b"")[:-1]
_FAILED: Final = failed_column("", b"")[:-1]
_FAILURE: Final = {"observer": str, "column": str, "attempts": int, "at_ms": int, "error": str}
_CHANGES: Final = (Op.PUT, Op.DELETE)
_VERBS: Final = {Op.PUT: "put", Op.DELETE: "delete", Op.LOCK: "lock", Op.ROLLBACK: "rollback"}


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"  # a rule is broken: data is lost, or may be read wrongly
    NOTE = "note"  # unusual, and harmless


@dataclass(frozen=True, slots=True)
class Finding:
    """A state that the protocol does not leave behind.

    Attributes:
        rule: the name of the violated rule: `orphan-data`, `lost-notification`.
        cell: the cell concerned.
        ts: the timestamp of the entry concerned; 0 if it has none.
        message: what is wrong, in a sentence.
        severity: an error or a note.
    """

    rule: str
    cell: Cell
    ts: int
    message: str
    severity: Severity = Severity.ERROR


@dataclass(slots=True)
class Entries:
    """All entries of a cell, by kind and timestamp."""

    lock: dict[int, bytes] = field(default_factory=dict)
    write: dict[int, bytes] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    notify: dict[int, bytes] = field(default_factory=dict)
    failed: dict[int, bytes] = field(default_factory=dict)

    def of(self, kind: Kind) -> dict[int, bytes]:
        """The entries of one kind."""
        return (self.data, self.lock, self.write, self.notify, self.failed)[kind]

    @property
    def oldest(self) -> int:
        """The lowest timestamp of its entries except failures; 0 if there is none."""
        return min((*self.lock, *self.write, *self.data, *self.notify), default=0)

    @property
    def newest(self) -> int:
        """The highest timestamp of its entries except failures; 0 if there is none."""
        return max((*self.lock, *self.write, *self.data, *self.notify), default=0)


RowEntries = dict[bytes, Entries]
"""A row's entries by column, including internal columns."""


class Columns:
    """Looks up columns in the schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._of = lru_cache(maxsize=4096)(self._resolve)

    def of(self, table: str, column: bytes) -> Column[Any, Any] | WeakColumn[Any] | None:
        """The column, or None if the schema has none of that name."""
        return self._of(table, column)

    def decode_row(self, table: str, row: bytes) -> Any:
        """The decoded row key; UnicodeDecodeError or WrongTypeError if it is of another type."""
        return self._schema.table(table).decode_row(row)

    def rows_name(self, table: str) -> str:
        """The type of the table's row keys."""
        return self._schema.table(table).rows_name

    def _resolve(self, table: str, column: bytes) -> Column[Any, Any] | WeakColumn[Any] | None:
        try:
            return self._schema.table(table).resolve(column.decode())
        except (PercolaError, UnicodeDecodeError):
            return None


def judge(
    table: str,
    row: bytes,
    entries: RowEntries,
    columns: Columns,
    last_ts: Callable[[int], int],
    *,
    volatile: bool = False,
) -> Iterator[Finding]:
    """The findings of a row in its state at one moment, without its locks' primaries.

    `last_ts(seen)` returns the last timestamp handed out now, or one that is at least `seen`.
    `volatile` is the store's `has_volatile_writes`.
    """
    try:
        columns.decode_row(table, row)
    except (ValueError, WrongTypeError):
        cell = Cell(table, row, min(entries))
        of = columns.rows_name(table)
        yield Finding(
            "undecodable-row", cell, 0, f"The row {row[:60]!r} of {table} is not a key of {of}."
        )
    newest = 0
    for name, one in entries.items():
        cell = Cell(table, row, name)
        yield from _Judge(cell, one, columns, volatile=volatile).judge(entries)
        newest = max(newest, one.newest)
    if newest > (last := last_ts(newest)):
        for name, one in entries.items():
            for kind in (Kind.LOCK, Kind.WRITE, Kind.DATA, Kind.NOTIFY):
                for ts in one.of(kind):
                    if ts > last:
                        cell = Cell(table, row, name)
                        yield Finding(
                            "timestamp-from-the-future",
                            cell,
                            ts,
                            f"{cell} has a {kind.name.lower()} entry at {ts}, but the last "
                            f"timestamp handed out is {last}.",
                        )


class _Judge:
    """Judges one cell: whether its entries can be decoded, and whether they are consistent."""

    def __init__(self, cell: Cell, entries: Entries, columns: Columns, *, volatile: bool) -> None:
        self._cell = cell
        self._entries = entries
        self._columns = columns
        self._volatile = volatile
        self._column = columns.of(cell.table, cell.column)
        self._locks: dict[int, LockRecord] = {}
        self._writes: dict[int, WriteRecord] = {}  # newest first
        self._unread = False

    def judge(self, row: RowEntries) -> Iterator[Finding]:
        entries = self._entries
        yield from self._read()
        yield from self._judge_column()
        yield from self._judge_locks()
        yield from self._judge_writes()
        named = {one.start_ts for one in self._writes.values() if one.op is Op.PUT}
        if not self._unread:
            for ts in entries.data.keys() - named - entries.lock.keys():
                yield self._finding(
                    "orphan-data", ts, f"has data at {ts}, with neither a lock nor a write record."
                )
        if self._cell.column.startswith(_ACK):
            yield from self._judge_acknowledgments()
        elif isinstance(self._column, Column):
            yield from self._judge_values(self._column)
            yield from self._judge_notifications(self._column, row)

    def _finding(
        self, rule: str, ts: int, rest: str, severity: Severity = Severity.ERROR
    ) -> Finding:
        return Finding(rule, self._cell, ts, f"{self._cell} {rest}", severity)

    # --- Records ------------------------------------------------------------------------

    def _read(self) -> Iterator[Finding]:
        for ts, raw in self._entries.lock.items():
            try:
                self._locks[ts] = lock = decode_lock(raw)
                if lock.op is Op.ROLLBACK:
                    raise DamagedRecordError("A lock for a rollback.")
            except DamagedRecordError:
                self._locks.pop(ts, None)
                yield self._finding(
                    "undecodable-lock", ts, f"has a lock at {ts} that cannot be read: {raw[:40]!r}."
                )
        for ts in sorted(self._entries.write, reverse=True):
            raw = self._entries.write[ts]
            try:
                self._writes[ts] = decode_write(raw)
            except DamagedRecordError:
                self._unread = True
                yield self._finding(
                    "undecodable-write",
                    ts,
                    f"has a write record at {ts} that cannot be read: {raw[:40]!r}.",
                )

    def _judge_column(self) -> Iterator[Finding]:
        entries, column = self._entries, self._column
        name = self._cell.column
        if name.startswith(_FAILED):
            for ts, raw in entries.failed.items():
                if not _is_failure(raw):
                    yield self._finding(
                        "undecodable-failure", ts, f"cannot be read as a failure: {raw[:40]!r}."
                    )
            return
        if name.startswith(_ACK):
            observed = self._columns.of(self._cell.table, acknowledged_column(name) or b"")
            if not (isinstance(observed, WeakColumn) or (observed and observed.observed)):
                yield self._finding(
                    "unknown-column",
                    entries.oldest,
                    "acknowledges a column that is not an observed one.",
                )
            return
        if column is None or name.startswith(SYSTEM_MARK):
            yield self._finding(
                "unknown-column", entries.oldest, "has a column that is not in the schema."
            )
        elif isinstance(column, WeakColumn) and (entries.write or entries.lock or entries.data):
            yield self._finding(
                "weak-column-written",
                entries.oldest,
                "was written, but its column can only be notified.",
            )
        elif isinstance(column, Column) and not column.observed and entries.notify:
            yield self._finding(
                "notification-unobserved",
                min(entries.notify),
                "has a notify entry, but its column is not observed: no worker will ever look.",
            )

    # --- Locks and writes (§2.2) --------------------------------------------------------

    def _judge_locks(self) -> Iterator[Finding]:
        entries = self._entries
        if len(entries.lock) > 1:
            held = " and ".join(str(ts) for ts in sorted(entries.lock))
            yield self._finding("two-locks", max(entries.lock), f"has several locks, at {held}.")
        for ts, lock in self._locks.items():
            # Where locks may be lost, the commit point puts the long values of the primary's row.
            is_later = self._volatile and lock.primary[:2] == self._cell[:2]
            if lock.op is Op.PUT and lock.value is None and not (is_later or ts in entries.data):
                yield self._finding("lock-without-data", ts, f"has a lock at {ts}, but no data.")
            for commit_ts, record in self._writes.items():
                own = record.start_ts == ts
                if own if record.op is Op.ROLLBACK else commit_ts >= ts:
                    what = "own" if own else "newer"
                    yield self._finding(
                        "lock-beside-write",
                        ts,
                        f"has a lock at {ts} beside {what} write record at {commit_ts} "
                        f"({_VERBS[record.op]}): one of the two should have stopped the other.",
                    )
            column = self._column
            if isinstance(column, Column) and (lock.observed or lock.silent) != (
                column.observed and lock.op is not Op.LOCK
            ):
                says = "notify an observer" if lock.observed else "notify nobody"
                yield self._finding(
                    "lock-of-wrong-notification",
                    ts,
                    f"has a lock at {ts} which will {says}, against what the schema says.",
                )

    def _judge_writes(self) -> Iterator[Finding]:
        data = self._entries.data
        undone = {ts for ts, one in self._writes.items() if one.op is Op.ROLLBACK}
        later: tuple[int, int] | None = None
        for ts, (op, start_ts, value, *_) in self._writes.items():
            if op is Op.ROLLBACK:
                if start_ts != ts:
                    yield self._finding(
                        "misplaced-rollback",
                        ts,
                        f"has a rollback record at {ts} for the transaction that started at "
                        f"{start_ts}: nothing will find it there.",
                    )
                continue
            if start_ts >= ts:
                yield self._finding(
                    "commit-before-start",
                    ts,
                    f"has a write record at {ts} of a transaction that started at {start_ts}.",
                )
            elif later is not None and later[0] < ts:
                yield self._finding(
                    "overlapping-writes",
                    later[1],
                    f"was written at {later[1]} by a transaction that started at {later[0]}, "
                    f"before the write at {ts}: one of the two updates is lost.",
                )
            if start_ts in undone:
                yield self._finding(
                    "committed-and-rolled-back",
                    ts,
                    f"has a write record at {ts} of the transaction that started at {start_ts}, "
                    "and a rollback record of the same: other cells of it may say either.",
                )
            if op is Op.PUT and value is None and start_ts not in data:
                yield self._finding(
                    "write-without-data",
                    ts,
                    f"has a write record at {ts} for data at {start_ts}, which is missing.",
                )
            later = (start_ts, ts)
        yield from self._judge_last_changes()

    def _judge_last_changes(self) -> Iterator[Finding]:
        """Check the last change named in records that change nothing themselves."""
        last = next((ts for ts, one in self._writes.items() if one.op in _CHANGES), 0)
        newest, found = 0, None  # The newest change below a record: the oldest record comes first.
        for ts, record in reversed(self._writes.items()):
            if record.op in _CHANGES:
                newest, found = ts, record
            if record.last_change is None:
                continue
            at, raw = record.last_change
            if newest > at:
                yield self._finding(
                    "hidden-change",
                    ts,
                    f"has a {_VERBS[record.op]} record at {ts} which says that the newest change "
                    f"below it is the one at {at}, but there is one at {newest}: readers miss it.",
                )
                continue
            said = decode_write(raw) if raw else None
            if newest == at:
                differs = said and found and (said.op, said.value) != (found.op, found.value)
            else:
                # Deletes, and changes hidden by a newer one, may have been collected.
                differs = said is not None and said.op is Op.PUT and last <= ts
            if differs:
                yield self._finding(
                    "wrong-last-change",
                    ts,
                    f"has a {_VERBS[record.op]} record at {ts} which repeats a change at {at} that "
                    "does not stand there: readers see a value that was never committed.",
                )

    def _judge_values(self, column: Column[Any, Any]) -> Iterator[Finding]:
        values: dict[int, bytes] = dict(self._entries.data)
        values |= {ts: lock.value for ts, lock in self._locks.items() if lock.value is not None}
        for record in self._writes.values():
            if record.value is not None:
                values[record.start_ts] = record.value
        for ts, raw in values.items():
            try:
                column.decode(raw)
            except Exception:  # A codec is the user's own code.
                yield self._finding(
                    "undecodable-value",
                    ts,
                    f"has data at {ts} that is not {column.codec.name}: {raw[:40]!r}.",
                )

    # --- Observers (§2.4) ---------------------------------------------------------------

    def _judge_acknowledgments(self) -> Iterator[Finding]:
        values = {r.start_ts: r.value for r in self._writes.values() if r.op is Op.PUT}
        values |= {ts: lock.value for ts, lock in self._locks.items() if lock.op is Op.PUT}
        for start_ts, raw in values.items():
            try:
                seen = decode_ts(raw or b"")
            except DamagedRecordError:
                yield self._finding(
                    "undecodable-value", start_ts, f"holds {raw!r}, which is no timestamp."
                )
                continue
            if seen > start_ts:
                yield self._finding(
                    "acknowledgment-from-the-future",
                    start_ts,
                    f"says that everything up to {seen} has been seen, but the observer ran at "
                    f"{start_ts}: changes in between are never looked at.",
                )
            elif seen < start_ts:
                yield self._finding(
                    "wrong-acknowledgment",
                    start_ts,
                    f"says {seen}, where the observer's run at {start_ts} says {start_ts}.",
                )

    def _judge_notifications(self, column: Column[Any, Any], row: RowEntries) -> Iterator[Finding]:
        if not column.observed:
            return
        notified = self._entries.notify
        changes = [ts for ts, record in self._writes.items() if record.op in _CHANGES]
        newest = max(changes, default=0)
        loud = [ts for ts in changes if not self._writes[ts].silent]
        if not (self._unread or self._entries.lock):
            # Notify entries in a separate table are written before the locks are committed.
            for ts in notified:
                # Below the newest change, garbage collection may have removed the reason.
                if ts not in self._writes and ts > newest:
                    yield self._finding(
                        "notification-without-reason",
                        ts,
                        f"has a notify entry at {ts}, where nothing was committed: an observer "
                        "will look once more than it must ('percola rerun' and 'percola failed "
                        "retry' leave such).",
                        Severity.NOTE,
                    )
        newest = max(loud, default=0)
        if not newest or any(ts >= newest for ts in notified):
            return
        ending = b":" + self._cell.column
        if any(
            one.failed and name.startswith(_FAILED) and name.endswith(ending)
            for name, one in row.items()
        ):
            return
        seen = max(
            (
                _acknowledged(one)
                for name, one in row.items()
                if name.startswith(_ACK) and name.endswith(ending)
            ),
            default=0,
        )
        if seen < newest:
            after = f"was acknowledged up to {seen}" if seen else "was never acknowledged"
            yield self._finding(
                LOST,
                newest,
                f"was written at {newest} and {after}, but has no notify entry: no observer "
                "will look at the change.",
            )


def _acknowledged(ack: Entries) -> int:
    """The highest timestamp that an observer has acknowledged in readable entries."""
    seen = 0
    for raw in ack.write.values():
        try:
            record = decode_write(raw)
            if record.op is Op.PUT and record.value is not None:
                seen = max(seen, decode_ts(record.value))
        except DamagedRecordError:
            continue
    return seen


def _is_failure(raw: bytes) -> bool:
    try:
        entry = json.loads(raw)
    except ValueError:
        return False
    return isinstance(entry, dict) and all(
        isinstance(entry.get(name), kind) for name, kind in _FAILURE.items()
    )
