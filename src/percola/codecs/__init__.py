"""Codecs, which encode the values of a column to bytes and decode them.

A codec is chosen by a Python type, or given: `docs.column("size", int)`, `docs.column("tags",
JSON)`, `shop.column("price", decimal_of(12, 2))`. The stored schema has its name, so that other
programs can read the values.

    base      bytes, str, int, float, bool, JSON
    ordered   whole numbers of fixed size, decimals, dates, times: their bytes sort as the values
    nested    arrays, maps and structs of these
    names     from a name in a stored schema to its codec
"""

from __future__ import annotations

from percola.codecs.base import JSON, Codec, UnfitValueError, V, codec_of
from percola.codecs.names import TYPE_NAMES, codec_named, parse_type
from percola.codecs.nested import (
    ArrayCodec,
    MapCodec,
    NestedCodec,
    StructCodec,
    WrittenFloat,
    array_of,
    map_of,
    struct_of,
)
from percola.codecs.ordered import (
    DATE,
    FLOAT32,
    INT16,
    INT32,
    INT64,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DecimalCodec,
    OrderedCodec,
    decimal_of,
)
from percola.codecs.text import has_text, parse_text

__all__ = [
    "DATE",
    "FLOAT32",
    "INT16",
    "INT32",
    "INT64",
    "JSON",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "TYPE_NAMES",
    "ArrayCodec",
    "Codec",
    "DecimalCodec",
    "MapCodec",
    "NestedCodec",
    "OrderedCodec",
    "StructCodec",
    "UnfitValueError",
    "V",
    "WrittenFloat",
    "array_of",
    "codec_named",
    "codec_of",
    "decimal_of",
    "has_text",
    "map_of",
    "parse_text",
    "parse_type",
    "struct_of",
]
