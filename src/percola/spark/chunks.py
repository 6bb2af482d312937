"""§2.4 How many rows share a transaction: up to a number of rows, and up to a number of bytes.

Rows that are alike are bounded well by their number. Where one holds a word and the next a book, a
bound in bytes keeps transactions of books small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar

R = TypeVar("R")

CHUNK_ROWS: Final = 1000
CHUNK_BYTES: Final = 8 << 20

_SMALL: Final = 8


def chunked(
    rows: Iterable[R], most_rows: int, most_bytes: int, weigh: Callable[[R], int]
) -> Iterator[list[R]]:
    """Cut rows into chunks, none of them empty; the order stays.

    A chunk ends with the row that makes it `most_rows` rows or at least `most_bytes` bytes, and is
    handed out before the next row is asked for.
    """
    chunk: list[R] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += weigh(row)
        if len(chunk) >= most_rows or size >= most_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def weight(value: Any) -> int:
    """About how many bytes a value stands for: those of all text and bytes in it, and some more."""
    if isinstance(value, str | bytes | bytearray):
        return len(value) + _SMALL
    if isinstance(value, Mapping):
        return _SMALL + sum(weight(key) + weight(one) for key, one in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return _SMALL + sum(map(weight, value))
    if is_dataclass(value):
        return _SMALL + sum(weight(getattr(value, one.name)) for one in fields(value))
    return _SMALL
