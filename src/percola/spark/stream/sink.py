"""§2.4 `df.writeStream`: each micro-batch is one joint transaction, committed exactly once.

A batch's transaction is named after the query, the table and the batch, which are the same after a
restart. The table is part of it because a copied checkpoint has the query's identity: its stream
into another table would otherwise find its batches committed, and lose them.
If Spark repeats a batch that has committed, its tasks find that it has, and write nothing. If it
has not committed, the new run aborts what is left of the old one. Neither depends on how rows are
distributed over partitions, which may differ between runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from percola import UsageError
from percola.spark.options import Options
from percola.spark.sentences import errors_are_sentences
from percola.spark.write.atomic import PartWritten, commit_parts, joint_of, write_part
from percola.spark.write.plan import Plan, plan, this_task
from percola.transactions.jobs import forget

if TYPE_CHECKING:
    import pyarrow as pa

BATCHES_KEPT: Final = 200
"""For how many batches a query's outcomes are kept; Spark itself can go back a hundred."""


def stream_writer(
    options: Options, schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of a stream; raises the errors of `plan`, UsageError for output mode complete."""
    if overwrite:
        raise UsageError(
            "A stream into Percola cannot have outputMode('complete'), which empties the table "
            "with every batch. Use 'append', or 'update' with toTable and a catalog's table: rows "
            "are written over by their key."
        )
    return StreamWriter(plan(options, schema, overwrite=False))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. Spark recreates it to commit each; its state comes from the tasks."""

    def __init__(self, made: Plan) -> None:
        self._plan = made

    @errors_are_sentences
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Lock what a partition of a batch writes, in a task."""
        task = this_task()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise UsageError("Spark does not say which batch of which query this task writes.")
        return write_part(self._plan, self._job(query, int(batch)), iterator)

    @errors_are_sentences
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the batch visible, if it is not yet."""
        with closing(self._plan.open()) as repo:
            job = commit_parts(self._plan, repo, messages)
            if job and batchId >= BATCHES_KEPT:
                forget(repo, [f"{job.rpartition('/')[0]}/{batchId - BATCHES_KEPT}"])

    @errors_are_sentences
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Roll back what the messages report; a restart of the query rolls back the rest."""
        known = [one for one in messages if isinstance(one, PartWritten)]
        if known:
            with closing(self._plan.open()) as repo:
                joint_of(self._plan, repo, known[0].job, known[0].run).abort()

    def _job(self, query: str, batch: int) -> str:
        return f"{query}/{self._plan.options.table_name}/{batch}"
