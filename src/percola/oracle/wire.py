"""§2.3: what oracle and clients say to each other: the messages of `oracle.proto`, and names.

Written by hand: generated code refuses to load beside a protobuf or grpcio that is older than what
generated it, which would pin both for every user, and it has no types; these are five messages of
numbers and short texts. The health messages are those of gRPC's own health service.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SERVICE: Final = "percola.Oracle"
DRAW: Final = "Draw"
LAST: Final = "Last"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"
CHECK: Final = "Check"

TOKEN_HEADER: Final = "authorization"
"""The metadata that carries the shared token, as `Bearer TOKEN`."""

SERVING: Final = 1
NOT_SERVING: Final = 2

_VARINT: Final = 0
_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """Asks for up to `count` timestamps."""

    count: int

    def encode(self) -> bytes:
        """As it is sent."""
        return _number(1, self.count)

    @classmethod
    def decode(cls, raw: bytes) -> DrawRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(_Fields(raw).number(1))


@dataclass(frozen=True, slots=True)
class DrawReply:
    """The timestamps from `first` on, `count` of them."""

    first: int
    count: int
    source: str

    def encode(self) -> bytes:
        """As it is sent."""
        return _number(1, self.first) + _number(2, self.count) + _text(3, self.source)

    @classmethod
    def decode(cls, raw: bytes) -> DrawReply:
        """The inverse of `encode`; ValueError for other bytes."""
        fields = _Fields(raw)
        return cls(fields.number(1), fields.number(2), fields.text(3))


@dataclass(frozen=True, slots=True)
class LastRequest:
    """Asks for the highest timestamp handed out."""

    def encode(self) -> bytes:
        """As it is sent."""
        return b""

    @classmethod
    def decode(cls, raw: bytes) -> LastRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        _Fields(raw)
        return cls()


@dataclass(frozen=True, slots=True)
class LastReply:
    """The highest timestamp handed out."""

    last: int
    source: str

    def encode(self) -> bytes:
        """As it is sent."""
        return _number(1, self.last) + _text(2, self.source)

    @classmethod
    def decode(cls, raw: bytes) -> LastReply:
        """The inverse of `encode`; ValueError for other bytes."""
        fields = _Fields(raw)
        return cls(fields.number(1), fields.text(2))


@dataclass(frozen=True, slots=True)
class HealthRequest:
    """Asks whether a service is served; the empty name stands for the process."""

    service: str

    def encode(self) -> bytes:
        """As it is sent."""
        return _text(1, self.service)

    @classmethod
    def decode(cls, raw: bytes) -> HealthRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(_Fields(raw).text(1))


@dataclass(frozen=True, slots=True)
class HealthReply:
    """SERVING or NOT_SERVING."""

    status: int

    def encode(self) -> bytes:
        """As it is sent."""
        return _number(1, self.status)

    @classmethod
    def decode(cls, raw: bytes) -> HealthReply:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(_Fields(raw).number(1))


# --- Protobuf's encoding ----------------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, number: int) -> bytes:
    # As protobuf has it: what is zero or empty is left out.
    return _varint(field << 3 | _VARINT) + _varint(number) if number else b""


def _text(field: int, text: str) -> bytes:
    raw = text.encode()
    return _varint(field << 3 | _BYTES) + _varint(len(raw)) + raw if raw else b""


class _Fields:
    """A message's fields by number; those of later versions are passed over."""

    def __init__(self, raw: bytes) -> None:
        self._found: dict[int, int | bytes] = dict(_fields(raw))

    def number(self, field: int) -> int:
        found = self._found.get(field, 0)
        if isinstance(found, bytes):
            raise ValueError(f"field {field} is not a number")
        return found

    def text(self, field: int) -> str:
        found = self._found.get(field, b"")
        if isinstance(found, int):
            raise ValueError(f"field {field} is not a text")
        return found.decode()


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _read_varint(raw, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _read_varint(raw, at)
        else:
            length = {1: 8, 5: 4}.get(kind, len(raw) + 1)
        if at + length > len(raw):
            raise ValueError("the message is cut off, or is none")
        if kind == _BYTES:
            yield number, raw[at : at + length]
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
