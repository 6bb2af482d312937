"""§2.4 Encoding Spark rows as writes of cells: the inverse of `percola.spark.columns`.

    value of a Spark column           written to the row
    --------------------------------  ---------------------------------------------------------
    a value                           the cell, encoded by the column's codec
    null                              nothing; or the cell is deleted, with nulls=delete
    a map, for a family               a cell for each entry; other cells of the family stay
    null, for a family                nothing
    true, in the delete column        every cell of the row is deleted, other values are ignored

Arrow columns are encoded as a whole: text, integers and bytes without an intermediate Python
object per value.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from percola import UsageError, ValueTooLargeError, WrongTypeError
from percola.codecs import JSON, Codec
from percola.schema import Column, Family, Table
from percola.spark.columns import Chosen, chosen
from percola.store.base import Limits
from percola.transactions.jobs import RowWrites

_SHOWN: Final = 60


class Encoder:
    """Encodes batches of one schema into writes of one table; created in every process.

    Args:
        table: the table.
        schema: the schema of the frame that is written.
        row_name: the column with the row's key.
        deletes_nulls: whether null deletes a cell, rather than leaving it alone.
        delete_column: the column that says which rows to delete, if there is one.
        limits: the store's; None if nothing will be written.

    Raises UnknownColumnError, WrongTypeError and SchemaError as `chosen` does, and UsageError for
    a frame without the row's key, or without anything to write.
    """

    def __init__(
        self,
        table: Table[Any],
        schema: StructType,
        row_name: str,
        *,
        deletes_nulls: bool = False,
        delete_column: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._table = table
        self._row_name = row_name
        self._deletes_nulls = deletes_nulls
        self._delete_column = delete_column
        self._limits = limits
        self._names: dict[str, bytes] = {}
        names = schema.fieldNames()
        if row_name not in names:
            raise UsageError(
                f"The rows to write have no column {row_name!r}, which is the row's key. They "
                f"have: {', '.join(names) or 'none'}. Rename the key's column, or name it with the "
                "option rowColumn."
            )
        if delete_column is not None:
            _check_delete_column(table, schema, row_name, delete_column)
        written = StructType([field for field in schema if field.name != delete_column])
        self._chosen = chosen(table, written, None, row_name)
        self._places = {name: at for at, name in enumerate(names)}
        self._members = [one for one in self._chosen if one.member is not None]
        if not self._members and delete_column is None:
            raise UsageError(
                f"The rows to write have a key and nothing else: give them columns of the table "
                f"{table.name!r}, or name a deleteColumn."
            )

    def encode(self, batch: pa.RecordBatch) -> list[RowWrites]:
        """The writes of a batch, row by row. Raises WrongTypeError and ValueTooLargeError."""
        keys = self._keys(batch.column(self._places[self._row_name]))
        cells: list[dict[bytes, bytes | None]] = [{} for _ in keys]
        plain: list[tuple[bytes, list[bytes | None]]] = []
        for one in self._members:
            array = batch.column(self._places[one.name])
            if isinstance(one.member, Family):
                self._encode_family(one, one.member, array, cells, keys)
            else:
                assert isinstance(one.member, Column)
                raws = self._encode_values(one, array, lambda at: keys[at])
                plain.append((one.member.key, raws))
        for name, raws in plain:
            if self._deletes_nulls:
                for row, raw in zip(cells, raws, strict=True):
                    row[name] = raw
            else:
                for row, raw in zip(cells, raws, strict=True):
                    if raw is not None:
                        row[name] = raw
        table = self._table.name
        if self._delete_column is None:
            return [RowWrites(table, key, row) for key, row in zip(keys, cells, strict=True)]
        gone = batch.column(self._places[self._delete_column]).to_pylist()
        return [
            RowWrites(table, key, {}, clears=True) if delete else RowWrites(table, key, row)
            for key, row, delete in zip(keys, cells, gone, strict=True)
        ]

    def _keys(self, array: pa.Array) -> list[bytes]:
        keys = _as_bytes(array)
        # Search row by row only if one is invalid.
        if array.null_count or not all(keys):
            at = next(at for at, key in enumerate(keys) if not key)
            what = "null" if keys[at] is None else "empty"
            raise WrongTypeError(
                f"The column {self._row_name!r} is {what} in a row that is to be written to "
                f"{self._table.name!r}: every row needs a key of at least one "
                f"{'byte' if self._table.rows is bytes else 'character'}."
            )
        return keys  # type: ignore[return-value]

    def _encode_values(
        self, one: Chosen, array: pa.Array, row_of: Callable[[int], bytes]
    ) -> list[bytes | None]:
        member = one.member
        assert member is not None
        raws = _encode(
            member.codec, one.value_type, array, lambda at: f"{member!r} of {_show(row_of(at))}"
        )
        limit = self._limits.value_bytes if self._limits is not None else None
        if limit is not None and array.nbytes > limit:
            for at, raw in enumerate(raws):
                if raw is not None and len(raw) > limit:
                    raise ValueTooLargeError(
                        f"A value of {len(raw)} bytes for {member!r} of {_show(row_of(at))} does "
                        f"not fit: the store takes up to {limit} bytes."
                    )
        return raws

    def _encode_family(
        self,
        one: Chosen,
        family: Family[Any, Any],
        array: pa.MapArray,
        cells: Sequence[dict[bytes, bytes | None]],
        keys: Sequence[bytes],
    ) -> None:
        offsets = array.offsets.to_pylist()
        first, last = offsets[0], offsets[-1]
        owner = [0] * (last - first)
        missing = array.is_null().to_pylist()
        for row in range(len(array)):
            for at in range(offsets[row], offsets[row + 1]):
                owner[at - first] = row if not missing[row] else -1
        qualifiers = array.keys.slice(first, last - first).to_pylist()
        raws = self._encode_values(
            one, array.items.slice(first, last - first), lambda at: keys[owner[at]]
        )
        for qualifier, raw, row in zip(qualifiers, raws, owner, strict=True):
            if row >= 0 and (raw is not None or self._deletes_nulls):
                name = self._names.get(qualifier)
                if name is None:
                    name = self._names[qualifier] = family[qualifier].key
                cells[row][name] = raw


def _check_delete_column(
    table: Table[Any], schema: StructType, row_name: str, delete_column: str
) -> None:
    if delete_column not in schema.fieldNames():
        raise UsageError(
            f"The rows to write have no column {delete_column!r}, which the option deleteColumn "
            f"names. They have: {', '.join(schema.fieldNames())}."
        )
    kind = schema[delete_column].dataType
    if delete_column == row_name or not isinstance(kind, BooleanType):
        raise WrongTypeError(
            f"The deleteColumn {delete_column!r} is {kind.simpleString()}: it has to be a boolean "
            "that says which rows to delete."
        )
    if any(member.name == delete_column for member in table.members):
        raise UsageError(
            f"The table {table.name!r} has a column {delete_column!r} of its own: name the "
            "deleteColumn otherwise."
        )


# --- Values ------------------------------------------------------------------------------------


def _encode(
    codec: Codec[Any], kind: DataType, array: pa.Array, place: Callable[[int], str]
) -> list[bytes | None]:
    """A column's values encoded by the codec; None is null. `place` names a cell in errors."""
    if codec.name == "int":
        return _as_bytes(array.cast(pa.string()))
    if codec.name == "bool":
        words = pc.if_else(array, pa.scalar(b"true"), pa.scalar(b"false"))
        return words.to_pylist()  # type: ignore[no-any-return]
    if codec.name == "float":
        values = array.cast(pa.float64()).to_pylist()
        return [None if one is None else repr(one).encode() for one in values]
    if codec.name != "json":
        return _as_bytes(array)
    plain = _from_text if isinstance(kind, StringType) else _to_json(kind)
    raws: list[bytes | None] = []
    for at, value in enumerate(array.to_pylist()):
        try:
            raws.append(None if value is None else JSON.encode(plain(value)))
        except (ValueError, TypeError, RecursionError) as error:
            shown = repr(value)
            shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
            raise WrongTypeError(f"{place(at)} should be JSON, but is {shown} ({error}).") from None
    return raws


def _as_bytes(array: pa.Array) -> list[bytes | None]:
    if pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    elif pa.types.is_large_string(array.type):
        array = array.cast(pa.large_binary())
    return array.to_pylist()  # type: ignore[no-any-return]


def _from_text(text: str) -> Any:
    return json.loads(text)


def _to_json(kind: DataType) -> Callable[[Any], Any]:
    """A converter from Arrow's Python values to JSON values that `json_values` reads back."""
    if isinstance(kind, StructType):
        fields = [(field.name, _to_json(field.dataType)) for field in kind]
        return _or_null(lambda value: {name: one(value.get(name)) for name, one in fields})
    if isinstance(kind, ArrayType):
        element = _to_json(kind.elementType)
        return _or_null(lambda value: [element(one) for one in value])
    if isinstance(kind, MapType):
        entry = _to_json(kind.valueType)
        return _or_null(lambda value: {name: entry(one) for name, one in _pairs(value)})
    if isinstance(kind, DecimalType):
        return _or_null(_number)
    if isinstance(kind, DateType | TimestampType):
        return _or_null(_moment)
    return lambda value: value


def _or_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else value


def _number(value: decimal.Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _moment(value: datetime.date | datetime.datetime) -> str:
    return value.isoformat()


def _show(row: bytes) -> str:
    return repr(row.decode("utf-8", "backslashreplace"))
