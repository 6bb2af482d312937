"""§2.1, figure 5: what one Percola column looks like in the store.

A Percola cell is a row and a column of a table. The store keeps several kinds of entries
for it, each at explicit timestamps:

    kind      at           holds
    --------  -----------  --------------------------------------------------------------
    lock      start_ts     an uncommitted transaction is writing this cell: where its
                           primary is, who owns it, when the owner last refreshed it
    write     commit_ts    committed data is visible from here on: which kind of write,
                           and the start_ts at which the data stands
    data      start_ts     the value itself
    notify    commit_ts    an observer may have to run: a hint, outside every transaction
    failed    commit_ts    an observer was set aside here, with its traceback

`c:ack_O`, the acknowledgment of observer O, is itself a Percola column: `ack_column`.

    Bob.bal      7: lock  = "I am primary"      8: write = put, data @ 7
                 7: data  = $3

Departures from the paper: a write record names its kind (a delete, a lock that wrote
nothing and a rollback are write records too); a value of up to `INLINE_BYTES` stands in the
write record itself, which saves a read; `failed` is ours.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from percola.errors import DamagedRecordError

INLINE_BYTES: Final = 256
"""Values up to this size, in bytes, stand in the lock and write records themselves."""

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
    """What a write record says happened to the cell at its timestamp."""

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
#   op (1 byte) | flags (1 byte) | start_ts (8 bytes) | the value, if flag INLINE

_WRITE: Final = struct.Struct(">BBQ")
WRITE_HEADER: Final = _WRITE.size
_INLINE: Final = 1


class WriteRecord(NamedTuple):
    """A decoded write record. `value` is None unless the value stands inline."""

    op: Op
    start_ts: int
    value: bytes | None


def encode_write(op: int, start_ts: int, value: bytes | None = None) -> bytes:
    """Encode a write record of operation `op` (an `Op`), with an inline `value` if it has one."""
    if value is None:
        return _WRITE.pack(op, 0, start_ts)
    return _WRITE.pack(op, _INLINE, start_ts) + value


def decode_write(raw: bytes) -> WriteRecord:
    """Decode a write record; DamagedRecordError if it is none."""
    try:
        op, flags, start_ts = _WRITE.unpack_from(raw)
        record = WriteRecord(Op(op), start_ts, raw[WRITE_HEADER:] if flags else None)
    except (struct.error, ValueError) as error:
        raise _damaged("write", raw) from error
    if flags > _INLINE or start_ts > MAX_TS or (not flags and len(raw) > WRITE_HEADER):
        raise _damaged("write", raw)
    return record


def _damaged(what: str, raw: bytes) -> DamagedRecordError:
    return DamagedRecordError(
        f"The {what} record {raw[:40]!r} is not one that Percola writes: the store is damaged. "
        "'percola check' says where."
    )


# --- Lock records -----------------------------------------------------------------------
#
#   op | flags | wall time in ms (8) | time to live in ms (4) | four lengths | primary table,
#   row, column | owner token | the value, if flag INLINE

_LOCK: Final = struct.Struct(">BBQIHHHH")
_OBSERVED: Final = 2


class LockRecord(NamedTuple):
    """A decoded lock: everything that whoever meets it needs to finish or undo it.

    Attributes:
        op: what the write record will say once the transaction commits.
        primary: the cell that decides about the transaction.
        owner: the liveness token of the process that wrote the lock.
        wall_ms: the owner's wall clock, in milliseconds, when it last refreshed the lock.
            Compared only with itself, never with another machine's clock.
        ttl_ms: how long, in milliseconds, it may go without a refresh.
        observed: whether committing the cell must put a notify entry (rule N1).
        value: the value, where it is small enough to stand inline; else None.
    """

    op: Op
    primary: Cell
    owner: str
    wall_ms: int
    ttl_ms: int
    observed: bool
    value: bytes | None


def encode_lock(lock: LockRecord) -> bytes:
    """Encode a lock record."""
    table = lock.primary.table.encode()
    owner = lock.owner.encode()
    flags = (_OBSERVED if lock.observed else 0) | (_INLINE if lock.value is not None else 0)
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
    return b"".join(
        (header, table, lock.primary.row, lock.primary.column, owner, lock.value or b"")
    )


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
            bool(flags & _OBSERVED),
            raw[at:] if flags & _INLINE else None,
        )
    except (struct.error, ValueError) as error:
        raise _damaged("lock", raw) from error
    inline = flags & _INLINE
    if flags > _INLINE | _OBSERVED or at > len(raw) or (not inline and at < len(raw)):
        raise _damaged("lock", raw)
    return record


# --- Columns of Percola's own -----------------------------------------------------------

SYSTEM_MARK: Final = b"@"
"""Percola's own columns begin with this; a user's never do."""

_ACK: Final = b"@ack:"


def ack_column(observer: str, column: bytes) -> bytes:
    """The Percola column `c:ack_O` that holds observer O's last start_ts (figure 5)."""
    return b"%b%b:%b" % (_ACK, observer.encode(), column)


def acknowledged_column(column: bytes) -> bytes | None:
    """The observed column that an `ack_column` is about; None if it is no such column."""
    if not column.startswith(_ACK):
        return None
    return column[len(_ACK) :].partition(b":")[2]


def failed_column(observer: str, column: bytes) -> bytes:
    """The name under which observer O's failure on a column is kept."""
    return b"@failed:%b:%b" % (observer.encode(), column)


def encode_ts(ts: int) -> bytes:
    """A timestamp as the value of a cell: decimal digits, readable in any tool."""
    return b"%d" % ts


def decode_ts(raw: bytes) -> int:
    """The inverse of `encode_ts`; DamagedRecordError for anything but decimal digits."""
    if not raw.isdigit() or len(raw) > 19:
        raise DamagedRecordError(f"{raw[:40]!r} is not a timestamp: the store is damaged.")
    return int(raw)
