"""Numbers of a fixed size, dates and times: the bytes of a value sort as the value does.

    codec          Python                          on disk, big-endian, the sign bit flipped
    -------------  ------------------------------  -----------------------------------------
    int16          int                             2 bytes
    int32          int                             4 bytes
    int64          int                             8 bytes
    decimal(p,s)   decimal.Decimal, exact          value * 10^s, in as many bytes as p digits need
    date           datetime.date                   days since 1970-01-01, 4 bytes
    timestamp      datetime with a time zone       microseconds since 1970-01-01 UTC, 8 bytes
    timestamp_ntz  datetime without a time zone    microseconds since 1970-01-01, 8 bytes

So a table may have them as rows (`Table("days", rows=DATE)`), and a range of values is a range of
rows. `float32` is here too, but it is not ordered: its bytes are IEEE 754's, big-endian.
"""

from __future__ import annotations

import decimal
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any, Final

from percola.codecs.base import Codec, UnfitValueError, V
from percola.errors import SchemaError

MAX_PRECISION: Final = 38
"""The most digits of a decimal: as many as Spark and Arrow hold in 16 bytes."""


@dataclass(frozen=True, slots=True)
class OrderedCodec(Codec[V]):
    """A codec whose encoded values are whole numbers of one size, and sort as the values do.

    Attributes:
        width: the size of a value, in bytes.
        least: the lowest number.
        most: the highest number.
    """

    width: int
    least: int
    most: int

    def __reduce__(self) -> tuple[Callable[[str], Codec[Any]], tuple[str]]:
        from percola.codecs.names import codec_named

        return codec_named, (self.name,)


@dataclass(frozen=True, slots=True)
class DecimalCodec(OrderedCodec[decimal.Decimal]):
    """A codec of decimals.

    Attributes:
        precision: the number of digits.
        scale: how many of them follow the decimal point.
    """

    precision: int
    scale: int


def _functions(
    width: int,
    least: int,
    most: int,
    to_number: Callable[[Any], int],
    of_number: Callable[[int], Any],
    beyond: str,
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """The functions of an ordered codec. `beyond` ends a sentence on a number out of range."""
    bias = 1 << (8 * width - 1)

    def encode(value: Any) -> bytes:
        number = to_number(value)
        if not least <= number <= most:
            raise UnfitValueError(beyond)
        return (number + bias).to_bytes(width, "big")

    def decode(raw: bytes) -> Any:
        number = int.from_bytes(raw, "big") - bias
        if len(raw) != width or not least <= number <= most:
            raise ValueError
        return of_number(number)

    return encode, decode


# --- Whole numbers --------------------------------------------------------------------------


def _whole(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return int(value)


def _integers(bits: int) -> OrderedCodec[int]:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    beyond = f"it is not between {least} and {most}"
    encode, decode = _functions(bits // 8, least, most, _whole, int, beyond)
    return OrderedCodec(f"int{bits}", encode, decode, bits // 8, least, most)


INT16: Final = _integers(16)
"""Whole numbers of 16 bits: smallint in Spark."""

INT32: Final = _integers(32)
"""Whole numbers of 32 bits: int in Spark."""

INT64: Final = _integers(64)
"""Whole numbers of 64 bits: bigint in Spark."""

_FLOAT32: Final = struct.Struct(">f")


def _encode_float32(value: float) -> bytes:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    try:
        return _FLOAT32.pack(float(value))  # `pack` raises its own error for a large int.
    except OverflowError:
        raise UnfitValueError("it is beyond the range of 32-bit floats") from None


def _decode_float32(raw: bytes) -> float:
    if len(raw) != _FLOAT32.size:
        raise ValueError
    value: float = _FLOAT32.unpack(raw)[0]
    return value


FLOAT32: Final[Codec[float]] = Codec("float32", _encode_float32, _decode_float32)
"""Floats of 32 bits, to which a Python float is rounded: float in Spark."""


# --- Decimals -------------------------------------------------------------------------------


def decimal_of(precision: int, scale: int = 0) -> DecimalCodec:
    """Exact decimals of up to `precision` digits (1 to 38), `scale` of them after the point.

    Values are `decimal.Decimal` or int. Floats are refused, and what would have to be rounded.
    """
    for name, given, low, high in (
        ("precision", precision, 1, MAX_PRECISION),
        ("scale", scale, 0, precision),
    ):
        if type(given) is not int or not low <= given <= high:
            raise SchemaError(
                f"decimal_of({precision!r}, {scale!r}) is no type: its {name} is a whole number "
                f"from {low} to {high}."
            )
    return _decimals(precision, scale)


@cache  # So that two of one name are equal.
def _decimals(precision: int, scale: int) -> DecimalCodec:
    most = 10**precision - 1
    width = most.bit_length() // 8 + 1  # With a bit for the sign.
    # Enough for every digit of a value and of those that are refused for having too many.
    exact = decimal.Context(prec=4 * MAX_PRECISION, traps=[])
    whole = precision - scale
    too_large = f"it has more than {whole} {'digit' if whole == 1 else 'digits'} before the point"
    too_fine = f"it has more than {scale} {'digit' if scale == 1 else 'digits'} after the point"

    def unscaled(value: decimal.Decimal) -> int:
        if type(value) is not decimal.Decimal:
            if isinstance(value, int) and not isinstance(value, bool):
                return int(value) * 10**scale
            if not isinstance(value, decimal.Decimal):
                raise TypeError
        if not value.is_finite():
            raise UnfitValueError("it is not a finite number")
        if not value:
            return 0
        if value.adjusted() >= whole:
            raise UnfitValueError(too_large)
        exact.clear_flags()
        shifted = value.scaleb(scale, exact)
        if exact.flags[decimal.Inexact] or shifted != shifted.to_integral_value():
            raise UnfitValueError(too_fine)
        return int(shifted)

    def restored(number: int) -> decimal.Decimal:
        return decimal.Decimal(number).scaleb(-scale, exact)

    encode, decode = _functions(width, -most, most, unscaled, restored, too_large)
    name = f"decimal({precision},{scale})"
    return DecimalCodec(name, encode, decode, width, -most, most, precision, scale)


# --- Dates and times ------------------------------------------------------------------------

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NTZ: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - without a time zone is what it is for.
_MICROSECOND: Final = timedelta(microseconds=1)
_BEYOND: Final = "in UTC it is not in one of the years 1 to 9999"
_TOO_FINE: Final = "it is finer than a microsecond"
_FINER: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")


def _days(value: date) -> int:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError
    return value.toordinal() - _EPOCH_DAY


def _date(days: int) -> date:
    return date.fromordinal(days + _EPOCH_DAY)


def _whole_microseconds(passed: timedelta) -> int:
    number, rest = divmod(passed, _MICROSECOND)
    if rest:  # The times of pandas, which derive from `datetime`, have nanoseconds.
        raise UnfitValueError(_TOO_FINE)
    return number


def _microseconds(value: datetime) -> int:
    if not isinstance(value, datetime):
        raise TypeError
    if value.utcoffset() is None:
        raise UnfitValueError("it has no time zone")
    return _whole_microseconds(value - _EPOCH)


def _timestamp(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _microseconds_ntz(value: datetime) -> int:
    if not isinstance(value, datetime):
        raise TypeError
    if value.tzinfo is not None:
        raise UnfitValueError("it has a time zone")
    return _whole_microseconds(value - _EPOCH_NTZ)


def _timestamp_ntz(microseconds: int) -> datetime:
    return _EPOCH_NTZ + timedelta(microseconds=microseconds)


def read_moment(text: str) -> datetime:
    """A time in ISO 8601; UnfitValueError if Python would cut what is finer than a microsecond."""
    if _FINER.search(text):
        raise UnfitValueError(_TOO_FINE)
    return datetime.fromisoformat(text)


def _moments(
    name: str,
    width: int,
    to_number: Callable[[Any], int],
    of_number: Callable[[int], V],
    first: V,
    last: V,
) -> OrderedCodec[V]:
    least, most = to_number(first), to_number(last)
    encode, decode = _functions(width, least, most, to_number, of_number, _BEYOND)
    return OrderedCodec(name, encode, decode, width, least, most)


DATE: Final = _moments("date", 4, _days, _date, date.min, date.max)
"""Days: `datetime.date`; date in Spark."""

TIMESTAMP: Final = _moments(
    "timestamp",
    8,
    _microseconds,
    _timestamp,
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
)
"""Instants, to the microsecond: `datetime` with a time zone, read in UTC; timestamp in Spark."""

TIMESTAMP_NTZ: Final = _moments(
    "timestamp_ntz",
    8,
    _microseconds_ntz,
    _timestamp_ntz,
    datetime.min,  # noqa: DTZ901
    datetime.max,  # noqa: DTZ901
)
"""Dates with a time of day, without a time zone: naive `datetime`; timestamp_ntz in Spark."""

FIXED: Final[dict[str, Codec[Any]]] = {
    codec.name: codec for codec in (INT16, INT32, INT64, FLOAT32, DATE, TIMESTAMP, TIMESTAMP_NTZ)
}
"""The codecs of this module that have no parameters, by name."""
