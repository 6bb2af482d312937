"""§2.4 The Spark types of Percola's types, and which other types a column may have in Spark.

A column may be read as a wider type, and written from a narrower one: every value of the narrow
type is a value of the wide one.

    narrow                          wide
    ------------------------------  -------------------------------------------------------------
    tinyint, smallint, int, bigint  a wider one of them; decimal with enough digits before the
                                    point; double (a bigint only if it is within ±2^53); float,
                                    from smallint on down
    float                           double
    decimal(p,s)                    decimal with as many digits on either side of the point;
                                    decimal(p,0) also a whole number that holds p digits
    date                            timestamp_ntz, at midnight
    array, map, struct              the same of wider types; a struct may have more fields

A timestamp with a time zone and one without are never converted: it would depend on the session.
`bytes`, `str`, `int`, `float`, `bool` and JSON have the types in `percola.spark.columns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from percola.codecs import ArrayCodec, Codec, DecimalCodec, MapCodec, StructCodec, codec_named
from percola.schema import Table
from percola.spark.json_values import JsonShapeError, json_converter

_TYPES: Final[Mapping[str, DataType]] = {
    "bytes": BinaryType(),
    "str": StringType(),
    "int": LongType(),
    "float": DoubleType(),
    "bool": BooleanType(),
    "json": StringType(),
    "int16": ShortType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "float32": FloatType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
# Both for reading and writing: values are checked one by one.
_ALSO: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "bytes": (BinaryType,),
    "str": (StringType,),
    "int": (LongType, IntegerType, ShortType, ByteType, DecimalType),
    "float": (DoubleType, FloatType),
    "bool": (BooleanType,),
}
# The digits of the widest value of each type, and how many digits always fit into it.
_DIGITS: Final[Mapping[type[DataType], int]] = {
    ByteType: 3,
    ShortType: 5,
    IntegerType: 10,
    LongType: 19,
}
_HOLDS: Final[Mapping[type[DataType], int]] = {ShortType: 4, IntegerType: 9, LongType: 18}


def type_of(codec: Codec[Any]) -> DataType:
    """The default Spark type of a codec's values; binary for a user's own codec."""
    if isinstance(codec, DecimalCodec):
        return DecimalType(codec.precision, codec.scale)
    if isinstance(codec, ArrayCodec):
        return ArrayType(type_of(codec.element))
    if isinstance(codec, MapCodec):
        return MapType(type_of(codec.key), type_of(codec.value))
    if isinstance(codec, StructCodec):
        return StructType([StructField(name, type_of(one)) for name, one in codec.fields])
    return _TYPES.get(codec.name, BinaryType())


def row_codec(table: Table[Any]) -> Codec[Any] | None:
    """The codec of a table's row keys; None if they are text or bytes."""
    return table.rows if isinstance(table.rows, Codec) else None


def row_type(table: Table[Any]) -> DataType:
    """The Spark type of a table's row keys."""
    return type_of(row_codec(table) or codec_named(table.rows_name))


def reads(codec: Codec[Any], kind: DataType) -> bool:
    """Whether a codec's values can be read as a Spark type."""
    if codec.name == "int" and isinstance(kind, DoubleType | DecimalType):
        return True  # Each value is checked.
    plain = _checked_by_value(codec, kind)
    return widens(type_of(codec), kind) if plain is None else plain


def writes(codec: Codec[Any], kind: DataType) -> bool:
    """Whether values of a Spark type can be written to a column of a codec."""
    if codec.name == "float" and isinstance(kind, _INTEGERS):
        return True
    plain = _checked_by_value(codec, kind)
    return widens(kind, type_of(codec)) if plain is None else plain


def _checked_by_value(codec: Codec[Any], kind: DataType) -> bool | None:
    """Whether a type suits one of the codecs whose values are checked one by one; None: others."""
    if codec.name == "json":
        try:
            json_converter(kind)
        except JsonShapeError:
            return False
        return True
    if isinstance(kind, DecimalType) and codec.name == "int":
        return kind.scale == 0
    if codec.name in _ALSO:
        return isinstance(kind, _ALSO[codec.name])
    return None if is_typed(codec) else isinstance(kind, BinaryType)


def widens(narrow: DataType, wide: DataType, *, nested: bool = False) -> bool:
    """Whether each value of a type is one of another; `nested`: inside an array, map or struct.

    A bigint widens to double although one beyond 2^53 does not: it is refused as it is met.
    """
    if isinstance(narrow, _INTEGERS):
        if isinstance(wide, _INTEGERS):
            return _INTEGERS.index(type(narrow)) <= _INTEGERS.index(type(wide))
        if isinstance(wide, DecimalType):
            return wide.precision - wide.scale >= _DIGITS[type(narrow)]
        if isinstance(wide, DoubleType):
            return not (nested and isinstance(narrow, LongType))
        return isinstance(wide, FloatType) and isinstance(narrow, ByteType | ShortType)
    if isinstance(narrow, DecimalType):
        if isinstance(wide, DecimalType):
            whole = wide.precision - wide.scale >= narrow.precision - narrow.scale
            return whole and wide.scale >= narrow.scale
        holds = _HOLDS.get(type(wide), 0)
        return not nested and narrow.scale == 0 and narrow.precision <= holds
    if isinstance(narrow, FloatType):
        return isinstance(wide, FloatType | DoubleType)
    if isinstance(narrow, DateType):
        return isinstance(wide, DateType) or (isinstance(wide, TimestampNTZType) and not nested)
    if isinstance(narrow, ArrayType):
        return isinstance(wide, ArrayType) and widens(
            narrow.elementType, wide.elementType, nested=True
        )
    if isinstance(narrow, MapType):
        return (
            isinstance(wide, MapType)
            and widens(narrow.keyType, wide.keyType, nested=True)
            and widens(narrow.valueType, wide.valueType, nested=True)
        )
    if isinstance(narrow, StructType):
        if not isinstance(wide, StructType):
            return False
        there = {field.name: field.dataType for field in wide}
        return all(
            field.name in there and widens(field.dataType, there[field.name], nested=True)
            for field in narrow
        )
    return type(narrow) is type(wide)


def is_typed(codec: Codec[Any]) -> bool:
    """Whether a codec's Spark type alone decides which others it may have: `widens`."""
    return codec.name not in _ALSO and codec.name != "json" and codec_named(codec.name) is codec


def other_types(codec: Codec[Any]) -> str:
    """Which types besides its default a column may have, for an error."""
    if codec.name == "json":
        return " (or what the JSON's shape allows: struct, array, map, a primitive type)"
    others = [
        "decimal(p,0)" if kind is DecimalType else kind().simpleString()
        for kind in _ALSO.get(codec.name, ())[1:]
    ]
    return f" (or {', '.join(others)})" if others else ""
