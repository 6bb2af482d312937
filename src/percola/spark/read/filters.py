"""§2.4 Filter pushdown, with the option `pushFilters`.

    row = 'a'   row IN (…)   row < 'b'   row LIKE 'p%'   become ranges of rows: the rest is not read
    size > 3    title = 'x'  tags IS NULL  …              run before other columns are decoded

Filters of the first kind are exact, and Spark does not evaluate them again: both sides compare keys
as bytes. Those of the second kind are sieves: Spark evaluates them again on the rows that pass, so
a sieve must never drop a row that Spark would keep. Where Arrow and Spark differ (a NaN is greater
than all numbers), the row passes.

A date or time of 1582-10-15 in a filter may have been another one: the Java classes in which Spark
hands it down have no day between 1582-10-04 and that one, and Spark takes the next that they have.
So filters with it, or with a day beside it because of zones, are left to Spark. So are those with
a decimal of as many digits as Python's default context has (28): PySpark makes the decimal by a
multiplication, which rounds a longer one to these.

Spark pushes filters down only if `spark.sql.python.filterPushdown.enabled` is set
(`percola.spark.configure` sets it), and otherwise refuses a reader that supports them.

Spark keeps the plan that `pushFilters` leads to with the relation, that is, with what one `load`
has returned. It uses it again, without asking, for scans of the relation that push nothing down,
and for all scans of one query: users have to load a table for each use.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import StringType

from percola import Column
from percola.codecs import Codec
from percola.spark.columns import Chosen, schema_of
from percola.spark.partitioning import Range, default_partitions
from percola.spark.read.scan import Sieve
from percola.spark.read.snapshot import TableReader
from percola.spark.sentences import errors_are_sentences
from percola.transactions.snapshot import after_prefix

_POINTS: Final = 64
"""How many ranges of a list justify a separate task."""

_SHIFTED: Final = date(1582, 10, 14), date(1582, 10, 16)

_COMPARISONS: Final[dict[type[Filter], str]] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


class FilteringReader(TableReader):
    """A `TableReader` that supports filter pushdown."""

    _ranges: list[Range] | None = None
    _filters: tuple[Filter, ...] = ()

    @errors_are_sentences
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Accept supported filters; return those that Spark must evaluate again."""
        low, high = self._range
        ranges = [Range(low, high or None)]
        left: list[Filter] = []
        for one in filters:
            named = row_ranges_of(one, self._options.row_column, self._row_codec)
            if named is None:
                left.append(one)
            else:
                ranges = intersected(ranges, named)
        if len(left) < len(filters):
            self._ranges = ranges
        self._filters = tuple(left)
        return left

    @errors_are_sentences
    def partitions(self) -> list[InputPartition]:
        """Ranges of rows: one is cut at tablets, several are distributed over the tasks."""
        if self._ranges is None:
            return super().partitions()
        if len(self._ranges) == 1:
            [(low, high)] = self._ranges
            self._range = low, high or b""
            return super().partitions() if high is None or low < high else []
        count = min(default_partitions(), max(1, len(self._ranges) // _POINTS))
        shares = [sorted(self._ranges[at::count]) for at in range(count)]
        with self._options.open() as repository:
            return self._held(
                repository,
                [[(low, high or b"") for low, high in share] for share in shares if share],
            )

    def _sieves(self, columns: Sequence[Chosen]) -> list[Sieve]:
        schema = schema_of(columns)
        found = []
        for at, one in enumerate(columns):
            for filter_ in self._filters:
                if _attribute(filter_) == one.name:
                    test = sieve_of(filter_, one, schema.field(at).type)
                    if test is not None:
                        found.append(Sieve(at, test))
        return found


def _attribute(filter_: Filter) -> str | None:
    """The name of the column that a filter tests; None for nested fields and other filters."""
    path: tuple[str, ...] = getattr(filter_, "attribute", ())
    return path[0] if len(path) == 1 else None


def _is_exact(filter_: Filter) -> bool:
    """Whether no date, time or decimal of a filter may have been another one in the query."""
    value: Any = getattr(filter_, "value", None)
    return not any(map(_may_differ, value if isinstance(filter_, In) else (value,)))


def _may_differ(value: Any) -> bool:
    if isinstance(value, decimal.Decimal):
        return len(value.as_tuple().digits) >= decimal.getcontext().prec
    day = value.date() if isinstance(value, datetime) else value
    return isinstance(day, date) and _SHIFTED[0] <= day <= _SHIFTED[1]


# --- Rows -----------------------------------------------------------------------------------


def row_ranges_of(
    filter_: Filter, row_name: str, codec: Codec[Any] | None = None
) -> list[Range] | None:
    """The ranges of rows that a filter of the row's key selects, in order; None for others.

    `codec` is that of the row's key; None for text and bytes.
    """
    if _attribute(filter_) != row_name or not _is_exact(filter_):
        return None
    if isinstance(filter_, IsNotNull):
        return [Range(b"", None)]
    if isinstance(filter_, IsNull):
        return []
    if isinstance(filter_, In):
        keys = [_key(value, codec) for value in filter_.value if value is not None]
        known = sorted({key for key in keys if key is not None})
        return [Range(key, key + b"\0") for key in known] if None not in keys else None
    key = _key(getattr(filter_, "value", None), codec)
    if key is None:
        return None
    if isinstance(filter_, StringStartsWith):
        return [Range(key, after_prefix(key) or None)]
    if isinstance(filter_, EqualTo):
        return [Range(key, key + b"\0")]
    if isinstance(filter_, GreaterThan):
        return [Range(key + b"\0", None)]
    if isinstance(filter_, GreaterThanOrEqual):
        return [Range(key, None)]
    if isinstance(filter_, LessThan):
        return [Range(b"", key)]
    if isinstance(filter_, LessThanOrEqual):
        return [Range(b"", key + b"\0")]
    return None


def _key(value: Any, codec: Codec[Any] | None) -> bytes | None:
    if codec is not None:
        try:
            return codec.encode(value)
        except (TypeError, ValueError, AttributeError):
            return None
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def intersected(some: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """The rows that are in a range of both; each is in order and without overlaps."""
    found = []
    a = b = 0
    while a < len(some) and b < len(others):
        low = max(some[a].start, others[b].start)
        ends = [end for end in (some[a].end, others[b].end) if end is not None]
        high = min(ends) if ends else None
        if high is None or low < high:
            found.append(Range(low, high))
        if some[a].end is not None and some[a].end == high:
            a += 1
        else:
            b += 1
    return found


# --- Columns --------------------------------------------------------------------------------


def sieve_of(
    filter_: Filter, one: Chosen, kind: pa.DataType
) -> Callable[[pa.Array], pa.Array] | None:
    """A function from a column's values to a filter's mask; None if it could drop too much."""
    if not isinstance(one.member, Column) or not _is_exact(filter_):
        return None
    if isinstance(filter_, IsNull):
        return lambda array: pc.is_null(array)
    if isinstance(filter_, IsNotNull):
        return lambda array: pc.is_valid(array)
    spark = one.field.dataType
    if isinstance(spark, StringType) and spark.collation != StringType().collation:
        return None  # Compared by a collation, not as bytes.
    if pa.types.is_nested(kind):
        return None
    try:
        if isinstance(filter_, In):
            values = pa.array([v for v in filter_.value if v is not None], kind)
            return _among(values)
        if isinstance(filter_, StringStartsWith):
            return lambda array: pc.starts_with(array, filter_.value)
        comparison = _COMPARISONS.get(type(filter_))
        value = pa.scalar(getattr(filter_, "value", None), kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if comparison is None or not value.is_valid:
        return None
    return _compared(comparison, value)


def _among(values: pa.Array) -> Callable[[pa.Array], pa.Array]:
    if pa.types.is_floating(values.type):
        # Arrow distinguishes 0.0 from -0.0, Spark does not.
        values = pc.add(values, pa.scalar(0.0, values.type))
        return lambda array: pc.or_(
            pc.is_in(pc.add(array, pa.scalar(0.0, array.type)), value_set=values), pc.is_nan(array)
        )
    return lambda array: pc.is_in(array, value_set=values)


def _compared(comparison: str, value: pa.Scalar) -> Callable[[pa.Array], pa.Array] | None:
    def test(array: pa.Array) -> pa.Array:
        return pc.call_function(comparison, [array, value])

    if pa.types.is_floating(value.type):
        if math.isnan(value.as_py()):
            return None
        return lambda array: pc.or_(test(array), pc.is_nan(array))
    return test
