"""§2.4: which tables a wake-up is about.

A wake-up tells workers in which tables a commit has put notify entries, by a mark of one byte for
each: 128 and seven bits of a hash of its name. Two tables may have the same mark; the one that was
not meant is then scanned in vain. Without marks, a wake-up is about all tables, and so it is with a
byte below 128, which is what releases before marks send.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

EVERY_TABLE: Final = b""
"""The marks of a wake-up that is about all tables."""

_FIRST: Final = 128


@lru_cache(maxsize=4096)
def mark_of(table: str) -> int:
    """The mark of a table."""
    return _FIRST | zlib.crc32(table.encode()) % _FIRST


def marks_of(tables: Iterable[str] | None) -> bytes:
    """The marks of these tables, in order; for None, and for none, `EVERY_TABLE`."""
    return bytes(sorted({mark_of(table) for table in tables or ()}))


def read_marks(raw: bytes) -> bytes:
    """The marks in bytes that another process has sent, however often it sent each."""
    marks = bytes(sorted(set(raw)))
    return EVERY_TABLE if marks and marks[0] < _FIRST else marks


def joined(some: bytes | None, others: bytes) -> bytes:
    """The marks of two wake-ups sent as one; None is no wake-up."""
    if some is None:
        return others
    return bytes(sorted({*some, *others})) if some and others else EVERY_TABLE
