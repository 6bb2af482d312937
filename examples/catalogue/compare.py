"""Compare the derived tables with what the nightly job computes from the same prices."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import nightly
import percola.spark


def differing(left: DataFrame, right: DataFrame) -> int:
    """The number of rows that only one of two frames has."""
    return left.exceptAll(right).count() + right.exceptAll(left).count()


if __name__ == "__main__":
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", 4).master("local[2]")
    spark = percola.spark.configure(builder).getOrCreate()

    def table(name: str) -> DataFrame:
        return spark.read.format("percola").option("table", name).load("./shop")

    day = f.split_part("row", f.lit("/"), f.lit(2))
    product = f.split_part("row", f.lit("/"), f.lit(1))
    prices = table("prices").select(product.alias("product"), "category", day.alias("day"), "cents")

    summary = nightly.categories(prices).select("category", "products", "cents")
    kept = table("by_category").select("row", "count", "cents")
    print("categories that differ:", differing(kept, summary))
    deals = nightly.deals(prices).select("product", "percent")
    print("deals that differ:", differing(table("deals").select("row", "percent"), deals))
    spark.stop()
