"""§2.4 Table metadata for the catalog: the data source's answers to the option `describe`.

Without a job, a Python data source can return only one thing to the JVM: the schema of a frame.
So the answer is encoded as a schema, which `io.percola.spark.Source` decodes:

    describe=repository   a field for each table
    describe=table        one field: its type is the table's schema, its metadata has the snapshot,
                          and rows and bytes where they are known (`catalog.statistics`); none if
                          the repository has no such table
    an error              one field whose metadata has the error message
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import NullType, StructField, StructType

from percola.errors import PercolaError, UnknownTableError
from percola.spark.catalog.statistics import estimate
from percola.spark.options import READ, Options
from percola.spark.read.snapshot import HOLD_SECONDS, frame_schema, snapshot_timestamp
from percola.transactions.jobs.job_row import JOBS

DESCRIBE: Final = "describe"


def is_question(options: Mapping[str, str]) -> bool:
    """Whether the options request a description instead of a frame."""
    return any(name.lower() == DESCRIBE for name in options)


def describe(given: Mapping[str, str]) -> StructType:
    """The answer to the option `describe`; see the module docstring."""
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
    # The repository stays open for `frame_schema`, which then shares this process's connection.
    with options.open() as repository:
        ts = snapshot_timestamp(repository, options)
        # The query is planned and read later: a retention hold protects its timestamp until then.
        # Named by what it holds, so that queries of an unchanged repository share one.
        seconds = options.seconds("holdSeconds", HOLD_SECONDS)
        found, ts = frame_schema(options, ts, f"query-{ts}-{seconds:g}")
        size = estimate(repository.context.store, options.table_name, ts)
    row, *columns = found.fields
    schema = StructType([StructField(row.name, row.dataType, nullable=False), *columns])
    known = {name: value for name, value in size._asdict().items() if value is not None}
    return StructType([StructField("table", schema, metadata={"snapshot": ts, **known})])
