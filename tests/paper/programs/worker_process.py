"""A worker in a process of its own.

Arguments: the repository's folder, "one-step" or "two-phase", what its observer does, seconds
between scans. It prints "ready" before it begins to work, and "stopped" when it was asked to stop
and has.

    tally   adds one to one of a few shared counters, and marks the page as done
    slow    prints "began", waits for a line on its standard input, and then writes
"""

from __future__ import annotations

import sys

import percola
from percola import Transaction, Worker, observer
from percola.schema import Table

pages = Table("pages")
body = pages.column("body", str, observed=True)
done = pages.column("done", int)
counters = Table("counters")
total = counters.column("total", int)
TABLES = [pages, counters]


@observer(body, name="work")
def tally(t: Transaction, row: str) -> None:
    bucket = row[-1]
    t.set(total, bucket, (t.get(total, bucket) or 0) + 1)
    t.set(done, row, (t.get(done, row) or 0) + 1)


@observer(body, name="work")
def slow(t: Transaction, row: str) -> None:
    print("began", flush=True)
    sys.stdin.readline()
    t.set(done, row, 1)


def main(folder: str, commit: str, what: str, rescan: float) -> None:
    repo = percola.open(folder, schema=TABLES, one_step=commit == "one-step")
    observers = {"tally": tally, "slow": slow}
    worker = Worker(repo, [observers[what]], threads=4, rescan=rescan)
    print("ready", flush=True)
    worker.run()
    repo.close()
    print("stopped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
