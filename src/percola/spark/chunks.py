"""§2.4 Chunks: the rows that share a transaction, bounded by number and by bytes.

A number of rows is a good bound where rows are of similar size; where sizes differ widely, the
bound in bytes keeps transactions small.
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
    """Cut rows into non-empty chunks, in order.

    A chunk ends with the row that makes it `most_rows` rows or at least `most_bytes` bytes, and is
    yielded before the next row is read.
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
    """The approximate size of a value: the bytes of all text and bytes in it, plus overhead."""
    if isinstance(value, str | bytes | bytearray):
        return len(value) + _SMALL
    if isinstance(value, Mapping):
        return _SMALL + sum(weight(key) + weight(one) for key, one in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return _SMALL + sum(map(weight, value))
    if is_dataclass(value):
        return _SMALL + sum(weight(getattr(value, one.name)) for one in fields(value))
    return _SMALL
