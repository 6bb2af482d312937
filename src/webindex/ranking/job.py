"""`rank`: PageRank of all pages of one snapshot, from reading the graph to the report."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, Final

from pyspark import Broadcast, SparkContext, TaskContext
from pyspark.sql import SparkSession

import percola
from percola import PercolaError, Repository, Transaction
from webindex import journal, tables
from webindex.errors import WebindexError
from webindex.incomplete import refuse_half_built
from webindex.ranking.distributed import Graph
from webindex.ranking.graph import Numbering, Numbers, PagesRead, Values
from webindex.ranking.report import EPSILON, RankReport
from webindex.ranking.writing import OvertakenError, Written, begin, write_ranks
from webindex.spark.jobs import (
    Job,
    Progress,
    Show,
    SparkJobError,
    progress_bar,
    reachable,
    running_session,
    started_job,
)
from webindex.spark.tables import table_at
from webindex.workers.processes import open_repository

TOLERANCE: Final = 1e-6
"""The iteration ends when a step changes a rank by less than this on average, the mean being 1."""

MOST_ITERATIONS: Final = 200

_INTERIM: Final = "row STRING, rank STRUCT<interim: BOOLEAN>"
_NOTIFIED_AT_ONCE: Final = 256

_OVERTAKEN: Final = "a newer rank run has begun, and this one has ended."


class RankError(WebindexError):
    """Ranks could not be computed, or not all of them written."""


def rank(
    address: str | os.PathLike[str],
    *,
    spark: SparkSession | SparkContext | None = None,
    master: str | None = None,
    epsilon: float = EPSILON,
    tolerance: float = TOLERANCE,
    most_iterations: int = MOST_ITERATIONS,
    progress: Show | None = None,
    quiet: bool = False,
) -> RankReport:
    """Compute PageRank over a snapshot of the repository; write back changed ranks.

    Observers may work meanwhile. If another run begins, this one ends with an error: the ranks of
    the newer run replace those of the older one. After an error, run it again. The report is kept
    in the `journal` table, row `rank/RUN`.

    Args:
        address: the repository, as for `percola.open`. Every machine that runs tasks must reach
            it under this address.
        spark: the session or context to use; it is left running. Without it, the session of this
            process is used if there is one, otherwise one is started and stopped.
        master: the Spark master of a session that is started here; `local[*]` by default.
        epsilon: ranks that have moved by less stay as they are; the mean of all ranks is 1.
        tolerance: the computation ends when a step changes a rank by less, on average.
        most_iterations: the maximum number of steps.
        progress: called from this thread several times a second, instead of showing a bar.
        quiet: show nothing.

    Raises:
        RebuildError: a rebuild of the repository has not finished.
        RankError: invalid options; the run ended early, or a newer one has begun.
        PercolaError: there is no web index, or Spark cannot be started.
        KeyboardInterrupt: Ctrl-C; the job is cancelled. What was written stays.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise RankError(f"An epsilon of {epsilon} makes no sense: use 0 or more, such as 0.01.")
    if not (math.isfinite(tolerance) and tolerance >= 0) or most_iterations < 1:
        raise RankError(
            f"A tolerance of {tolerance} and at most {most_iterations} iterations make no sense: "
            "use 0 or more, and 1 or more."
        )
    began = time.perf_counter()
    with (
        open_repository(os.fspath(address)) as repo,
        nullcontext(progress) if progress is not None else progress_bar(quiet=quiet) as show,
    ):
        try:
            refuse_half_built(repo)
            place = reachable(repo)
            show(Progress("Starting Spark"))
            with running_session(spark, master, "webindex rank") as session:
                starting = time.perf_counter() - began
                # Held until everything is read: repeated tasks read the same versions.
                with (
                    repo.snapshot() as snapshot,
                    started_job(session.sparkContext, "webindex rank", show) as job,
                ):
                    report = RankReport(
                        run=snapshot.start_ts,
                        epsilon=epsilon,
                        tolerance=tolerance,
                        started_ms=time.time_ns() // 1_000_000 - int(1000 * starting),
                        starting_seconds=starting,
                    )
                    _run(repo, place, session, job, report, most_iterations)
        except SparkJobError as error:
            raise RankError(f"The rank run could not begin: {error}") from error
        report.seconds = time.perf_counter() - began
        _keep(repo, report)
    if report.error is not None:
        raise RankError(
            f"The rank run ended early: {report.error} {report.written:,} ranks were written; "
            "they stay."
        )
    return report


def _run(
    repo: Repository,
    address: str,
    session: SparkSession,
    job: Job,
    report: RankReport,
    most: int,
) -> None:
    """The run itself; errors that end it early go to `report.error`."""
    try:
        begin(repo, report.run)
        with Graph(session, job, address, report.run) as graph:
            report.pages, report.edges = graph.pages, graph.edges
            ranking = graph.rank(tolerance=report.tolerance, most=most)
            report.iterations, report.residual = ranking.iterations, ranking.residual
            report.converged = ranking.residual <= report.tolerance
            values = session.sparkContext.broadcast((ranking.values, graph.degrees))
            tasks = graph.read.map(
                partial(_write, address, report.run, report.epsilon, graph.numbering, values)
            )
            outcomes = job.run(Progress("Writing", 0, graph.parts), tasks.collect)
            for one in outcomes:
                report.written += one.written
                report.gone += one.gone
                report.retried += one.attempt > 0
                report.error = report.error or (_OVERTAKEN if one.overtaken else one.error)
            if report.error is None:
                report.error = _estimate_again(repo, address, session, job, graph.parts)
    except OvertakenError:
        report.error = _OVERTAKEN
    except SparkJobError as error:
        report.error = f"Spark gave up on it: {error}"


def _keep(repo: Repository, report: RankReport) -> None:
    try:
        repo.run(lambda t: journal.keep(t, "rank", report.run, report.to_json()))
    except PercolaError:
        if report.error is None:
            raise


def _write(
    address: str,
    run: int,
    epsilon: float,
    numbering: Broadcast[Numbering],
    values: Broadcast[tuple[Values, Numbers]],
    read: PagesRead,
) -> Written:
    """A task that writes the ranks of the pages that it has read."""
    context = TaskContext.get()
    numbers = numbering.value.of(read.ids)
    ranks, links = (one[numbers].tolist() for one in values.value)
    try:
        with percola.open(address, schema=tables.SCHEMA, create=False) as repo:
            # In the order of the rows: by shard, and neighbours share their reads.
            pairs = sorted(zip(read.rows, ranks, strict=True))
            done = write_ranks(repo, run, pairs, epsilon, dict(zip(read.rows, links, strict=True)))
    except PercolaError as error:
        done = Written(error=str(error))
    done.attempt = context.attemptNumber() if context is not None else 0
    return done


def _estimate_again(
    repo: Repository, address: str, session: SparkSession, job: Job, parts: int
) -> str | None:
    """Have the ranks of pages that are newer than the run estimated from those that it has written.

    Returns why that could not be done, if so.
    """
    with repo.snapshot() as now:
        frame = table_at(session, address, tables.pages, now.start_ts, parts, schema=_INTERIM)
        newer = frame.where("rank.interim").select("row").rdd
        tasks = newer.mapPartitions(partial(_notify, address))
        step = Progress("Estimating newer ranks", 0, newer.getNumPartitions())
        return next(iter(job.run(step, tasks.collect)), None)


def _notify(address: str, rows: Iterator[Any]) -> Iterator[str]:
    """A task that has the links to these pages counted again; yields what went wrong."""
    while some := [row for (row,) in islice(rows, _NOTIFIED_AT_ONCE)]:

        def notify(t: Transaction, some: Sequence[str] = some) -> None:
            for row in some:
                t.notify(tables.inlinks_changed, row)

        try:
            with percola.open(address, schema=tables.SCHEMA, create=False) as repo:
                repo.run(notify)
        except PercolaError as error:
            yield str(error)
            return
