"""Figure 7 on Spark: batch jobs over everything that has come, and a stream with `foreachBatch`.

*Three in a row*, as in the paper: a job for each key, which brings together all clusters with a
document of that key, and writes the clusters for the next. *Fused*: the same in one job, which
writes once. Both read the keys alone, which Parquet permits, and leave the texts where they are.

A job brings clusters together through each key once. That is exact where no cluster has two keys of
one kind that others have too, as in these documents, and it is checked; for other documents it
would have to be repeated until nothing changes.

The stream has an index of keys in Parquet, which each micro-batch reads and adds to, and in the
driver the clusters that came together. Spark has no table that a batch could update in place.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.fig7_documents import KEYS, Documents, find, union
from benchmarks.fig7_steps import Step, cpu_of, step_of
from benchmarks.fig7_texts import Bodies
from percola import PercolaError

_LOADED: Final = 50_000
_NAMES: Final = [f"k{number}" for number in range(KEYS)]
CONFIG: Final = {
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "4g",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
"""For a few cores: few partitions, which are planned once."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One time over everything: how many documents, how long, and how much processor time."""

    documents: int
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Batch:
    """The delays that a batch gives, running again and again: from what its passes took.

    A pass over n documents takes `fixed + each * n` seconds. At a rate, documents come while a pass
    runs, and the next pass reads them too; so passes grow until as much comes in one as it can take
    more than the repository. Above `saturation` documents a second there is no such length.
    """

    fixed: float
    each: float

    @classmethod
    def of(cls, passes: Sequence[Pass]) -> Batch:
        """The line through passes over at least two numbers of documents, by least squares."""
        count = len(passes)
        mean_n = sum(one.documents for one in passes) / count
        mean_s = sum(one.seconds for one in passes) / count
        spread = sum((one.documents - mean_n) ** 2 for one in passes)
        rise = sum((one.documents - mean_n) * (one.seconds - mean_s) for one in passes) / spread
        # A pass over more takes no less: what says otherwise is other programs' load.
        each = max(0.0, rise)
        return cls(mean_s - each * mean_n, each)

    @property
    def saturation(self) -> float:
        """Documents a second."""
        return 1 / self.each if self.each else float("inf")

    def seconds(self, size: int, rate: float) -> float:
        """How long a pass takes at a rate once passes are of one length; infinite if they grow."""
        if rate >= self.saturation:
            return float("inf")
        return (self.fixed + self.each * size) / (1 - rate * self.each)

    def delays(self, size: int, rate: float) -> dict[str, float]:
        """Percentiles in milliseconds: the rest of a pass, any part of it, and the next pass."""
        took = 1000 * self.seconds(size, rate)
        return {f"p{share}": took * (1 + share / 100) for share in (5, 50, 95, 99)}


class Repository:
    """The documents in Parquet, and the clusters that jobs leave."""

    def __init__(self, folder: Path, documents: Documents) -> None:
        self.folder = folder
        self._documents = documents
        self.source = folder / "docs"

    def write(self, total: int) -> None:
        """All documents up to this number, in files of 50,000."""
        self.source.mkdir(parents=True)
        bodies = Bodies()
        for first in range(0, total, _LOADED):
            end = min(total, first + _LOADED)
            keys = self._documents.key_array(first, end)
            columns = {
                "doc": pa.array(range(first, end), pa.int64()),
                **{name: pa.array(keys[:, at]) for at, name in enumerate(_NAMES)},
                "body": pa.array([bodies[doc] for doc in range(first, end)]),
            }
            pq.write_table(pa.table(columns), self.source / f"{first:010}.parquet")

    def documents(self, spark: SparkSession, count: int) -> DataFrame:
        """The keys of the first so many documents."""
        frame = spark.read.parquet(str(self.source)).select("doc", *_NAMES)
        return frame.where(f.col("doc") < count)

    def remove(self) -> None:
        """Free the disk."""
        shutil.rmtree(self.folder)

    def labels(self, spark: SparkSession, place: Path) -> dict[int, int]:
        """The clusters that a pass has left."""
        frame = spark.read.parquet(str(place)).select("doc", "cluster").toArrow()
        return dict(zip(frame["doc"].to_pylist(), frame["cluster"].to_pylist(), strict=True))


def _joined(docs: DataFrame, key: str) -> DataFrame:
    """Clusters with a document of the same key, brought together: what one job does."""
    least = docs.groupBy(key).agg(f.min("cluster").alias("least"))
    moves = docs.join(least, key).groupBy("cluster").agg(f.min("least").alias("into"))
    return docs.join(moves, "cluster").select("doc", *_NAMES, f.col("into").alias("cluster"))


def three_in_a_row(spark: SparkSession, repository: Repository, count: int) -> Path:
    """A job for each key; where the last leaves the clusters."""
    docs = repository.documents(spark, count).withColumn("cluster", f.col("doc"))
    place = repository.folder
    for number, key in enumerate(_NAMES):
        place = repository.folder / f"row-{number}"
        _joined(docs, key).write.mode("overwrite").parquet(str(place))
        docs = spark.read.parquet(str(place))
    return place


def fused(spark: SparkSession, repository: Repository, count: int) -> Path:
    """One job with the clusters in memory between the keys; where it leaves them."""
    docs = repository.documents(spark, count).withColumn("cluster", f.col("doc"))
    kept = []
    for key in _NAMES:
        docs = _joined(docs, key).persist()
        kept.append(docs)
    place = repository.folder / "fused"
    docs.select("doc", "cluster").write.mode("overwrite").parquet(str(place))
    for one in kept:
        one.unpersist()
    return place


Job = Callable[[SparkSession, Repository, int], Path]
JOBS: Final[dict[str, Job]] = {"three in a row": three_in_a_row, "fused": fused}


def measure_batch(
    spark: SparkSession, repository: Repository, sizes: Sequence[int], pid: int
) -> dict[str, list[Pass]]:
    """Each kind of pass over each number of documents, in turn; one before them is not counted."""
    found: dict[str, list[Pass]] = {name: [] for name in JOBS}
    for job in JOBS.values():
        job(spark, repository, sizes[0])
    for size in sizes:
        for name, job in JOBS.items():
            cpu, began = cpu_of(pid), time.monotonic()
            job(spark, repository, size)
            found[name].append(Pass(size, time.monotonic() - began, cpu_of(pid) - cpu))
    return found


# --- Structured Streaming -----------------------------------------------------------------


class Stream:
    """A stream over a folder of files; each micro-batch clusters its documents."""

    def __init__(
        self, spark: SparkSession, repository: Repository, labels: Sequence[int], pid: int
    ) -> None:
        self._spark, self._pid = spark, pid
        self._documents = repository._documents
        self._folder = repository.folder / "stream"
        self._index = self._folder / "index"
        self._arriving = self._folder / "arriving"
        self._ready = self._folder / "ready"
        for one in (self._index, self._arriving, self._ready):
            one.mkdir(parents=True)
        self.count = len(labels)
        self._assigned = list(labels)
        self._parent = list(range(self.count))
        self._done: dict[int, int] = {}
        self._changed = threading.Condition()
        keys = self._documents.keys(0, self.count)
        for number in range(KEYS):
            first: dict[int, int] = {}
            for its, label in zip(keys, labels, strict=True):
                first.setdefault(its[number], label)
            self._write_index(number, first, f"{number}-base")

    def _write_index(self, kind: int, entries: dict[int, int], name: str) -> None:
        table = pa.table(
            {
                "kind": pa.array([kind] * len(entries), pa.int32()),
                "key": pa.array(list(entries), pa.int64()),
                "cluster": pa.array(list(entries.values()), pa.int64()),
            }
        )
        pq.write_table(table, self._index / f".{name}.tmp")
        (self._index / f".{name}.tmp").rename(self._index / f"{name}.parquet")

    def _batch(self, frame: DataFrame, number: int) -> None:
        rows = sorted(frame.collect())
        if not rows:
            return
        wanted = [(kind, row[1 + kind]) for row in rows for kind in range(KEYS)]
        asked = self._spark.createDataFrame(wanted, "kind int, key long").distinct()
        index = self._spark.read.schema("kind int, key long, cluster long").parquet(
            str(self._index)
        )
        found = {
            (row.kind, row.key): row.cluster
            for row in index.join(f.broadcast(asked), ["kind", "key"]).collect()
        }
        fresh: list[dict[int, int]] = [{} for _ in range(KEYS)]
        for doc, *keys in rows:
            self._parent.extend(range(len(self._parent), doc + 1))
            for kind, key in enumerate(keys):
                if (kind, key) in found:
                    union(self._parent, found[kind, key], doc)
                else:
                    found[kind, key] = fresh[kind][key] = doc
        for kind, entries in enumerate(fresh):
            if entries:
                self._write_index(kind, entries, f"{kind}-{number}")
        at = time.monotonic_ns()
        with self._changed:
            self._done.update((doc, at) for doc, *_ in rows)
            self._changed.notify_all()

    def measure(
        self, steps: Sequence[tuple[float, float, int]], timeout: float, every: float = 0.5
    ) -> list[Step]:
        """Each step in turn, until one is not held; a file every half a second has what is due."""
        schema = ", ".join(f"{name} long" for name in ("doc", *_NAMES))
        source = self._spark.readStream.schema(schema).parquet(str(self._ready))
        query = source.writeStream.foreachBatch(self._batch).option(
            "checkpointLocation", str(self._folder / "checkpoint")
        )
        running = query.start()
        found: list[Step] = []
        try:
            self.take(5, 5.0, 0.0, every, timeout)
            for percent, rate, count in steps:
                found.append(self.take(count, rate, percent, every, timeout))
                if not found[-1].held:
                    break
        finally:
            running.stop()
        return found

    def take(self, count: int, rate: float, percent: float, every: float, timeout: float) -> Step:
        """Write what is due, and wait for it."""
        first = self.count
        keys = self._documents.key_array(first, first + count)
        cpu, start, given = cpu_of(self._pid), time.monotonic_ns(), 0
        while given < count:
            now = time.monotonic_ns() - start
            due = min(count, int(now * rate / 1e9) + 1)
            if due > given:
                part = {"doc": pa.array(range(first + given, first + due), pa.int64())}
                part |= {n: pa.array(keys[given:due, at]) for at, n in enumerate(_NAMES)}
                name = f"{first + given:012}.parquet"
                pq.write_table(pa.table(part), self._arriving / name)
                (self._arriving / name).rename(self._ready / name)
                given = due
            # The rate is what is asked for.
            time.sleep(every)
        with self._changed:
            came = self._changed.wait_for(lambda: first + count - 1 in self._done, timeout)
            came = came and self._changed.wait_for(
                lambda: all(doc in self._done for doc in range(first, first + count)), timeout
            )
            if not came:
                raise PercolaError(f"Structured Streaming did not cluster {count} documents.")
            done = {doc: self._done[doc] for doc in range(first, first + count)}
        self.count = first + count
        step = step_of(percent, rate, first, start, done, cpu_of(self._pid) - cpu)
        # A micro-batch takes seconds; it keeps up if the last one began after the last document.
        last_due = (count - 1) / rate
        held = step.seconds - last_due <= 2 * (step.percentiles()["p50"] / 1000 + every) + 1
        return Step(**{**asdict(step), "held": held, "delays": step.delays})

    def fill(self, total: int, timeout: float) -> None:
        """Cluster what arrives until there are so many documents, in one batch, untimed."""
        if total > self.count:
            keys = self._documents.keys(self.count, total)
            rows = [(doc, *its) for doc, its in enumerate(keys, self.count)]
            schema = ", ".join(f"{name} long" for name in ("doc", *_NAMES))
            self._batch(self._spark.createDataFrame(rows, schema), 1_000_000)
            self.count = total

    def labels(self) -> dict[int, int]:
        """The cluster of each document: what it was given, and what that has come into since."""
        given = self._assigned + list(range(len(self._assigned), self.count))
        return {doc: find(self._parent, label) for doc, label in enumerate(given)}


def to_json(passes: Sequence[Pass]) -> list[dict[str, Any]]:
    """All passes."""
    return [asdict(one) for one in passes]
