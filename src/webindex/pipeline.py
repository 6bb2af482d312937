"""§2.4, §3: the Spark jobs of the web index. The paper's are MapReduces.

`load` feeds a crawl into the repository. The driver cuts the WARC files into parts; each task
reads the captures of one and runs loader transactions over them, in its own process. Nothing is
coordinated between tasks: the newest capture of a page wins in whatever order they come, and one
that is there already changes nothing. So a task may be run again, or twice at a time, at will.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

import percola
from percola import PercolaError
from percola.spark import interrupts_held, spark_context
from webindex import tables
from webindex.errors import LoadError
from webindex.framing import open_warc
from webindex.load_report import LoadReport
from webindex.load_tasks import MESSAGES, Outcome, Split, plan_parts, run_task
from webindex.warc import NotAWarcError

SMALLEST_PART: Final = 256 << 10
LARGEST_PART: Final = 32 << 20
"""Bounds of what one task reads, in bytes as stored."""
_PARTS_A_CORE: Final = 3

_POLL_SECONDS: Final = 0.1
# The JVM only hands out tasks here: a quick start is worth more than well compiled code.
_CONFIG: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
_WORKER_DIED: Final = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "java.io.EOFException",
    "Connection reset",
    "Broken pipe",
)
_CONTINUES: Final = "What is loaded stays; run the same load again, and it goes on from there."


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is: `done` of `total` parts; 0 of 0 while Spark starts."""

    step: str
    done: int = 0
    total: int = 0


Show = Callable[[Progress], None]


def load(
    address: str | os.PathLike[str],
    files: Iterable[str | os.PathLike[str]],
    *,
    spark: SparkSession | SparkContext | None = None,
    master: str | None = None,
    part_bytes: int | None = None,
    progress: Show | None = None,
    quiet: bool = False,
) -> LoadReport:
    """Load the captures of WARC files into the repository, which is made if it is not there.

    Nothing is loaded unless all files are WARC files. What cannot be used inside of them is
    counted, and the rest is loaded. To load something again, or to go on with a load that ended
    early, is the same call once more. The report is kept in the `journal` table.

    Args:
        address: the repository, as for `percola.open`. Every machine that runs tasks must reach
            it, and the files, at the same place.
        files: WARC files, and folders, of which all `.warc` and `.warc.gz` files are taken.
        spark: the session or context to use; it goes on afterwards. Without it, that of this
            process is used if there is one, else one is started and ended.
        master: the Spark master of a session that is started here; `local[*]` by default.
        part_bytes: how much one task reads; by default such that each core gets a few.
        progress: called from this thread several times a second, instead of showing a bar.
        quiet: show nothing.

    Raises:
        NotAWarcError: a file is missing, empty or something else; nothing was loaded.
        LoadError: the load could not begin, or ended early.
        PercolaError: the repository cannot be opened, or Spark cannot be started.
        KeyboardInterrupt: Ctrl-C; the job is cancelled. What was loaded stays.
    """
    paths = warc_files(files)
    report = LoadReport(
        files=len(paths),
        bytes=sum(os.stat(path).st_size for path in paths),
        started_ms=time.time_ns() // 1_000_000,
    )
    began = time.perf_counter()
    place = _prepared(address)
    with nullcontext(progress) if progress is not None else _bar(quiet=quiet) as show:
        show(Progress("Starting Spark"))
        with _context(spark, master) as context:
            report.starting_seconds = time.perf_counter() - began
            parts = plan_parts(paths, part_bytes or default_part_bytes(report.bytes, context))
            for outcome in _run(context, place, parts, show):
                _add(outcome, report)
            report.seconds = time.perf_counter() - began
    try:
        with percola.open(place, schema=tables.SCHEMA, create=False) as repo:
            repo.run(lambda t: t.set(tables.report, f"load/{t.start_ts:020}", report.to_json()))
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
    """The WARC files that are meant, each once, as absolute paths.

    Raises NotAWarcError if one of them is missing or is no WARC file, LoadError for none at all.
    """
    found: dict[str, None] = {}
    for path in (os.path.abspath(os.fspath(one)) for one in files):
        if not os.path.isdir(path):
            found[path] = None
            continue
        names = sorted(n for n in os.listdir(path) if n.endswith((".warc", ".warc.gz")))
        if not names:
            raise NotAWarcError(f"The folder {path} has no .warc or .warc.gz file in it.")
        found.update((os.path.join(path, name), None) for name in names)
    if not found:
        raise LoadError("There is nothing to load: name WARC files, or folders of them.")
    wrong = []
    for path in found:
        try:
            open_warc(path)[0].close()
        except NotAWarcError as error:
            wrong.append(str(error))
    if wrong:
        more = f" So it is with {len(wrong) - 1:,} more of the files." if wrong[1:] else ""
        raise NotAWarcError(f"{wrong[0]}{more} Nothing was loaded.")
    return list(found)


def default_part_bytes(total: int, context: SparkContext) -> int:
    """A few parts for each core, so that none waits long for the last one."""
    share = total // (_PARTS_A_CORE * max(1, context.defaultParallelism))
    return min(max(share, SMALLEST_PART), LARGEST_PART)


def _prepared(address: str | os.PathLike[str]) -> str:
    """Make or check the repository; its address as the tasks can use it."""
    with percola.open(address, schema=tables.SCHEMA) as repo:
        place = repo.address
    if place.startswith("memory:"):
        raise LoadError(
            "The repository memory: exists in one process only, and a load runs in several. "
            "Name a folder."
        )
    return place if re.match(r"[a-z][a-z0-9+.-]+:", place) else os.path.abspath(place)


@contextmanager
def _context(
    spark: SparkSession | SparkContext | None, master: str | None
) -> Iterator[SparkContext]:
    if spark is None:
        with spark_context(master or "local[*]", app="webindex load", config=_CONFIG) as context:
            yield context
        return
    if isinstance(spark, SparkContext):
        yield spark
        return
    try:
        context = spark.sparkContext
    except PySparkException as error:
        raise LoadError(
            "A Spark Connect session cannot run a load, which needs plain tasks: use a session "
            "on the cluster itself, or name the cluster as the master."
        ) from error
    yield context


# --- The job, in the driver ---------------------------------------------------------------


def _run(
    context: SparkContext, address: str, parts: list[list[Split]], show: Show
) -> list[Outcome]:
    """Run the tasks while this thread shows how far they are, and listens to Ctrl-C."""
    group = f"webindex-load-{uuid.uuid4().hex}"
    outcomes: list[Outcome] = []
    problems: list[Exception] = []
    ended = threading.Event()

    def job() -> None:
        try:
            context.setJobGroup(group, "webindex load")
            tasks = context.parallelize(parts, len(parts))
            outcomes.extend(tasks.mapPartitions(partial(run_task, address)).collect())
        except Exception as error:
            problems.append(error)
        finally:
            ended.set()

    done = 0
    show(Progress("Loading", done, len(parts)))
    with interrupts_held() as interrupted:
        InheritableThread(target=job, name="webindex-load", daemon=True).start()
        try:
            while not ended.wait(_POLL_SECONDS):
                if interrupted.is_set():
                    # It may come before the job does, so once is not enough.
                    context.cancelJobGroup(group)
                done = max(done, _finished(context, group))
                show(Progress("Loading", done, len(parts)))
        finally:
            if not ended.is_set():
                context.cancelJobGroup(group)
    if problems:
        # As text: Py4J's errors ask the JVM for their words, and it may be gone by then.
        raise LoadError(
            f"Spark gave up on the load when {done:,} of its {len(parts):,} parts were done: "
            f"{_gist(problems[0])} {_CONTINUES}"
        ) from RuntimeError(str(problems[0]))
    return outcomes


def _finished(context: SparkContext, group: str) -> int:
    """How many tasks have ended well; 0 once the JVM is gone, of which the job will tell."""
    try:
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage)
    except Exception:  # Py4J's errors have no common root but this.
        return 0


def _gist(error: Exception) -> str:
    """The sentence within Spark's report of a task that failed for good."""
    text = str(error)
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return "its JVM died (killed, or out of memory?)."
    # How the JVM puts it depends on what it was doing when the Python process went.
    if any(sign in text for sign in _WORKER_DIED):
        return "the processes of a part died again and again (killed, or out of memory?)."
    # A Python traceback ends with what went wrong; the JVM's follows it.
    lines = re.split(r"\n\s+at |\nDriver stacktrace", text.partition("Traceback")[2] or text)[0]
    return lines.strip().splitlines()[-1].strip().rstrip(".") + "."


def _add(outcome: Outcome, report: LoadReport) -> None:
    report.loaded.add(outcome.loaded)
    report.rejected.update(outcome.rejected)
    report.skipped.update(outcome.skipped)
    report.messages.extend(outcome.messages[: MESSAGES - len(report.messages)])
    report.retried += outcome.attempt > 0
    report.error = report.error or outcome.error


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Show]:
    """Show progress on a terminal; elsewhere nothing, for the report comes at the end."""
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
