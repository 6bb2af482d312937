"""The names of types, as in a stored schema and on the command line.

decimal(12,2)    array<str>    map<str,int64>    struct<name:str,price:decimal(12,2)>
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NoReturn

from percola.codecs.base import SIMPLE, Codec, bytes_named
from percola.codecs.nested import MAX_DEPTH, array_of, map_of, struct_of
from percola.codecs.ordered import FIXED, decimal_of
from percola.errors import SchemaError

_TOKEN: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_-]*|[0-9]{1,4}|[<>(),:])\s*")
_WORDS: Final = {**SIMPLE, **FIXED}
TYPE_NAMES: Final = (*_WORDS, "decimal(p,s)", "array<T>", "map<K,V>", "struct<a:T,…>")
"""What `parse_type` reads, for help and errors."""


@lru_cache(maxsize=1024)
def codec_named(name: str) -> Codec[Any]:
    """The codec for a name in a stored schema; one that reads bytes if it is not built in."""
    try:
        codec = parse_type(name)
    except SchemaError:
        codec = None
    return codec if codec is not None and codec.name == name else bytes_named(name)


def parse_type(text: str) -> Codec[Any]:
    """The codec of a built-in type from its name; SchemaError if there is none."""
    known = _WORDS.get(text)
    return known if known is not None else _Parser(text).whole()


class _Parser:
    """Reads one name from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> Codec[Any]:
        found = self._type()
        if self._at < len(self._text):
            self._fail()
        return found

    def _type(self) -> Codec[Any]:
        word = self._take()
        if word in _WORDS:
            return _WORDS[word]
        if word == "decimal":
            self._expect("(")
            precision = self._number()
            scale = self._number() if self._either(",)") == "," else None
            if scale is not None:
                self._expect(")")
            return decimal_of(precision, scale or 0)
        if word not in ("array", "map", "struct"):
            self._fail()
        self._expect("<")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SchemaError(f"Arrays, maps and structs may be nested up to {MAX_DEPTH} deep.")
        if word == "array":
            found: Codec[Any] = array_of(self._type())
            self._expect(">")
        elif word == "map":
            key = self._type()
            self._expect(",")
            found = map_of(key, self._type())
            self._expect(">")
        else:
            found = self._struct()
        self._depth -= 1
        return found

    def _struct(self) -> Codec[Any]:
        fields: dict[str, Codec[Any]] = {}
        while True:
            name = self._take()
            self._expect(":")
            if name in fields:
                raise SchemaError(f"The struct {self._text!r} has two fields named {name!r}.")
            fields[name] = self._type()
            if self._either(",>") == ">":
                return struct_of(**fields)

    def _take(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            self._fail()
        self._at = match.end()
        return match[1]

    def _number(self) -> int:
        text = self._take()
        if not text.isdigit():
            self._fail()
        return int(text)

    def _either(self, signs: str) -> str:
        found = self._take()
        if found not in signs:
            self._fail()
        return found

    def _expect(self, sign: str) -> None:
        self._either(sign)

    def _fail(self) -> NoReturn:
        shown = self._text if len(self._text) <= 80 else self._text[:80] + "…"
        raise SchemaError(f"{shown!r} names no type. The types are: {', '.join(TYPE_NAMES)}.")
