"""Figure 7 on Spark: batch jobs over everything that has come, running again and again.

*Three in a row*, as in the paper: a job for each key, which brings together all clusters with a
document of that key, and writes the clusters for the next. *Fused*: the same in one job, which
writes once. Both read the keys alone, which Parquet permits, and leave the texts where they are.

A job brings clusters together through each key once. That is exact where no cluster has two keys of
one kind that others have too, as in these documents, and it is checked; for other documents it
would have to be repeated until nothing changes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.fig7_documents import KEYS, Documents
from benchmarks.fig7_steps import cpu_of
from benchmarks.fig7_texts import Bodies

_LOADED: Final = 50_000
NAMES: Final = [f"k{number}" for number in range(KEYS)]
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
        self.synthetic = documents
        self.source = folder / "docs"

    def write(self, total: int) -> None:
        """All documents up to this number, in files of 50,000."""
        self.source.mkdir(parents=True)
        bodies = Bodies()
        for first in range(0, total, _LOADED):
            end = min(total, first + _LOADED)
            keys = self.synthetic.key_array(first, end)
            columns = {
                "doc": pa.array(range(first, end), pa.int64()),
                **{name: pa.array(keys[:, at]) for at, name in enumerate(NAMES)},
                "body": pa.array([bodies[doc] for doc in range(first, end)]),
            }
            pq.write_table(pa.table(columns), self.source / f"{first:010}.parquet")

    def documents(self, spark: SparkSession, count: int) -> DataFrame:
        """The keys of the first so many documents."""
        frame = spark.read.parquet(str(self.source)).select("doc", *NAMES)
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
    return docs.join(moves, "cluster").select("doc", *NAMES, f.col("into").alias("cluster"))


def three_in_a_row(spark: SparkSession, repository: Repository, count: int) -> Path:
    """A job for each key; where the last leaves the clusters."""
    docs = repository.documents(spark, count).withColumn("cluster", f.col("doc"))
    place = repository.folder
    for number, key in enumerate(NAMES):
        place = repository.folder / f"row-{number}"
        _joined(docs, key).write.mode("overwrite").parquet(str(place))
        docs = spark.read.parquet(str(place))
    return place


def fused(spark: SparkSession, repository: Repository, count: int) -> Path:
    """One job with the clusters in memory between the keys; where it leaves them."""
    docs = repository.documents(spark, count).withColumn("cluster", f.col("doc"))
    kept = []
    for key in NAMES:
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


def to_json(passes: Sequence[Pass]) -> list[dict[str, Any]]:
    """All passes."""
    return [asdict(one) for one in passes]
