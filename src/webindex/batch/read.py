"""The repository at one timestamp: the output of `spark.read`, as rows with decoded values.

The caller that runs the job holds a snapshot at that timestamp until the job has ended, so that
garbage collection does not remove what it reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark.core.rdd import RDD
from pyspark.sql import SparkSession

from percola import JSON, Column, Family
from webindex import tables
from webindex.batch.facts import Facts, facts_of
from webindex.rendering import tables as rendering
from webindex.spark.tables import table_at

Columns = list[Column[str, Any] | Family[str, Any]]

SELECTIONS: Final[dict[str, Columns]] = {
    "plain": [
        *(
            tables.text,
            tables.outline,
            tables.fingerprint,
            tables.sketch,
            tables.links,
            tables.inverted,
            tables.pointer,
        ),
        *(tables.resolved, tables.rank, tables.recrawl),
    ],
    "joined": [tables.joined],
    "captured": [tables.capture, tables.revisited, tables.unresolved, tables.earlier],
    "aliases": [tables.points_here, tables.leads_here],
    "inlinks": [tables.source, tables.tally, tables.large, tables.delta],
    "anchors": [tables.texts, tables.best],
    "frontier": [tables.uncaptured],
    "sitemaps": [tables.sitemap, tables.sitemap_body, tables.sitemap_entered],
    "listed": [tables.listed_by],
    "recrawls": [tables.recrawl_url],
    "near": [tables.near, tables.sketch_of],
    "owner": [tables.owner],
    "clusters": [tables.member, tables.document],
    "hosts": [tables.live],
    "blocks": [tables.outer, tables.repeated],
    "documents": [tables.capture, tables.body],
    "resources": [rendering.capture, rendering.entered],
    "bodies": [rendering.data, rendering.holder],
    "uses": [rendering.used_by],
    "renders": [rendering.about],
}
"""Columns of a table that are read together, by the name of their set."""


class Found(NamedTuple):
    """A row of the repository: values by column name."""

    table: str
    row: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """The repository at a timestamp.

    Its RDDs are planned when they are requested, which opens the repository.

    Attributes:
        spark: the session that reads.
        address: the repository.
        at: the timestamp.
    """

    spark: SparkSession
    address: str
    at: int

    def rows(self, selection: str, parts: int) -> RDD[Found]:
        """The rows that have one of the columns of a selection, read by about `parts` tasks."""
        return self._read(SELECTIONS[selection], parts)

    def page_facts(self, parts: int, *, short: bool = False) -> RDD[Facts]:
        """Every row of `pages` that has a capture or a body, parsed again.

        Of the columns that observers write only `rank` is read, which another job computes.
        With `short`, texts are `brief`: enough to see whether two are equal.
        """
        columns: Columns = [tables.capture, tables.body, tables.rank]
        return self._read(columns, parts).map(partial(_facts, short))

    def _read(self, columns: Columns, parts: int) -> RDD[Found]:
        table = columns[0].table
        names = [one.name for one in columns]
        frame = table_at(self.spark, self.address, table, self.at, parts, columns=names)
        kinds = [
            (one.name, isinstance(one, Family), json.loads if one.codec is JSON else _as_it_is)
            for one in columns
        ]
        return frame.rdd.mapPartitions(partial(_found, table.name, kinds))


Decode = Callable[[Any], Any]


def _found(
    table: str, kinds: Sequence[tuple[str, bool, Decode]], rows: Iterable[tuple[Any, ...]]
) -> Iterator[Found]:
    for row, *cells in rows:
        values: dict[str, Any] = {}
        for (name, is_family, decode), cell in zip(kinds, cells, strict=True):
            if cell is None:
                continue
            if is_family:
                values |= {f"{name}:{key}": decode(value) for key, value in cell.items()}
            else:
                values[name] = decode(cell)
        yield Found(table, row, values)


def _as_it_is(value: Any) -> Any:
    # Spark may pass a bytearray, which does not compare as bytes do.
    return bytes(value) if isinstance(value, bytearray) else value


def _facts(short: bool, found: Found) -> Facts:
    values = found.values
    page = facts_of(found.row, values.get("capture"), values.get("body"), values.get("rank"))
    return page.shortened() if short else page
