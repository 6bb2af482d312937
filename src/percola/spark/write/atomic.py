"""§2.4 `df.write` with atomicity=job, and what a streaming batch shares with it.

Each task is an attempt of a joint transaction (`percola.transactions.jobs`): it locks what it
writes, and reports. The process that ends the write commits all of it in one mutation, or rolls it
back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from percola import Repository
from percola.spark.chunks import CHUNK_BYTES
from percola.spark.write.plan import Plan, chunks, forget_old, this_task
from percola.transactions.jobs import JointTransaction, Part

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 2_000
"""How many rows are locked in one call of the store, unless they are large."""


@dataclass
class PartWritten(WriterCommitMessage):
    """What a task reports.

    Attributes:
        job: the joint transaction, which of a stream's batch the tasks alone know.
        run: its run.
        part: what was written; None if the job had committed before the task began.
    """

    job: str
    run: int
    part: Part | None


def joint_of(made: Plan, repo: Repository, job: str, run: int) -> JointTransaction:
    """The joint transaction, as this process sees it."""
    return JointTransaction(
        repo,
        job,
        run,
        [made.options.table_name],
        ttl_seconds=made.options.seconds("ttlSeconds"),
        patience=made.options.seconds("lockWaitSeconds"),
    )


def write_part(made: Plan, job: str, iterator: Iterator[pa.RecordBatch]) -> PartWritten:
    """Write one partition of a joint transaction, in a task."""
    task = this_task()
    with closing(made.open()) as repo:
        joint = joint_of(made, repo, job, made.run)
        attempt = joint.attempt(task.partitionId(), task.taskAttemptId(), task.attemptNumber())
        if attempt is None:
            return PartWritten(job, made.run, None)
        if attempt.done is not None:
            return PartWritten(job, made.run, attempt.done)
        encoder = made.encoder(repo)
        with attempt.kept_alive():
            try:
                for chunk in chunks(map(encoder.encode, iterator), _ROWS, CHUNK_BYTES):
                    attempt.write(chunk)
                return PartWritten(job, made.run, attempt.finish())
            except BaseException:
                # What this attempt has locked is in nobody's way any more.
                attempt.abandon()
                raise


def commit_parts(
    made: Plan, repo: Repository, messages: Sequence[WriterCommitMessage | None]
) -> str:
    """Commit what tasks have reported; the job's name, or nothing if there was none."""
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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Lock what a partition writes, in a task."""
        return write_part(self._plan, self._plan.job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all of it visible. Raises JointError and nothing is, or CommitUnknownError."""
        with closing(self._plan.open()) as repo:
            commit_parts(self._plan, repo, messages)
            forget_old(repo)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Roll all of it back; if it has committed after all, it stays."""
        with closing(self._plan.open()) as repo:
            joint_of(self._plan, repo, self._plan.job, self._plan.run).abort()
