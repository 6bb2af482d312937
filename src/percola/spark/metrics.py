"""§2.4 What a task has done, for the SQL tab of Spark's UI: the catalog's reads and writes.

A Python data source cannot report metrics to Spark. The catalog's Java can, and takes them out of
what does cross from Python: of the rows of a read, which have a column for them, and of the message
with which a task of a write ends. There they are a mark and five numbers, which
`io.percola.spark.Totals` finds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import BinaryType, StructField

from percola.store.counting import StoreCalls

if TYPE_CHECKING:
    import pyarrow as pa

METRICS: Final = StructField("_percola_metrics", BinaryType())
"""The last column of the rows for the catalog, which has a value in rows without any other."""

_MARK: Final = b"percola-metrics:"


@dataclass(slots=True)
class TaskMetrics:
    """Counts of one task.

    Attributes:
        rows: rows that were read from the store, before filters; or rows that were written.
        size: bytes of their keys and encoded values.
        calls: calls to the store. Over a network `StoreCalls` counts them all; in a folder they
            are the ranges and rows that were read, and the commits.
        conflicts: locks that a reader met, or commits and rows that another transaction held up.
        waited: how many seconds they took.
    """

    rows: int = 0
    size: int = 0
    calls: int = 0
    conflicts: int = 0
    waited: float = 0.0

    def packed(self, counted: StoreCalls | None = None) -> bytes:
        """The counts for Java; `counted` are the repository's calls, if its store counts them."""
        calls = self.calls
        if counted is not None:
            calls = sum(count.calls for count in counted.counts().values())
        waited = round(1000 * self.waited)
        return _MARK + struct.pack(">5q", self.rows, self.size, calls, self.conflicts, waited)


def measured(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, totals: Callable[[], bytes]
) -> Iterator[pa.RecordBatch]:
    """Batches of rows with the column METRICS, which is the last one in `schema`.

    A row with `totals` goes before each batch, since a query with a LIMIT reads no further than it
    must, and another one comes at the end.
    """
    import pyarrow as pa

    *columns, metrics = schema
    nulls: list[Any] = [pa.nulls(1, field.type) for field in columns]

    def report() -> pa.RecordBatch:
        arrays = [*nulls, pa.array([totals()], metrics.type)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    for batch in batches:
        yield report()
        none = pa.nulls(batch.num_rows, metrics.type)
        yield pa.RecordBatch.from_arrays([*batch.columns, none], schema=schema)
    yield report()
