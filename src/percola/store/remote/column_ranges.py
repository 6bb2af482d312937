"""§2.1: ranges of columns, by which databases are asked for the families that a read names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from percola.cells import SYSTEM_MARK


class ColumnRange(NamedTuple):
    """Columns from `start` on, up to and including `last` or up to but not including `end`."""

    start: bytes
    last: bytes | None = None
    end: bytes | None = None


def wanted_ranges(wanted: Sequence[tuple[bytes, bool]] | None) -> list[ColumnRange]:
    """The ranges of columns that a scan reads, none of them inside another."""
    if wanted is None:
        # All but Percola's own.
        mark = SYSTEM_MARK[0]
        return [ColumnRange(b"\0", end=SYSTEM_MARK), ColumnRange(bytes([mark + 1]))]
    prefixes: list[bytes] = []
    for prefix in sorted({name for name, is_prefix in wanted if is_prefix}):
        if not prefixes or not prefix.startswith(prefixes[-1]):
            prefixes.append(prefix)
    names = {name for name, is_prefix in wanted if not is_prefix}
    ranges = [ColumnRange(prefix, end=_after(prefix)) for prefix in prefixes]
    ranges += [
        ColumnRange(name, last=name)
        for name in names
        if not any(name.startswith(prefix) for prefix in prefixes)
    ]
    return sorted(ranges)


def _after(prefix: bytes) -> bytes | None:
    """The first string after all those that begin with `prefix`; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
