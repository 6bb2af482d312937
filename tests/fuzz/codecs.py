"""Fuzz targets of percola: records, keys, the schema, values, backups, and calls on the network.

A target is a function of bytes. It reads them as what a store or a file could hold, and as values
to be written and read back; it returns nothing, and fails where a promise is broken. Damage must
come out as a `ValueError` (`DamagedRecordError` is one), never as anything else.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from typing import Any, cast

from percola import JSON
from percola.cells import (
    MAX_TS,
    NO_CHANGE,
    Cell,
    Kind,
    LastChange,
    LockRecord,
    Op,
    WriteRecord,
    ack_column,
    acknowledged_column,
    decode_lock,
    decode_ts,
    decode_write,
    encode_lock,
    encode_ts,
    encode_write,
)
from percola.coordination.lock_service.server import LockServiceServer
from percola.errors import (
    DamagedRecordError,
    RepositoryVersionError,
    SchemaError,
    SchemaMismatchError,
    WrongTypeError,
)
from percola.maintenance.backup import Backup, encode_header, read_header
from percola.maintenance.backup import _pieces as read_pieces
from percola.rpc import frames
from percola.rpc.server import Peer
from percola.schema import Column, Family, Schema, Table
from percola.store.lmdb.keys import NEWEST_FIRST, Keys, keys_between, suffix, timestamp
from tests.fuzz.input import Input


def cells(data: bytes) -> None:
    """Lock records, write records and timestamps: §2.1's cells."""
    with contextlib.suppress(DamagedRecordError):
        write = decode_write(data)
        assert encode_write(*write) == data
    with contextlib.suppress(DamagedRecordError):
        lock = decode_lock(data)
        assert encode_lock(lock) == data
    with contextlib.suppress(DamagedRecordError):
        ts = decode_ts(data)
        assert ts >= 0 and decode_ts(encode_ts(ts)) == ts
    acknowledged_column(data)

    given = Input(data)
    op, start_ts, value = given.choice(tuple(Op)), given.integer(8) & MAX_TS, given.maybe_chunk()
    assert decode_write(encode_write(op, start_ts, value)) == WriteRecord(op, start_ts, value)
    change = None
    if op in (Op.LOCK, Op.ROLLBACK):
        put = encode_write(Op.PUT, start_ts, value)
        change = given.choice((None, NO_CHANGE, LastChange(1 + (start_ts >> 1), put)))
        unchanged = WriteRecord(op, start_ts, None, change, bool(given.integer(1) & 1))
        assert decode_write(encode_write(*unchanged)) == unchanged
    if change is not None:
        value = None
    written = LockRecord(
        op,
        Cell(given.text(), given.chunk(), given.chunk()),
        given.text(),
        given.integer(8),
        given.integer(4),
        bool(given.integer(1) & 1),
        value,
        change if op is Op.LOCK else None,
    )
    raw = encode_lock(written)
    assert decode_lock(raw) == written
    tail = len(value or b"") if written.last_change is None else len(written.last_change.record)
    for end in range(len(raw) - tail):
        try:
            decode_lock(raw[:end])
        except DamagedRecordError:
            continue
        raise AssertionError(f"a lock record cut off at {end} was read")
    name = given.text().replace(":", "")
    assert acknowledged_column(ack_column(name, given.rest())) is not None


class _Numbered(Keys):
    """The keys of a store with two tables, which no environment has to be asked for."""

    def __init__(self) -> None:
        self.prefixes = {"a": b"\0\1", "b": b"\0\2"}
        self._names = {number: name for name, number in self.prefixes.items()}

    def _load(self) -> None:
        raise DamagedRecordError("There is no such table.")


def keys(data: bytes) -> None:
    """LMDB's keys: each leads back to its cell, and they stand in the order of their cells."""
    of = _Numbered()
    with contextlib.suppress(ValueError):
        of.cell(data)
    given = Input(data)
    kind = given.choice(tuple(Kind))
    entries = []
    for _ in range(2):
        cell = Cell(
            given.choice(("a", "b")),
            given.chunk() or b"r",
            given.chunk().replace(b"\0", b"") or b"c",
        )
        ts = given.integer(8) & MAX_TS
        key = of.key(*cell)
        assert of.cell(key) == cell
        assert timestamp(key + suffix(kind, ts), kind) == ts
        start, end = of.row_key(cell.table, cell.row), of.end_key(cell.table, b"")
        assert start <= key < end and key.startswith(start)
        entries.append((cell, ts, key + suffix(kind, ts)))
    (one, first, low), (other, second, high) = sorted(entries)
    if one != other:
        assert low < high
        # No cell's key begins another's: what follows is a timestamp.
        assert not high.startswith(of.key(*one))
        if one.table == other.table and one.row < other.row:
            assert low < of.row_key(other.table, other.row) <= high
    elif first < second:
        assert (low > high) is (kind in NEWEST_FIRST)
    count = given.integer(1) % 20
    if low[:-8] < high[:-8]:
        between = keys_between(low, high, count)
        assert len(between) == count and between == sorted(between)
        assert all(middle <= high for middle in between)


def schema(data: bytes) -> None:
    """The stored schema: read, written and merged, it stays what it is."""
    try:
        text = data.decode()
        found = Schema.from_json(text)
    except (ValueError, SchemaError):
        return
    stored = found.to_json()
    again = Schema.from_json(stored)
    assert again.to_json() == stored
    assert json.loads(again.merged_into(found).to_json()) == json.loads(stored)
    with contextlib.suppress(SchemaMismatchError):
        merged = found.merged_into(_SCHEMA)
        assert merged.merged_into(merged).to_json() == merged.to_json()
        assert found.merged_into(merged).to_json() == merged.to_json()
    for table in found:
        for member in table.members:
            if not isinstance(member, Family):
                assert table.resolve(member.name).address == member.address


_typed = Table("typed")
_COLUMNS: tuple[Column[str, Any], ...] = (
    _typed.column("bytes"),
    _typed.column("str", str),
    _typed.column("int", int),
    _typed.column("float", float),
    _typed.column("bool", bool),
    _typed.column("json", JSON),
)
_family = _typed.family("family", int)
_binary = Table("binary", rows=bytes)
_SCHEMA = Schema([_typed, _binary])


def values(data: bytes) -> None:
    """Rows, names of columns and values of every type."""
    for column in _COLUMNS:
        try:
            value = column.decode_value(data)
        except WrongTypeError:
            continue
        try:
            raw = column.encode_value(value)
        except WrongTypeError:
            # JSON's text can say what its writer never says: NaN, half a surrogate pair.
            assert column.codec is JSON
            continue
        again = column.decode_value(raw)
        assert again == value or (isinstance(value, float) and math.isnan(value))
        assert column.encode_value(again) == raw
    text = data.decode("utf-8", "surrogateescape")
    for table, row in ((_typed, text), (_binary, data)):
        with contextlib.suppress(WrongTypeError):
            assert cast("Any", table).decode_row(cast("Any", table).encode_row(row)) == row
    with contextlib.suppress(SchemaError):
        named = _family[text]
        assert _family.qualifier(named) == text
        assert _typed.resolve(named.name) == named


def backup(data: bytes) -> None:
    """What a backup begins with, and its pieces."""
    source = io.BytesIO(data)
    with contextlib.suppress(DamagedRecordError, RepositoryVersionError):
        found, head = read_header(source)
        assert data.startswith(head) and source.tell() == len(head)
        assert read_header(io.BytesIO(encode_header(found)))[0] == found
        whole = b"".join(read_pieces(source, head))
        assert source.tell() == len(data) and len(whole) < len(data)
    given = Input(data)
    made = Backup(
        1,
        given.choice(("full", "relaxed")),
        given.integer(8) & MAX_TS,
        given.integer(8) & MAX_TS,
        given.integer(8) & MAX_TS,
    )
    head = encode_header(made)
    assert read_header(io.BytesIO(head + given.rest())) == (made, head)


class _Nobody:
    """Takes what a lock service sends."""

    def __init__(self) -> None:
        self.sent = b""

    def send(self, peer: Peer, message: bytes) -> None:
        self.sent += message

    def end(self, peer: Peer, message: bytes = b"") -> None:
        self.sent += message

    def keep(self, peer: Peer) -> None:
        pass

    def hurry(self) -> None:
        pass


def rpc(data: bytes) -> None:
    """What a client sends to an oracle, and an oracle to a client, in pieces of any size (§2.3)."""
    readers = (
        frames.read_hello,
        frames.read_refused,
        frames.read_draw,
        frames.read_drawn,
        frames.read_pause,
    )
    for read in readers:
        with contextlib.suppress(frames.FrameError):
            read(data)
    found: list[frames.Frame] = []
    with contextlib.suppress(frames.FrameError):
        found, rest = frames.split(data)
        assert b"".join(frames.frame(*one) for one in found) + rest == data
        assert len(rest) < 4 + frames.MOST
        given = Input(data)
        in_pieces: list[frames.Frame] = []
        left, at = b"", 0
        while at < len(data):
            size = 1 + given.integer(1) % 40
            more, left = frames.split(left + data[at : at + size])
            in_pieces += more
            at += size
        assert (in_pieces, left) == (found, rest)
    nobody = _Nobody()
    service = LockServiceServer(nobody)
    peer = Peer(cast(Any, None), "fuzz")
    for kind, number, body in [frames.Frame(frames.ATTEND, 1, b""), *found]:
        with contextlib.suppress(frames.FrameError):
            answers, rest = frames.split(service.received(peer, kind, number, body))
            assert not rest and all(one.number == number for one in answers)
        service.tick()
    assert not frames.split(nobody.sent)[1]
    service.drop(peer)
    assert service.locks == service.sessions == 0
