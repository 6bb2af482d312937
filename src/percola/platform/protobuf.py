"""§2.3 on the wire: encodes and decodes the fields of protobuf messages.

The messages of the oracle and the lock service are written by hand with these few functions, for
the reasons in `percola.oracle.messages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_VARINT: Final = 0
_BYTES: Final = 2


def number(field: int, value: int) -> bytes:
    """An unsigned number as a field. As in protobuf, zero and empty values are omitted."""
    return _varint(field << 3 | _VARINT) + _varint(value) if value else b""


def text(field: int, value: str) -> bytes:
    """A text as a field."""
    return data(field, value.encode())


def data(field: int, value: bytes) -> bytes:
    """Bytes as a field."""
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value if value else b""


class Fields:
    """A message's fields by number; unknown fields of later versions are skipped.

    Raises ValueError for bytes that are not a message, and for a field of another type than
    requested.
    """

    def __init__(self, raw: bytes) -> None:
        self._found: dict[int, int | bytes] = dict(_fields(raw))

    def number(self, field: int) -> int:
        """The number in a field; 0 if there is none."""
        found = self._found.get(field, 0)
        if isinstance(found, bytes):
            raise ValueError(f"field {field} is not a number")
        return found

    def text(self, field: int) -> str:
        """The text in a field; empty if there is none."""
        return self._bytes(field, "a text").decode()

    def data(self, field: int) -> bytes:
        """The bytes in a field; empty if there are none."""
        return self._bytes(field, "bytes")

    def _bytes(self, field: int, what: str) -> bytes:
        found = self._found.get(field, b"")
        if isinstance(found, int):
            raise ValueError(f"field {field} is not {what}")
        return found


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _read_varint(raw, at)
            yield field, value
            continue
        if kind == _BYTES:
            length, at = _read_varint(raw, at)
        else:
            length = {1: 8, 5: 4}.get(kind, len(raw) + 1)
        if at + length > len(raw):
            raise ValueError("the message is cut off, or is none")
        if kind == _BYTES:
            yield field, raw[at : at + length]
        at += length


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(raw):
            raise ValueError("the message is cut off")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise ValueError("the message has a number of more than 64 bits")
