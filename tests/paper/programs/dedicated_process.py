"""A worker whose observer runs on a dedicated thread, in a process of its own.

Argument: the repository's folder. It prints "ready" before it begins to work. The observer writes
which process has run it, and how often it was run.
"""

from __future__ import annotations

import os
import sys

import percola
from percola import Transaction, Worker, observer
from percola.schema import Table

totals = Table("totals")
changed = totals.weak_column("changed")
by = totals.column("by", int)
times = totals.column("times", int)


@observer(changed, dedicated=True)
def export(t: Transaction, row: str) -> None:
    t.set(by, row, os.getpid())
    t.set(times, row, (t.get(times, row) or 0) + 1)


def main(folder: str) -> None:
    with percola.open(folder, schema=[totals]) as repo:
        worker = Worker(repo, [export], threads=1, rescan=0.05)
        print("ready", flush=True)
        worker.run()


if __name__ == "__main__":
    main(sys.argv[1])
