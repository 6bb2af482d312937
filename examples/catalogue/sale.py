"""Reduce the games of the last day by a quarter, in SQL: one transaction, which observers see."""

from __future__ import annotations

from pyspark.sql import SparkSession

import percola.spark

if __name__ == "__main__":
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", 4).master("local[2]")
    spark = percola.spark.configure(builder, catalogs={"shop": "./shop"}).getOrCreate()
    reduced = "category = 'games' AND day = DATE '2026-11-15'"
    count = spark.sql(f"SELECT count(*) FROM shop.prices WHERE {reduced}").first()[0]
    spark.sql(
        f"UPDATE shop.prices SET price = CAST(price * 0.75 AS decimal(12, 2)) WHERE {reduced}"
    )
    print(f"{count:,} prices reduced")
    spark.stop()
