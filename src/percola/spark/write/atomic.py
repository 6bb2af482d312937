"""§2.4 `df.write` with atomicity=job, and the parts that streaming batches share with it.

Each task is an attempt of a joint transaction (`percola.transactions.jobs`): it locks the cells it
writes, and reports them. The committing process commits all of them in one mutation, or rolls
them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from percola import Repository
from percola.spark.chunks import CHUNK_BYTES
from percola.spark.metrics import TaskMetrics
from percola.spark.sentences import errors_are_sentences
from percola.spark.write.plan import (
    Plan,
    chunks,
    forget_old,
    note_written,
    rows_in,
    this_task,
)
from percola.transactions.jobs import JointTransaction, Part

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 2_000
"""How many rows are locked in one store call, unless they are large."""


@dataclass
class PartWritten(WriterCommitMessage):
    """What a task reports.

    Attributes:
        job: the joint transaction; for a stream's batch, only the tasks know its name.
        run: its run.
        part: what was written; None if the job had committed before the task began, or if the
            partition has no rows.
        metrics: for Spark's UI (`TaskMetrics.packed`).
    """

    job: str
    run: int
    part: Part | None
    metrics: bytes = b""


def joint_of(made: Plan, repo: Repository, job: str, run: int) -> JointTransaction:
    """This process's handle on the joint transaction."""
    return JointTransaction(
        repo,
        job,
        run,
        [made.options.table_name],
        ttl_seconds=made.options.seconds("ttlSeconds"),
        timeout=made.options.seconds("lockWaitSeconds"),
        notify=made.options.flag("notify"),
        read_at=made.options["changesAt"],
    )


def write_part(made: Plan, job: str, iterator: Iterator[pa.RecordBatch]) -> PartWritten:
    """Write one partition of a joint transaction, in a task."""
    some = rows_in(iterator)
    if some is None:
        return PartWritten(job, made.run, None, TaskMetrics().packed())
    task = this_task()
    with closing(made.open()) as repo:
        joint = joint_of(made, repo, job, made.run)
        attempt = joint.attempt(task.partitionId(), task.taskAttemptId(), task.attemptNumber())
        if attempt is None:
            return PartWritten(job, made.run, None)
        if attempt.done is not None:
            return PartWritten(job, made.run, attempt.done)
        encoder, metrics = made.encoder(repo), TaskMetrics()
        with attempt.kept_alive():
            try:
                for chunk in chunks(map(encoder.encode, some), _ROWS, CHUNK_BYTES):
                    attempt.write(chunk)
                    note_written(metrics, chunk)
                part = attempt.finish()
            except BaseException:
                # Release this attempt's locks, so that they block no other transaction.
                attempt.abandon()
                raise
        metrics.conflicts, metrics.waited = attempt.conflicts, attempt.waited
        return PartWritten(job, made.run, part, metrics.packed(repo.context.calls))


def commit_parts(
    made: Plan, repo: Repository, messages: Sequence[WriterCommitMessage | None]
) -> str:
    """Commit the parts that tasks have reported; return the job's name, or "" if there is none."""
    parts = [one for one in messages if isinstance(one, PartWritten)]
    if not parts:
        return ""
    joint = joint_of(made, repo, parts[0].job, parts[0].run)
    joint.commit([one.part for one in parts if one.part is not None])
    return parts[0].job


class JobWriter(DataSourceArrowWriter):
    """Writes a frame as one transaction."""

    def __init__(self, made: Plan) -> None:
        self._plan = made

    @errors_are_sentences
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Lock what a partition writes, in a task."""
        return write_part(self._plan, self._plan.job, iterator)

    @errors_are_sentences
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit. Raises JointError if nothing was committed, or CommitUnknownError."""
        with closing(self._plan.open()) as repo:
            commit_parts(self._plan, repo, messages)
            forget_old(repo)

    @errors_are_sentences
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Roll back; a transaction that has already committed stays committed."""
        with closing(self._plan.open()) as repo:
            joint_of(self._plan, repo, self._plan.job, self._plan.run).abort()
