"""§2.4 TPC-H through the catalog: the answers of all 22 queries are those of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from catalogs import new_catalog
from needs import lack, need
from pyspark.sql import SparkSession

from benchmarks import tpch
from benchmarks.postgres import PeerError
from benchmarks.tpch_queries import QUERIES

SCALE = 0.01
SHUFFLES = "spark.sql.shuffle.partitions"


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    need("index")
    try:
        data = tpch.generate(tmp_path / "data", SCALE)
    except PeerError as error:
        lack("index", str(error))
    catalog = new_catalog(spark, str(tmp_path / "repo"))
    before = spark.conf.get(SHUFFLES, "200") or ""
    spark.conf.set(SHUFFLES, "2")
    tpch.load(spark, catalog, data, tmp_path / "repo")
    yield catalog
    tpch.drop(spark)
    spark.conf.set(SHUFFLES, before)


def wrong(spark: SparkSession, number: int) -> str | None:
    """What is different in Percola's answer to a query."""
    both = [tpch.answer(spark, one, number, SCALE) for one in (tpch.PARQUET, tpch.PERCOLA)]
    assert both[0].rows, f"nothing is compared by Q{number}"
    return tpch.difference(number, *both)


@pytest.mark.long  # Loads 86,000 rows, and runs 44 queries.
@pytest.mark.timeout(900)
def test_all_queries_of_tpch_are_answered_as_from_parquet(
    spark: SparkSession, catalog: str
) -> None:
    assert [found for number in QUERIES if (found := wrong(spark, number)) is not None] == []

    # One of 481,400 cells of lineitem, by a cent.
    spark.sql(
        f"UPDATE {catalog}.lineitem SET l_extendedprice = l_extendedprice + 0.01 "
        "WHERE row = '0000000001/0000000001'"
    )
    found = wrong(spark, 1)
    assert found is not None, "a value was altered, and Q1 is said to be equal"
    assert found.startswith("Q1: row ")
    assert wrong(spark, 13) is None  # Of customers and orders only.
