"""Figure 7 on Structured Streaming: an index of keys in Parquet, or in the state of an operator.

Clusters are connected components, so no key divides them, and a stateful operator of Spark has a
state for each key. Both streams therefore find which documents share a key, by an index that they
keep, and bring the clusters together in the driver, in `foreachBatch`:

*foreachBatch* has the index in Parquet; each micro-batch reads it and adds files to it.
*transformWithState* has the first document of each key in Spark's state store, on RocksDB.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
)

from benchmarks.fig7_documents import KEYS, find, union
from benchmarks.fig7_spark import NAMES, Repository
from benchmarks.fig7_steps import Step, cpu_of, step_of
from percola import PercolaError

_EVERY: Final = 0.5
"""Seconds between two files that arrive."""
_SCHEMA: Final = ", ".join(f"{name} long" for name in ("doc", *NAMES))


def keeps_up(delays: Sequence[float]) -> bool:
    """Whether a stream keeps up, from the seconds by which each document was late, in order.

    A micro-batch takes seconds, and a document may wait for two of them and two files. How long
    they are is told by the first quarter of the documents, before a queue has grown.
    """
    early = sorted(delays[: max(1, len(delays) // 4)])
    return delays[-1] <= 2 * (early[len(early) // 2] + _EVERY) + 1


class Stream(ABC):
    """A stream over a folder of files; each micro-batch clusters its documents.

    Args:
        labels: the clusters of the repository, which the index has before the first micro-batch.
        pid: whose processor time is the system's, with its descendants.
        timeout: seconds that a micro-batch may take.
    """

    def __init__(
        self,
        spark: SparkSession,
        repository: Repository,
        labels: Sequence[int],
        pid: int,
        timeout: float,
    ) -> None:
        self.spark, self._pid, self._timeout = spark, pid, timeout
        self._documents = repository.synthetic
        self.folder = repository.folder / type(self).__name__
        self._arriving = self.folder / "arriving"
        self._ready = self.folder / "ready"
        for one in (self._arriving, self._ready):
            one.mkdir(parents=True)
        self.count = len(labels)
        self._parent = list(labels)
        self._done: dict[int, int] = {}
        self._changed = threading.Condition()

    def firsts(self) -> list[dict[int, int]]:
        """For each kind of key, the first document of each key of the repository."""
        found: list[dict[int, int]] = [{} for _ in range(KEYS)]
        for doc, its in enumerate(self._documents.keys(0, self.count)):
            for kind in range(KEYS):
                found[kind].setdefault(its[kind], doc)
        return found

    @abstractmethod
    def writer(self, source: DataFrame) -> DataStreamWriter:
        """The query that calls `clustered` for all documents of the source."""

    def clustered(self, edges: Iterable[tuple[int, int]]) -> None:
        """Take (document, first document of one of its keys) of one micro-batch."""
        docs = set()
        for doc, first in edges:
            self._parent.extend(range(len(self._parent), max(doc, first) + 1))
            union(self._parent, doc, first)
            docs.add(doc)
        at = time.monotonic_ns()
        with self._changed:
            self._done.update((doc, at) for doc in docs)
            self._changed.notify_all()

    def __enter__(self) -> Self:
        source = self.spark.readStream.schema(_SCHEMA).parquet(str(self._ready))
        place = str(self.folder / "checkpoint")
        self._query = self.writer(source).option("checkpointLocation", place).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()

    def measure(self, steps: Sequence[tuple[float, float, int]]) -> list[Step]:
        """Each step in turn, until one is not held, twice; what is due comes in files."""
        self._take(5, 5.0, 0.0)
        found: list[Step] = []
        for percent, rate, count in steps:
            step = self._take(count, rate, percent)
            if not step.held:
                # Another program may have had the machine for a moment.
                step = self._take(count, rate, percent)
            found.append(step)
            if not step.held:
                break
        return found

    def fill(self, total: int) -> None:
        """Cluster what arrives until there are so many documents, untimed."""
        if total > self.count:
            self._take(total - self.count, 1e9, 0.0)

    def _take(self, count: int, rate: float, percent: float) -> Step:
        """Write what is due, and wait for it."""
        first = self.count
        keys = self._documents.key_array(first, first + count)
        cpu, start, given = cpu_of(self._pid), time.monotonic_ns(), 0
        while given < count:
            now = time.monotonic_ns() - start
            due = min(count, int(now * rate / 1e9) + 1)
            if due > given:
                part = {"doc": pa.array(range(first + given, first + due), pa.int64())}
                part |= {n: pa.array(keys[given:due, at]) for at, n in enumerate(NAMES)}
                name = f"{first + given:012}.parquet"
                pq.write_table(pa.table(part), self._arriving / name)
                (self._arriving / name).rename(self._ready / name)
                given = due
            # The rate is what is asked for.
            time.sleep(_EVERY)
        wanted = range(first, first + count)
        self._await(wanted)
        done = {doc: self._done[doc] for doc in wanted}
        self.count = first + count
        step = step_of(percent, rate, first, start, done, cpu_of(self._pid) - cpu)
        in_order = [(done[doc] - start) / 1e9 - at / rate for at, doc in enumerate(wanted)]
        return Step(**{**asdict(step), "held": keeps_up(in_order), "delays": step.delays})

    def _await(self, wanted: range) -> None:
        end = time.monotonic() + self._timeout
        with self._changed:
            while not all(doc in self._done for doc in wanted):
                failed = self._query.exception()
                if failed is not None or time.monotonic() > end:
                    why = str(failed or "its time is over").splitlines()[0]
                    raise PercolaError(f"Spark did not cluster {len(wanted)} documents: {why}")
                self._changed.wait(1.0)

    def labels(self) -> dict[int, int]:
        """The cluster of each document."""
        return {doc: find(self._parent, doc) for doc in range(self.count)}


class ForeachBatch(Stream):
    """The index is in Parquet."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._index = self.folder / "index"
        self._index.mkdir()
        for kind, first in enumerate(self.firsts()):
            self._write_index(kind, first, f"{kind}-base")

    def _write_index(self, kind: int, entries: dict[int, int], name: str) -> None:
        table = pa.table(
            {
                "kind": pa.array([kind] * len(entries), pa.int32()),
                "key": pa.array(list(entries), pa.int64()),
                "first": pa.array(list(entries.values()), pa.int64()),
            }
        )
        pq.write_table(table, self._index / f".{name}.tmp")
        (self._index / f".{name}.tmp").rename(self._index / f"{name}.parquet")

    def writer(self, source: DataFrame) -> DataStreamWriter:
        """The documents as they are."""
        return source.writeStream.foreachBatch(self._batch)

    def _batch(self, frame: DataFrame, number: int) -> None:
        rows = sorted(frame.collect())
        wanted = [(kind, row[1 + kind]) for row in rows for kind in range(KEYS)]
        asked = self.spark.createDataFrame(wanted, "kind int, key long").distinct()
        index = self.spark.read.schema("kind int, key long, first long").parquet(str(self._index))
        found = {
            (row.kind, row.key): row["first"]
            for row in index.join(f.broadcast(asked), ["kind", "key"]).collect()
        }
        fresh: list[dict[int, int]] = [{} for _ in range(KEYS)]
        edges = []
        for doc, *keys in rows:
            for kind, key in enumerate(keys):
                if (kind, key) not in found:
                    found[kind, key] = fresh[kind][key] = doc
                edges.append((doc, found[kind, key]))
        for kind, entries in enumerate(fresh):
            if entries:
                self._write_index(kind, entries, f"{kind}-{number}")
        self.clustered(edges)


class FirstOfKey(StatefulProcessor):
    """The first document of a key, which each later one is told."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._first = handle.getValueState("first", "doc long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        """From the repository."""
        del key, timerValues
        self._first.update((initialState.doc,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Of one micro-batch."""
        del key, timerValues
        docs = [row.doc for row in rows]
        known = self._first.get()
        if known is None:
            known = (min(docs),)
            self._first.update(known)
        for doc in docs:
            yield Row(doc=doc, first=known[0])

    def close(self) -> None:
        """Nothing to close."""


class TransformWithState(Stream):
    """The index is the state of an operator."""

    def writer(self, source: DataFrame) -> DataStreamWriter:
        """A row for each document and key, grouped by key."""
        each = f.array(
            *(f.struct(f.lit(i).alias("kind"), f.col(n).alias("key")) for i, n in enumerate(NAMES))
        )
        keyed = source.select("doc", f.explode(each).alias("of")).select("doc", "of.*")
        start = self.folder / "firsts.parquet"
        kinds, keys, docs = [], [], []
        for kind, entries in enumerate(self.firsts()):
            kinds += [kind] * len(entries)
            keys += list(entries)
            docs += list(entries.values())
        columns = {"kind": pa.array(kinds, pa.int32()), "key": keys, "doc": docs}
        pq.write_table(pa.table(columns), start)
        edges = keyed.groupBy("kind", "key").transformWithState(
            FirstOfKey(),
            "doc long, first long",
            "Append",
            "None",
            self.spark.read.parquet(str(start)).groupBy("kind", "key"),
        )
        return edges.writeStream.foreachBatch(self._batch)

    def _batch(self, frame: DataFrame, number: int) -> None:
        del number
        self.clustered((row.doc, row["first"]) for row in frame.collect())


STREAMS: Final = {"foreachBatch": ForeachBatch, "transformWithState": TransformWithState}
CONFIG: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
"""`transformWithState` needs a store that has column families."""
