"""§2.4, §3: the Spark job that loads a crawl; the paper uses MapReduces.

`load` feeds a crawl into the repository. The driver splits the WARC files; each task
reads the captures of one part and runs loader transactions over them, in its own process. Tasks
need no coordination: the newest capture of a page wins in whatever order they arrive, and a
capture that is already loaded changes nothing. So a task may be repeated, or run twice at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

import percola
from percola import PercolaError
from webindex import journal, tables
from webindex.crawl.framing import open_warc
from webindex.crawl.resources import MAX_RESOURCE
from webindex.crawl.warc import MAX_BODY, NotAWarcError
from webindex.errors import LoadError
from webindex.incomplete import refuse_half_built
from webindex.load.opening import with_tables
from webindex.load.report import LoadReport
from webindex.load.resources import keep_resources, keeps_resources
from webindex.load.tasks import MESSAGES, Outcome, Split, plan_parts, run_task
from webindex.spark.jobs import (
    Progress,
    Show,
    SparkJobError,
    progress_bar,
    reachable,
    running_context,
    started_job,
)

SMALLEST_PART: Final = 256 << 10
LARGEST_PART: Final = 32 << 20
"""Bounds of what one task reads, in bytes as stored."""
_PARTS_A_CORE: Final = 3

_CONTINUES: Final = "What is loaded stays; run the same load again, and it goes on from there."


def load(
    address: str | os.PathLike[str],
    files: Iterable[str | os.PathLike[str]],
    *,
    spark: SparkSession | SparkContext | None = None,
    master: str | None = None,
    part_bytes: int | None = None,
    max_page_bytes: int = MAX_BODY,
    resources: bool | None = None,
    max_resource_bytes: int = MAX_RESOURCE,
    progress: Show | None = None,
    quiet: bool = False,
) -> LoadReport:
    """Load the captures of WARC files into the repository, which is created if it does not exist.

    Nothing is loaded unless all files are WARC files. Unusable records inside them are
    counted, and the rest is loaded. To load files again, or to resume a load that ended
    early, repeat the call. The report is kept in the `journal` table.

    Args:
        address: the repository, as for `percola.open`. Every machine that runs tasks must reach
            it, and the files, under the same address and paths.
        files: WARC files, and folders, of which all `.warc` and `.warc.gz` files are taken.
        spark: the session or context to use; it is left running. Without it, the session of this
            process is used if there is one, otherwise one is started and stopped.
        master: the Spark master of a session that is started here; `local[*]` by default.
        part_bytes: how much one task reads; by default such that each core gets a few parts.
        max_page_bytes: the limit for the decoded body of a page; the rest is discarded.
        resources: whether to keep stylesheets, images, fonts and scripts, with which pages can be
            rendered. By default, if some load of this repository was asked to.
        max_resource_bytes: the limit for the decoded body of one; longer ones are rejected.
        progress: called from this thread several times a second, instead of showing a bar.
        quiet: show nothing.

    Raises:
        NotAWarcError: a file is missing, empty or not a WARC file; nothing was loaded.
        LoadError: the load could not start, or ended early.
        PercolaError: the repository cannot be opened, or Spark cannot be started.
        KeyboardInterrupt: Ctrl-C; the job is cancelled. What was loaded stays.
    """
    paths = warc_files(files)
    report = LoadReport(
        files=len(paths),
        bytes=sum(os.stat(path).st_size for path in paths),
        started_ms=time.time_ns() // 1_000_000,
        max_page_bytes=max_page_bytes,
    )
    began = time.perf_counter()
    try:
        place, keeps = _prepared(address, resources)
        max_resource = max_resource_bytes if keeps else None
        with nullcontext(progress) if progress is not None else progress_bar(quiet=quiet) as show:
            show(Progress("Starting Spark"))
            with running_context(spark, master, "webindex load") as context:
                report.starting_seconds = time.perf_counter() - began
                parts = plan_parts(paths, part_bytes or default_part_bytes(report.bytes, context))
                limits = (max_page_bytes, max_resource)
                for outcome in _run(context, place, limits, parts, show):
                    _add(outcome, report)
                report.seconds = time.perf_counter() - began
    except SparkJobError as error:
        raise LoadError(f"The load could not begin: {error}") from error
    try:
        with percola.open(place, schema=tables.SCHEMA, create=False) as repo:
            repo.run(lambda t: journal.keep(t, "load", t.start_ts, report.to_json()))
    except PercolaError:
        if report.error is None:
            raise
    if report.error is not None:
        raise LoadError(
            f"The load ended early: {report.error} {report.captures:,} captures were loaded or "
            f"there already. {_CONTINUES}"
        )
    return report


# --- Before the job -----------------------------------------------------------------------


def warc_files(files: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The WARC files that are named, each once, as absolute paths.

    Raises NotAWarcError if one of them is missing or is no WARC file, LoadError if there are none.
    """
    found: dict[str, None] = {}
    for name in (os.fspath(one) for one in files):
        if not name:  # Not the current folder.
            raise NotAWarcError(
                "One of the names of WARC files is empty, as it is if a shell's variable is not "
                "set: name files, or folders of them."
            )
        path = os.path.abspath(name)
        if not os.path.isdir(path):
            found[path] = None
            continue
        try:
            names = sorted(n for n in os.listdir(path) if n.endswith((".warc", ".warc.gz")))
        except OSError as error:
            why = error.strerror or error
            raise NotAWarcError(f"The folder {path} cannot be read: {why}.") from error
        if not names:
            raise NotAWarcError(f"The folder {path} has no .warc or .warc.gz file in it.")
        found.update((os.path.join(path, name), None) for name in names)
    if not found:
        raise LoadError("There is nothing to load: name WARC files, or folders of them.")
    wrong = []
    for path in found:
        try:
            path.encode()  # A capture names its file.
            open_warc(path)[0].close()
        except UnicodeEncodeError:
            wrong.append(f"The path {path!r} is not in UTF-8: rename the file or its folder.")
        except NotAWarcError as error:
            wrong.append(str(error))
    if wrong:
        more = f" So it is with {len(wrong) - 1:,} more of the files." if wrong[1:] else ""
        raise NotAWarcError(f"{wrong[0]}{more} Nothing was loaded.")
    return list(found)


def default_part_bytes(total: int, context: SparkContext) -> int:
    """A part size that gives each core a few parts, so that none waits long for the last one."""
    share = total // (_PARTS_A_CORE * max(1, context.defaultParallelism))
    return min(max(share, SMALLEST_PART), LARGEST_PART)


def _prepared(address: str | os.PathLike[str], resources: bool | None) -> tuple[str, bool]:
    """Create or check the repository.

    Returns its address in a form that tasks can use, and whether to keep resources.
    """
    with with_tables(address) as repo:
        refuse_half_built(repo)
        if resources:
            keep_resources(repo)
        return reachable(repo), keeps_resources(repo) if resources is None else resources


# --- The job, in the driver ---------------------------------------------------------------


def _run(
    context: SparkContext,
    address: str,
    limits: tuple[int, int | None],
    parts: list[list[Split]],
    show: Show,
) -> list[Outcome]:
    """Run the tasks while this thread shows progress and handles Ctrl-C."""
    tasks = context.parallelize(parts, len(parts)).mapPartitions(
        partial(run_task, address, *limits)
    )
    with started_job(context, "webindex load", show) as job:
        try:
            return job.run(Progress("Loading", 0, len(parts)), tasks.collect)
        except SparkJobError as error:
            raise LoadError(
                f"Spark gave up on the load when {job.done:,} of its {len(parts):,} parts were "
                f"done: {error} {_CONTINUES}"
            ) from error


def _add(outcome: Outcome, report: LoadReport) -> None:
    report.loaded.add(outcome.loaded)
    report.rejected.update(outcome.rejected)
    report.skipped.update(outcome.skipped)
    report.messages.extend(outcome.messages[: MESSAGES - len(report.messages)])
    report.retried += outcome.attempt > 0
    report.error = report.error or outcome.error
