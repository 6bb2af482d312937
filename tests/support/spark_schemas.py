"""Types and schemas of Spark as SQL writes them; Spark's own parser of them needs a JVM."""

from __future__ import annotations

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
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_SIMPLE: dict[str, DataType] = {
    one.simpleString(): one
    for one in (
        *(StringType(), BinaryType(), BooleanType(), FloatType(), DoubleType()),
        *(ByteType(), ShortType(), IntegerType(), LongType()),
        *(DateType(), TimestampType(), TimestampNTZType(), NullType()),
    )
}


def _cut(text: str) -> list[str]:
    """What stands between the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def kind(text: str) -> DataType:
    """The type that SQL calls so: `map<string,decimal(6,2)>`, say."""
    if text in _SIMPLE:
        return _SIMPLE[text]
    if text.startswith("decimal("):
        return DecimalType(*map(int, text[8:-1].split(",")))
    outer, _, inner = text.removesuffix(">").partition("<")
    if outer == "struct":
        fields = [part.partition(":") for part in _cut(inner)]
        return StructType([StructField(name, kind(of.strip())) for name, _, of in fields])
    of, *values = map(kind, _cut(inner))
    return MapType(of, *values) if values else ArrayType(of)


def struct(text: str) -> StructType:
    """The schema `row string, size int`, say."""
    fields = [part.split(" ", 1) for part in _cut(text)]
    return StructType([StructField(name, kind(of)) for name, of in fields])
