"""§2.4: plain Spark jobs in a driver: their progress, Ctrl-C, and what Spark says of a failure.

Each action runs in a thread of its own, while the caller's thread shows progress and handles
Ctrl-C: Py4J cannot be interrupted in a call.
"""

from __future__ import annotations

import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from percola.errors import PercolaError, UsageError
from percola.spark.ctrl_c import interrupts_held

__all__ = [
    "Job",
    "Progress",
    "Show",
    "SparkJobError",
    "context_of",
    "for_tasks",
    "started_job",
]

T = TypeVar("T")

_POLL_SECONDS: Final = 0.1
_FOR_TASKS: Final = re.compile(
    "PERCOLA_.*|WEBINDEX_.*|BIGTABLE_EMULATOR_HOST|GOOGLE_APPLICATION_CREDENTIALS"
)
_WORKER_DIED: Final = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "java.io.EOFException",
    "Connection reset",
    "Broken pipe",
)
_OURS: Final = re.compile(r"^(?:\[\w+\] [^:]+: )?(?:percola|webindex)\.[\w.]+: ")


class SparkJobError(PercolaError):
    """A Spark job could not start, or Spark gave up on it; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job: `done` of `total` tasks of a step; 0 of 0 while Spark starts."""

    step: str
    done: int = 0
    total: int = 0


Show = Callable[[Progress], None]


def for_tasks() -> dict[str, str]:
    """Spark properties that pass this process's environment settings to tasks on a cluster.

    They contain locations and the paths of credential files, never the credentials themselves.
    """
    return {
        f"spark.executorEnv.{name}": value
        for name, value in os.environ.items()
        if _FOR_TASKS.fullmatch(name)
    }


def context_of(spark: SparkSession | SparkContext) -> SparkContext:
    """The context of a session. Raises UsageError for one through Spark Connect."""
    if isinstance(spark, SparkContext):
        return spark
    try:
        return spark.sparkContext
    except PySparkException as error:
        raise UsageError(
            "A Spark Connect session cannot run plain tasks, which this needs: use a session on "
            "the cluster itself."
        ) from error


# --- The job, in the driver ---------------------------------------------------------------


class Job:
    """The actions of one job, run in sequence; created by `started_job`.

    Attributes:
        done: how many tasks of the last action had ended at the last check.
    """

    def __init__(
        self, context: SparkContext, name: str, show: Show, interrupted: threading.Event
    ) -> None:
        self._context = context
        self._name = name
        self._group = f"{name.replace(' ', '-')}-{uuid.uuid4().hex}"
        self._show = show
        self._interrupted = interrupted
        self.done = 0

    def run(
        self,
        progress: Progress,
        action: Callable[[], T],
        tick: Callable[[], object] = lambda: None,
    ) -> T:
        """Run one action; `progress` is shown, and if it has a total, counted up by tasks.

        `tick` is called several times a second meanwhile; the action is cancelled if it raises.

        Raises:
            SparkJobError: Spark gave up; the message summarises its reasons.
            KeyboardInterrupt: Ctrl-C; the action was cancelled.
        """
        results: list[T] = []
        problems: list[Exception] = []
        ended = threading.Event()

        def work() -> None:
            try:
                self._context.setJobGroup(self._group, self._name)
                results.append(action())
            except Exception as error:
                problems.append(error)
            finally:
                ended.set()

        counts = progress.total > 0 and progress.done == 0
        before = self._finished() if counts else 0
        self.done = progress.done
        self._show(progress)
        InheritableThread(target=work, name=self._name, daemon=True).start()
        try:
            while not ended.wait(_POLL_SECONDS):
                tick()
                if self._interrupted.is_set():
                    # It may come before the action starts, so cancelling once is not enough.
                    self._context.cancelJobGroup(self._group)
                if counts:
                    self.done = max(self.done, min(self._finished() - before, progress.total))
                    self._show(Progress(progress.step, self.done, progress.total))
        finally:
            if not ended.is_set():
                self._context.cancelJobGroup(self._group)
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        if problems:
            # As text: Py4J's errors ask the JVM for their message, and it may be gone later.
            raise SparkJobError(_gist(problems[0])) from RuntimeError(str(problems[0]))
        return results[0]

    def _finished(self) -> int:
        """How many tasks have succeeded; 0 once the JVM is gone, which the action will report."""
        try:
            tracker = self._context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            return sum(stage.numCompletedTasks for stage in stages if stage)
        except Exception:  # Py4J's errors have no common root but this.
            return 0


@contextmanager
def started_job(context: SparkContext, name: str, show: Show) -> Iterator[Job]:
    """A job whose actions Ctrl-C cancels; a second Ctrl-C acts at once."""
    with interrupts_held() as interrupted:
        yield Job(context, name, show, interrupted)


def _gist(error: Exception) -> str:
    """The sentence within Spark's report of a task that failed repeatedly."""
    text = str(error)
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return "its JVM died (killed, or out of memory?)."
    # The JVM's message depends on what it was doing when the Python process died.
    if any(sign in text for sign in _WORKER_DIED):
        return "the processes of a part died again and again (killed, or out of memory?)."
    # A Python traceback ends with the error; the JVM's traceback follows it.
    lines = re.split(r"\n\s+at |\nDriver stacktrace", text.partition("Traceback")[2] or text)[0]
    # Our own errors are sentences; of others, the class is the most informative part.
    said = [line.strip() for line in lines.strip().splitlines()]
    telling = [line for line in said if not line.startswith("SQLSTATE:")] or said
    last = _OURS.sub("", telling[-1])
    return last.rstrip(".") + "."
