"""Load the Parquet table into the repository, once: from then on, prices are written to it."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import percola
import percola.spark
from catalogue import SCHEMA

if __name__ == "__main__":
    percola.open("./shop", schema=SCHEMA).close()
    builder = SparkSession.builder.master("local[2]")
    spark = percola.spark.configure(builder).getOrCreate()
    frame = spark.read.parquet("prices.parquet").select(
        f.concat_ws("/", "product", "day").alias("row"), "category", "day", "price"
    )
    frame.write.format("percola").option("table", "prices").mode("append").save("./shop")
    print(f"{frame.count():,} prices loaded")
    spark.stop()
