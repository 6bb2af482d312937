"""Compare the derived tables with what the nightly job computes from the same prices, by SQL."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

import nightly
import percola.spark


def differing(left: DataFrame, right: DataFrame) -> int:
    """The number of rows that only one of two frames has."""
    return left.exceptAll(right).count() + right.exceptAll(left).count()


if __name__ == "__main__":
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", 4).master("local[2]")
    spark = percola.spark.configure(builder, catalogs={"shop": "./shop"}).getOrCreate()
    prices = spark.sql(
        "SELECT split_part(row, '/', 1) AS product, category, day, price FROM shop.prices"
    )
    current = nightly.current(prices).select("product", "category", "day", "price", "before")
    kept = spark.sql("SELECT row, category, day, price, before FROM shop.products")
    print(f"products that differ: {differing(kept, current)} of {kept.count():,}")
    summary = nightly.categories(prices).select("category", "products", "price")
    kept = spark.sql("SELECT row, count, price FROM shop.by_category")
    print("categories that differ:", differing(kept, summary))
    deals = nightly.deals(prices).select("product", "percent")
    kept = spark.sql("SELECT row, percent FROM shop.deals")
    print(f"deals that differ: {differing(kept, deals)} of {kept.count():,}")
    spark.stop()
