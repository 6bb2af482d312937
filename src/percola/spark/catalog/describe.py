"""§2.4 What the catalog's tables are: the answers of the data source to its option `describe`.

A Python data source can tell the JVM only one thing without a job: the schema of a frame. So the
answer is one, made to be read by `io.percola.spark.Source`:

    describe=repository   a field for each table
    describe=table        one field: its type is the table's schema, its metadata has the snapshot;
                          none if the repository has no such table
    a mistake             one field whose metadata has the error's sentence
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import NullType, StructField, StructType

from percola.errors import PercolaError, UnknownTableError
from percola.spark.columns import fields_of
from percola.spark.options import READ, Options
from percola.spark.read.snapshot import frame_schema, snapshot_timestamp
from percola.transactions.jobs.job_row import JOBS

DESCRIBE: Final = "describe"


def is_question(options: Mapping[str, str]) -> bool:
    """Whether the options ask for a description instead of naming a frame."""
    return any(name.lower() == DESCRIBE for name in options)


def describe(given: Mapping[str, str]) -> StructType:
    """The answer to the question in the options; see the module's text."""
    try:
        options = Options(given)
        options.check_role(READ)
        if options[DESCRIBE] == "repository":
            return _repository(options)
        return _table(options)
    except UnknownTableError:
        return StructType([])
    except PercolaError as error:
        return StructType([StructField("error", NullType(), metadata={"error": str(error)})])


def _repository(options: Options) -> StructType:
    with options.open() as repository:
        names = [table.name for table in repository.schema if table.name != JOBS.name]
    return StructType([StructField(name, NullType()) for name in names])


def _table(options: Options) -> StructType:
    with options.open() as repository:
        table = options.table(repository)
        ts = snapshot_timestamp(repository, options)
        fields = fields_of(table, options.row_column).fields
    # The query plans later, and reads later still: until then its timestamp is protected.
    _, ts = frame_schema(options, ts, f"query-{uuid.uuid4().hex}")
    row, *columns = fields
    schema = StructType([StructField(row.name, row.dataType, nullable=False), *columns])
    return StructType([StructField("table", schema, metadata={"snapshot": ts})])
