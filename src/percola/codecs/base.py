"""The codecs of Python's own types, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, SupportsIndex, TypeVar

from percola.errors import SchemaError

V = TypeVar("V")


class UnfitValueError(ValueError):
    """A codec cannot hold a value; the message ends a sentence, and names a place in the value."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason
        self.place = place


@dataclass(frozen=True, slots=True)
class Codec(Generic[V]):
    """Encodes and decodes the values of a column.

    Attributes:
        name: its name in the stored schema; two codecs of one name must be compatible.
        encode: from a value to bytes; raises TypeError or ValueError for a wrong value.
        decode: the inverse.
    """

    name: str
    encode: Callable[[V], bytes]
    decode: Callable[[bytes], V]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """What pickle stores: of a built-in codec its name, as these are told by identity."""
        from percola.codecs.names import codec_named

        if codec_named(self.name) is self:
            return codec_named, (self.name,)
        return object.__reduce_ex__(self, protocol)


def _encode_bytes(value: bytes) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError


def _encode_str(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def _encode_int(value: int) -> bytes:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return b"%d" % value


def _encode_float(value: float) -> bytes:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    number = float(value)
    if number != value and isinstance(value, int):
        raise UnfitValueError("it would be rounded")
    return repr(number).encode()


def _encode_bool(value: bool) -> bytes:
    if not isinstance(value, bool):
        raise TypeError
    return b"true" if value else b"false"


def _decode_bool(raw: bytes) -> bool:
    if raw not in (b"true", b"false"):
        raise ValueError
    return raw == b"true"


def _no_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# Created once: json.dumps would create an encoder, and json.loads detect an encoding, per value.
_JSON_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_JSON_DECODER: Final = json.JSONDecoder(parse_constant=_no_json)

MOST_NESTED: Final = 500
"""How deep lists and dictionaries of JSON may contain each other."""

_OTHERS: Final = bytes(set(range(256)) - set(b"[]{}"))
_AS_LISTS: Final = bytes.maketrans(b"{}", b"[]")


def _encode_json(value: Any) -> bytes:
    return checked_json(_JSON_ENCODER.encode(value).encode())


def checked_json(raw: bytes) -> bytes:
    """The same JSON; UnfitValueError if it is nested deeper than `MOST_NESTED`.

    Python's recursion limit bounds what is written and what is read, wherever that is. What could
    be written near its end could not be read by a program that is a few calls deeper.
    """
    if raw.count(b"[") + raw.count(b"{") > MOST_NESTED and _is_deeper(raw):
        raise UnfitValueError(f"it is nested more than {MOST_NESTED} deep")
    return raw


def _is_deeper(raw: bytes) -> bool:
    """Whether JSON is nested deeper than `MOST_NESTED`."""
    parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')  # Each second one is a text.
    left = b"".join(parts[::2]).translate(_AS_LISTS, _OTHERS)
    for _ in range(MOST_NESTED):
        left = left.replace(b"[]", b"")  # Without the innermost lists and dictionaries.
        if not left:
            return False
    return True


def decoded_json(decoder: json.JSONDecoder, raw: bytes) -> Any:
    """What `decoder.decode` returns, in half of its time: no white space is looked for.

    Raises ValueError, an UnfitValueError where Python's recursion limit does not let it be read.
    """
    text = raw.decode()
    try:
        try:
            value, end = decoder.raw_decode(text)
        except ValueError:
            return decoder.decode(text)
        return value if end == len(text) else decoder.decode(text)
    except RecursionError as error:
        raise UnfitValueError(
            f"it is nested too deep for Python's recursion limit of {sys.getrecursionlimit()}, "
            "which sys.setrecursionlimit raises"
        ) from error


def _decode_json(raw: bytes) -> Any:
    return decoded_json(_JSON_DECODER, raw)


JSON: Final[Codec[Any]] = Codec("json", _encode_json, _decode_json)
"""Any value that JSON can represent: dictionaries with string keys, lists, strings, …

They may contain each other up to 500 deep.
"""

_BY_TYPE: Final[Mapping[type, Codec[Any]]] = {
    bytes: Codec("bytes", _encode_bytes, bytes),
    str: Codec("str", _encode_str, bytes.decode),
    int: Codec("int", _encode_int, int),
    float: Codec("float", _encode_float, float),
    bool: Codec("bool", _encode_bool, _decode_bool),
}
SIMPLE: Final[Mapping[str, Codec[Any]]] = {
    codec.name: codec for codec in (*_BY_TYPE.values(), JSON)
}
"""The codecs of this module, by name."""


def codec_of(type_: type[V] | Codec[V]) -> Codec[V]:
    """The codec for a supported type, or the given codec itself; SchemaError for others."""
    if isinstance(type_, Codec):
        if not isinstance(type_.name, str):
            raise SchemaError(
                f"The name of a codec is a text, by which the repository stores it, and not "
                f"{type_.name!r}."
            )
        return type_
    codec = _BY_TYPE.get(type_) if isinstance(type_, type) else None
    if codec is None:
        known = ", ".join(kind.__name__ for kind in _BY_TYPE)
        raise SchemaError(
            f"{type_!r} is not a type that a column can have: use {known}, or a Codec such as "
            "percola.JSON, percola.DATE or percola.decimal_of(12, 2)."
        )
    return codec


def bytes_named(name: str) -> Codec[Any]:
    """A codec for a name that is not built in: it reads and writes the bytes as they are."""
    return Codec(name, _encode_bytes, bytes)
