"""§2.1: translates conditions and reads into Bigtable's request filters.

A kind is a column family, a Percola column is a qualifier in it, and a timestamp is multiplied by
a thousand, because Bigtable stores microseconds in steps of a thousand.

A conditional mutation is one request: a filter, and the changes to make if any cell of the row
passes it, or if none does. All conditions of a row become one filter:

    all *absent*      matches the cells that must not exist; the changes apply if none passes
    all *present*     matches one cell per condition and skips all of them but one; the changes
                      apply if any passes
    both              the second, if nothing passes the first

Only the last needs Bigtable's condition filter. Bigtable's reference warns that the parts of such a
filter are not evaluated atomically. Here they are: a conditional mutation locks the row from its
filter to its changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from google.cloud.bigtable_v2.types import RowFilter, TimestampRange

from percola.cells import Kind
from percola.errors import StoreError, TransactionTooLargeError
from percola.store.base import Condition
from percola.store.remote.column_ranges import ColumnRange

Filter: TypeAlias = Any
"""A RowFilter as a plain protobuf message: the library's wrapper of it is slow."""

FAMILIES: Final[dict[Kind, str]] = {
    Kind.DATA: "data",
    Kind.LOCK: "lock",
    Kind.WRITE: "write",
    Kind.NOTIFY: "notify",
    Kind.FAILED: "failed",
}
"""The column family of each kind."""

_NOTIFY_TABLE: Final = "1-"


def table_of(table: str, kind: Kind) -> str:
    """The Bigtable table for a kind of entry: notify entries are in a separate one."""
    # Users' tables do not begin with a digit, and the longest name still fits with this prefix.
    return _NOTIFY_TABLE + table if kind is Kind.NOTIFY else table


CHANGES: Final = "changes"
"""The column family in which a table that keeps a feed lists its puts and deletes."""

SCALE: Final = 1000
"""Bigtable's timestamps are Percola's times this factor."""

MAX_STORED_TS: Final = (2**63 - 1) // SCALE
"""The highest timestamp that Bigtable can store: 9.2 · 10¹⁵."""

_PLAIN: Final = re.compile(rb"[A-Za-z0-9_:@./#-]+")
_SPECIAL: Final = re.compile(rb"[^A-Za-z0-9_]")

FILTER_BYTES: Final = 20_000
"""Bigtable takes filters of up to 20,480 bytes."""

_Filter = RowFilter.pb()
_Chain = _Filter.Chain
_Union = _Filter.Interleave
_If = _Filter.Condition
_Stamps = TimestampRange.pb()
_Columns = type(_Filter().column_range_filter)


def stored(ts: int) -> int:
    """A timestamp as Bigtable stores it; raises StoreError if it is too high."""
    if not 0 <= ts <= MAX_STORED_TS:
        raise StoreError(
            f"The timestamp {ts} does not fit in Bigtable, which keeps those up to "
            f"{MAX_STORED_TS}: the oracle of this repository must not hand out higher ones."
        )
    return ts * SCALE


def chain(*filters: Filter) -> Filter:
    """The cells that pass all of the filters, one after the other."""
    return filters[0] if len(filters) == 1 else _Filter(chain=_Chain(filters=filters))


def union(filters: Sequence[Filter]) -> Filter:
    """The cells that pass any of the filters; one that passes two is returned twice."""
    return filters[0] if len(filters) == 1 else _Filter(interleave=_Union(filters=filters))


def family(name: str) -> Filter:
    """All cells of a column family."""
    return _Filter(family_name_regex_filter=name)


def newest(count: int) -> Filter:
    """The newest cells of each column."""
    return _Filter(cells_per_column_limit_filter=count)


def nothing() -> Filter:
    """No cell."""
    return _Filter(block_all_filter=True)


def stamps(low: int, high: int) -> Filter | None:
    """Cells with `low` ≤ timestamp ≤ `high`; None if that covers all timestamps."""
    if low <= 0 and high >= MAX_STORED_TS:
        return None
    # The end is exclusive; 0 means no end.
    end = 0 if high >= MAX_STORED_TS else (high + 1) * SCALE
    start = min(low, MAX_STORED_TS + 1) * SCALE if low > 0 else 0
    if start >= 2**63:
        return nothing()
    return _Filter(
        timestamp_range_filter=_Stamps(start_timestamp_micros=start, end_timestamp_micros=end)
    )


def column(name: str, qualifier: bytes) -> Filter:
    """One column of a family."""
    return _Filter(
        column_range_filter=_Columns(
            family_name=name, start_qualifier_closed=qualifier, end_qualifier_closed=qualifier
        )
    )


def columns(name: str, ranges: Sequence[ColumnRange] | None) -> Filter:
    """Ranges of columns of a family; None: the whole family."""
    if ranges is None:
        return family(name)
    found = []
    for one in ranges:
        part = _Columns(family_name=name, start_qualifier_closed=one.start)
        if one.last is not None:
            part.end_qualifier_closed = one.last
        elif one.end is not None:
            part.end_qualifier_open = one.end
        found.append(_Filter(column_range_filter=part))
    return union(found)


# --- Conditions -------------------------------------------------------------------------


class Predicate(NamedTuple):
    """The conditions of a row: a filter, and whether they hold if any cell passes it."""

    filter: Filter
    holds_if_any: bool


def predicate(conditions: Sequence[Condition]) -> Predicate:
    """The filter that decides whether all conditions hold; there must be at least one.

    Raises TransactionTooLargeError if they are too many for a filter.
    """
    made = _predicate(conditions, _matching)
    # Most are well below the limit: a condition takes twice its column, and less than 80 bytes.
    if len(conditions) <= 20 and all(len(one.column) <= 400 for one in conditions):
        return made
    if made.filter.ByteSize() > FILTER_BYTES:
        made = _predicate(_together(conditions), _matching_any)
        if (size := made.filter.ByteSize()) > FILTER_BYTES:
            raise TransactionTooLargeError(
                f"{len(conditions)} conditions on one row, {size} bytes in all, are more than "
                f"the {FILTER_BYTES} bytes that Bigtable checks at once: write fewer columns of "
                "a row in one transaction."
            )
    return made


class _Together(NamedTuple):
    """Conditions that differ in their column only; each column is named once."""

    present: bool
    kind: Kind
    columns: list[bytes]
    low: int
    high: int


C = TypeVar("C", Condition, _Together)


def _predicate(conditions: Sequence[C], matching: Callable[[C], Filter]) -> Predicate:
    unwanted = [matching(one) for one in conditions if not one.present]
    present = [one for one in conditions if one.present]
    if not present:
        return Predicate(union(unwanted), False)
    cells = sum(len(one.columns) if isinstance(one, _Together) else 1 for one in present)
    every = _all_of(present, matching, cells)
    if unwanted:
        every = _Filter(
            condition=_If(
                predicate_filter=union(unwanted), true_filter=nothing(), false_filter=every
            )
        )
    return Predicate(every, True)


def _all_of(conditions: Sequence[C], matching: Callable[[C], Filter], cells: int) -> Filter:
    """A filter that a cell passes if all conditions, of presence in `cells` cells, hold."""
    parts = []
    for one in conditions:
        single = one.low == one.high
        # One cell per condition, however many it matches, so that they can be counted.
        parts.append(matching(one) if single else chain(matching(one), newest(1)))
    if cells == 1:
        return parts[0]
    return chain(union(parts), _Filter(cells_per_row_offset_filter=cells - 1))


def _together(conditions: Sequence[Condition]) -> list[_Together]:
    """The same conditions in fewer bytes: those that differ only in their column are merged.

    A regular expression names all their columns, each once instead of twice. Only columns of plain
    characters, which are the same in every dialect of regular expressions, are merged.
    """
    groups: dict[tuple[Any, ...], _Together] = {}
    for present, kind, name, low, high in conditions:
        plain = _PLAIN.fullmatch(name) is not None
        key = (present, kind, low, high) if plain else (present, kind, low, high, name)
        group = groups.setdefault(key, _Together(present, kind, [], low, high))
        if name not in group.columns:
            group.columns.append(name)
    return list(groups.values())


def _matching_any(group: _Together) -> Filter:
    """The entries that any condition of a group matches."""
    first = group.columns[0]
    if len(group.columns) == 1:
        return _matching(Condition(group.present, group.kind, first, group.low, group.high))
    names = b"|".join(_SPECIAL.sub(rb"\\\g<0>", name) for name in group.columns)
    steps = [family(FAMILIES[group.kind]), _Filter(column_qualifier_regex_filter=names)]
    within = stamps(group.low, group.high)
    return chain(*steps) if within is None else chain(*steps, within)


def _matching(condition: Condition) -> Filter:
    """The entries that a condition matches."""
    within = stamps(condition.low, condition.high)
    place = column(FAMILIES[condition.kind], condition.column)
    return place if within is None else chain(place, within)


def conditions_filter(conditions: Iterable[Condition]) -> Filter:
    """At least one entry that matches each condition, if there is any."""
    return union([chain(_matching(one), newest(1)) for one in conditions])


# --- Reads ------------------------------------------------------------------------------


def snapshot(ranges: Sequence[ColumnRange], ts: int, records: int) -> Filter:
    """What a reader at `ts` requests of columns: locks, newest write records, newest data.

    The newest data at or below `ts` is nearly always what the newest visible put wrote, so
    that one request answers a read.
    """
    within = stamps(0, ts)
    limits = {Kind.LOCK: None, Kind.WRITE: newest(records), Kind.DATA: newest(1)}
    parts = []
    for kind, limit in limits.items():
        steps = [columns(FAMILIES[kind], ranges), within, limit]
        parts.append(chain(*(step for step in steps if step is not None)))
    return union(parts)


def cell_entries(name: str, qualifier: bytes, low: int, high: int, limit: int | None) -> Filter:
    """The newest entries of a family's column between two timestamps."""
    steps = [column(name, qualifier), stamps(low, high)]
    if limit is not None:
        steps.append(newest(limit))
    return chain(*(step for step in steps if step is not None))
