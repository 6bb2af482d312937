"""Recipes under kill -9: after each round Spark computes the same from the source.

Four worker processes answer inserts, updates and deletes in random order while they are killed and
started again. At rest every derived table equals what Spark computes from the source tables.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import percola
from percola.recipes import check

PROGRAM = Path(__file__).parent / "programs"
KILLS = int(os.environ.get("KILLS", "12"))  # `make crash`: 50
WORKERS = 4
ROUNDS = 2
ORDERS = 300
PRODUCTS = 12


class Workers:
    """Worker processes of the shop, each of which is replaced when it is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = [self._start() for _ in range(WORKERS)]
        self.kills = 0

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "percola.cli", "--repo", str(self._folder)]
        words += ["worker", "recipes_shop:OBSERVERS", "--threads", "1"]
        environment = {**os.environ, "PYTHONPATH": str(PROGRAM)}
        return subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)

    def kill_one(self, rng: random.Random) -> None:
        """Kill one with SIGKILL, and start another."""
        number = rng.randrange(WORKERS)
        self._running[number].send_signal(signal.SIGKILL)
        assert self._running[number].wait() == -signal.SIGKILL, "it was alive until then"
        self.kills += 1
        self._running[number] = self._start()

    def end(self) -> None:
        for one in self._running:
            one.kill()
            one.wait()


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(PROGRAM))
    import recipes_shop

    yield recipes_shop
    sys.modules.pop("recipes_shop")


def write(repo: percola.Repository, shop: Any, rng: random.Random, stop: threading.Event) -> None:
    """Insert, update and delete in random order until told to stop."""
    while not stop.is_set():

        def change(t: percola.Transaction) -> None:
            order, product = f"o{rng.randrange(ORDERS):03}", f"p{rng.randrange(PRODUCTS):02}"
            what = rng.random()
            if what < 0.55:
                t.set(shop.product, order, product)
                t.set(shop.pieces, order, rng.randint(1, 9))
                t.set(shop.customer, order, f"c{rng.randrange(6)}")
            elif what < 0.75:
                t.delete(shop.pieces, order)
            elif what < 0.95:
                t.set(shop.cents, product, rng.randint(1, 999))
                t.set(shop.category, product, f"k{rng.randrange(3)}")
            else:
                t.delete(shop.cents, product)

        repo.run(change)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.long
def test_derived_tables_equal_sparks_own_answer_after_every_round_of_kills(
    spark: SparkSession, tmp_path: Path, shop: Any, wait_until: Any
) -> None:
    folder = tmp_path / "shop"
    rng = random.Random(20101004)

    def table(name: str, columns: str) -> DataFrame:
        reader = spark.read.format("percola").option("table", name)
        return reader.option("columns", columns).load(str(folder))

    with percola.open(folder, shop.SCHEMA, durability="relaxed") as repo:
        workers = Workers(folder)
        with contextlib.ExitStack() as stack:
            stack.callback(workers.end)
            for _ in range(ROUNDS):
                stop = threading.Event()
                writer = threading.Thread(target=write, args=(repo, shop, rng, stop))
                writer.start()
                killer = random.Random(workers.kills)
                try:
                    before = workers.kills
                    while workers.kills < before + KILLS // ROUNDS:
                        seen = repo.snapshot().start_ts
                        # Each worker lives until some hundred transactions have been committed.
                        wait_until(lambda seen=seen: repo.snapshot().start_ts > seen + 400)
                        workers.kill_one(killer)
                finally:
                    stop.set()
                    writer.join()
                percola.Worker(repo, shop.OBSERVERS, threads=1).run_until_idle()
                assert check(repo, shop.RECIPES) == []
                compare(table, repo, shop)
        assert workers.kills == KILLS


def compare(table: Any, repo: percola.Repository, shop: Any) -> None:
    """Compare every derived table with what Spark computes from the sources."""
    orders = table("orders", "customer,product,pieces").where("pieces is not null")
    products = table("products", "category,cents").where("cents is not null")

    kilos = F.col("pieces").cast("decimal(10, 0)") * F.lit(shop.KILOS)
    expected = orders.groupBy("customer").agg(F.count("*"), F.sum("pieces"), F.sum(kilos))
    found = table("ordered", "count,pieces,kilos").select("row", "count", "pieces", "kilos")
    assert rows(expected) == rows(found)
    assert len(rows(found)) == 6

    expected = orders.groupBy("product").agg(F.countDistinct("customer"))
    assert rows(expected) == rows(table("buyers", "count").select("row", "count"))

    joined = orders.withColumnRenamed("row", "order").join(
        products, orders["product"] == products["row"]
    )
    expected = joined.groupBy("category").agg(
        F.count("*"), F.sum(F.col("pieces") * F.col("cents")).cast("long")
    )
    assert rows(expected) == rows(table("turnover", "count,cents").select("row", "count", "cents"))

    now = repo.snapshot()
    expected = products.groupBy("category").agg(F.min(F.struct("cents", "row")).alias("best"))
    for category, (cents, name) in rows(expected):
        assert shop.cheapest.get(now, category) == [cents, name]
