"""Filters that Spark hands down: nothing is kept back that Spark would let through."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import FloatType, StringType, StructField, StructType, VariantVal

import percola
from percola import DATE, JSON, TIMESTAMP, Table, decimal_of
from percola.spark.columns import Chosen, chosen, schema_of
from percola.spark.options import Options
from percola.spark.partitioning import Range
from percola.spark.read.filters import FilteringReader, intersected, row_ranges_of, sieve_of
from percola.spark.read.scan import RangeReader, Sieve, merged

docs = Table("docs")
docs.column("title", str)
docs.column("size", int)
docs.column("score", float)
docs.column("good", bool)
docs.column("meta", JSON)
docs.family("links", str)

NAN = float("nan")
FLOATS = st.one_of(st.sampled_from([0.0, -0.0, NAN, math.inf, -math.inf, 1.0]), st.floats(width=32))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "title": st.text(alphabet="aä\0ÿ𝄞", max_size=3),
    "size": st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)]),
    "score": FLOATS,
    "good": st.booleans(),
}
COMPARISONS: list[Any] = [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]


def order(value: Any) -> tuple[int, Any]:
    """Spark's order: text by its bytes, a NaN above all numbers and equal to itself."""
    if isinstance(value, str):
        return (0, value.encode())
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value)


def spark_keeps(filter_: Filter, value: Any) -> bool:
    """What Spark does with a row with this value in the column that the filter is about."""
    if isinstance(filter_, IsNull | IsNotNull):
        return (value is None) == isinstance(filter_, IsNull)
    if value is None:
        return False
    if isinstance(filter_, In):
        return any(one is not None and order(one) == order(value) for one in filter_.value)
    if isinstance(filter_, StringStartsWith):
        return bool(value.startswith(filter_.value))
    here, there = order(value), order(filter_.value)  # type: ignore[attr-defined]
    return {
        EqualTo: here == there,
        GreaterThan: here > there,
        GreaterThanOrEqual: here >= there,
        LessThan: here < there,
        LessThanOrEqual: here <= there,
    }[type(filter_)]


@st.composite
def filters_and_values(draw: st.DrawFn) -> tuple[str, Filter, list[Any]]:
    name = draw(st.sampled_from(sorted(VALUES)))
    one = VALUES[name]
    values = draw(st.lists(one | st.none(), max_size=8))
    made: list[st.SearchStrategy[Filter]] = [
        st.just(IsNull((name,))),
        st.just(IsNotNull((name,))),
        st.lists(one | st.none(), min_size=1, max_size=4).map(lambda v: In((name,), tuple(v))),
        st.builds(lambda kind, v: kind((name,), v), st.sampled_from(COMPARISONS), one),
    ]
    if name == "title":
        made.append(one.map(lambda v: StringStartsWith((name,), v)))
    return name, draw(st.one_of(made)), values


def chosen_one(name: str, kind: Any = None) -> tuple[Chosen, pa.DataType]:
    schema = None if kind is None else StructType([StructField(name, kind)])
    one = next(c for c in chosen(docs, schema) if c.name == name)
    return one, schema_of([one]).field(0).type


@given(filters_and_values())
def test_a_sieve_lets_through_all_that_spark_would(case: tuple[str, Filter, list[Any]]) -> None:
    name, filter_, values = case
    one, kind = chosen_one(name)
    test = sieve_of(filter_, one, kind)
    if test is None:
        assert math.isnan(filter_.value), "all others can be told"  # type: ignore[attr-defined]
        return
    mask = test(pa.array(values, kind)).to_pylist()
    assert len(mask) == len(values)
    for value, passed in zip(values, mask, strict=True):
        if spark_keeps(filter_, value):
            assert passed, f"{filter_} would have kept {value!r}"
        elif not (isinstance(value, float) and math.isnan(value)):
            assert not passed, f"{filter_} lets {value!r} through in vain"


@given(st.lists(FLOATS, max_size=8), FLOATS, st.sampled_from(COMPARISONS))
def test_a_column_read_as_float_is_compared_as_spark_does(
    values: list[float], bound: float, comparison: Any
) -> None:
    one, kind = chosen_one("score", FloatType())
    filter_ = comparison(("score",), bound)
    test = sieve_of(filter_, one, kind)
    if test is not None:
        mask = test(pa.array(values, kind)).to_pylist()
        kept = [spark_keeps(filter_, value) for value in values]
        assert all(passed for passed, keep in zip(mask, kept, strict=True) if keep)


@pytest.mark.parametrize(
    ("name", "filter_"),
    [
        ("meta", EqualTo(("meta",), ["a struct"])),
        ("links", EqualTo(("links",), {"x": "y"})),
        ("links", IsNull(("links",))),
        ("size", EqualTo(("size",), 2**80)),
        ("size", EqualTo(("size",), None)),
        ("size", In(("size",), (1, "two"))),
    ],
)
def test_what_cannot_be_told_for_sure_is_left_to_spark(name: str, filter_: Filter) -> None:
    assert sieve_of(filter_, *chosen_one(name)) is None


def test_a_day_that_java_has_shifted_is_left_to_spark() -> None:
    """DATE'1582-10-10' comes as the first day of Java's Gregorian calendar."""
    shifted = datetime.date(1582, 10, 15)
    noon = datetime.datetime(1582, 10, 15, 12, tzinfo=datetime.UTC)
    for codec, moment in ((DATE, shifted), (TIMESTAMP, noon)):
        table: Table[Any] = Table("t", rows=codec)
        table.column("day", codec)
        one = chosen(table)[1]
        kind = schema_of([one]).field(0).type
        for other in (moment, moment + datetime.timedelta(days=5)):
            is_told = other != moment
            for filter_ in (EqualTo(("day",), other), In(("day",), (None, other))):
                assert (sieve_of(filter_, one, kind) is not None) == is_told
            for filter_ in (LessThan(("row",), other), In(("row",), (None, other))):
                assert (row_ranges_of(filter_, "row", codec) is not None) == is_told


def test_a_decimal_that_pyspark_has_rounded_is_left_to_spark() -> None:
    """PySpark makes the value of a filter from one of Java, with the digits of Python's default."""
    codec = decimal_of(38, 10)
    table: Table[Any] = Table("t", rows=codec)
    table.column("cost", codec)
    one = chosen(table)[1]
    kind = schema_of([one]).field(0).type
    for text, is_told in (("12345678901234567.1234567890", True), (f"{'1' * 28}.23456", False)):
        value = VariantVal.parseJson(text).toPython()
        assert (value == decimal.Decimal(text)) == is_told
        for filter_ in (EqualTo(("cost",), value), In(("cost",), (None, value))):
            assert (sieve_of(filter_, one, kind) is not None) == is_told
        for filter_ in (LessThan(("row",), value), In(("row",), (None, value))):
            assert (row_ranges_of(filter_, "row", codec) is not None) == is_told


def test_text_that_is_compared_by_rules_of_a_language_is_left_to_spark() -> None:
    one, kind = chosen_one("title", StringType("UNICODE_CI"))
    assert sieve_of(EqualTo(("title",), "a"), one, kind) is None
    assert sieve_of(IsNull(("title",)), one, kind) is not None


# --- Rows -----------------------------------------------------------------------------------


def test_a_list_of_rows_is_not_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with percola.open(tmp_path / "repo", [docs]) as repo:
        with repo.transaction() as t:
            for row in "abc":
                t.set(docs.resolve("title"), row, row)  # type: ignore[arg-type]
        given = {"path": str(tmp_path / "repo"), "table": "docs", "holdSeconds": "0"}
        schema = StructType([StructField("row", StringType())])
        reader = FilteringReader(Options(given), schema, t.commit_ts, "frame")
        assert reader.pushFilters([In(("row",), ("c", "a", "nothing", None))]) == []
        [partition] = reader.partitions()
        monkeypatch.delattr(RangeReader, "batches")
        [batch] = reader.read(partition)
        assert batch.to_pylist() == [{"row": "a"}, {"row": "c"}]


@pytest.mark.parametrize("names", ["title,links", "title,size", "row"])
def test_rows_that_are_looked_up_are_read_many_by_a_call(names: str) -> None:
    """As each by itself: with the same columns, and without those that fail a filter."""
    rows = [f"row-{number:04}" for number in range(600)]
    with percola.open("memory:", [docs]) as repo:
        with repo.transaction() as t:
            for number, row in enumerate(rows):
                t.set(docs.resolve("size"), row, number)  # type: ignore[arg-type]
                if number % 2:
                    t.set(docs.resolve("title"), row, "x" * number)  # type: ignore[arg-type]
                if not number % 3:
                    t.set(docs.resolve(f"links:{number}"), row, "y")  # type: ignore[arg-type]
        columns = chosen(docs, names=names)
        keys = [row.encode() for row in (*rows[::2], "nothing", *rows[1::4])]
        kind = schema_of(columns)
        sieves = []
        if names != "row":
            least = sieve_of(GreaterThan(("title",), "x" * 9), columns[1], kind.field(1).type)
            assert least is not None
            sieves = [Sieve(1, least)]
        for every in (None, chosen(docs)):
            for some in ([], sieves):
                reader = RangeReader(repo.context, "docs", t.commit_ts)
                found = list(reader.points(columns, keys, some, every))
                assert reader.metrics.calls < 10
                alone = [
                    batch
                    for key in keys
                    for batch in reader.batches(columns, key, key + b"\0", some, every)
                ]
                assert pa.Table.from_batches(found, kind) == pa.Table.from_batches(alone, kind)
                assert alone


KEYS = st.text(alphabet="ab\0ÿ", max_size=3)


def is_in(key: bytes, ranges: list[Range]) -> bool:
    return any(low <= key and (high is None or key < high) for low, high in ranges)


@given(
    st.one_of(
        st.builds(lambda kind, v: kind(("row",), v), st.sampled_from(COMPARISONS), KEYS),
        KEYS.map(lambda v: StringStartsWith(("row",), v)),
        st.lists(KEYS | st.none(), min_size=1).map(lambda v: In(("row",), tuple(v))),
        st.sampled_from([IsNull(("row",)), IsNotNull(("row",))]),
    ),
    KEYS,
)
def test_the_ranges_of_a_filter_hold_exactly_the_rows_it_means(filter_: Filter, key: str) -> None:
    ranges = row_ranges_of(filter_, "row")
    assert ranges is not None
    assert is_in(key.encode(), ranges) == spark_keeps(filter_, key)
    assert row_ranges_of(filter_, "another") is None


BOUNDS = st.binary(max_size=2)


@st.composite
def disjoint(draw: st.DrawFn) -> list[Range]:
    """Ranges in order, without overlaps, none empty; the last one may be open."""
    edges = sorted(draw(st.sets(BOUNDS, max_size=8)))
    ranges = [Range(low, high) for low, high in zip(edges[::2], edges[1::2], strict=False)]
    if len(edges) % 2:
        ranges.append(Range(edges[-1], None))
    return ranges


@given(disjoint(), disjoint(), st.lists(BOUNDS))
def test_rows_of_an_intersection_are_those_in_both(
    some: list[Range], others: list[Range], keys: list[bytes]
) -> None:
    both = intersected(some, others)
    edges = [edge for one in (*some, *others) for edge in one if edge is not None]
    for key in (*keys, *edges, *(edge + b"\0" for edge in edges)):
        assert is_in(key, both) == (is_in(key, some) and is_in(key, others))
    assert all(high is None or low < high for low, high in both)
    assert both == sorted(both, key=lambda one: one.start)


def test_large_rows_that_are_looked_up_do_not_come_all_at_once() -> None:
    keys = [b"%02d" % number for number in range(40)]
    with percola.open("memory:", [docs]) as repo:
        with repo.transaction() as t:
            for key in keys:
                t.set(docs.resolve("title"), key.decode(), "x" * (1 << 20))  # type: ignore[arg-type]
        reader = RangeReader(repo.context, "docs", t.commit_ts)
        found = list(reader.points(chosen(docs, names="title"), keys))
    assert sum(batch.num_rows for batch in found) == len(keys)
    assert max(batch.nbytes for batch in found) < 20 << 20


def test_what_is_found_of_several_ranges_is_put_together_up_to_some_megabytes() -> None:
    small, large = (pa.record_batch({"body": [b"x" * size]}) for size in (10, 5 << 20))
    found = list(merged(iter([small, small, large, large, large, small])))
    assert [one.num_rows for one in found] == [4, 2]
    assert pa.concat_batches(found).column("body").to_pylist() == [
        one.column("body")[0].as_py() for one in (small, small, large, large, large, small)
    ]


def test_rows_of_many_columns_are_read_by_the_score_also_beside_a_family() -> None:
    wide = Table("wide")
    columns = [wide.column(f"c{at}", int) for at in range(400)]
    labels = wide.family("labels", str)
    with percola.open("memory:", [wide]) as repo:
        with repo.transaction() as t:
            for number in range(120):
                t.set(labels["a"], f"{number:03}", "x")
                for column in columns:
                    t.set(column, f"{number:03}", number)
        reader = RangeReader(repo.context, "wide", t.commit_ts)
        keys = [b"%03d" % number for number in range(120)]
        for batches in (
            list(reader.batches(chosen(wide), b"", b"")),
            list(reader.points(chosen(wide), keys)),
        ):
            assert sum(batch.num_rows for batch in batches) == 120
            assert max(batch.num_rows for batch in batches) >= 40
