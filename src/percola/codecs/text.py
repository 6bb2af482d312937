"""Values as people write them: on the command line, and as bounds of a range of rows."""

from __future__ import annotations

import json
import math
from datetime import date
from decimal import Decimal
from typing import Any, Final

from percola.codecs.base import Codec, UnfitValueError
from percola.codecs.nested import BEYOND_FLOATS, NestedCodec, WrittenFloat
from percola.codecs.ordered import DecimalCodec, read_moment

_WHAT: Final = {
    "str": "text in UTF-8",
    "int": "a whole number",
    "int16": "a whole number of 16 bits",
    "int32": "a whole number of 32 bits",
    "int64": "a whole number of 64 bits",
    "float": "a number",
    "float32": "a number",
    "bool": "'true' or 'false'",
    "json": "a JSON document",
    "date": "a date such as 2010-10-04",
    "timestamp": "a time with a time zone such as 2010-10-04T12:00:00Z",
    "timestamp_ntz": "a time without a time zone such as 2010-10-04T12:00:00",
}


def has_text(codec: Codec[Any]) -> bool:
    """Whether values have a form as text: not those of type bytes, or of a user's own codec."""
    return codec.name in _WHAT or isinstance(codec, DecimalCodec | NestedCodec)


def parse_text(codec: Codec[Any], text: str) -> Any:
    """A value from its text; UnfitValueError says what it should be."""
    try:
        value = _parse(codec, text)
        codec.encode(value)
    except UnfitValueError as error:
        raise UnfitValueError(f"{_shown(text)} is not {what(codec)}: {error}") from None
    except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError):
        raise UnfitValueError(f"{_shown(text)} is not {what(codec)}") from None
    return value


def what(codec: Codec[Any]) -> str:
    """What a value's text is, as in "… is not a whole number"."""
    if isinstance(codec, DecimalCodec):
        return f"a number that {codec.name} can hold"
    if isinstance(codec, NestedCodec):
        return f"JSON of the type {codec.name}"
    return _WHAT[codec.name]


def _parse(codec: Codec[Any], text: str) -> Any:
    name = codec.name
    if name == "str":
        return text
    if name == "bool":
        return {"true": True, "false": False}[text.strip().lower()]
    if name in ("float", "float32"):
        value = float(text)
        if math.isinf(value) and any(map(str.isdigit, text)):
            raise UnfitValueError(BEYOND_FLOATS)
        return value
    if name == "date":
        return date.fromisoformat(text.strip())
    if name in ("timestamp", "timestamp_ntz"):
        return read_moment(text.strip())
    if isinstance(codec, DecimalCodec):
        return Decimal(text.strip())
    if isinstance(codec, NestedCodec):
        return codec.of_json(json.loads(text, parse_float=WrittenFloat))
    return json.loads(text) if name == "json" else int(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
