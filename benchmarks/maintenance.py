"""Maintenance of whole tables: rows a second of one process and of Spark with two cores.

Each step runs in a process of its own, on a repository that nobody has touched since it was filled:
in a folder, then from the folder to HBase and there. What Spark takes to start does not count.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table as Grid

import percola
from benchmarks.measure import (
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from benchmarks.servers import OracleProcess, small_cluster
from percola import Table, Transaction, observer
from percola.maintenance.check import Counts, check
from percola.maintenance.copy import copy_repository
from percola.observers.rerun import rerun
from percola.ranges import HERE, Runner
from percola.spark import OnSpark, spark_context

_docs = Table("docs", feed=True)
_text = _docs.column("text", str, observed=True)
_size = _docs.column("size", int)

MASTER: Final = "local[2]"
STEPS: Final = ("check", "copy", "gc", "rerun")
_FEWER: Final = 5
_PADDING: Final = "x" * 80


@observer(_text)
def measure_text(t: Transaction, row: str) -> None:
    """Never runs: its rows are only marked."""
    text = t.get(_text, row)
    t.set(_size, row, len(text or ""))


def fill(folder: Path, rows: int) -> None:
    """Rows of some 100 bytes in two cells, of which one has an older version."""
    with percola.open(folder, [_docs], durability="relaxed") as repo:
        for version in range(2):
            for first in range(0, rows, 2000):
                with repo.transaction(notify=False) as t:
                    for at in range(first, min(rows, first + 2000)):
                        row = f"{at % 251:03}/{at:09}"
                        t.set(_size, row, version)
                        if version:
                            t.set(_text, row, f"{at:09}{_PADDING}")


# --- One step, in a process of its own ----------------------------------------------------


def step(name: str, address: str, target: str, runner: Runner) -> int:
    """Do it; the number of rows that it was about."""
    with percola.open(address, create=False) as repo:
        if name == "check":
            counts = Counts()
            if found := list(check(repo, counts=counts, runner=runner)):
                raise percola.PercolaError(f"The repository is damaged: {found[0].message}")
            return counts.rows
        if name == "copy":
            return copy_repository(repo, target, runner=runner).rows
        if name == "rerun":
            return rerun(repo, measure_text, runner=runner).rows
        return repo.collect_garbage(retention=0, runner=runner).versions


def main(name: str, address: str, target: str, master: str) -> None:
    """Do it once, and print how many rows it was about and the seconds."""
    with ExitStack() as stack:
        runner: Runner = HERE
        if master:
            context = stack.enter_context(spark_context(master, app="maintenance"))
            context.parallelize(range(2), 2).map(_nothing).count()  # Processes for tasks start.
            runner = OnSpark(context, address)
        began = time.perf_counter()
        rows = step(name, address, target, runner)
        print(json.dumps({"rows": rows, "seconds": time.perf_counter() - began}))


def _nothing(number: int) -> int:
    return number


def _rate(name: str, address: str, target: str, rows: int, *, spark: bool) -> float:
    """Rows a second of a step, in a new process. PercolaError unless it was about all rows."""
    line = [sys.executable, "-m", "benchmarks.maintenance", name, address, target]
    done = subprocess.run(
        [*line, MASTER if spark else ""], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise percola.PercolaError(f"{name} of {address} ended with status {done.returncode}.")
    found = json.loads(done.stdout)
    if found["rows"] != rows:
        where = f"by Spark of {address}" if spark else f"of {address}"
        raise percola.PercolaError(
            f"{name} {where} was about {found['rows']:,} rows, and there are {rows:,}."
        )
    return float(found["rows"] / found["seconds"])


# --- The measurement ----------------------------------------------------------------------


def run(console: Console, *, quick: bool) -> None:
    """Run every step alone and on Spark, and print and keep the figures."""
    rows = 20_000 if quick else 200_000
    found = conditions()
    figures: dict[str, dict[str, float]] = {}
    grid = Grid("maintenance", "one process, rows/s", f"Spark {MASTER}, rows/s", "ratio")

    def add(what: str, alone: float, spark: float) -> None:
        figures[what] = {"alone": alone, "spark": spark}
        grid.add_row(what, f"{alone:,.0f}", f"{spark:,.0f}", f"{spark / alone:.2f}")

    with temporary_folder() as folder:
        filled = folder / "filled"
        fill(filled, rows)
        for name in STEPS:
            rates = []
            for spark in (False, True):
                shutil.copytree(filled, folder / "used")
                used, target = str(folder / "used"), str(folder / "target")
                rates.append(_rate(name, used, target, rows, spark=spark))
                for one in ("used", "target"):
                    shutil.rmtree(folder / one, ignore_errors=True)
            add(f"{name}, LMDB{' to LMDB' if name == 'copy' else ''}", *rates)
        with small_cluster(folder / "cluster") as cluster, ExitStack() as stack:
            fewer, few = folder / "fewer", rows // _FEWER
            fill(fewer, few)
            addresses = []
            for name in ("warm", "alone", "spark"):
                store = f"{cluster.address}_{name}"
                oracle = stack.enter_context(OracleProcess(store))
                addresses.append(f"{store}?oracle={oracle.address}")
            # The servers' Java has just started: the first copy is for its compilers.
            _rate("copy", str(fewer), addresses.pop(0), few, spark=False)
            turns = list(zip(addresses, (False, True), strict=True))
            add(
                "copy, LMDB to HBase",
                *(_rate("copy", str(fewer), address, few, spark=spark) for address, spark in turns),
            )
            # Each on the copy of its own: once all rows are marked, to mark them is other work.
            for name in ("check", "rerun"):
                add(
                    f"{name}, HBase",
                    *(_rate(name, address, "", few, spark=spark) for address, spark in turns),
                )
    console.print(grid)
    console.print(f"{rows:,} rows, {rows // _FEWER:,} on HBase. On {conditions_line(found)}.")
    write_json(
        output_name("maintenance", quick=quick),
        {"conditions": found, "rows": rows, "figures": figures},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
