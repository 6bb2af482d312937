"""Five queries of TPC-H kept by recipes, as in `examples/tpch`: changes a second, equal answers.

    load      all rows are there, and two worker processes with one thread answer them
    RF1       orders are inserted with their lines while both workers run, until nothing is pending
    RF2       orders are deleted likewise

After each of them all answers are equal to those of Spark, which reads the base tables at the same
timestamp. Everything is on LMDB with relaxed durability.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

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
from benchmarks.postgres import PeerError
from benchmarks.tpch import generate
from percola import Repository
from percola.observers.reports import read_reports
from percola.recipes import check
from percola.spark import OnSpark, spark_session

EXAMPLE: Final = Path(__file__).resolve().parents[1] / "examples" / "tpch"
WORKERS: Final = 2
_WAIT_SECONDS: Final = 7_200


@contextmanager
def _workers(folder: Path, repo: Repository) -> Iterator[subprocess.Popen[bytes]]:
    """Two worker processes, which have begun to work when the block begins; their parent."""
    before = read_reports(repo.context.store).keys()
    words = [sys.executable, "-m", "percola.cli", "--repo", str(folder), "worker"]
    words += ["queries:OBSERVERS", "--threads", "1", "--processes", str(WORKERS)]
    words += ["--durability", "relaxed"]
    running = subprocess.Popen(words, cwd=EXAMPLE, stdout=subprocess.DEVNULL)
    try:
        _wait(lambda: len(read_reports(repo.context.store).keys() - before) >= WORKERS, running)
        yield running
    finally:
        running.terminate()
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _wait(done: Callable[[], bool], workers: subprocess.Popen[bytes]) -> None:
    began = time.perf_counter()
    while not done():
        if workers.poll() is not None:
            raise PeerError(
                f"The workers have ended with exit code {workers.returncode}; their error is above."
            )
        if time.perf_counter() > began + _WAIT_SECONDS:
            raise PeerError(f"The workers had not finished after {_WAIT_SECONDS} s.")
        time.sleep(0.05)


def run(console: Console, *, quick: bool) -> None:
    """Load, change, compare after each step, print a table, keep the figures."""
    sys.path.append(str(EXAMPLE))
    compare, load, queries, refresh = map(
        importlib.import_module, ("compare", "load", "queries", "refresh")
    )
    scale, orders = (0.002, 150) if quick else (0.1, 1_500)
    figures: dict[str, Any] = {"conditions": conditions(), "scale": scale, "orders": orders}
    grid = Grid("step", "rows", "seconds", "rows/s", "answers")
    for column in grid.columns[1:4]:
        column.justify = "right"

    with temporary_folder() as folder:
        place = folder / "repo"
        data = generate(folder / "data", scale)
        config = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "4"}
        with (
            percola.open(place, queries.SCHEMA, durability="relaxed") as repo,
            spark_session("local[2]", app="benchmark", config=config) as spark,
        ):

            def measure(
                name: str,
                change: Callable[[], int],
                began: float,
                workers: subprocess.Popen[bytes],
            ) -> None:
                with console.status(f"TPC-H by recipes: {name} …"):
                    rows = change()
                    _wait(repo.is_idle, workers)
                    seconds = time.perf_counter() - began
                    lines = compare.compare(spark, repo)
                if wrong := [line for line in lines if not line.endswith("equal")]:
                    raise PeerError(f"After {name}: {wrong[0][:1000]}")
                figures[name] = {"rows": rows, "seconds": seconds}
                rate = f"{rows / seconds:,.0f}"
                console.print(f"{name}: {rows:,} rows, {rate} a second, all answers equal")
                grid.add_row(name, f"{rows:,}", f"{seconds:,.1f}", rate, f"{len(lines)} equal")

            loaded = load.load(repo, data)
            began = time.perf_counter()  # Both start meanwhile, and the first one works already.
            with _workers(place, repo) as workers:
                measure("load", lambda: loaded, began, workers)
                for name, change in (("RF1", refresh.insert), ("RF2", refresh.delete)):
                    measure(name, partial(change, repo, orders), time.perf_counter(), workers)
            for name, runner in (("check", None), ("check on Spark", OnSpark(spark, repo))):
                more: Any = {} if runner is None else {"runner": runner}
                began = time.perf_counter()
                with console.status(f"TPC-H by recipes: {name} …"):
                    wrong = check(repo, queries.RECIPES, **more)
                if wrong:
                    raise PeerError(f"{len(wrong)} results are wrong; the first: {wrong[0]}")
                figures[name] = {"seconds": time.perf_counter() - began}
                grid.add_row(name, "", f"{figures[name]['seconds']:,.1f}", "", "no differences")
    console.print(grid)
    console.print(conditions_line(figures["conditions"]))
    write_json(output_name("tpch_recipes", quick=quick), figures)
