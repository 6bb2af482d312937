"""§2.4: the tables of the web index as frames of Spark, for jobs that read all of it at one moment.

Whoever runs such a job has a snapshot at that moment until the job has ended, so garbage collection
does not overtake it. The frames themselves hold nothing back: nobody is left to release it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession

from percola import Table


def table_at(
    spark: SparkSession,
    address: str,
    table: Table[str],
    at: int,
    parts: int,
    *,
    schema: str | None = None,
    columns: Iterable[str] = (),
) -> DataFrame:
    """A table at a timestamp, as a frame that some `parts` tasks read.

    Args:
        schema: the columns that are wanted and their types, as Spark writes a schema.
        columns: the columns besides the row's key, if there is no schema. They have the types
            that they have by themselves: text for JSON, maps for families.

    Rows that have none of the columns are left out. Raises PySparkException, with what Percola has
    to say against it.
    """
    reader = spark.read.format("percola").options(
        table=table.name, snapshot=at, partitions=parts, holdSeconds=0
    )
    if schema is None:
        return reader.option("columns", json.dumps(list(columns))).load(address)
    return reader.schema(schema).load(address)
