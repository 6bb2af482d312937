"""§2.4: the Spark sessions of the web index's jobs, and their progress on a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

from percola import Repository, UsageError
from percola.spark import (
    Job,
    Progress,
    Show,
    SparkJobError,
    context_of,
    for_tasks,
    spark_context,
    spark_session,
    started_job,
)

__all__ = [
    "Job",
    "Progress",
    "Show",
    "SparkJobError",
    "for_tasks",
    "progress_bar",
    "reachable",
    "running_context",
    "running_session",
    "started_job",
]

_CONFIG: Final = {
    # The JVM only schedules tasks here: a quick start matters more than optimised code.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.python.daemon.module": "webindex.workers.daemon",
}


def reachable(repo: Repository) -> str:
    """The address of a repository in a form that tasks can use; SparkJobError if they cannot."""
    place = repo.address
    if place.startswith("memory:"):
        raise SparkJobError(
            "The repository memory: exists in one process only, and a Spark job runs in several. "
            "Name a folder."
        )
    return place if re.match(r"[a-z][a-z0-9+.-]+:", place) else os.path.abspath(place)


@contextmanager
def running_context(
    spark: SparkSession | SparkContext | None, master: str | None, app: str
) -> Iterator[SparkContext]:
    """The given context, or that of this process, or one that is stopped after the block.

    Raises SparkJobError for a Spark Connect session, PercolaError if Spark cannot be started.
    """
    if spark is None:
        with spark_context(master or "local[*]", app=app, config=_CONFIG | for_tasks()) as context:
            yield context
        return
    try:
        context = context_of(spark)
    except UsageError as error:
        raise SparkJobError(str(error)) from error
    yield context


@contextmanager
def running_session(
    spark: SparkSession | SparkContext | None, master: str | None, app: str
) -> Iterator[SparkSession]:
    """As `running_context`, for a job that reads or writes tables as data frames.

    Starting it takes two seconds longer.
    """
    if spark is None:
        with spark_session(master or "local[*]", app=app, config=_CONFIG | for_tasks()) as session:
            yield session
        return
    with running_context(spark, master, app):
        yield spark if isinstance(spark, SparkSession) else SparkSession.builder.getOrCreate()


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Show]:
    """Show progress on a terminal; nothing elsewhere, because the report comes at the end."""
    console = Console()
    if quiet or not console.is_terminal:
        yield lambda progress: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(progress: Progress) -> None:
            bar.update(
                task,
                description=progress.step,
                completed=progress.done,
                total=progress.total or None,
            )

        yield show
