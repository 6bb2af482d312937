"""§2.4: whether two worker processes serve all tablets of a table on HBase, and how evenly.

A table is split into regions, and each of its rows is dirty at any time: the observer notifies it
again. Each row counts its runs by process; the sums by region show which process served which
regions. Scanners that always began at the start of a table, or that stayed where they found work,
would show here.

    python -m benchmarks.tablets set-up ADDRESS REGIONS ROWS      rows: of each region
    python -m benchmarks.tablets count ADDRESS                    {"regions": [[PID, …], …], …}
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

import percola
from benchmarks.fig10_bank import cut
from benchmarks.markdown import table
from benchmarks.measure import (
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from benchmarks.servers import ROOT, OracleProcess, reason
from percola import Table, Transaction, observer
from percola.devcluster import Cluster, jars

REGIONS: Final = 8
ROWS: Final = 25
"""Of each region."""
PROCESSES: Final = 2
THREADS: Final = 2
_RUNS: Final = "percola_observer_runs_total"
_DEADLINE: Final = 120.0

crowd = Table("crowd")
again = crowd.weak_column("again")
by = crowd.family("by", int)


@observer(again)
def serve(t: Transaction, row: str) -> None:
    """Count, and make the row dirty again."""
    mine = by[str(os.getpid())]
    t.set(mine, row, (t.get(mine, row) or 0) + 1)
    t.notify(again, row)


OBSERVERS: Final = [serve]


@dataclass(frozen=True, slots=True)
class Served:
    """How often rows were processed.

    Attributes:
        regions: for each region, in order of rows, by process.
        missed: rows that never were.
    """

    regions: list[dict[str, int]]
    missed: int

    @property
    def totals(self) -> list[int]:
        """The sum for each region, over all processes."""
        return [sum(one.values()) for one in self.regions]


# --- Before and after ---------------------------------------------------------------------


def _row(region: int, number: int) -> str:
    return f"{region:02}/{number:04}"


def set_up(address: str, regions: int, rows: int) -> None:
    """Create the table with that many regions, and make all of its rows dirty."""
    percola.open(address, [crowd]).close()
    cut(address, crowd.name, [_row(one, 0).encode() for one in range(1, regions)])
    with percola.open(address, [crowd]) as repo:
        for region in range(regions):
            with repo.transaction() as t:
                for number in range(rows):
                    t.notify(again, _row(region, number))


def count(address: str, rows: int) -> Served:
    """How often the rows were answered, of which each region has so many."""
    with percola.open(address, [crowd], create=False) as repo, repo.snapshot() as now:
        starts = [one.start for one in repo.context.store.tablets(crowd.name)]
        regions: list[Counter[str]] = [Counter() for _ in starts]
        seen = 0
        for row in now.scan(crowd):
            at = sum(start <= row.key.encode() for start in starts) - 1
            regions[at].update(row.family(by))
            seen += 1
    return Served([dict(one) for one in regions], len(starts) * rows - seen)


# --- Workers ------------------------------------------------------------------------------


@dataclass(eq=False)
class WorkerProcess:
    """A `percola worker` process that reports how often its observer has run."""

    process: subprocess.Popen[str]
    port: int

    def runs(self) -> int:
        """How often it was until now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as said:
            lines = said.read().decode().splitlines()
        return int(sum(float(one.split()[-1]) for one in lines if one.startswith(_RUNS)))

    def end(self) -> None:
        """Stop it, and wait until it has ended."""
        self.process.send_signal(signal.SIGTERM)
        if code := self.process.wait(_DEADLINE):
            raise percola.PercolaError(f"A worker has ended with the exit code {code}.")


@contextmanager
def worker(
    address: str, threads: int = THREADS, observers: str = "benchmarks.tablets:OBSERVERS"
) -> Iterator[WorkerProcess]:
    """A worker process for a `with` block, which starts once the worker runs."""
    sources = os.pathsep.join((str(ROOT), str(Path(percola.__file__).parents[1])))
    options = ("--threads", str(threads), "--metrics-port", "0")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "percola.cli", "--repo", address, "--json"),
            *("worker", observers, *options),
        ],
        env={**os.environ, "PYTHONPATH": sources},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline() or "{}")
            if "metrics_port" not in told:
                raise percola.PercolaError(f"A worker has ended at once: {reason(told)}")
            yield WorkerProcess(process, told["metrics_port"])
        finally:
            process.kill()


# --- The measurement ----------------------------------------------------------------------


def run(console: Console, *, quick: bool = False) -> None:
    """Measure, print the table, leave the figures."""
    jars.install_all()
    seconds = 10.0 if quick else 120.0
    found_conditions = conditions()
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        status = stack.enter_context(console.status("Tablets: starting HBase …"))
        cluster = stack.enter_context(Cluster(folder / "cluster", region_servers=2, data_nodes=1))
        oracle = stack.enter_context(OracleProcess(cluster.address))
        address = f"{cluster.address}?oracle={oracle.address}"
        _command("set-up", address, REGIONS, ROWS)
        workers = [stack.enter_context(worker(address)) for _ in range(PROCESSES)]
        status.update(f"Tablets: {PROCESSES} workers serve {REGIONS} regions …")
        time.sleep(seconds)  # The stretch of time is what is asked for.
        for one in workers:
            one.end()
        served = Served(**_command("count", address, ROWS))
    console.print(shown(served))
    console.print(conditions_line(found_conditions))
    figures = asdict(served) | {"seconds": seconds, "conditions": found_conditions}
    console.print(f"Figures: {write_json(output_name('tablets', quick=quick), figures)}")


def shown(served: Served) -> str:
    """The figures as a table, and the sentence that they come to."""
    totals, everybody = served.totals, sorted({who for one in served.regions for who in one})
    whole = sum(totals) or 1
    rows = [
        [f"{at}", f"{total:,}", f"{total / whole:.1%}", *(f"{one.get(w, 0):,}" for w in everybody)]
        for at, (one, total) in enumerate(zip(served.regions, totals, strict=True), 1)
    ]
    names = [f"process {number}" for number in range(1, len(everybody) + 1)]
    even = 1 / len(totals)
    return (
        table(["region", "runs", "share", *names], rows)
        + f"\n{whole:,} runs; an even share is {even:.1%}, the smallest was "
        f"{min(totals) / whole:.1%} and the largest {max(totals) / whole:.1%}. "
        f"{served.missed} rows were never served."
    )


def _command(*arguments: object) -> Any:
    """Run one of the commands below in a subprocess, so that this process does not start Java."""
    sources = os.pathsep.join((str(ROOT), str(Path(percola.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tablets", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise percola.PercolaError(f"'{arguments[0]}' failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands; its exit code."""
    match arguments:
        case ["set-up", address, regions, rows]:
            set_up(address, int(regions), int(rows))
            print("{}")
        case ["count", address, rows]:
            print(json.dumps(asdict(count(address, int(rows)))))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
