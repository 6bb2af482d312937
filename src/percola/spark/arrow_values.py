"""§2.4 Encoded values of `percola.codecs` as Arrow arrays, and back, a whole array at a time.

Ordered codecs encode a number big-endian with its sign bit flipped. As Arrow's numbers are
little-endian, whole arrays are converted by reversing and extending bytes, without an object for
each value; so are floats of 32 bits. Arrays, maps and structs are decoded value by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from percola.codecs import (
    FLOAT32,
    ArrayCodec,
    Codec,
    DecimalCodec,
    MapCodec,
    NestedCodec,
    OrderedCodec,
    StructCodec,
)

_NATURAL: Final[Mapping[str, tuple[pa.DataType, str]]] = {
    "int16": (pa.int16(), "i2"),
    "int32": (pa.int32(), "i4"),
    "int64": (pa.int64(), "i8"),
    "date": (pa.date32(), "i4"),
    "timestamp": (pa.timestamp("us", "UTC"), "i8"),
    "timestamp_ntz": (pa.timestamp("us"), "i8"),
    "float32": (pa.float32(), "f4"),
}
"""Each codec's own Arrow type, and the numbers behind it as NumPy calls them."""

_DECIMAL_BYTES: Final = 16


def is_fixed(codec: Codec[Any]) -> bool:
    """Whether a codec's arrays are converted as a whole: `decoded` and `encoded`."""
    return isinstance(codec, OrderedCodec) or codec is FLOAT32


def natural_type(codec: Codec[Any]) -> pa.DataType:
    """The Arrow type of a fixed codec's values."""
    if isinstance(codec, DecimalCodec):
        return pa.decimal128(codec.precision, codec.scale)
    return _NATURAL[codec.name][0]


def decoded(codec: Codec[Any], raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Encoded values of a fixed codec as an array of `kind`; ArrowInvalid if one is not valid."""
    width = codec.width if isinstance(codec, OrderedCodec) else 4
    cells = raw.cast(pa.binary(width))
    if isinstance(codec, OrderedCodec):
        _check_range(codec, raw)
    count = len(cells)
    _, data = cells.buffers()
    whole = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    matrix = whole[cells.offset * width : (cells.offset + count) * width].reshape(count, width)
    if isinstance(codec, OrderedCodec):
        matrix = _flipped(matrix)
    if isinstance(codec, DecimalCodec):
        numbers = np.empty((count, _DECIMAL_BYTES), np.uint8)
        sign = np.where(matrix[:, 0] >= 0x80, np.uint8(0xFF), np.uint8(0))
        numbers[:, : _DECIMAL_BYTES - width] = sign[:, None]
        numbers[:, _DECIMAL_BYTES - width :] = matrix
        values = pa.py_buffer(np.ascontiguousarray(numbers[:, ::-1]))
    else:
        code = _NATURAL[codec.name][1]
        values = pa.py_buffer(matrix.reshape(-1).view(f">{code}").astype(f"<{code}"))
    valid = _validity(cells)
    array = pa.Array.from_buffers(natural_type(codec), count, [valid, values])
    return array if array.type == kind else array.cast(kind)


def encoded(codec: Codec[Any], array: pa.Array) -> pa.Array:
    """An array of Spark as encoded values of a fixed codec; ArrowInvalid if one does not fit."""
    kind = natural_type(codec)
    array = array if array.type == kind else array.cast(kind)
    count = len(array)
    if isinstance(codec, DecimalCodec):
        start, size = array.offset, _DECIMAL_BYTES
        buffer = array.buffers()[1]
        whole = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
        numbers = whole[start * size : (start + count) * size].reshape(count, size)
        matrix = numbers[:, ::-1][:, size - codec.width :]
    else:
        code = _NATURAL[codec.name][1]
        plain = {"i2": pa.int16(), "i4": pa.int32(), "i8": pa.int64(), "f4": pa.float32()}[code]
        if array.type != plain:
            array = array.cast(plain)
        filled = array.fill_null(0).to_numpy(zero_copy_only=False)
        matrix = filled.astype(f">{code}").view(np.uint8).reshape(count, int(code[1]))
    if isinstance(codec, OrderedCodec):
        matrix = _flipped(matrix)
    data = pa.py_buffer(np.ascontiguousarray(matrix))
    valid = _validity(array)
    raw = pa.Array.from_buffers(pa.binary(matrix.shape[1]), count, [valid, data])
    raw = raw.cast(pa.binary())
    if isinstance(codec, OrderedCodec):
        _check_range(codec, raw)
    return raw


def in_utc(array: pa.Array) -> pa.Array:
    """An array of Spark with its times in UTC, also those inside of other values.

    Spark's are in the session's zone. Python does not know all zones that Spark does, and for it
    the two instants of an hour that comes twice in a zone are one key of a dictionary.
    """
    kind = _in_utc(array.type)
    return array if array.type == kind else array.cast(kind)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([_field_in_utc(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field_in_utc(kind.key_field), _field_in_utc(kind.item_field))
    return pa.list_(_field_in_utc(kind.value_field)) if pa.types.is_list(kind) else kind


def _field_in_utc(field: pa.Field) -> pa.Field:
    return field.with_type(_in_utc(field.type))


def _validity(array: pa.Array) -> pa.Buffer | None:
    """Which values of an array are not null, as a bitmap; None: all."""
    if not array.null_count:
        return None
    mask = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def _flipped(matrix: Any) -> Any:
    """A copy of rows of bytes with the top bit of each flipped."""
    copy = np.array(matrix, np.uint8, order="C")
    copy[:, 0] ^= 0x80
    return copy


def _check_range(codec: OrderedCodec[Any], raw: pa.Array) -> None:
    bias = 1 << (8 * codec.width - 1)
    found = pc.min_max(raw).as_py()
    if found["min"] is not None and (
        found["min"] < (codec.least + bias).to_bytes(codec.width, "big")
        or found["max"] > (codec.most + bias).to_bytes(codec.width, "big")
    ):
        raise pa.ArrowInvalid(f"a value is beyond the range of {codec.name}")


# --- Nested values --------------------------------------------------------------------------

Convert = Callable[[Any], Any]


def for_arrow(codec: Codec[Any]) -> Convert:
    """From a decoded value to one that Arrow takes: maps as pairs, JSON as text."""
    if codec.name == "json":
        return lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(codec, ArrayCodec):
        element = _or_null(for_arrow(codec.element))
        return lambda value: [element(one) for one in value]
    if isinstance(codec, MapCodec):
        entry = _or_null(for_arrow(codec.value))
        return lambda value: [(name, entry(one)) for name, one in value.items()]
    if isinstance(codec, StructCodec):
        fields = [(name, _or_null(for_arrow(one))) for name, one in codec.fields]
        return lambda value: {name: convert(value[name]) for name, convert in fields}
    return _same


def of_arrow(codec: Codec[Any]) -> Convert:
    """From a value that Arrow gives to one that the codec encodes: the inverse of `for_arrow`."""
    if codec.name == "json":
        return json.loads
    if isinstance(codec, ArrayCodec):
        element = _or_null(of_arrow(codec.element))
        return lambda value: [element(one) for one in value]
    if isinstance(codec, MapCodec):
        entry = _or_null(of_arrow(codec.value))
        return lambda value: {name: entry(one) for name, one in value}
    if isinstance(codec, StructCodec):
        fields = [(name, _or_null(of_arrow(one))) for name, one in codec.fields]
        return lambda value: {name: convert(value.get(name)) for name, convert in fields}
    return _same


def is_nested(codec: Codec[Any]) -> bool:
    """Whether a codec's values contain others."""
    return isinstance(codec, NestedCodec)


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value
