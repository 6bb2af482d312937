"""§2.4 `df.write`: rows of a frame as transactions, which trigger observers as any others do.

    atomicity   becomes visible                                      when a job fails
    ---------   ---------------------------------------------------  -------------------------
    row         row by row; a conflict in one row delays no other    written rows stay
    chunk       some rows of a partition at a time                   committed chunks stay
    job         all of it, at one timestamp                          nothing is written

Writes are blind: a row is written regardless of its previous values. A task that runs twice writes
once (`percola.spark.write.idempotent`, `percola.transactions.jobs`).

Spark creates the writer in a separate process when it plans the write, and pickles copies for the
tasks and for the process that commits it. The writer is therefore small, and each process opens
the repository itself.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import percola
from percola import PercolaError, Repository, Table, UsageError
from percola.spark.chunks import chunked
from percola.spark.encoding import Encoder
from percola.spark.metrics import TaskMetrics
from percola.spark.options import Options
from percola.spark.sentences import errors_are_sentences
from percola.spark.write.changes import ChangeEncoder
from percola.spark.write.idempotent import MarkedPartition, end
from percola.transactions.jobs import JOBS, RowWrites, forget, jobs_before, new_run

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_A_COMMIT: Final = 250
"""How many rows share a commit with atomicity=row: larger groups conflict more often."""

_KEPT_MS: Final = 30 * 24 * 3600 * 1000
_MOST_FORGOTTEN: Final = 20
_PREFIX: Final = "write/"


@dataclass(frozen=True)
class Plan:
    """A planned write, pickled and sent to its tasks.

    Attributes:
        run: a timestamp from the oracle, unique to the write.
    """

    options: Options
    schema: StructType
    run: int

    @property
    def job(self) -> str:
        """The write's name in `percola-jobs`."""
        return f"{_PREFIX}{self.run:020}"

    def open(self) -> Repository:
        """Open the repository in this process."""
        return self.options.open()

    def encoder(self, repo: Repository) -> Encoder | ChangeEncoder:
        """The encoder of batches into writes; raises the errors of `Encoder`."""
        if self.options["changesAt"] is not None:
            return ChangeEncoder(repo, self.options, self.schema)
        return Encoder(
            repo.table(self.options.table_name),
            self.schema,
            self.options.row_column,
            deletes_nulls=self.options["nulls"] == "delete",
            delete_column=self.options.text("deleteColumn"),
            limits=repo.context.store.limits,
        )


def plan(options: Options, schema: StructType, *, overwrite: bool) -> Plan:
    """Validate a write where Spark plans it, and give it a name.

    Raises UsageError for mode overwrite and the errors of `Encoder`.
    """
    if overwrite:
        raise UsageError(
            "Percola has no mode('overwrite'): other programs may be writing the table. Use "
            "mode('append'), which writes over the cells of rows that are there; rows are deleted "
            "with the option deleteColumn."
        )
    with options.open() as repo:
        made = Plan(options, schema, new_run(repo))
        made.encoder(repo)
    # Adds the jobs table to the schema, for every process that opens the repository from now on.
    with percola.open(options.address, schema=[JOBS], create=False):
        return made


def writer(options: Options, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of a batch, by its atomicity; see `plan` for what it raises."""
    from percola.spark.write.atomic import JobWriter

    made = plan(options, schema, overwrite=overwrite)
    if options["atomicity"] == "job":
        return JobWriter(made)
    return MarkedWriter(made)


@dataclass
class Written(WriterCommitMessage):
    """What a task reports.

    Attributes:
        metrics: for Spark's UI (`TaskMetrics.packed`).
    """

    metrics: bytes


class MarkedWriter(DataSourceArrowWriter):
    """Writes each partition in small transactions: atomicity row and chunk."""

    def __init__(self, made: Plan) -> None:
        self._plan = made

    @errors_are_sentences
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition, in a task."""
        some = rows_in(iterator)
        if some is None:
            return Written(TaskMetrics().packed())
        made, task = self._plan, this_task()
        row_by_row = made.options["atomicity"] == "row"
        rows = ROWS_A_COMMIT if row_by_row else made.options.count("chunkRows") or 1
        most = made.options.count("chunkBytes") or 1
        with closing(made.open()) as repo:
            table: Table[Any] = repo.table(made.options.table_name)
            encoder = made.encoder(repo)
            partition = MarkedPartition(
                repo,
                made.job,
                table,
                task.partitionId(),
                task.taskAttemptId(),
                task.attemptNumber(),
                row_by_row=row_by_row,
                timeout=made.options.seconds("lockWaitSeconds"),
                notify=made.options.flag("notify"),
            )
            metrics = TaskMetrics()
            if not partition.done:
                for chunk in chunks(map(encoder.encode, some), rows, most):
                    partition.write(chunk)
                    note_written(metrics, chunk)
                partition.finish()
            metrics.conflicts, metrics.waited = partition.conflicts, partition.waited
            return Written(metrics.packed(repo.context.calls))

    @errors_are_sentences
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All partitions have been written."""
        self._end(committed=True)

    @errors_are_sentences
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some partition could not be written; rows that were committed stay."""
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        with closing(self._plan.open()) as repo:
            end(repo, self._plan.job, committed=committed)
            forget_old(repo)


def this_task() -> TaskContext:
    """The Spark task that runs in this process."""
    task = TaskContext.get()
    assert task is not None, "this runs in Spark's tasks"
    return task


def rows_in(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """A partition's batches; None if it has no rows, as most have of a small shuffled frame.

    Such a partition takes no part in the write: it would cost more than a few rows do.
    """
    for first in batches:
        if first.num_rows:
            return itertools.chain([first], batches)
    return None


def chunks(
    batches: Iterator[Iterable[RowWrites]], most_rows: int, most_bytes: int
) -> Iterator[list[RowWrites]]:
    """Cut rows into chunks, regardless of the boundaries of Spark's batches."""
    return chunked(itertools.chain.from_iterable(batches), most_rows, most_bytes, _weight_of)


def _weight_of(row: RowWrites) -> int:
    """The bytes of all that is in a row's writes: a family may have thousands of short cells."""
    return _bytes_of(row) + sum(map(len, row.cells)) + sum(map(len, row.locks))


def note_written(metrics: TaskMetrics, chunk: Sequence[RowWrites]) -> None:
    """Count a chunk that has been written."""
    metrics.calls += 1
    metrics.rows += len(chunk)
    metrics.size += sum(map(_bytes_of, chunk))


def _bytes_of(row: RowWrites) -> int:
    return len(row.row) + sum(len(raw) for raw in row.cells.values() if raw is not None)


def forget_old(repo: Repository) -> None:
    """Delete records of writes older than 30 days, so many that a write is hardly delayed.

    Best effort: the caller's write has ended, and must not be reported as failed for this.
    """
    before = repo.context.clock.wall_ms() - _KEPT_MS
    with contextlib.suppress(PercolaError):
        forget(repo, jobs_before(repo, _PREFIX, before, _MOST_FORGOTTEN))
