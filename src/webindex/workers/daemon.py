"""§2.4: the process from which Spark forks the Python processes of a job's tasks.

PySpark's own daemon has imported nothing when it forks, so every process imports everything again,
and a job has dozens of them. After each task they also run garbage collection over all imported
objects, which takes longer than most tasks. This daemon imports the modules before forking, and
excludes them from collections.

`spark.python.daemon.module` names this module, in sessions that a job starts for itself.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Final

from pyspark import daemon

_TASKS: Final = "pyspark.worker"
_IMPORTED: Final = (
    "pyspark_percola",
    "webindex.batch.verify",
    "webindex.load.tasks",
    "webindex.ranking.job",
)


def main() -> None:
    """Import what the processes will need, and serve as PySpark's daemon until Spark ends."""
    role = sys.argv[1]
    for module in (role, *(_IMPORTED if role == _TASKS else ())):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
