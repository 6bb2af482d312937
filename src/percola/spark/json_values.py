"""§2.4 JSON columns with a Spark type: values converted to the shape in the schema.

A column of JSON is text in Spark, unless the schema gives it a type. Then every value is checked:
a number where the schema has a struct is an error that names the path, not a null. Keys that the
schema does not have are dropped, and missing ones are null, as in `from_json`.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from percola.codecs import FLOAT32, JSON, UnfitValueError, WrittenFloat

Converter: TypeAlias = Callable[[Any], Any]
"""From a value of `json.loads` to one that Arrow accepts; JsonShapeError if its shape differs."""

_BITS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}


class JsonShapeError(ValueError):
    """A value does not have the shape in the schema, or no JSON value has that type."""


def json_converter(kind: DataType) -> Converter:
    """The converter to a Spark type; JsonShapeError if no JSON has values of that type."""
    bits = _BITS.get(type(kind))
    if bits is not None:
        return _integer(bits)
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        return _array(kind)
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return _map(kind)
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    for known, converter in _SIMPLE.items():
        if isinstance(kind, known):
            return converter
    raise JsonShapeError(f"no JSON value is {kind.simpleString()}")


def json_decoder(kind: DataType) -> Callable[[bytes], Any]:
    """What decodes JSON for the converter to a type: with all digits where it has a decimal."""
    return _decode_exactly if has_decimal(kind) else JSON.decode


_EXACT: Final = json.JSONDecoder(parse_float=WrittenFloat)


def _decode_exactly(raw: bytes) -> Any:
    return _EXACT.decode(raw.decode())


def has_decimal(kind: DataType) -> bool:
    """Whether a type is a decimal or contains one."""
    if isinstance(kind, StructType):
        return any(has_decimal(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return has_decimal(kind.elementType)
    if isinstance(kind, MapType):
        return has_decimal(kind.valueType)
    return isinstance(kind, DecimalType)


def _string(value: Any) -> Any:
    """Text unchanged; other values as JSON text, as in `from_json`."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _boolean(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    raise _wrong(value, "true or false")


def _float(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _wrong(value, "a number")


def within_float32(value: float) -> float:
    """The value; UnfitValueError if it would be infinite as a float of 32 bits, and is not."""
    FLOAT32.encode(value)
    return value


def _float32(value: Any) -> Any:
    number = _float(value)
    try:
        return None if number is None else within_float32(number)
    except UnfitValueError:
        raise _wrong(value, "a number within the range of 32-bit floats") from None


def _date(value: Any) -> Any:
    if value is None:
        return None
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise _wrong(value, "a date as in '2010-10-04'") from None


def _timestamp(value: Any) -> Any:
    if value is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _wrong(value, "a time as in '2010-10-04T12:00:00Z'") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _timestamp_ntz(value: Any) -> Any:
    if value is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is not None:
        raise _wrong(value, "a time without a time zone as in '2010-10-04T12:00:00'")
    return moment


_SIMPLE: Final[dict[type[DataType], Converter]] = {
    StringType: _string,
    BooleanType: _boolean,
    DoubleType: _float,
    FloatType: _float32,
    DateType: _date,
    TimestampType: _timestamp,
    TimestampNTZType: _timestamp_ntz,
}


def _integer(bits: int) -> Converter:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise _wrong(value, f"a whole number of {bits} bits")

    return convert


def _decimal(kind: DecimalType) -> Converter:
    unit = decimal.Decimal(1).scaleb(-kind.scale)
    most = decimal.Decimal(10) ** (kind.precision - kind.scale)
    # Enough for every digit of a Spark decimal; the default of 28 would round.
    exact = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            written = value.text if isinstance(value, WrittenFloat) else str(value)
            number = decimal.Decimal(written)
            if number.is_finite() and number.copy_abs() < most:  # abs() would round.
                return number.quantize(unit, context=exact)
        raise _wrong(value, f"a number that fits {kind.simpleString()}")

    return convert


def _struct(kind: StructType) -> Converter:
    fields = [(field.name, json_converter(field.dataType)) for field in kind]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        return {name: _at(name, one, value.get(name)) for name, one in fields}

    return convert


def _array(kind: ArrayType) -> Converter:
    element = json_converter(kind.elementType)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise _wrong(value, "a list")
        return [_at(f"[{at}]", element, one) for at, one in enumerate(value)]

    return convert


def _map(kind: MapType) -> Converter:
    element = json_converter(kind.valueType)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        return [(name, _at(name, element, one)) for name, one in value.items()]

    return convert


def _at(place: str, convert: Converter, value: Any) -> Any:
    try:
        return convert(value)
    except JsonShapeError as error:
        raise JsonShapeError(f"{place}: {error}") from None


def _wrong(value: Any, wanted: str) -> JsonShapeError:
    shown = json.dumps(value, ensure_ascii=False)
    if len(shown) > 60:
        shown = shown[:60] + "…"
    return JsonShapeError(f"{shown} is not {wanted}")
