"""§2.4: PageRank in Spark tasks. The paper's batch work is MapReduce.

    1  a task reads a range of the pages, once: `PagesRead` stays in Spark's storage
    2  the driver collects the ids of the live pages, and broadcasts their `Numbering`
    3  each task converts its links to numbers; a shuffle groups the edges by the range of pages
       that they lead to: `Block`
    4  in each step, the driver distributes what each page gives, each task sums up what the
       pages of its block receive, and the driver combines the sums; if everything fits
       into one block, the driver sums up by itself, and a step takes milliseconds

A lost task is run again. It reads from the same snapshot again, which the driver holds until the
end, so that garbage collection keeps its versions.

The limit is the memory of one process: the driver needs some 60 bytes a page, a task 30 bytes a
page and 8 an edge of its block. That is ten million pages in less than a gigabyte. Beyond that the
ranks themselves would have to be divided into blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
from pyspark import RDD, Broadcast, StorageLevel
from pyspark.sql import SparkSession

from webindex import tables
from webindex.ranking.graph import (
    Ids,
    Numbering,
    Numbers,
    PageRow,
    PagesRead,
    Values,
    edges_of,
    read_pages,
)
from webindex.ranking.pagerank import Block, Ranking, iterate, steps_for
from webindex.spark.jobs import Job, Progress
from webindex.spark.tables import table_at

_LEAST_PARTS: Final = 16
_PARTS_A_CORE: Final = 4
_EDGES_A_BLOCK: Final = 2_000_000
"""Edges that justify a task: summing them up takes about as long as scheduling it."""

_SCHEMA: Final = """
    row STRING, capture STRUCT<url: STRING>, fingerprint STRUCT<url: STRING>,
    links ARRAY<ARRAY<STRING>>, resolved STRUCT<kind: STRING, url: STRING>
"""
_PAGE: Final = (
    "row",
    "fingerprint.url",
    # A link is [URL, anchors, rel].
    "transform(filter(links, link -> link[2] = 'follow'), link -> link[0])",
    "capture.url",
    "if(resolved.kind = 'redirect', resolved.url, NULL)",
)
"""The fields of a `PageRow`, in their order."""


class Graph:
    """The link graph of one snapshot, in Spark's storage; a context manager that frees it.

    Attributes:
        pages: the number of nodes.
        edges: the number of edges.
        parts: the number of tasks that read and write the pages.
        numbering: the numbers of the pages, for tasks.
    """

    def __init__(self, spark: SparkSession, job: Job, address: str, at: int) -> None:
        self._context = context = spark.sparkContext
        self._job = job
        self._stored: list[RDD[Any]] = []
        wanted = max(_LEAST_PARTS, _PARTS_A_CORE * context.defaultParallelism)
        self.read: RDD[PagesRead] = self._keep(
            job.run(Progress("Looking at the pages"), lambda: _pages(spark, address, at, wanted))
        )
        self.parts = self.read.getNumPartitions()
        heads = job.run(
            Progress("Reading pages", 0, self.parts), lambda: self.read.map(_head).collect()
        )
        live, redirects, destinations = (np.concatenate(ids) for ids in zip(*heads, strict=True))
        self.pages = len(live)
        self.numbering = context.broadcast(Numbering(live, redirects, destinations))
        numbered: RDD[Numbers] = self._keep(self.read.map(partial(_number, self.numbering)))
        degrees = job.run(
            Progress("Numbering links", 0, self.parts), lambda: numbered.map(_degrees).collect()
        )
        self.degrees: Numbers = np.zeros(self.pages, dtype=np.int32)
        for pages, links in degrees:
            self.degrees[pages] = links
        self.edges = int(self.degrees.sum())
        self._numbered = numbered

    def _keep(self, rdd: RDD[Any]) -> RDD[Any]:
        self._stored.append(rdd)
        return rdd.persist(StorageLevel.MEMORY_AND_DISK)

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        for rdd in self._stored:
            rdd.unpersist()

    def rank(self, *, tolerance: float, most: int) -> Ranking:
        """Iterate, block by block in parallel; see `webindex.ranking.pagerank.iterate`."""
        count = max(1, min(self._context.defaultParallelism * 4, -(-self.edges // _EDGES_A_BLOCK)))
        bounds = [self.pages * block // count for block in range(count + 1)]
        blocks = self._keep(
            self._numbered.flatMap(partial(_split, bounds))
            .partitionBy(count, int)
            .mapPartitionsWithIndex(partial(_block, bounds))
        )
        if count == 1:
            [block] = self._job.run(Progress("Iterating"), blocks.collect)
            return iterate(
                self.degrees,
                lambda shares, step: block.receive(shares),
                tolerance=tolerance,
                most=most,
            )

        def receive(shares: Values, step: int) -> Values:
            handed = self._context.broadcast(shares)
            try:
                given = self._job.run(
                    Progress("Iterating", step, max(step, min(most, steps_for(tolerance)))),
                    lambda: blocks.map(partial(_receive, handed)).collect(),
                )
            finally:
                handed.destroy()
            return np.concatenate(given)

        return iterate(self.degrees, receive, tolerance=tolerance, most=most)


# --- In the tasks -------------------------------------------------------------------------


def _pages(spark: SparkSession, address: str, at: int, parts: int) -> RDD[PagesRead]:
    frame = table_at(spark, address, tables.pages, at, parts, schema=_SCHEMA)
    return frame.selectExpr(*_PAGE).rdd.mapPartitions(_read)


def _read(rows: Iterable[tuple[Any, ...]]) -> Iterator[PagesRead]:
    yield read_pages(PageRow(*row) for row in rows)


def _head(read: PagesRead) -> tuple[Ids, Ids, Ids]:
    return read.ids, read.redirects, read.destinations


def _number(numbering: Broadcast[Numbering], read: PagesRead) -> Numbers:
    return edges_of(read, numbering.value)


def _degrees(edges: Numbers) -> tuple[Numbers, Numbers]:
    """The pages with edges from them, and how many."""
    pages, links = np.unique(edges[0], return_counts=True)
    return pages, links.astype(np.int32)


def _split(bounds: list[int], edges: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Group the edges by the block that they lead to."""
    blocks = np.searchsorted(bounds, edges[1], side="right") - 1
    for block in np.unique(blocks).tolist():
        yield block, edges[:, blocks == block]


def _block(bounds: list[int], block: int, pieces: Iterable[tuple[int, Numbers]]) -> Iterator[Block]:
    edges = [np.empty((2, 0), dtype=np.int32), *(edges for _, edges in pieces)]
    yield Block.of(bounds[block], bounds[block + 1], np.concatenate(edges, axis=1))


def _receive(shares: Broadcast[Values], block: Block) -> Values:
    return block.receive(shares.value)
