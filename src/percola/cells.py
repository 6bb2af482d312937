"""§2.1, figure 5: what one Percola column looks like in the store.

A Percola cell is a row and a column of a table. The store keeps several kinds of entries
for it, each at explicit timestamps:

    kind      at           holds
    --------  -----------  --------------------------------------------------------------
    lock      start_ts     an uncommitted transaction is writing this cell: where its
                           primary is, who owns it, when the owner last refreshed it
    write     commit_ts    committed data is visible from here on: which kind of write,
                           and the start_ts of the data
    data      start_ts     the value itself
    notify    commit_ts    an observer may have to run: a hint, outside every transaction. Empty,
                           or how often which observers have failed on the change (rule N5)
    failed    commit_ts    a change was dead-lettered here for an observer, with its traceback

`c:ack_O`, the acknowledgment of observer O, is itself a Percola column: `ack_column`.

    Bob.bal      7: lock  = "I am primary"      8: write = put, data @ 7
                 7: data  = $3

Departures from the paper: a write record names its kind (a delete, a lock that wrote
nothing and a rollback are write records too); a value of up to `INLINE_BYTES` is stored in the
write record itself, which saves a read; `failed` is our addition.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Container, Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from percola.errors import DamagedRecordError

INLINE_BYTES: Final = 256
"""Values up to this size, in bytes, are stored inline in the lock and write records."""

MAX_TS: Final = 2**63 - 1
"""Timestamps are integers from 1 to this."""


class Kind(IntEnum):
    """The kinds of entries that a cell has in the store; each is a locality group."""

    DATA = 0
    LOCK = 1
    WRITE = 2
    NOTIFY = 3
    FAILED = 4


class Op(IntEnum):
    """The operation of a write record.

    The last two change nothing. Such a record repeats the newest change below it, so that a
    reader need not step over the records of a cell that is often locked and rarely written
    (`last_change` in TiKV).
    """

    PUT = ord("P")
    DELETE = ord("D")
    LOCK = ord("L")  # get_for_update: locked, and committed without a change
    ROLLBACK = ord("R")  # the transaction that started at this timestamp will never commit


class Cell(NamedTuple):
    """The address of a Percola cell: table name, encoded row, encoded column."""

    table: str
    row: bytes
    column: bytes

    def __str__(self) -> str:
        row = self.row.decode("utf-8", "backslashreplace")
        column = self.column.decode("utf-8", "backslashreplace")
        return f"{self.table}[{row!r}].{column}"


# --- Write records ----------------------------------------------------------------------
#
#   op (1 byte) | flags (1 byte) | start_ts (8 bytes; its top bit: silent) | what the flags say:
#       INLINE        the value
#       LAST_CHANGE   commit_ts (8 bytes) and write record of the newest change below this
#                     record; 0 and nothing if there is none

_WRITE: Final = struct.Struct(">BBQ")
WRITE_HEADER: Final = _WRITE.size
INLINE: Final = 1
LAST_CHANGE: Final = 2
_DECIDES: Final = 4
# Not a flag: readers that take a put's value or start_ts compare the whole byte of flags.
_SILENT: Final = 1 << 63
_CHANGES: Final = frozenset((int(Op.PUT), int(Op.DELETE)))
_TS: Final = struct.Struct(">Q")
CHANGE_RECORD: Final = WRITE_HEADER + _TS.size


class LastChange(NamedTuple):
    """A put or delete: its commit_ts and its write record; (0, b"") says that there is none."""

    commit_ts: int
    record: bytes


NO_CHANGE: Final = LastChange(0, b"")


class WriteRecord(NamedTuple):
    """A decoded write record.

    Attributes:
        op: what happened.
        start_ts: that of the transaction that wrote it.
        value: the value of a put, if it is inline; else None.
        last_change: in a record that changes nothing, the newest change below it; None if the
            client that wrote the record did not know it: then read the records below it.
        decides: whether this record, which changes nothing, is the primary's: clients that meet
            the transaction's other locks learn from it that the transaction has committed.
        silent: whether this put or delete of an observed column was to notify nobody.
    """

    op: Op
    start_ts: int
    value: bytes | None
    last_change: LastChange | None = None
    decides: bool = False
    silent: bool = False


def encode_write(
    op: int,
    start_ts: int,
    value: bytes | None = None,
    last_change: LastChange | None = None,
    decides: bool = False,
    silent: bool = False,
) -> bytes:
    """Encode a write record of operation `op` (an `Op`); see `WriteRecord` for the rest.

    At most one of `value` and `last_change` is given.
    """
    if silent:
        start_ts |= _SILENT
    if value is not None:
        return _WRITE.pack(op, INLINE, start_ts) + value
    flags = _DECIDES if decides else 0
    if last_change is None:
        return _WRITE.pack(op, flags, start_ts)
    return _WRITE.pack(op, flags | LAST_CHANGE, start_ts) + _encode_change(last_change)


def decode_write(raw: bytes) -> WriteRecord:
    """Decode a write record; DamagedRecordError if it is none."""
    try:
        op, flags, start_ts = _WRITE.unpack_from(raw)
        if flags <= INLINE:
            record = WriteRecord(Op(op), start_ts, raw[WRITE_HEADER:] if flags else None)
            if start_ts & _SILENT and op in _CHANGES:
                record = record._replace(start_ts=start_ts ^ _SILENT, silent=True)
        else:
            last_change = _decode_change(raw[WRITE_HEADER:]) if flags & LAST_CHANGE else None
            record = WriteRecord(Op(op), start_ts, None, last_change, bool(flags & _DECIDES))
    except (struct.error, ValueError) as error:
        raise _damaged("write", raw) from error
    if record.start_ts > MAX_TS or (not flags & (INLINE | LAST_CHANGE) and len(raw) > WRITE_HEADER):
        raise _damaged("write", raw)
    if flags > INLINE and (
        flags & INLINE or flags > LAST_CHANGE | _DECIDES or record.op in (Op.PUT, Op.DELETE)
    ):
        raise _damaged("write", raw)
    return record


def start_ts_of(raw: bytes) -> int:
    """The start_ts of an encoded put, without decoding the rest of its record."""
    return int.from_bytes(raw[2:WRITE_HEADER], "big") & MAX_TS


def repeated_change(raw: bytes) -> tuple[int, bytes] | None:
    """The `last_change` of an encoded write record, which is all of it that a reader needs.

    It takes a fraction of the time of `decode_write`, so that a cell is read about as fast
    where others have locked it. The change's own record is not decoded.
    """
    if len(raw) < WRITE_HEADER or not raw[1] & LAST_CHANGE:
        return None
    if len(raw) < CHANGE_RECORD:
        raise _damaged("write", raw)
    return int.from_bytes(raw[WRITE_HEADER:CHANGE_RECORD], "big"), raw[CHANGE_RECORD:]


def _encode_change(change: LastChange) -> bytes:
    return _TS.pack(change.commit_ts) + change.record


def _decode_change(raw: bytes) -> LastChange:
    """The inverse of `_encode_change`; struct.error or ValueError if it is none."""
    (commit_ts,) = _TS.unpack_from(raw)
    record = raw[_TS.size :]
    if not record:
        if commit_ts:
            raise ValueError
        return NO_CHANGE
    if decode_write(record).op not in (Op.PUT, Op.DELETE) or not 0 < commit_ts <= MAX_TS:
        raise ValueError
    return LastChange(commit_ts, record)


def newest_change(records: Iterable[tuple[int, bytes]], *, complete: bool) -> LastChange | None:
    """The newest put or delete of a cell, by its newest write records, newest first.

    `complete`: these are all records of the cell. Returns None if they do not determine it. Raises
    DamagedRecordError.
    """
    for commit_ts, raw in records:
        record = decode_write(raw)
        if record.op in (Op.PUT, Op.DELETE):
            return LastChange(commit_ts, raw)
        if record.last_change is not None:
            return record.last_change
    return NO_CHANGE if complete else None


def _damaged(what: str, raw: bytes) -> DamagedRecordError:
    return DamagedRecordError(
        f"The {what} record {raw[:40]!r} is not one that Percola writes: the store is damaged. "
        "'percola check' says where."
    )


# --- Lock records -----------------------------------------------------------------------
#
#   op | flags | wall time in ms (8) | time to live in ms (4) | four lengths | primary table,
#   row, column | owner token | the value, if flag INLINE; a change as in a write record, if
#   flag LAST_CHANGE

_LOCK: Final = struct.Struct(">BBQIHHHH")
OBSERVED: Final = 2
_LOCK_LAST_CHANGE: Final = 4
_LOCK_SILENT: Final = 8
_LOCK_TAIL: Final = INLINE | _LOCK_LAST_CHANGE


class LockRecord(NamedTuple):
    """A decoded lock: everything that a client needs to roll it forward or back.

    Attributes:
        op: the operation of the write record once the transaction commits.
        primary: the cell that decides the outcome of the transaction.
        owner: the liveness token of the process that wrote the lock.
        wall_ms: the owner's wall clock, in milliseconds, when it last refreshed the lock.
            Compared only with itself, never with another machine's clock.
        ttl_ms: how long, in milliseconds, it may go without a refresh.
        observed: whether committing the cell must put a notify entry (rule N1).
        value: the value, if it is small enough to be inline; else None.
        last_change: in a lock that changes nothing, the newest change below it, for the write
            record that will replace it; None if it is not known.
        silent: whether the column is observed, and committing the cell is to notify nobody.
    """

    op: Op
    primary: Cell
    owner: str
    wall_ms: int
    ttl_ms: int
    observed: bool
    value: bytes | None
    last_change: LastChange | None = None
    silent: bool = False

    @property
    def owner_name(self) -> str:
        """The owner as messages name it. The locks of a job of Spark belong to no process."""
        return self.owner or "a job of Spark"


def encode_lock(lock: LockRecord) -> bytes:
    """Encode a lock record."""
    table = lock.primary.table.encode()
    owner = lock.owner.encode()
    flags = (OBSERVED if lock.observed else 0) | (INLINE if lock.value is not None else 0)
    tail = lock.value or b""
    if lock.silent:
        flags |= _LOCK_SILENT
    if lock.last_change is not None:
        flags |= _LOCK_LAST_CHANGE
        tail = _encode_change(lock.last_change)
    header = _LOCK.pack(
        lock.op,
        flags,
        lock.wall_ms,
        lock.ttl_ms,
        len(table),
        len(lock.primary.row),
        len(lock.primary.column),
        len(owner),
    )
    return b"".join((header, table, lock.primary.row, lock.primary.column, owner, tail))


def decode_lock(raw: bytes) -> LockRecord:
    """Decode a lock record; DamagedRecordError if it is none."""
    try:
        op, flags, wall_ms, ttl_ms, n_table, n_row, n_column, n_owner = _LOCK.unpack_from(raw)
        at = _LOCK.size
        table = raw[at : at + n_table].decode()
        at += n_table
        row = raw[at : at + n_row]
        at += n_row
        column = raw[at : at + n_column]
        at += n_column
        owner = raw[at : at + n_owner].decode()
        at += n_owner
        record = LockRecord(
            Op(op),
            Cell(table, row, column),
            owner,
            wall_ms,
            ttl_ms,
            bool(flags & OBSERVED),
            raw[at:] if flags & INLINE else None,
            _decode_change(raw[at:]) if flags & _LOCK_LAST_CHANGE else None,
            bool(flags & _LOCK_SILENT),
        )
    except (struct.error, ValueError) as error:
        raise _damaged("lock", raw) from error
    tail = flags & (INLINE | _LOCK_LAST_CHANGE)
    if (
        flags > INLINE | OBSERVED | _LOCK_LAST_CHANGE | _LOCK_SILENT
        or at > len(raw)
        or (not tail and at < len(raw))
    ):
        raise _damaged("lock", raw)
    if tail == INLINE | _LOCK_LAST_CHANGE or (
        record.last_change and record.op in (Op.PUT, Op.DELETE)
    ):
        raise _damaged("lock", raw)
    return record


# --- Notify entries ---------------------------------------------------------------------


class Attempts(NamedTuple):
    """An observer's failed attempts at a change.

    Attributes:
        failed: the number of failed attempts.
        due_ms: when the next attempt is due, in milliseconds since the epoch; None: never, the
            change is dead-lettered for this observer.
    """

    failed: int
    due_ms: int | None


HANDLED: Final = Attempts(0, 0)
"""The record of an observer that has handled the change, while another one is paused."""


def encode_attempts(attempts: Mapping[str, Attempts]) -> bytes:
    """Failed attempts by the observer's name, as the value of a notify entry."""
    return json.dumps(attempts, separators=(",", ":")).encode()


def decode_attempts(raw: bytes) -> dict[str, Attempts]:
    """The inverse of `encode_attempts`; a value that is empty or cannot be read has none.

    A notify entry is a hint: if its value is damaged, the attempts are counted from 0 again.
    """
    if not raw:
        return {}
    try:
        found = {str(name): Attempts(*fields) for name, fields in json.loads(raw).items()}
    except (ValueError, TypeError, AttributeError):
        return {}
    readable = all(
        isinstance(failed, int) and isinstance(due_ms, int | None)
        for failed, due_ms in found.values()
    )
    return found if readable else {}


_RETRIED: Final = "@"
"""Before an observer's name, which never begins with it."""


def encode_retry(observer: str, ts: int) -> bytes:
    """The value of a notify entry that takes the place of an observer's dead letter at `ts`.

    Attempts are recorded beside it, and do not replace it.
    """
    return encode_attempts({f"{_RETRIED}{observer}": Attempts(ts, None)})


def retried_letters(attempts: Mapping[str, Attempts]) -> dict[str, int]:
    """The dead letters in whose place a notify entry stands: their timestamps by observer."""
    return {
        name.removeprefix(_RETRIED): one.failed
        for name, one in attempts.items()
        if name.startswith(_RETRIED)
    }


def unhandled_attempts(raw: bytes, column: bytes, failed: Container[bytes]) -> bytes:
    """The value of a notify entry of `column`, for a copy: without what was handled since its time.

    A change is not handled because an observer is recorded to have done so, nor because it is
    recorded as dead-lettered, unless the copy has that dead letter: its column is in `failed`.
    """
    kept = {
        name: one
        for name, one in decode_attempts(raw).items()
        if name.startswith(_RETRIED)
        or (one.due_ms is None and failed_column(name, column) in failed)
        or (one.due_ms is not None and one != HANDLED)
    }
    return encode_attempts(kept) if kept else b""


class DeadLetter(NamedTuple):
    """A change that was dead-lettered for an observer, as the value of a failed entry.

    Attributes:
        observer: its name.
        column: the column of the change, which the failed entry has in its row.
        attempts: how many have failed.
        at_ms: when the last one failed, in milliseconds since the epoch.
        error: the exception, with the first line of its message.
        traceback: that of the last attempt.
    """

    observer: str
    column: str
    attempts: int
    at_ms: int
    error: str
    traceback: str


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Encode the value of a failed entry."""
    return json.dumps(letter._asdict()).encode()


def decode_dead_letter(raw: bytes) -> DeadLetter:
    """The inverse of `encode_dead_letter`; DamagedRecordError if it is none."""
    try:
        entry = json.loads(raw)
        return DeadLetter(*(entry[name] for name in DeadLetter._fields))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged("dead-letter", raw) from error


# --- Columns of Percola's own -----------------------------------------------------------

SYSTEM_MARK: Final = b"@"
"""Percola's own columns begin with this; a user's never do."""

ACKS: Final = b"@ack:"
"""Every `ack_column` begins with this."""
_FAILED: Final = b"@failed:"


def ack_column(observer: str, column: bytes) -> bytes:
    """The Percola column `c:ack_O` that holds observer O's last start_ts (figure 5)."""
    return b"%b%b:%b" % (ACKS, observer.encode(), column)


def acknowledged_column(column: bytes) -> bytes | None:
    """The observed column that an `ack_column` is about; None if it is no such column."""
    if not column.startswith(ACKS):
        return None
    return column[len(ACKS) :].partition(b":")[2]


def acknowledging_observer(column: bytes) -> str:
    """The observer that an `ack_column` is of."""
    return column[len(ACKS) :].partition(b":")[0].decode("utf-8", "replace")


def failed_column(observer: str, column: bytes) -> bytes:
    """The name under which observer O's failure on a column is kept."""
    return b"%b%b:%b" % (_FAILED, observer.encode(), column)


def failed_observer(column: bytes) -> str:
    """The observer that a `failed_column` is about."""
    return column[len(_FAILED) :].partition(b":")[0].decode("utf-8", "replace")


def is_failed_column(failed: bytes, column: bytes) -> bool:
    """Whether a `failed_column` is about this column, for any observer."""
    return failed == failed_column(failed_observer(failed), column)


def encode_ts(ts: int) -> bytes:
    """A timestamp as the value of a cell: decimal digits, readable in any tool."""
    return b"%d" % ts


def decode_ts(raw: bytes) -> int:
    """The inverse of `encode_ts`; DamagedRecordError for anything but decimal digits."""
    if not raw.isdigit() or len(raw) > 19:
        raise DamagedRecordError(f"{raw[:40]!r} is not a timestamp: the store is damaged.")
    return int(raw)
