"""§2.4: which tables a wake-up is about, and which rows of them.

A wake-up tells workers where a commit has put notify entries. It is a sequence of:

    a byte from 128       a table's mark: 128 and seven bits of a hash of its name
    a byte below 128,     a table's mark without the 128: what there is to do is in one row;
    a length, a row       of a long row the first bytes

Two tables may have the same mark; the one that was not meant is then scanned in vain. Where many
rows are concerned, a wake-up is about the whole table. An empty one is about all tables, and so is
one that cannot be read. Releases before rows take a byte below 128 for all tables.

Workers that run the same observers need not all be told of a row, since one of them handles it.
They form a *pool*, whose name is a hash of the observers and the marks of their tables. A worker
that has nothing to do tells the lock service so, with the name, and is then told of rows that no
other worker of the pool is told of.

Rows matter where a scan of a table takes a call to each of its tablets. In a folder, whose scans
are cheap, wake-ups have no rows (`marks_of`).
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Iterable, Mapping, MutableMapping, Set
from functools import lru_cache
from typing import Any, Final

EVERY_TABLE: Final = b""
"""The wake-up that is about all tables."""

_FIRST: Final = 128
ROW_BYTES: Final = 32
"""The most bytes of a row."""
_ROOM: Final = 24 * (2 + ROW_BYTES)
"""The most bytes that all rows of a wake-up take. With the marks of all tables they fit into a
frame."""
_HASH_BYTES: Final = 8
"""Of the observers, at the beginning of a pool's name."""

Place = str | tuple[str, bytes]
"""Where there may be work: anywhere in a table, or in one row of it."""

Rows = Mapping[int, Set[bytes] | None]
"""What a wake-up is about: by a table's mark, rows of it; or None for the whole table."""


@lru_cache(maxsize=4096)
def mark_of(table: str) -> int:
    """The mark of a table."""
    return _FIRST | zlib.crc32(table.encode()) % _FIRST


def marks_of(places: Iterable[Place] | None) -> bytes:
    """A wake-up about the whole tables of these places; for None, and for none, `EVERY_TABLE`."""
    return bytes(sorted({mark_of(one if isinstance(one, str) else one[0]) for one in places or ()}))


def wake_up_of(places: Iterable[Place] | None) -> bytes:
    """A wake-up about these places; for None, and for none, `EVERY_TABLE`."""
    found: dict[int, set[bytes] | None] = {}
    for place in places or ():
        if isinstance(place, str):
            found[mark_of(place)] = None
        else:
            mark = mark_of(place[0])
            if (rows := found.setdefault(mark, set())) is not None:
                rows.add(place[1][:ROW_BYTES])
    return _written(found)


def read_marks(raw: bytes) -> bytes:
    """The wake-up in marks that other processes have sent, however often they sent each."""
    marks = bytes(sorted(set(raw)))
    return EVERY_TABLE if marks and marks[0] < _FIRST else marks


def has_room(some: bytes, others: bytes) -> bool:
    """Whether two wake-ups, joined, name all the rows that either names."""
    return len(some) + len(others) <= _ROOM


def joined(some: bytes | None, others: bytes) -> bytes:
    """Two wake-ups as one; None is no wake-up."""
    if some is None or some == others:
        return others
    mine, theirs = rows_of(some), rows_of(others)
    if not (mine and theirs):
        return EVERY_TABLE
    found = {**mine}
    for mark, rows in theirs.items():
        known = found.get(mark, frozenset())
        found[mark] = None if rows is None or known is None else known | rows
    return _written(found)


def pool_of(observers: Iterable[str], tables: Iterable[str], apart: Iterable[str] = ()) -> bytes:
    """The name of the pool of workers with these observers, for the rows of these tables.

    Rows of the tables `apart` are told to all. If no others are left, the name is empty: such
    workers are told of everything.
    """
    if not (marks := set(marks_of(tables)) - set(marks_of(apart))):
        return b""
    names = "\n".join(sorted(observers)).encode()
    return hashlib.blake2b(names, digest_size=_HASH_BYTES).digest() + bytes(sorted(marks))


def marks_of_pool(pool: bytes) -> frozenset[int]:
    """The tables whose rows are told to one worker, by marks; ValueError for what is no name."""
    marks = pool[_HASH_BYTES:]
    if pool and (not marks or min(marks) < _FIRST):
        raise ValueError("a pool without the marks of its tables")
    return frozenset(marks)


def parted(wake_up: bytes, marks: Set[int]) -> tuple[bytes | None, list[tuple[int, bytes]]]:
    """A wake-up without the rows of these tables, None if nothing else is in it; and the rows."""
    about = rows_of(wake_up) if marks else {}
    rows = [(mark, row) for mark in about.keys() & marks for row in about[mark] or ()]
    if not rows:
        return wake_up, []
    left = {mark: of for mark, of in about.items() if of is None or mark not in marks}
    return (_written(left) if left else None), rows


def first_of(rows: MutableMapping[tuple[int, bytes], Any], most: int) -> bytes:
    """Take up to so many rows, and not more than a wake-up has, from the first on; as a wake-up."""
    taken: dict[int, set[bytes]] = {}
    room = _ROOM
    for mark, row in list(itertools.islice(rows, most)):
        room -= 2 + len(row)
        if room < 0:
            break
        del rows[mark, row]
        taken.setdefault(mark, set()).add(row)
    return _written(taken)


def rows_of(raw: bytes) -> Rows:
    """What a wake-up is about; nothing if it is about all tables."""
    if not raw or min(raw) >= _FIRST:
        return dict.fromkeys(raw)
    found: dict[int, set[bytes] | None] = {}
    at = 0
    while at < len(raw):
        mark = raw[at]
        at += 1
        if mark >= _FIRST:
            found[mark] = None
            continue
        end = at + 1 + raw[at] if at < len(raw) else at
        if not at < end <= len(raw):
            return {}
        if (rows := found.setdefault(mark | _FIRST, set())) is not None:
            rows.add(raw[at + 1 : end])
        at = end
    return found


def _written(found: Rows) -> bytes:
    if sum(2 + len(row) for rows in found.values() for row in rows or ()) > _ROOM:
        return bytes(sorted(found))
    marks = bytes(sorted(mark for mark, rows in found.items() if rows is None))
    return marks + b"".join(
        bytes((mark - _FIRST, len(row))) + row
        for mark, rows in sorted(found.items())
        for row in sorted(rows or ())
    )
