"""§2.4 What a Spark session of one's own needs to use Percola: two lines, and both are optional.

`spark.read.format("percola")` is found without any of this where `percola` is installed beside
PySpark (`pyspark_percola`). What is left is what a session has to be told when it is built.
"""

from __future__ import annotations

from typing import Final, TypeVar

from pyspark.sql import SparkSession

B = TypeVar("B", SparkSession.Builder, SparkSession)

SETTINGS: Final = {
    # Without it, Spark refuses a reader with the option pushFilters.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def configure(target: B) -> B:
    """Set a session up for Percola: one that is being built, or one that is there.

        spark = percola.spark.configure(SparkSession.builder).getOrCreate()

    Filters may then be handed down (the option pushFilters). A session that is there also gets
    the data source registered, for where Spark does not find it by itself. Returns what it was
    given.
    """
    if isinstance(target, SparkSession.Builder):
        for name, value in SETTINGS.items():
            target.config(name, value)
        return target
    from percola.spark.source import PercolaDataSource  # It brings Arrow along.

    for name, value in SETTINGS.items():
        target.conf.set(name, value)
    target.dataSource.register(PercolaDataSource)
    return target
