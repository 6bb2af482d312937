"""The repository at one timestamp, in pieces that tasks read.

Each task opens the repository for itself and reads ranges of rows of a snapshot at that
timestamp. Whoever runs the job holds a snapshot there until the job has ended, so that garbage
collection does not overtake it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark import SparkContext
from pyspark.core.rdd import RDD

import percola
from percola import Column, Family
from webindex import tables
from webindex.batch.brief import brief
from webindex.batch.facts import Facts, facts_of

_BYTES: Final = [f"{number:02x}" for number in range(256)]
_DIGITS: Final = "0123456789abcdef"

SELECTIONS: Final[dict[str, list[Column[str, Any] | Family[str, Any]]]] = {
    "parsed": [tables.text, tables.fingerprint, tables.links, tables.inverted, tables.pointer],
    "pointing": [tables.resolved, tables.rank],
    "joined": [tables.joined],
    "captured": [tables.capture, tables.revisited],
    "aliases": [tables.points_here, tables.leads_here],
    "inlinks": [tables.source, tables.tally],
    "near": [tables.near],
    "owner": [tables.owner],
    "clusters": [tables.member, tables.document],
    "hosts": [tables.live],
}
"""Columns that are read together, by the name of their set; tasks look them up here."""


class Range(NamedTuple):
    """Rows of a table, from `start` up to but not including `end`; empty: without a bound."""

    table: str
    start: str
    end: str


class Found(NamedTuple):
    """A row as the repository has it: values by column name."""

    table: str
    row: str
    values: dict[str, Any]


def page_ranges(table: str, parts: int) -> list[Range]:
    """Cut a table whose rows are named as in `pages`, by the first two hex digits."""
    size = -(-len(_BYTES) // max(1, min(parts, len(_BYTES))))
    return cut(table, _BYTES[size::size])


def cut(table: str, bounds: Iterable[str]) -> list[Range]:
    """Cut a table at these rows. Every row is in one range, whatever its name."""
    edges = ["", *bounds, ""]
    return [Range(table, start, end) for start, end in itertools.pairwise(edges)]


def key_ranges() -> list[Range]:
    """Cut the table `keys`: by the kind of the key, then by its value."""
    bounds = [f"band/{band}/{digit}" for band in range(4) for digit in "08"]
    return cut("keys", [*bounds, *(f"near/{digit}" for digit in "048c"), "text/"])


def cluster_ranges() -> list[Range]:
    """Cut the table `clusters`, whose rows are named at random."""
    return cut("clusters", _DIGITS)


def page_facts(
    context: SparkContext, address: str, at: int, parts: int, *, short: bool = False
) -> RDD[Facts]:
    """Every row of `pages` that has a capture or a body, parsed anew.

    Nothing is read of what observers have written but `rank`, which another job gives them. With
    `short`, texts are `brief`: enough to see whether two are equal.
    """
    ranges = page_ranges("pages", parts)
    return context.parallelize(ranges, len(ranges)).mapPartitions(
        partial(_read_facts, address, at, short)
    )


def _read_facts(address: str, at: int, short: bool, ranges: Iterable[Range]) -> Iterator[Facts]:
    columns = [tables.capture, tables.body, tables.rank]
    for found in _scan(address, at, columns, ranges):
        values = found.values
        page = facts_of(found.row, values.get("capture"), values.get("body"), values.get("rank"))
        if short:
            page = page._replace(text=brief(page.text), served=brief(page.served))
        yield page


def rows(
    context: SparkContext, address: str, at: int, ranges: list[Range], parts: int, *selections: str
) -> RDD[Found]:
    """The rows of some ranges, read by `parts` tasks, with the columns of these `SELECTIONS`."""
    return context.parallelize(ranges, min(parts, len(ranges))).mapPartitions(
        partial(_read_rows, address, at, selections)
    )


def _read_rows(
    address: str, at: int, selections: Iterable[str], ranges: Iterable[Range]
) -> Iterator[Found]:
    columns = [column for name in selections for column in SELECTIONS[name]]
    return _scan(address, at, columns, ranges)


def _scan(
    address: str,
    at: int,
    columns: Iterable[Column[str, Any] | Family[str, Any]],
    ranges: Iterable[Range],
) -> Iterator[Found]:
    with (
        percola.open(address, schema=tables.SCHEMA, create=False) as repo,
        repo.snapshot(at=at) as snapshot,
    ):
        for name, start, end in ranges:
            for row in snapshot.scan(
                repo.table(name), start=start or None, end=end or None, columns=columns
            ):
                values = {column.name: value for column, value in row.items()}
                yield Found(name, row.key, values)
