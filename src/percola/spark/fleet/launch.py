"""§2.4: `run_workers`: validate the arguments, then start a fleet."""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from percola import repository as repositories
from percola.connect.address import portable
from percola.errors import ConflictingOptionsError
from percola.observers import loading as targets
from percola.observers.observer import Observers
from percola.observers.reports import EVERY
from percola.observers.worker import WorkerOptions
from percola.spark.fleet.board import clear_abandoned
from percola.spark.fleet.driver import Fleet
from percola.spark.fleet.task import Task
from percola.spark.jobs import context_of


def run_workers(
    spark: SparkSession | SparkContext,
    observers: str,
    repository: str | os.PathLike[str],
    *,
    workers: int = 1,
    schema: str | None = None,
    restarts: int = 10,
    timeout_seconds: float = 60.0,
    options: WorkerOptions | None = None,
    **fields: Any,
) -> Fleet:
    """Run observers on Spark's executors; returns at once, with the workers running.

        with run_workers(spark, "shop.views:observers", "./repo", workers=4) as fleet:
            fleet.wait()  # until Ctrl-C

    Each worker takes one of Spark's task slots for as long as it runs: leave some for other jobs.
    Speculation and dynamic allocation should be off. A worker that dies is restarted; no work is
    lost or done twice, because observers run in transactions.

    Args:
        spark: the session or context whose executors run the workers; it must outlive the fleet.
        observers: `MODULE:NAME`, as for `percola worker`: an observer, a list of observers, or a
            function that returns one of these and may take the repository. Executors import it:
            it must be installed there, sent with `addPyFile`, or in a folder that they share with
            this program. An executor's Python process imports a module once.
        repository: its address; every executor's machine must reach it there.
        workers: how many.
        schema: `MODULE:NAME` of tables that the observers only write to, to create if missing.
        restarts: how often in a row a worker may die, within a minute each time, before the fleet
            fails, which `Fleet.check` and the waiting methods raise.
        timeout_seconds: a worker without a heartbeat for so long is restarted, and a worker that
            sees no heartbeat of the driver for so long ends.
        options: see `WorkerOptions`; its fields may be given by keyword instead, such as
            `threads=2` or `timeout=60`. Without `options`, `report` is 5 seconds.

    Raises:
        UsageError: there are no such observers, or Spark cannot run them (Spark Connect).
        ConflictingOptionsError: options out of range, or more workers than a local Spark has slots.
        NotARepositoryError: there is no repository, or one that only this process can use.
    """
    if options is not None and fields:
        raise ConflictingOptionsError(
            f"Workers take their options as WorkerOptions or by keyword ({', '.join(fields)}), "
            "not both."
        )
    options = options or WorkerOptions(**{"report": EVERY, **fields})
    options.check()
    for name, number, least in (("workers", workers, 1), ("restarts", restarts, 0)):
        if number < least:
            raise ConflictingOptionsError(
                f"A fleet's {name} must be at least {least}, not {number}."
            )
    if not timeout_seconds > 0:
        raise ConflictingOptionsError(
            f"A fleet's timeout_seconds must be more than 0 seconds, not {timeout_seconds}."
        )
    context = context_of(spark)
    slots = _local_slots(context)
    if slots is not None and workers > slots:
        raise ConflictingOptionsError(
            f"Spark has {slots} task slots ({context.master}), and each of {workers} workers needs "
            f"one of its own: start Spark with more, such as local[{workers + 1}], or ask for "
            "fewer workers."
        )
    address = portable(repository)
    repo = repositories.open(address, create=False)
    try:
        if not targets.needs_call(targets.load(observers)):
            Observers(targets.load_observers(observers, repo))
        if schema is not None:
            targets.load_schema(schema)
        clear_abandoned(repo.context.store, time.time_ns() // 1_000_000)
        paths = dict.fromkeys([os.getcwd(), *(os.path.abspath(one) for one in sys.path)])
        name = f"percola-{uuid.uuid4().hex[:12]}"
        task = Task(
            *(address, observers, schema, name, options, timeout_seconds, workers, tuple(paths))
        )
        return Fleet(context, repo, task, restarts)
    except BaseException:
        repo.close()
        raise


def _local_slots(context: SparkContext) -> int | None:
    """How many tasks run at a time on a local master; None for a cluster's, which may grow."""
    found = re.match(r"local(?:\[\s*(\*|\d+)|$)", str(context.master))
    if found is None:
        return None
    return int(found[1] or 1) if found[1] != "*" else context.defaultParallelism
