"""How `df.write` ends, call by call as Spark makes them: no Spark needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StringType, StructType
from stores import Gate, SeamStore, in_thread, phase

import percola
from percola import Repository, Table
from percola.spark.options import Options
from percola.spark.versions import arrow_schema
from percola.spark.write.atomic import JobWriter, PartWritten, joint_of
from percola.spark.write.plan import Plan, plan, writer
from percola.store.base import RowMutation
from percola.transactions.jobs import JOBS, RowWrites
from percola.transactions.jobs.job_row import COMMITTED, STATE

docs = Table("docs")
size = docs.column("size", int)
SCHEMA = StructType().add("row", StringType()).add("size", LongType())


def test_a_write_that_has_committed_has_not_failed_because_another_is_committing(
    tmp_path: Path,
) -> None:
    """Old records of writes are removed at the end, and the oldest one is locked for long."""
    given = {"path": str(tmp_path / "repo"), "table": "docs", "atomicity": "job"}
    options = Options({**given, "lockWaitSeconds": "0.1"})
    gate = Gate()

    def hook(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == "commit" and mutation.table == JOBS.name:
            gate.wait_here()
        return apply()

    with percola.open(options.address, [docs, JOBS]) as repo:
        context = repo.context
        assert context.one_step is not None
        seam = SeamStore(context.one_step)
        slow = Repository("seam", seam, context.oracle, context.coordination, [docs, JOBS])

        def written(made: Plan, row: bytes) -> PartWritten:
            attempt = joint_of(made, repo, made.job, made.run).attempt(0, 1)
            assert attempt is not None
            attempt.write([RowWrites("docs", row, {size.key: b"7"})])
            return PartWritten(made.job, made.run, attempt.finish())

        first = plan(options, SCHEMA, overwrite=False)
        part = written(first, b"a").part
        assert part is not None
        seam.hook = hook
        committing = in_thread(lambda: joint_of(first, slow, first.job, first.run).commit([part]))
        gate.await_arrival()
        second = plan(options, SCHEMA, overwrite=False)
        JobWriter(second).commit([written(second, b"b")])
        assert repo.snapshot().get(size, "b") == 7
        gate.open()
        committing.result(20)
        assert repo.snapshot().get(size, "a") == 7


@pytest.mark.parametrize("atomicity", ["row", "job"])
def test_a_partition_without_rows_asks_nothing_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomicity: str
) -> None:
    """Spark has 200 after a shuffle, of which a small micro-batch fills a few."""
    given = {"path": str(tmp_path / "repo"), "table": "docs", "atomicity": atomicity}
    with percola.open(given["path"], [docs, JOBS]) as repo:
        made = writer(Options(given), SCHEMA, overwrite=False)
        empty = pa.RecordBatch.from_pylist([], arrow_schema(SCHEMA))
        with monkeypatch.context() as patched:
            patched.setattr(Plan, "open", lambda plan: pytest.fail("the repository was opened"))
            messages: list[WriterCommitMessage | None] = [
                made.write(iter(batches)) for batches in ([], [empty], [empty, empty])
            ]
        made.commit(messages)
        [job] = repo.snapshot().scan(JOBS, columns=[STATE])
        assert (job[STATE]["is"], job[STATE]["rows"]) == (COMMITTED, 0)
