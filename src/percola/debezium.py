"""§2.4: the changes of a table as events in Debezium's format, as Kafka's consumers expect them.

    key     {"row": "o1"}
    value   {"before": {"row": "o1", "cents": 2000}, "after": {"row": "o1", "cents": 2100},
             "source": {"table": "orders", "row": "o1", "commit_ts": 4711, …},
             "op": "u", "ts_ms": 1764109000123, "transaction": null}

`op` is `c` for a row that was not there, `u`, `d` for one that is no longer there, and `r` for a
row of a table's first reading. A row is there if it has one of the columns that are read. After a
`d` comes a tombstone, the same key without a value, so that Kafka's compaction drops the row.

Values are encoded as Debezium's connectors and Kafka Connect's JsonConverter do by default:

    int16, int32, int64, int, float, bool   numbers and true, false; an int has 64 bits here
    str, JSON                               text; JSON as `io.debezium.data.Json`
    bytes, codecs of one's own              base64
    decimal                                 `precise`: base64 of the unscaled number, big-endian;
                                            `string`: text such as "12.50"
    date                                    days since 1970: `io.debezium.time.Date`
    timestamp                               "2010-10-04T12:00:00Z": `…ZonedTimestamp`
    timestamp_ntz                           microseconds since 1970: `…MicroTimestamp`
    array, struct, map, family              list, object, object (pairs, unless keys are text)

A float that is no number is the text NaN, Infinity or -Infinity, as Jackson writes it.

Kafka commits no position together with events, so a producer that was killed sends again what was
after its last position. All events of a row come in the order of commits: a consumer that applies
them in Kafka's order ends with the right rows. One that must not go back in between ignores an
event whose `source.commit_ts` is below that of the key's last one.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Context
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Generic, NamedTuple, TypeAlias

from percola import feed
from percola.codecs import (
    JSON,
    ArrayCodec,
    Codec,
    DecimalCodec,
    MapCodec,
    NestedCodec,
    OrderedCodec,
    StructCodec,
    codec_named,
)
from percola.errors import SchemaError, UsageError, WrongTypeError
from percola.gc.time_log import CommitTimes
from percola.repository import Repository
from percola.schema import RECORD_KEY, Column, Family, R, Table, WeakColumn

__all__ = ["DECIMALS", "Event", "Events"]

DECIMALS: Final = ("precise", "string")
"""How decimals are encoded: Debezium's `decimal.handling.mode`."""

_SOURCE: Final = "io.debezium.connector.percola.Source"

Member: TypeAlias = "Column[R, Any] | Family[R, Any]"
_Schema: TypeAlias = dict[str, Any]
_Convert: TypeAlias = Callable[[Any], Any]


class Event(NamedTuple):
    """An event of a topic.

    Attributes:
        key: JSON text.
        value: JSON text; None for a tombstone.
        commit_ts: when the change committed, or a row of the first reading was last changed.
    """

    key: str
    value: str | None
    commit_ts: int


class Events(Generic[R]):
    """Turns changes of a table, and its rows, into events.

    Args:
        table: from the repository's schema.
        name: the logical name of the repository, `source.name`: the beginning of schemas' names,
            and usually of the topic's, as in `shop.orders`.
        columns: the columns and families of `before` and `after`; None: all of the table's but
            those in which recipes record what the row has contributed.
        row_name: the name of the row's key in them and in the event's key.
        schemas: whether keys and values say their Connect schema: `{"schema": …, "payload": …}`.
        decimals: one of `DECIMALS`.

    Raises SchemaError if a column has the name of the row's key, if there is none besides it, or
    for another word; UsageError for what is no column of the table.
    """

    def __init__(
        self,
        table: Table[R],
        *,
        name: str = "percola",
        columns: Iterable[Member[R]] | None = None,
        row_name: str = "row",
        schemas: bool = False,
        decimals: str = "precise",
    ) -> None:
        if decimals not in DECIMALS:
            raise SchemaError(
                f"decimals={decimals!r} is no encoding of decimals: use {' or '.join(DECIMALS)}."
            )
        if not isinstance(table, Table):
            raise UsageError(
                f"Events are of a Table, and not of {table!r}: pass the one that your program "
                "declares, or that `repo.table` returns."
            )
        self._table = table
        self._members = usual(table) if columns is None else _listed(table, columns)
        if not self._members:
            raise SchemaError(
                f"Events of the table {table.name!r} need a column besides the row's key: a row is "
                "there if it has one of those that are read."
            )
        self._has_records = any(_is_record(one.name.encode()) for one in self._members)
        for member in self._members:
            if member.name == row_name:
                raise SchemaError(
                    f"The table {table.name!r} has a column named {row_name!r}, which is what the "
                    "row's key is called in events: give the key another name."
                )
        self._row_name = row_name
        self._source = {
            "version": _version(),
            "connector": "percola",
            "name": name,
            "db": name,
            "table": table.name,
        }
        row_codec = table.rows if isinstance(table.rows, Codec) else codec_named(table.rows_name)
        row_schema, self._row = _column_type(row_codec, decimals)
        types = [_member_type(member, decimals) for member in self._members]
        self._convert = [convert for _, convert in types]
        self._opening = self._key_opening = "", ""
        if schemas:
            key = [{**row_schema, "optional": False, "field": row_name}]
            fields = [
                *key,
                *(_field(m.name, one) for m, (one, _) in zip(self._members, types, strict=True)),
            ]
            prefix = f"{name}.{table.name}"
            self._key_opening = _wrapping(_struct(f"{prefix}.Key", key))
            self._opening = _wrapping(_envelope(prefix, fields))

    # --- From a repository ----------------------------------------------------------------

    def rows(self, repo: Repository, at: int) -> Iterator[Event]:
        """The table as it is at a timestamp, best one that `feed.settled` has returned: `r` events.

        Transactions that may still commit at or below it are waited for. While they are read,
        garbage collection keeps the rows. Raises SnapshotTooOldError, and what `feed.settle` does.
        """
        images = feed.raw_rows(repo, self._table, at, self._members)
        return self._events(repo, images, first=True)

    def changes(self, repo: Repository, after: int, upto: int | None = None) -> Iterator[Event]:
        """The changes at `after` < commit_ts ≤ `upto` in the order of commit_ts.

        Arguments and errors are those of `percola.feed.changes`. Each change costs two reads: of
        the row as it was then, and just before.
        """
        images = feed.raw_changes(repo, self._table, after, upto, self._members, before=True)
        return self._events(repo, images, first=False)

    def _events(
        self, repo: Repository, images: Iterator[feed.RowImage], *, first: bool
    ) -> Iterator[Event]:
        times: CommitTimes | None = None
        for one in images:
            times = times or repo.commit_times()
            yield from self.of(one, times, repo.context.clock.wall_ms(), first=first)

    # --- One change -----------------------------------------------------------------------

    def of(
        self, image: feed.RowImage, times: CommitTimes, now_ms: int, *, first: bool = False
    ) -> list[Event]:
        """The events of a change that was read with its image before, or of a row.

        None if the row had and has none of the columns, or if nothing but a recipe's record of it
        was changed and no record is read; two for a deleted row.

        Args:
            times: `source.ts_ms` is the time by which it had committed, by this log.
            now_ms: the time now, in milliseconds since the epoch: `ts_ms`, and `source.ts_ms` of
                what is newer than the log.
            first: whether it is a row of the table's first reading.

        Raises WrongTypeError for a value that is not of its column's type, or an int that has more
        than 64 bits.
        """
        before, after = image.before or {}, image.values
        if not before and not after:
            return []
        op = "r" if first else "u" if before and after else "c" if after else "d"
        if op == "u" and not self._has_records and all(map(_is_record, image.changed)):
            return []
        key = self._row(image.row)
        committed = times.of(image.commit_ts)[1]
        value = {
            "before": self._image(image.row, key, before),
            "after": self._image(image.row, key, after),
            "source": {
                **self._source,
                "ts_ms": now_ms if committed is None else int(committed.timestamp() * 1000),
                "snapshot": "true" if first else "false",
                "commit_ts": image.commit_ts,
                "row": str(key),
                "changed": [name.decode() for name in image.changed],
            },
            "op": op,
            "ts_ms": now_ms,
            "transaction": None,
        }
        said = _wrapped(self._key_opening, {self._row_name: key})
        events = [Event(said, _wrapped(self._opening, value), image.commit_ts)]
        return events if op != "d" else [*events, Event(said, None, image.commit_ts)]

    def _image(self, row: bytes, key: Any, values: Mapping[bytes, bytes]) -> dict[str, Any] | None:
        if not values:
            return None
        found: dict[str, Any] = {self._row_name: key}
        for member, convert in zip(self._members, self._convert, strict=True):
            try:
                if isinstance(member, Family):
                    found[member.name] = _family(member, convert, values)
                else:
                    raw = values.get(member.key)
                    found[member.name] = None if raw is None else convert(raw)
            except ValueError as error:
                why = f": {error}" if isinstance(error, _TooWideError) else "."
                raise WrongTypeError(
                    f"{member!r} of {self._table.shown_row(row)} holds a value that is not "
                    f"{member.codec.name} in an event{why}"
                ) from error
        return found


def usual(table: Table[R]) -> list[Member[R]]:
    """The columns and families of a table, without the records of recipes.

    A record outlives its row until the recipe's observer has run: the row would not be deleted yet.
    """
    members = (one for one in table.members if not isinstance(one, WeakColumn))
    return [one for one in members if not _is_record(one.name.encode())]


def _is_record(name: bytes) -> bool:
    return name.startswith(RECORD_KEY)


def _listed(table: Table[R], columns: Iterable[Member[R]]) -> list[Member[R]]:
    if isinstance(columns, Column | Family):
        raise UsageError(f"The columns of events are a list, but this is {columns!r} alone.")
    found = list(columns)
    for one in found:
        if not isinstance(one, Column | Family) or one.table.name != table.name:
            raise UsageError(f"{one!r} is no column or family of the table {table.name!r}.")
    return found


def _version() -> str:
    try:
        return version("percola")
    except PackageNotFoundError:  # Not installed, only on the path.
        return "unknown"


# --- JSON text --------------------------------------------------------------------------

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _wrapping(schema: _Schema) -> tuple[str, str]:
    return f'{{"schema":{_ENCODE(schema)},"payload":', "}"


def _wrapped(around: tuple[str, str], payload: Any) -> str:
    return around[0] + _ENCODE(payload) + around[1]


# --- Types: the schema of Connect, and from encoded values to JSON's ---------------------


class _TooWideError(ValueError):
    """An int that a Connect schema has no type for."""


def _member_type(member: Member[Any], decimals: str) -> tuple[_Schema, _Convert]:
    """The schema of a column or of a whole family, and the function from one encoded value."""
    schema, convert = _column_type(member.codec, decimals)
    if isinstance(member, Family):
        keys = {"type": "string", "optional": False}
        schema = {"type": "map", "keys": keys, "values": schema, "optional": True}
    return schema, convert


def _family(
    family: Family[Any, Any], convert: _Convert, values: Mapping[bytes, bytes]
) -> dict[str, Any] | None:
    skip = len(family.prefix)
    found = {
        name[skip:].decode(): convert(raw)
        for name, raw in values.items()
        if name.startswith(family.prefix)
    }
    return found or None


def _column_type(codec: Codec[Any], decimals: str) -> tuple[_Schema, _Convert]:
    """The schema of a codec's values, and the function from encoded ones."""
    codec = codec_named(codec.name)  # A task of Spark has copies.
    if codec.name not in _SIMPLE and not isinstance(codec, OrderedCodec | NestedCodec):
        return _plain("bytes"), _base64
    schema, convert = _type(codec, decimals)
    if codec is JSON:
        return schema, bytes.decode  # The text as it is stored.
    decode = codec.decode
    return schema, lambda raw: convert(decode(raw))


def _type(codec: Codec[Any], decimals: str) -> tuple[_Schema, _Convert]:
    """The schema of a codec's values, and the function from decoded ones."""
    if isinstance(codec, DecimalCodec):
        if decimals == "string":
            return _plain("string"), lambda value: format(value, "f")
        parameters = {"scale": str(codec.scale), "connect.decimal.precision": str(codec.precision)}
        schema = _plain("bytes", "org.apache.kafka.connect.data.Decimal") | {
            "parameters": parameters
        }
        scale = codec.scale
        return schema, lambda value: _base64(_unscaled(value, scale))
    if isinstance(codec, ArrayCodec):
        schema, convert = _type(codec.element, decimals)
        return _plain("array") | {"items": schema}, _each(convert)
    if isinstance(codec, MapCodec):
        keys, of_key = _type(codec.key, decimals)
        schema, convert = _type(codec.value, decimals)
        pair = dict if codec.key.name == "str" else _pairs
        return _plain("map") | {"keys": keys | {"optional": False}, "values": schema}, (
            lambda value: pair(zip(map(of_key, value), _each(convert)(value.values()), strict=True))
        )
    if isinstance(codec, StructCodec):
        types = [(name, *_type(one, decimals)) for name, one in codec.fields]
        fields = [_field(name, schema) for name, schema, _ in types]
        return _plain("struct") | {"fields": fields}, lambda value: {
            name: _or_none(convert, value.get(name)) for name, _, convert in types
        }
    if isinstance(codec, OrderedCodec) and codec.name in _MOMENTS:
        kind, name, moment = _MOMENTS[codec.name]
        encode, bias = codec.encode, 1 << (8 * codec.width - 1)
        if moment is not None:
            return _plain(kind, name), moment
        return _plain(kind, name), lambda value: int.from_bytes(encode(value), "big") - bias
    return _SIMPLE[codec.name]


def _plain(kind: str, name: str | None = None) -> _Schema:
    schema: _Schema = {"type": kind, "optional": True}
    return schema if name is None else schema | {"name": name, "version": 1}


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


_EXACT: Final = Context(prec=80)


def _unscaled(value: Any, scale: int) -> bytes:
    """The digits of a decimal as Java's BigInteger.toByteArray gives them."""
    number = int(value.scaleb(scale, _EXACT))
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _or_none(convert: _Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _each(convert: _Convert) -> Callable[[Iterable[Any]], list[Any]]:
    return lambda values: [_or_none(convert, one) for one in values]


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> list[list[Any]]:
    return [list(pair) for pair in pairs]


def _int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise _TooWideError(f"{value} has more than 64 bits. Leave the column out.")
    return value


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _same(value: Any) -> Any:
    return value


def _zoned(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


_SIMPLE: Final[Mapping[str, tuple[_Schema, _Convert]]] = {
    "bytes": (_plain("bytes"), _base64),
    "str": (_plain("string"), _same),
    "int": (_plain("int64"), _int64),
    "float": (_plain("double"), _float),
    "bool": (_plain("boolean"), _same),
    "json": (_plain("string", "io.debezium.data.Json"), _ENCODE),
    "int16": (_plain("int16"), _same),
    "int32": (_plain("int32"), _same),
    "int64": (_plain("int64"), _same),
    "float32": (_plain("float"), _float),
}
# Without a function: the number that is stored.
_MOMENTS: Final[Mapping[str, tuple[str, str, _Convert | None]]] = {
    "date": ("int32", "io.debezium.time.Date", None),
    "timestamp": ("string", "io.debezium.time.ZonedTimestamp", _zoned),
    "timestamp_ntz": ("int64", "io.debezium.time.MicroTimestamp", None),
}


# --- The schemas of keys and values -------------------------------------------------------


def _field(name: str, schema: _Schema) -> _Schema:
    return schema | {"field": name}


def _struct(name: str, fields: Sequence[_Schema], *, optional: bool = False) -> _Schema:
    return {"type": "struct", "name": name, "optional": optional, "fields": list(fields)}


def _envelope(prefix: str, fields: Sequence[_Schema]) -> _Schema:
    image = _struct(f"{prefix}.Value", fields, optional=True)
    text: _Schema = {"type": "string", "optional": False}
    whole: _Schema = {"type": "int64", "optional": False}
    names = ("version", "connector", "name", "db", "table", "snapshot", "row")
    source = [
        *(_field(name, text) for name in names),
        *(_field(name, whole) for name in ("ts_ms", "commit_ts")),
        _field("changed", {"type": "array", "optional": False, "items": text}),
    ]
    transaction = [
        _field("id", text),
        *(_field(n, whole) for n in ("total_order", "data_collection_order")),
    ]
    return _struct(
        f"{prefix}.Envelope",
        [
            _field("before", image),
            _field("after", image),
            _field("source", _struct(_SOURCE, source)),
            _field("transaction", _struct("event.block", transaction, optional=True)),
            _field("op", text),
            _field("ts_ms", _plain("int64")),
        ],
    )
