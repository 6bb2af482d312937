"""The nightly job: the summary of each category and the deals, computed from all prices."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f


def current(prices: DataFrame) -> DataFrame:
    """The newest price of each product, and the one before it."""
    by_day = Window.partitionBy("product").orderBy("day")
    newest = Window.partitionBy("product").orderBy(f.desc("day"))
    return (
        prices.withColumn("before", f.lag("price").over(by_day))
        .withColumn("age", f.row_number().over(newest))
        .where("age = 1")
        .drop("age")
    )


def categories(prices: DataFrame) -> DataFrame:
    """The number of products of each category, the sum of their prices, and the lowest."""
    return (
        current(prices)
        .where("category is not null")
        .groupBy("category")
        .agg(
            f.count("*").alias("products"),
            f.sum("price").alias("price"),
            f.min("price").alias("lowest"),
        )
    )


def deals(prices: DataFrame) -> DataFrame:
    """The products whose last change of price was a reduction by a fifth or more, in percent."""
    percent = f.expr("(before - price) * 100 div before")
    return (
        current(prices)
        .where("before is not null")
        .withColumn("percent", percent)
        .where("percent >= 20")
        .select("product", "category", "percent")
    )


if __name__ == "__main__":
    # The default of 200 partitions is for tables much larger than this one.
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", 4)
    spark = builder.master("local[2]").getOrCreate()
    prices = spark.read.parquet("prices.parquet")
    for row in categories(prices).orderBy("category").collect():
        print(f"{row.category}: {row.products:,} products, {row.price:,} in all, from {row.lowest}")
    print(f"{deals(prices).count():,} deals")
    spark.stop()
