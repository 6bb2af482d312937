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
import math
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
    TimestampNTZType,
    TimestampType,
)

from percola import SchemaError, UsageError, ValueTooLargeError, WrongTypeError
from percola.codecs import JSON, Codec
from percola.codecs.base import checked_json
from percola.schema import Column, Family, Table
from percola.spark.arrow_values import encoded, in_utc, is_fixed, is_nested, of_arrow
from percola.spark.columns import Chosen, chosen
from percola.spark.json_values import has_decimal
from percola.spark.types import row_codec
from percola.store.base import Limits
from percola.transactions.jobs import RowWrites

_SHOWN: Final = 60

_NAMES: Final = 65_536
"""How many names of a family's columns are remembered: a task may meet many millions."""


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
        self._names: dict[str, dict[str, bytes]] = {}
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
        self._chosen = chosen(table, written, None, row_name, writing=True)
        self._places = {name: at for at, name in enumerate(names)}
        self._members = [one for one in self._chosen if one.member is not None]
        if not self._members and delete_column is None:
            raise UsageError(
                f"The rows to write have a key and nothing else: give them columns of the table "
                f"{table.name!r}, or name a deleteColumn."
            )

    @property
    def members(self) -> list[Column[Any, Any] | Family[Any, Any]]:
        """The columns and families that the rows have."""
        return [one.member for one in self._members if one.member is not None]

    def encode(self, batch: pa.RecordBatch) -> list[RowWrites]:
        """The writes of a batch, row by row. Raises WrongTypeError and ValueTooLargeError."""
        keys = self._keys(batch.column(self._places[self._row_name]))
        cells: list[dict[bytes, bytes | None]] = [{} for _ in keys]
        plain: list[tuple[bytes, list[bytes | None]]] = []
        for one in self._members:
            array = in_utc(batch.column(self._places[one.name]))
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
        codec = row_codec(self._table)
        if codec is None:
            keys = _as_bytes(array)
        else:
            keys = _encode_fixed(codec, array, lambda at: f"A row of {self._table.name!r}")
        # Search row by row only if one is invalid.
        if array.null_count or not all(keys):
            at = next(at for at, key in enumerate(keys) if not key)
            what = "null" if keys[at] is None else "empty"
            raise WrongTypeError(
                f"The column {self._row_name!r} is {what} in a row that is to be written to "
                f"{self._table.name!r}: every row needs a key{self._least()}."
            )
        return keys  # type: ignore[return-value]

    def _least(self) -> str:
        if row_codec(self._table) is not None:
            return ""
        return f" of at least one {'byte' if self._table.rows is bytes else 'character'}"

    def _encode_values(
        self, one: Chosen, array: pa.Array, row_of: Callable[[int], bytes]
    ) -> list[bytes | None]:
        member = one.member
        assert member is not None

        def place(at: int) -> str:
            return f"{member!r} of {self._show_row(row_of(at))}"

        raws = _encode(member.codec, one.value_type, array, place)
        limit = self._limits.value_bytes if self._limits is not None else None
        if limit is not None and array.nbytes > limit:
            for at, raw in enumerate(raws):
                if raw is not None and len(raw) > limit:
                    raise ValueTooLargeError(
                        f"A value of {len(raw)} bytes for {place(at)} does not fit: the store "
                        f"takes up to {limit} bytes."
                    )
        return raws

    def _show_row(self, row: bytes) -> str:
        if row_codec(self._table) is None:
            return repr(row.decode("utf-8", "backslashreplace"))
        return str(self._table.decode_row(row))

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
        names = self._names.setdefault(family.name, {})
        raws = self._encode_values(
            one, array.items.slice(first, last - first), lambda at: keys[owner[at]]
        )
        for qualifier, raw, row in zip(qualifiers, raws, owner, strict=True):
            if row >= 0 and (raw is not None or self._deletes_nulls):
                name = names.get(qualifier)
                if name is None:
                    try:
                        name = family[qualifier].key
                    except SchemaError as error:
                        where = f"{self._show_row(keys[row])} of {self._table.name!r}"
                        raise SchemaError(f"In the row {where}: {error}") from None
                    if len(names) >= _NAMES:
                        names.clear()
                    names[qualifier] = name
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
    if is_fixed(codec):
        return _encode_fixed(codec, array, place)
    if is_nested(codec):
        return _encode_each(codec, of_arrow(codec), array, place)
    if codec.name == "int":
        return _as_bytes(array.cast(pa.string()))
    if codec.name == "bool":
        words = pc.if_else(array, pa.scalar(b"true"), pa.scalar(b"false"))
        return words.to_pylist()  # type: ignore[no-any-return]
    if codec.name == "float":
        values = _cast(codec, array, pa.float64(), place).to_pylist()
        return [None if one is None else repr(one).encode() for one in values]
    if codec.name != "json":
        return _as_bytes(array)
    if has_decimal(kind):
        text = _json_text(kind)
        exact: Codec[Any] = Codec("json", lambda value: text(value).encode(), JSON.decode)
        return _encode_each(exact, _same, array, place)
    if isinstance(kind, StringType):
        written: Codec[Any] = Codec("json", _json_of_text, JSON.decode)
        return _encode_each(written, _same, array, place)
    return _encode_each(JSON, _to_json(kind), array, place)


def _encode_each(
    codec: Codec[Any],
    convert: Callable[[Any], Any],
    array: pa.Array,
    place: Callable[[int], str],
) -> list[bytes | None]:
    """Values encoded one by one, after `convert`."""
    raws: list[bytes | None] = []
    for at, one in enumerate(array):
        value: Any = None
        try:
            value = one.as_py()
            raws.append(None if value is None else codec.encode(convert(value)))
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            what = "JSON" if codec.name == "json" else codec.name
            why = f" ({error})" if str(error) else ""
            raise WrongTypeError(
                f"{place(at)} should be {what}, but is {_shown(value)}{why}."
            ) from None
    return raws


def _encode_fixed(
    codec: Codec[Any], array: pa.Array, place: Callable[[int], str]
) -> list[bytes | None]:
    """Values of a codec whose arrays are encoded as a whole."""
    try:
        return encoded(codec, array).to_pylist()  # type: ignore[no-any-return]
    except pa.ArrowInvalid as error:
        for at, one in enumerate(array):
            try:
                encoded(codec, array.slice(at, 1))
            except pa.ArrowInvalid:
                raise _unfit(place(at), one, codec) from None
        raise WrongTypeError(f"{place(0)} cannot be {codec.name} ({error}).") from error


def _cast(
    codec: Codec[Any], array: pa.Array, kind: pa.DataType, place: Callable[[int], str]
) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        for at, one in enumerate(array):
            try:
                array.slice(at, 1).cast(kind)
            except pa.ArrowInvalid:
                raise _unfit(place(at), one, codec) from None
        raise WrongTypeError(f"{place(0)} cannot be {codec.name} ({error}).") from error


def _unfit(place: str, value: pa.Scalar, codec: Codec[Any]) -> WrongTypeError:
    try:
        shown = _shown(value.as_py())
    except (ValueError, OverflowError):  # A date before the year 1 or after 9999.
        shown = str(value.cast(pa.int64() if value.type.bit_width == 64 else pa.int32()))
    return WrongTypeError(f"{place} is {shown}, which {codec.name} cannot hold exactly.")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"


def _as_bytes(array: pa.Array) -> list[bytes | None]:
    if pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    elif pa.types.is_large_string(array.type):
        array = array.cast(pa.large_binary())
    return array.to_pylist()  # type: ignore[no-any-return]


def _json_of_text(text: str) -> bytes:
    """JSON as the codec encodes it, but with every digit of a number that no float has."""
    value = json.loads(text, parse_float=_exact)
    try:
        return JSON.encode(value)
    except TypeError:  # A decimal.
        return checked_json(_exact_text(value).encode())


def _exact(text: str) -> float | decimal.Decimal:
    number = float(text)
    if math.isinf(number):
        return number  # An error for the codec.
    try:
        exact = decimal.Decimal(text)
    except decimal.InvalidOperation:  # An exponent of more than 18 digits.
        return number
    return number if exact == decimal.Decimal(repr(number)) else exact


def _exact_text(value: Any) -> str:
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{_quoted(key)}:{_exact_text(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_exact_text, value))}]"
    return JSON.encode(value).decode()


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
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        return _or_null(_moment)
    return lambda value: value


def _or_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else value


def _json_text(kind: DataType) -> Callable[[Any], str]:
    """As `_to_json`, to text that has every digit of a decimal."""
    if isinstance(kind, DecimalType):
        return _text_or_null(_number)
    if not has_decimal(kind):
        plain = _to_json(kind)
        return lambda value: JSON.encode(plain(value)).decode()
    if isinstance(kind, StructType):
        fields = [(_quoted(field.name), _json_text(field.dataType), field.name) for field in kind]

        def struct(value: Any) -> str:
            return ",".join(f"{name}:{text(value.get(key))}" for name, text, key in fields)

        return _text_or_null(lambda value: f"{{{struct(value)}}}")
    if isinstance(kind, ArrayType):
        element = _json_text(kind.elementType)
        return _text_or_null(lambda value: f"[{','.join(map(element, value))}]")
    assert isinstance(kind, MapType)
    entry = _json_text(kind.valueType)

    def entries(value: Any) -> str:
        return ",".join(f"{_quoted(name)}:{entry(one)}" for name, one in _pairs(value))

    return _text_or_null(lambda value: f"{{{entries(value)}}}")


def _text_or_null(convert: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "null" if value is None else convert(value)


def _quoted(name: str) -> str:
    return JSON.encode(name).decode()


def _number(value: decimal.Decimal) -> str:
    """A decimal as a JSON number: without zeros at its end, and without an exponent."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _same(value: Any) -> Any:
    return value


def _moment(value: datetime.date | datetime.datetime) -> str:
    return value.isoformat()
