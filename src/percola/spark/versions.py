"""§2.4 What the installed PySpark has: Percola works with 4.1 and newer, and asks by feature.

    read limits   latestOffset(start, limit), Trigger.AvailableNow    4.2: stream/limited.py
                  latestOffset()                                      4.1: stream/unlimited.py
    time zones    to_arrow_schema(timezone=…)                         4.2; always UTC in 4.1

Managed platforms choose the version. What one lacks is refused with a sentence that names it. This
module is light: Spark imports it where it looks for data sources.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql import datasource

from percola.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

READ_LIMITS: Final = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")
"""Whether Spark tells a stream's reader where a batch begins and how much may be in it."""

_OLDEST: Final = "4.1"
_SINCE_OLDEST: Final = ("DataSourceArrowWriter", "DataSourceStreamArrowWriter", "Filter")


class SparkTooOldError(UsageError):
    """The installed PySpark lacks something that was asked for."""


def check_version() -> None:
    """Raise SparkTooOldError if the installed PySpark is older than all that Percola works with."""
    if not all(hasattr(datasource, name) for name in _SINCE_OLDEST):
        raise SparkTooOldError(
            f"Percola needs PySpark {_OLDEST} or newer, and this is {pyspark.__version__}: install "
            "a newer one, or choose a newer runtime of the platform."
        )


def check_read_limits(what: str, instead: str) -> None:
    """Raise SparkTooOldError if this PySpark has no limits for the batches of a stream.

    Args:
        what: the subject of the sentence, which needs them.
        instead: what to do with this version.
    """
    if not READ_LIMITS:
        raise SparkTooOldError(
            f"{what} needs PySpark 4.2 or newer, and this is {pyspark.__version__}: {instead}"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a reader's batches."""
    from pyspark.sql.pandas.types import to_arrow_schema  # It imports pandas.

    return to_arrow_schema(schema, **_in_utc())


@functools.cache
def _in_utc() -> dict[str, Any]:
    from pyspark.sql.pandas.types import to_arrow_schema

    # Where it has no such argument, timestamps are in UTC.
    return (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
