"""Compares the cells that were found with those that were expected, by row.

The names of clusters are arbitrary, so first those of the repository are paired with
those that were computed: each with the one that it shares the most pages with, and no two with the
same. If the partitions are equal this is the renaming that makes them so; if a page is in the wrong
cluster, that page differs, and not its whole cluster. A name without a partner keeps its name, with
a question mark before it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pyspark.core.rdd import RDD

from webindex.batch.expected import Placed
from webindex.batch.inlinks import Row
from webindex.batch.invariants import Difference, invariant_of, parts_of
from webindex.page.urls import page_row

KEPT: Final = 20
"""Differences to describe for each invariant: the first ones, by table and row."""

Parts = dict[str, str]
Keyed = tuple[tuple[str, str], Parts]


@dataclass
class Tally:
    """Rows compared and rows that differ, by invariant, and the first differences."""

    compared: Counter[int] = field(default_factory=Counter)
    differing: Counter[int] = field(default_factory=Counter)
    first: list[Difference] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another part of the comparison."""
        self.compared.update(other.compared)
        self.differing.update(other.differing)
        by_invariant: dict[int, list[Difference]] = {}
        for one in [*self.first, *other.first]:
            by_invariant.setdefault(one.invariant, []).append(one)
        self.first = [
            one
            for number in sorted(by_invariant)
            for one in heapq.nsmallest(KEPT, by_invariant[number], key=_order)
        ]


def _order(one: Difference) -> tuple[str, str, str]:
    return one.table, one.row, one.part


def pair_names(
    joined: RDD[tuple[str, str]], placed: RDD[Placed], parts: int
) -> RDD[tuple[str, str]]:
    """Pair the clusters that were found, `(row of a page, cluster)`, with those of `placed`."""
    expected: RDD[tuple[str, str]] = placed.map(lambda page: (page_row(page.url), page.cluster))
    shared: RDD[tuple[tuple[str, str], int]] = (
        joined.join(expected, parts)
        .map(lambda one: (one[1], 1))
        .reduceByKey(lambda one, other: one + other, parts)
    )
    # The best (found, (-pages, expected)), and the same from the other side.
    best: RDD[tuple[str, tuple[int, str]]] = shared.map(
        lambda one: (one[0][0], (-one[1], one[0][1]))
    ).reduceByKey(min, parts)
    back: RDD[tuple[str, tuple[int, str]]] = best.map(
        lambda one: (one[1][1], (one[1][0], one[0]))
    ).reduceByKey(min, parts)
    return back.map(lambda one: (one[1][1], one[0]))


def renamed(rows: RDD[tuple[str, Row]], names: RDD[tuple[str, str]], parts: int) -> RDD[Row]:
    """Rows that name a cluster, keyed by that name, renamed to the paired cluster."""
    return rows.leftOuterJoin(names, parts).map(
        lambda one: _rename(one[1][0], one[1][1] or f"?{one[0]}")
    )


def _rename(row: Row, name: str) -> Row:
    if row.table in ("clusters", "search"):
        return row._replace(row=name)
    [(column, value)] = row.values.items()
    return row._replace(values={column: {**value, "cluster": name}})


def mentions(row: Row) -> tuple[str, Row]:
    """A row that names a cluster, keyed by that name: its own, or that of its only value."""
    if row.table in ("clusters", "search"):
        return row.row, row
    [value] = row.values.values()
    return value["cluster"], row


def keyed(row: Row) -> Keyed:
    """A row keyed by table and row, in the parts to compare."""
    return (row.table, row.row), parts_of(row)


def compare(found: RDD[Keyed], expected: RDD[Keyed], parts: int) -> Tally:
    """Compare row by row; both sides may have a row in several pieces."""
    tallies = found.cogroup(expected, parts).mapPartitions(_compare_partition).collect()
    whole = Tally()
    for one in tallies:
        whole.add(one)
    return whole


def _compare_partition(
    rows: Iterable[tuple[tuple[str, str], tuple[Iterable[Parts], Iterable[Parts]]]],
) -> Iterator[Tally]:
    tally = Tally()
    waiting: list[Difference] = []
    for (table, row), (found, expected) in rows:
        here, there = _merged(found), _merged(expected)
        tally.compared.update({invariant_of(table, part) for part in here.keys() | there.keys()})
        differences = list(differences_of(table, row, here, there))
        tally.differing.update({one.invariant for one in differences})
        waiting += differences
        if len(waiting) > 10_000:
            tally.add(Tally(first=waiting))
            waiting = []
    tally.add(Tally(first=waiting))
    yield tally


def _merged(pieces: Iterable[Parts]) -> Parts:
    merged: Parts = {}
    for one in pieces:
        merged |= one
    return merged


def differences_of(table: str, row: str, found: Parts, expected: Parts) -> Iterator[Difference]:
    """The differences in a row. A missing or surplus cell is one difference, without its fields."""
    for part in sorted(found.keys() | expected.keys()):
        column, dot, _ = part.partition(".")
        if dot and (column in found) != (column in expected):
            continue
        here, there = found.get(part), expected.get(part)
        if here != there:
            yield Difference(_judged(table, part, here, there), table, row, part, here, there)


def _judged(table: str, part: str, found: str | None, expected: str | None) -> int:
    """The invariant that a difference violates."""
    if (table, part) == ("pages", "capture.date") and None not in (found, expected):
        # The stored one is older: the newer one would be written if it were loaded again.
        return 12 if str(found) < str(expected) else 1
    return invariant_of(table, part)
