"""A client of a recorded workload, in a process of its own.

Arguments: the repository's folder, the history's file, the client's name, "registers" or
"appends", how many transactions to commit (0: go on until killed). Once it has committed a few, and
in the middle of a transaction that writes the first row, it prints "begun" and waits for a line: of
clients that wait together, one commits. It prints "done" at the end.

    registers   reads some cells, locks, scans and deletes now and then, writes values of its own
    appends     reads some lists, and appends an element of its own to one or two of them

Every other transaction goes through both phases, the others commit in one step.
"""

from __future__ import annotations

import random
import sys

import percola
from percola import Table
from percola.codecs import JSON
from percola.errors import TransientError
from percola.testing.histories.recorder import RecordedTransaction, Recorder

t = Table("t")
register = t.column("register", str)
numbers = t.column("list", JSON)
TABLES = [t]
ROWS = [f"row {number}" for number in range(12)]


def registers(x: RecordedTransaction, rng: random.Random, element: str) -> None:
    """Reads and writes single cells in every way there is."""
    rows = rng.sample(ROWS, 4)
    if rng.random() < 0.2:
        list(x.scan(t, prefix="row 1", columns=[register]))
    x.get_many([(register, rows[0]), (register, rows[1])])
    x.get(register, rows[2])
    if rng.random() < 0.2:
        x.get_for_update(register, rows[3])
    for row in rows[: rng.randint(0, 2)]:
        if rng.random() < 0.1:
            x.delete(register, row)
        else:
            x.set(register, row, f"{element} begun")
            x.get(register, row)
            x.set(register, row, element)


def appends(x: RecordedTransaction, rng: random.Random, element: str) -> None:
    """Reads lists and appends to them."""
    rows = rng.sample(ROWS, 3)
    for number, row in enumerate(rows):
        known = x.get(numbers, row) or []
        if number < rng.randint(0, 2):
            x.set(numbers, row, [*known, element])


def meet(x: RecordedTransaction, workload: str, element: str) -> None:
    """Writes a cell that all clients write, when told to."""
    column = register if workload == "registers" else numbers
    known = x.get(column, ROWS[0]) or []
    print("begun", flush=True)
    sys.stdin.readline()
    x.set(column, ROWS[0], element if workload == "registers" else [*known, element])


WORKLOADS = {"registers": registers, "appends": appends}


def main(folder: str, path: str, name: str, workload: str, count: int) -> None:
    """Commit `count` transactions, or go on for ever."""
    repo = percola.open(folder, schema=TABLES)
    rng = random.Random(name)
    work = WORKLOADS[workload]
    with Recorder(name, path=path) as recorder:
        done = tried = 0
        has_met = False
        while not count or done < count:
            tried += 1
            meets = done >= 20 and not has_met
            has_met = has_met or meets
            try:
                with recorder.transaction(repo, two_phase=tried % 2 == 0) as x:
                    if meets:
                        meet(x, workload, f"{name}-{tried}")
                    else:
                        work(x, rng, f"{name}-{tried}")
                done += 1
            except TransientError:
                continue
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
