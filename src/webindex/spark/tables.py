"""§2.4: the tables of the web index as Spark data frames, for jobs that read a whole snapshot.

The caller of such a job holds a snapshot at that timestamp until the job has ended, so garbage
collection does not remove what it reads. The frames themselves protect no versions, as nothing
would release them.
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
    """A table at a timestamp, as a data frame that about `parts` tasks read.

    Args:
        schema: the columns to read and their types, as a Spark schema string.
        columns: the columns besides the row's key, if there is no schema. They have their default
            types: text for JSON, maps for families.

    Rows that have none of the columns are left out. Raises PySparkException with Percola's error
    message.
    """
    reader = spark.read.format("percola").options(
        table=table.name, snapshot=at, partitions=parts, holdSeconds=0
    )
    if schema is None:
        return reader.option("columns", json.dumps(list(columns))).load(address)
    return reader.schema(schema).load(address)
