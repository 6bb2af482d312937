"""§2.4: the workers of the web index as Spark tasks: what `webindex work` runs by default.

With them the whole pipeline runs on Spark, on a cluster or on this machine. If no cluster is
named, a session is started with as many slots as there are workers: each keeps its slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from percola import Repository
from percola.spark import Fleet, JavaMissingError, run_workers, spark_context
from webindex.errors import WorkingError
from webindex.spark.jobs import for_tasks, reachable
from webindex.workers.processes import THREADS

_CONFIG: Final = {
    # The JVM only schedules tasks here: a quick start matters more than optimised code.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # glibc gives every thread its own arena; two are enough, and halve the memory.
    "spark.executorEnv.MALLOC_ARENA_MAX": "2",
    # These would run a worker twice, or remove its executor.
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
}


@contextmanager
def running_on_spark(
    repo: Repository, count: int, *, master: str | None = None, threads: int = THREADS
) -> Iterator[Fleet]:
    """Workers on Spark for the length of a block; a Spark session started here is stopped after it.

    Raises WorkingError without Java, SparkJobError for a repository that tasks cannot reach,
    PercolaError if Spark or the workers cannot be started.
    """
    place = reachable(repo)
    with ExitStack() as stack:
        try:
            context = stack.enter_context(
                spark_context(
                    master or f"local[{count}]",
                    app="webindex work",
                    config=_CONFIG | for_tasks(),
                )
            )
        except JavaMissingError as error:
            raise WorkingError(f"{error} Without it: --processes {count}.") from error
        yield stack.enter_context(
            run_workers(context, "webindex.main:observers", place, workers=count, threads=threads)
        )
