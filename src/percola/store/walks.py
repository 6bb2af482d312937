"""§2.1, §2.2: walks over ranges of a store, made of bounded scans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from percola.cells import Cell, Kind
from percola.store.base import Store


def walk_kind(
    store: Store,
    kind: Kind,
    table: str,
    start: bytes = b"",
    end: bytes = b"",
    *,
    first: int = 256,
    limit: int = 256,
) -> Iterator[tuple[Cell, int, bytes]]:
    """All entries of a kind in [start, end), from repeated calls of `Store.scan_kind`.

    `limit` is that of each call, and `first` that of the first one: a caller who may need only one
    entry asks for one.
    """
    position: bytes | None = start
    most = first
    while position is not None:
        entries, position = store.scan_kind(kind, table, position, end, most)
        most = limit
        yield from entries


def scan_writes(
    store: Store, table: str, start: bytes = b"", end: bytes = b"", limit: int = 256
) -> tuple[list[tuple[Cell, list[tuple[int, bytes]]]], bytes | None]:
    """The write records of a range by cell: one call of `Store.scan_kind`.

    Returns (cell, [(commit_ts, record), …] newest first) of whole rows, about `limit` records, and
    the row to continue from, or None at the end.
    """
    entries, following = store.scan_kind(Kind.WRITE, table, start, end, limit)
    found = [
        (cell, [(ts, record) for _, ts, record in group])
        for cell, group in itertools.groupby(entries, key=lambda one: one[0])
    ]
    return found, following
