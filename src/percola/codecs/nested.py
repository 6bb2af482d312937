"""Arrays, maps and structs: on disk JSON, in which the values inside have the form below.

    codec                       Python      JSON
    --------------------------  ----------  ------------------------------------------------
    array<T>                    list        a list
    map<str,T>                  dict        an object
    map<K,T>                    dict        a list of pairs
    struct<a:T,b:U>             dict        an object; a field that is None is left out
    int16, int32, int64, int    int         a number
    float, float32              float       a number, or "NaN", "Infinity", "-Infinity"
    decimal(p,s), date, …       see above   text: "12.50", "2010-10-04", "2010-10-04T12:00:00+00:00"
    bytes                       bytes       text in base64
    str, bool, json             the same    the same

Elements, a map's values and fields may be None. A map's keys are scalars and are not None.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

from percola.codecs.base import (
    JSON,
    SIMPLE,
    Codec,
    UnfitValueError,
    V,
    checked_json,
    codec_of,
    decoded_json,
)
from percola.codecs.ordered import FIXED, TIMESTAMP, DecimalCodec, read_moment
from percola.errors import SchemaError

K = TypeVar("K")

MAX_DEPTH: Final = 16
"""How deep arrays, maps and structs may contain each other."""

_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,47}")
BEYOND_FLOATS: Final = "it is beyond the range of floats"
_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Convert: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class NestedCodec(Codec[V]):
    """A codec of values that contain others.

    Attributes:
        to_json: from a value to its JSON form; raises TypeError or UnfitValueError.
        of_json: the inverse; raises TypeError or ValueError.
    """

    to_json: Convert
    of_json: Convert

    def __reduce__(self) -> tuple[Callable[[str], Codec[Any]], tuple[str]]:
        from percola.codecs.names import codec_named

        return codec_named, (self.name,)


@dataclass(frozen=True, slots=True)
class ArrayCodec(NestedCodec[Sequence[Any]]):
    """A codec of lists; `element` is that of their elements."""

    element: Codec[Any]


@dataclass(frozen=True, slots=True)
class MapCodec(NestedCodec[Mapping[Any, Any]]):
    """A codec of dictionaries; `key` and `value` are those of their entries."""

    key: Codec[Any]
    value: Codec[Any]


@dataclass(frozen=True, slots=True)
class StructCodec(NestedCodec[Mapping[str, Any]]):
    """A codec of dictionaries with fixed keys; `fields` has each one's name and codec."""

    fields: tuple[tuple[str, Codec[Any]], ...]


def array_of(element: type[V] | Codec[V]) -> Codec[Sequence[V | None]]:
    """Lists of values of one type, None among them."""
    return _array(_element(element))


def map_of(key: type[K] | Codec[K], value: type[V] | Codec[V]) -> Codec[Mapping[K, V | None]]:
    """Dictionaries from scalars of one type to values of another, or None."""
    keys = _element(key)
    if keys is JSON or isinstance(keys, NestedCodec):
        raise SchemaError(f"The keys of a map cannot be {keys.name}: use a scalar type.")
    return _map(keys, _element(value))


def struct_of(**fields: type[Any] | Codec[Any]) -> Codec[Mapping[str, Any]]:
    """Dictionaries with these keys, each with values of its own type, or None."""
    if not fields:
        raise SchemaError("A struct has at least one field: struct_of(name=str).")
    for name in fields:
        if not _FIELD.fullmatch(name):
            raise SchemaError(
                f"{name!r} cannot name a field of a struct: use 1 to 48 letters, digits, '_' or "
                "'-', beginning with a letter or '_'."
            )
    if len({name.casefold() for name in fields}) < len(fields):
        raise SchemaError("Two fields of a struct have names that differ in case only.")
    return _struct(tuple((name, _element(type_)) for name, type_ in fields.items()))


def _element(given: type[Any] | Codec[Any]) -> Codec[Any]:
    codec = codec_of(given)
    built_in = SIMPLE.get(codec.name) is codec or FIXED.get(codec.name) is codec
    if not built_in and not isinstance(codec, DecimalCodec | NestedCodec):
        raise SchemaError(
            f"The codec {codec.name!r} cannot be inside an array, a map or a struct: only "
            "Percola's own types can."
        )
    if _depth(codec) >= MAX_DEPTH:
        raise SchemaError(f"Arrays, maps and structs may be nested up to {MAX_DEPTH} deep.")
    return codec


def _depth(codec: Codec[Any]) -> int:
    if isinstance(codec, ArrayCodec):
        return 1 + _depth(codec.element)
    if isinstance(codec, MapCodec):
        return 1 + _depth(codec.value)
    if isinstance(codec, StructCodec):
        return 1 + max(_depth(one) for _, one in codec.fields)
    return 0


# Cached, so that two of one name are equal.


@cache
def _array(element: Codec[Any]) -> ArrayCodec:
    to_json, of_json = json_functions(element)

    def written(value: Sequence[Any]) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise TypeError
        return [_at(f"[{at}]", element, to_json, one) for at, one in enumerate(value)]

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError
        return [None if one is None else of_json(one) for one in value]

    return ArrayCodec(f"array<{element.name}>", *_functions(written, read), element)


@cache
def _map(key: Codec[Any], value: Codec[Any]) -> MapCodec:
    to_json, of_json = json_functions(value)
    key_to_json, key_of_json = json_functions(key)
    as_object = key.name == "str"
    # Floats are rounded; of an hour that comes twice, Python takes one instant for two.
    merges = key.name in ("float32", "timestamp")

    def written(given: Mapping[Any, Any]) -> Any:
        if not isinstance(given, Mapping):
            raise TypeError
        pairs = [
            (_key(key, key_to_json, name), _at(f"[{name!r}]", value, to_json, one))
            for name, one in given.items()
        ]
        if merges and len({key.encode(name) for name in given}) < len(pairs):
            raise UnfitValueError(f"two of its keys are the same {key.name}")
        return dict(pairs) if as_object else pairs

    def read(given: Any) -> dict[Any, Any]:
        if not isinstance(given, dict if as_object else list):
            raise ValueError
        pairs = given.items() if isinstance(given, dict) else given
        return {key_of_json(name): None if one is None else of_json(one) for name, one in pairs}

    name = f"map<{key.name},{value.name}>"
    return MapCodec(name, *_functions(written, read), key, value)


@cache
def _struct(fields: tuple[tuple[str, Codec[Any]], ...]) -> StructCodec:
    functions = {name: (codec, *json_functions(codec)) for name, codec in fields}

    def written(value: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeError
        for name in value:
            if name not in functions:
                raise UnfitValueError(f"it has the key {name!r}, which is no field")
        return {
            name: _at(f".{name}", codec, to_json, value[name])
            for name, (codec, to_json, _) in functions.items()
            if value.get(name) is not None
        }

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not value.keys() <= functions.keys():
            raise ValueError
        return {
            name: of_json(value[name]) if value.get(name) is not None else None
            for name, (_, _, of_json) in functions.items()
        }

    name = f"struct<{','.join(f'{name}:{codec.name}' for name, codec in fields)}>"
    return StructCodec(name, *_functions(written, read), fields)


def _at(place: str, codec: Codec[Any], convert: Convert, value: Any) -> Any:
    """A value inside another in its JSON form; UnfitValueError names the place."""
    if value is None:
        return None
    try:
        return convert(value)
    except UnfitValueError as error:
        raise UnfitValueError(error.reason, place + error.place) from None
    except (TypeError, ValueError, AttributeError):
        raise UnfitValueError(
            f"{type(value).__name__} {_shown(value)} is not {codec.name}", place
        ) from None


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:60] + "…"


def _key(codec: Codec[Any], convert: Convert, value: Any) -> Any:
    if value is None:
        raise UnfitValueError("None is one of its keys")
    return _at(f"[{value!r}]", codec, convert, value)


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_DECODER: Final = json.JSONDecoder()


def _functions(
    to_json: Convert, of_json: Convert
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any], Convert, Convert]:
    def encode(value: Any) -> bytes:
        return checked_json(_ENCODER.encode(to_json(value)).encode())

    def decode(raw: bytes) -> Any:
        try:
            return of_json(decoded_json(_DECODER, raw))
        except TypeError as error:
            raise ValueError from error

    return encode, decode, to_json, of_json


# --- The JSON form of scalars ---------------------------------------------------------------


def json_functions(codec: Codec[Any]) -> tuple[Convert, Convert]:
    """From a value to its JSON form, and back; both raise TypeError or ValueError."""
    if isinstance(codec, NestedCodec):
        return codec.to_json, codec.of_json
    if isinstance(codec, DecimalCodec):
        return _checked(codec, lambda value: str(codec.decode(codec.encode(value)))), (
            lambda value: codec.decode(codec.encode(_decimal(value)))
        )
    to_json, of_json = _SCALARS[codec.name]
    return _checked(codec, to_json), lambda value: codec.decode(codec.encode(of_json(value)))


def _checked(codec: Codec[Any], to_json: Convert) -> Convert:
    def convert(value: Any) -> Any:
        codec.encode(value)
        return to_json(value)

    return convert


class WrittenFloat(float):
    """A number of a JSON document with its digits, which a decimal needs all of."""

    __slots__ = ("text",)

    def __new__(cls, text: str) -> WrittenFloat:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


def _decimal(value: Any) -> Decimal:
    """A decimal from its JSON form, or from a number that a person wrote."""
    if isinstance(value, WrittenFloat):
        value = value.text
    if isinstance(value, str):
        try:
            return Decimal(value)
        except InvalidOperation:
            raise ValueError from None
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    raise TypeError


def _to_float(value: float) -> float | str:
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _of_float(value: Any) -> float:
    try:
        if isinstance(value, str):
            return _FLOATS[value]
        if isinstance(value, WrittenFloat) and math.isinf(value):
            raise UnfitValueError(BEYOND_FLOATS)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except (KeyError, OverflowError):
        raise ValueError from None
    raise TypeError


def _of_bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


def _as_utc(value: datetime) -> str:
    return TIMESTAMP.decode(TIMESTAMP.encode(value)).isoformat()


def _same(value: Any) -> Any:
    return value


_SCALARS: Final[Mapping[str, tuple[Convert, Convert]]] = {
    "str": (_same, _same),
    "bool": (_same, _same),
    "int": (_same, _same),
    "int16": (_same, _same),
    "int32": (_same, _same),
    "int64": (_same, _same),
    "float": (_to_float, _of_float),
    "float32": (_to_float, _of_float),
    "bytes": (lambda value: base64.b64encode(value).decode(), _of_bytes),
    "date": (date.isoformat, date.fromisoformat),
    "timestamp": (_as_utc, read_moment),
    "timestamp_ntz": (datetime.isoformat, read_moment),
    "json": (_same, _same),
}
