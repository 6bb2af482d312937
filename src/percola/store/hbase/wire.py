"""§2.1: the encoding of requests to HBase and the decoding of its responses.

A call from Python into Java costs microseconds, and building a request with HBase's client takes
dozens of them. So requests are encoded here as the messages that HBase itself sends, and Java
parses each in one call; every response comes back as one block of cells.

    kind      family  at         value
    --------  ------  ---------  ------------------------------------------------------------
    data      d       start_ts   1, then the value
    lock      l       always 1   nothing: no lock; else start_ts (8 bytes), then the record
    write     w       commit_ts  1, then the record
    notify    n       commit_ts  1, then the value
    failed    f       commit_ts  1, then the value
    changes   c       commit_ts  1: what a feed lists

A Percola column is a qualifier of the family. Only a released lock has an empty value, because
HBase's checks treat an empty value as no entry.

**Locks are replaced and never deleted.** A delete in HBase is a marker, which reads skip one by
one until a major compaction: to find the lock of a cell that is locked a hundred thousand times a
day, a read would skip a hundred thousand markers. As a cell has one lock at a time, all its locks
are stored at one timestamp, and the newest entry is found at once. The cost is an entry without a
value for each column that was ever locked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from percola.cells import Kind
from percola.errors import DamagedRecordError
from percola.store.remote.column_ranges import ColumnRange

FAMILIES: Final[dict[Kind, bytes]] = {
    Kind.DATA: b"d",
    Kind.LOCK: b"l",
    Kind.WRITE: b"w",
    Kind.NOTIFY: b"n",
    Kind.FAILED: b"f",
}
"""The column family of each kind."""

CHANGES: Final = b"c"
"""The column family in which a table that keeps a feed lists its puts and deletes."""

MAX_STORED_TS: Final = 2**63 - 2
"""The highest timestamp that HBase can store: the next one means "now"."""

ALL_VERSIONS: Final = 2**31 - 1
"""The number of versions that asks for all."""

LOCK_AT: Final = 1
"""The HBase timestamp of every lock."""

_FULL: Final = b"\1"
_TS: Final = struct.Struct(">Q")

LOCK: Final = FAMILIES[Kind.LOCK]


def stored(value: bytes) -> bytes:
    """A value as it is stored in every family but that of locks: never empty."""
    return _FULL + value


def stored_lock(ts: int, record: bytes) -> bytes:
    """A lock as it is stored."""
    return _TS.pack(ts) + record


def lock_of(raw: bytes) -> tuple[int, bytes] | None:
    """(start_ts, record) of a stored lock; None for a released one."""
    if not raw:
        return None
    if len(raw) < _TS.size:
        raise DamagedRecordError(
            f"{raw!r} stands where a lock should: the store is damaged, or something else wrote "
            "to its table."
        )
    return _TS.unpack_from(raw)[0], raw[_TS.size :]


# --- Messages ---------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """A number as a varint: seven bits per byte, the lowest first."""
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    """A field that contains bytes or a message."""
    size = len(data)
    if size < 128:
        return bytes((number << 3 | 2, size)) + data
    return bytes((number << 3 | 2,)) + varint(size) + data


def _number(number: int, value: int) -> bytes:
    return bytes((number << 3,)) + varint(value)


class Change(NamedTuple):
    """A put of a value, or, if it is None, a delete of the entry at exactly this timestamp."""

    family: bytes
    column: bytes
    ts: int
    value: bytes | None


class Check(NamedTuple):
    """A condition on a column's newest entry with `low` ≤ timestamp ≤ `high`.

    Attributes:
        begins: the prefix that its value must have; None: there must be no entry, or an empty one.
    """

    family: bytes
    column: bytes
    low: int
    high: int
    begins: bytes | None


_PUT: Final = _number(2, 2)
_SKIP_LOG: Final = _number(6, 1)
_DELETE: Final = _number(2, 3)
_ONE_VERSION: Final = _number(4, 0)
_EQUAL: Final = _number(4, 2)
_FILTERS: Final = "org.apache.hadoop.hbase.filter."


def _filter(name: str, body: bytes) -> bytes:
    """A filter or comparator of HBase's, by the name of its class."""
    return _field(1, (_FILTERS + name).encode()) + _field(2, body)


def _comparator(name: str, value: bytes) -> bytes:
    return _field(5, _filter(name, _field(1, _field(1, value) if value else b"")))


_NO_VALUE: Final = _comparator("BinaryComparator", b"")


def mutations(row: bytes, changes: Iterable[Change], *, durable: bool = True) -> bytes:
    """The changes of a row, as the fields of a request to change rows.

    What is not `durable` is not written to the server's log.
    """
    log = b"" if durable else _SKIP_LOG
    return b"".join(_field(1, message + log) for _, message in messages(row, changes))


def messages(row: bytes, changes: Iterable[Change]) -> Iterator[tuple[bool, bytes]]:
    """The changes of a row as up to two messages: (whether it puts, else deletes; message)."""
    puts: dict[bytes, list[bytes]] = {}
    deletes: dict[bytes, list[bytes]] = {}
    for family, column, ts, value in changes:
        if value is None:
            entry = _field(1, column) + _number(3, ts) + _ONE_VERSION
            deletes.setdefault(family, []).append(_field(2, entry))
        else:
            entry = _field(1, column) + _field(2, value) + _number(3, ts)
            puts.setdefault(family, []).append(_field(2, entry))
    for what, families in ((_PUT, puts), (_DELETE, deletes)):
        if families:
            columns = [
                _field(3, _field(1, family) + b"".join(entries))
                for family, entries in families.items()
            ]
            yield what is _PUT, _field(1, row) + what + b"".join(columns)


def conditions(row: bytes, checks: Iterable[Check]) -> bytes:
    """The checks of a row, as the fields of a request to change rows."""
    out = []
    for family, column, low, high, begins in checks:
        where = _field(1, row) + _field(2, family) + _field(3, column)
        # The endpoint treats "not equal to nothing" as "equal to nothing", so "equal" is used.
        how = _NO_VALUE if begins is None else _comparator("BinaryPrefixComparator", begins)
        out.append(_field(5, where + _EQUAL + how + _time_range(6, low, high)))
    return b"".join(out)


def check(family: bytes, column: bytes, low: int, high: int, *, present: bool) -> Check:
    """That a column has (or has no) entry in a range of timestamps; not for locks."""
    return Check(family, column, low, high, _FULL if present else None)


def lock_check(column: bytes, ts: int | None) -> Check:
    """That a column has the lock of this timestamp, or None: no lock."""
    return Check(LOCK, column, 0, MAX_STORED_TS, None if ts is None else _TS.pack(ts))


def _time_range(number: int, low: int, high: int) -> bytes:
    """The range of timestamps as a field; empty if it covers all timestamps."""
    if low <= 0 and high >= MAX_STORED_TS:
        return b""
    # The end is excluded.
    end = min(high, MAX_STORED_TS) + 1
    return _field(number, _number(1, min(max(low, 0), end)) + _number(2, end))


class Ask(NamedTuple):
    """Columns of a family to read (None: all of them), between two timestamps."""

    family: bytes
    columns: Sequence[bytes] | None
    low: int = 0
    high: int = MAX_STORED_TS


def get(row: bytes, asked: Iterable[Ask], versions: int) -> bytes:
    """A request for the newest entries of a row's columns."""
    return get_asked(row, asked_for(asked, versions))


def get_asked(row: bytes, what: bytes) -> bytes:
    """A request for a row, with the fields that `asked_for` returned."""
    return _field(1, row) + what


FEW: Final = 8
"""More columns than these are named by the request: each entry is compared with all in a filter."""
_ANY_OF: Final = _number(1, 2)


@lru_cache(maxsize=256)
def _only(ranges: tuple[ColumnRange, ...]) -> bytes:
    """The field of a request for the columns of these ranges alone."""
    each = [_filter("ColumnRangeFilter", _bounds(*one)) for one in ranges]
    if len(each) == 1:
        return _field(4, each[0])
    return _field(4, _filter("FilterList", _ANY_OF + b"".join(_field(2, one) for one in each)))


def _bounds(start: bytes, last: bytes | None, end: bytes | None) -> bytes:
    low = _field(1, start) + _number(2, 1)
    if last is not None:
        return low + _field(3, last) + _number(4, 1)
    return low if end is None else low + _field(3, end)


def columns_of(asked: Sequence[Ask]) -> tuple[bytes, ...]:
    """The columns, if the same ones are asked for of each family; else none.

    Of a column that the request itself names HBase reads all versions, as `NEW_VERSION_BEHAVIOR`
    makes it seek where it is already. So a filter is to name them where it can.
    """
    named = {None if one.columns is None else tuple(one.columns) for one in asked}
    return (named.pop() or ()) if len(named) == 1 else ()


def asked_for(asked: Iterable[Ask], versions: int, within: tuple[ColumnRange, ...] = ()) -> bytes:
    """The fields of a request except its row; `within`: for columns in these ranges alone.

    A single column is named by a filter, and so are a few of which one version is asked for: see
    `columns_of`.
    """
    asked = list(asked)
    only = columns_of(asked)
    if len(only) > (FEW if versions == 1 else 1):
        only = ()
    if only:
        within = tuple(ColumnRange(column, last=column) for column in only)
    out = []
    spans = []
    for family, columns, low, high in asked:
        names = b"" if only else b"".join(_field(2, column) for column in columns or ())
        out.append(_field(2, _field(1, family) + names))
        if span := _time_range(2, low, high):
            spans.append(_field(13, _field(1, family) + span))
    if within:
        out.append(_only(within))
    out.append(_number(6, versions))
    return b"".join((*out, *spans))


def file_of_service(service: str, method: str) -> bytes:
    """The description of a file with a service of one method, in no package."""
    message = b"Message"
    call = _field(1, method.encode()) + _field(2, b"." + message) + _field(3, b"." + message)
    described = _field(1, service.encode()) + _field(2, call)
    return _field(1, b"percola") + _field(4, _field(1, message)) + _field(6, described)


# --- Responses --------------------------------------------------------------------------

_KEY: Final = struct.Struct(">iiih")
_LONG: Final = struct.Struct(">q")


Entry: TypeAlias = tuple[bytes, bytes, int, bytes]
"""An HBase cell: family, column, timestamp, value. A plain tuple, as reads make so many of them."""


def rows_of(block: bytes) -> Iterator[tuple[bytes, list[Entry]]]:
    """The rows of a block of cells, each with its entries: by family and column, newest first."""
    at, end = 0, len(block)
    row: bytes | None = None
    found: list[Entry] = []
    while at < end:
        size, key_size, value_size, row_size = _KEY.unpack_from(block, at)
        begin = at + 14
        key = block[begin : begin + row_size]
        if key != row:
            if row is not None:
                yield row, found
            row, found = key, []
        begin += row_size
        family_size = block[begin]
        begin += 1
        family = block[begin : begin + family_size]
        begin += family_size
        tail = at + 12 + key_size
        ts = _LONG.unpack_from(block, tail - 9)[0]
        found.append((family, block[begin : tail - 9], ts, block[tail : tail + value_size]))
        at += 4 + size
    if row is not None:
        yield row, found
