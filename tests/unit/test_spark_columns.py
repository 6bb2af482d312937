"""What a table looks like in Spark, and what its cells are as Arrow: `percola.spark.columns`."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from spark_schemas import kind, struct

from percola import JSON, Codec, SchemaError, Table, UnknownColumnError, WrongTypeError
from percola.spark.columns import arrays_of, cells_of, chosen, fields_of, schema_of, to_batch
from percola.store.base import CellScan

SHOUTED: Codec[str] = Codec(
    "shouted", lambda v: v.upper().encode(), lambda raw: raw.decode().lower()
)

docs = Table("docs")
docs.column("body")
docs.column("title", str)
docs.column("size", int)
docs.column("rank", float)
docs.column("live", bool)
docs.column("meta", JSON)
docs.column("loud", SHOUTED)
docs.family("links", int)
docs.weak_column("again")
raw = Table("raw", rows=bytes)
raw.column("v", int)


def rows(
    name: str, *values: Any, table: Table[Any] = docs
) -> list[tuple[bytes, dict[bytes, bytes]]]:
    column: Any = table.resolve(name)
    return [
        (b"row-%d" % at, {} if value is None else {column.key: column.encode_value(value)})
        for at, value in enumerate(values)
    ]


def as_type(name: str, kind: str, *values: Any) -> list[Any]:
    """The values of a column as Spark sees them in a schema that gives them a type."""
    found = chosen(docs, struct(f"{name} {kind}"))
    batch = to_batch(found, rows(name, *values))
    assert batch.schema == schema_of(found)
    return list(batch.column(0).to_pylist())


def test_a_table_has_its_row_first_then_its_columns_and_families_without_the_weak_ones() -> None:
    fields = (
        "row string, body binary, title string, size bigint, rank double, live boolean, "
        "meta string, loud binary, links map<string,bigint>"
    )
    assert fields_of(docs) == struct(fields)
    assert fields_of(raw, "key") == struct("key binary, v bigint")
    assert schema_of(chosen(docs)).types == [
        *(pa.string(), pa.binary(), pa.string(), pa.int64(), pa.float64(), pa.bool_()),
        *(pa.string(), pa.binary(), pa.map_(pa.string(), pa.int64())),
    ], "exactly those that Spark expects"


def test_a_column_called_as_the_row_is_needs_another_name_for_the_row() -> None:
    table = Table("t")
    table.column("Row")
    for use in (
        lambda: fields_of(table),
        lambda: chosen(table),
        lambda: chosen(table, names="row"),
    ):
        with pytest.raises(SchemaError, match=r"has a column named 'Row'.*rowColumn"):
            use()
    assert [one.name for one in chosen(table, row_name="key")] == ["key", "Row"]


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(),
            st.none() | st.text(),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.floats(),
            st.none() | st.booleans(),
            st.dictionaries(
                st.text("abäß:,\"'", min_size=1, max_size=5), st.integers(-99, 99), max_size=3
            ),
        ),
        max_size=6,
    )
)
def test_values_arrive_as_they_were_written(values: list[tuple[Any, ...]]) -> None:
    names = ["body", "title", "size", "rank", "live"]
    encoded = []
    for at, (*plain, links) in enumerate(values):
        cells = {}
        for name, value in zip(names, plain, strict=True):
            column: Any = docs.resolve(name)
            if value is not None:
                cells[column.key] = column.encode_value(value)
        for qualifier, count in links.items():
            column = docs.resolve(f"links:{qualifier}")
            cells[column.key] = column.encode_value(count)
        encoded.append((b"%d" % at, cells))
    batch = to_batch(chosen(docs, names=",".join([*names, "links"])), encoded)
    assert batch.schema.names == ["row", *names, "links"]
    for at, (found, (*plain, links)) in enumerate(zip(batch.to_pylist(), values, strict=True)):
        assert found["row"] == str(at)
        for name, value in zip(names, plain, strict=True):
            same = isinstance(value, float) and math.isnan(value) and math.isnan(found[name])
            assert same or found[name] == value
        assert found["links"] == (list(links.items()) or None)


def test_a_column_of_a_family_stands_by_itself_or_in_the_map() -> None:
    both = StructType().add("links:a,b", "long").add("links", kind("map<string,bigint>"))
    cells = {b"links:a,b": b"1", b"links:c": b"2"}
    batch = to_batch(chosen(docs, both), [(b"r", cells), (b"s", {})])
    assert batch.to_pylist() == [
        {"links:a,b": 1, "links": [("a,b", 1), ("c", 2)]},
        {"links:a,b": None, "links": None},
    ]
    assert [one.name for one in chosen(docs, names='["links:a,b", "row"]')] == ["links:a,b", "row"]


def test_what_an_int_may_be_in_spark() -> None:
    huge = 10**30
    assert as_type("size", "int", 7, None, -7) == [7, None, -7]
    assert as_type("size", "tinyint", 127) == [127]
    assert as_type("size", "decimal(38,0)", huge, 1) == [decimal.Decimal(huge), 1]
    assert as_type("rank", "float", 0.5) == [0.5]


def test_a_number_beyond_the_range_of_a_float_is_not_read_as_infinite() -> None:
    assert as_type("rank", "float", math.inf, None, -3.4e38) == [
        math.inf,
        None,
        pa.scalar(-3.4e38, pa.float32()).as_py(),
    ]
    for name, type_, good, bad in (
        ("rank", "float", 0.5, 1e300),
        ("meta", "float", 0.5, 1e300),
        ("meta", "array<float>", [0.5], [1e300]),
    ):
        with pytest.raises(WrongTypeError, match=rf"docs\['row-1'\].{name} holds .*1e\+300"):
            as_type(name, type_, good, bad)


def test_json_is_rounded_to_decimals_as_from_json_rounds() -> None:
    values = [as_type("meta", "decimal(6,2)", one)[0] for one in (1.225, 1.235, -1.225)]
    assert values == [decimal.Decimal(one) for one in ("1.23", "1.24", "-1.23")]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("bigint", 10**30, r"docs\['row-1'\].size holds b'1000.* as bigint. .*decimal\(38,0\)"),
        ("tinyint", 128, r"docs\['row-1'\].size holds b'128', .* as tinyint"),
    ],
)
def test_an_int_beyond_its_type_is_named_with_its_cell(kind: str, value: int, message: str) -> None:
    with pytest.raises(WrongTypeError, match=message):
        as_type("size", kind, 1, value)


@pytest.mark.parametrize(
    ("name", "stored"),
    [("size", b"twelve"), ("rank", b"?"), ("live", b"yes!"), ("title", b"\xff"), ("meta", b"\xff")],
)
def test_bytes_of_another_type_are_named_with_their_cell(name: str, stored: bytes) -> None:
    good = {"size": b"1", "rank": b"1.0", "live": b"true", "title": b"t", "meta": b"{}"}[name]
    key = name.encode()
    with pytest.raises(WrongTypeError, match=rf"docs\['b'\].{name} holds "):
        to_batch(chosen(docs, names=name), [(b"a", {key: good}), (b"b", {key: stored})])


def test_a_value_in_a_family_is_named_with_its_cell() -> None:
    with pytest.raises(WrongTypeError, match=r"docs\['b'\].links:x holds b'many'"):
        to_batch(
            chosen(docs, names="links"), [(b"a", {b"links:x": b"1"}), (b"b", {b"links:x": b"many"})]
        )


NEVER_NULL = StructType([StructField("n", LongType(), nullable=False)])


@pytest.mark.parametrize(
    ("name", "kind", "good", "bad", "what"),
    [
        ("size", LongType(), 7, None, "has no value"),
        ("links", MapType(StringType(), LongType(), False), None, None, "has no value"),
        ("meta", ArrayType(LongType(), False), [1], [1, None], "has a null inside"),
        ("meta", MapType(StringType(), LongType(), False), {"k": 1}, {"k": None}, "has a null"),
        ("meta", NEVER_NULL, {"n": 1}, {}, "has a null inside"),
        ("meta", ArrayType(NEVER_NULL), [None, {"n": 1}], [{"n": 1}, {}], "has a null inside"),
    ],
)
def test_a_null_where_the_schema_has_none_is_named_with_its_cell(
    name: str, kind: DataType, good: Any, bad: Any, what: str
) -> None:
    """Spark does not look for it, and ends with an error of Java's."""
    columns = chosen(docs, StructType([StructField(name, kind, nullable=False)]))

    def read(*values: Any) -> pa.RecordBatch:
        if name == "links":
            return to_batch(columns, [(b"row-%d" % at, v) for at, v in enumerate(values)])
        return to_batch(columns, rows(name, *values))

    if name == "links":
        good, bad = {b"links:a": b"1"}, {}
    assert read(good, good).num_rows == 2
    with pytest.raises(WrongTypeError, match=rf"^docs\['row-1'\].{name} {what}.* NOT NULL"):
        read(good, bad)


def test_a_row_that_is_not_text_is_named() -> None:
    with pytest.raises(WrongTypeError, match=r"The row b'\\xff' should be text"):
        to_batch(chosen(docs, names="title"), [(b"a", {}), (b"\xff", {})])


SHAPE = (
    "struct<name: string, tags: array<string>, sizes: map<string,double>, at: timestamp, "
    "on: date, price: decimal(6,2)>"
)


def test_json_is_text_unless_the_schema_gives_it_a_shape() -> None:
    value = {
        "name": "a",
        "tags": ["x", None, {"y": 1}],
        "sizes": {"s": 1, "m": 2.5},
        "at": "2010-10-04T12:00:00+02:00",
        "on": "2010-10-04",
        "price": 12.5,
        "more": "is left out",
    }
    text, missing = as_type("meta", "string", value, None)
    assert (json.loads(text), missing) == (value, None)
    shaped = {
        "name": "a",
        "tags": ["x", None, '{"y":1}'],
        "sizes": [("s", 1.0), ("m", 2.5)],
        "at": datetime.datetime(2010, 10, 4, 10, tzinfo=datetime.UTC),
        "on": datetime.date(2010, 10, 4),
        "price": decimal.Decimal("12.50"),
    }
    assert as_type("meta", SHAPE, value, None, {}) == [shaped, None, dict.fromkeys(shaped)]
    assert as_type("meta", "bigint", 3) == [3]
    assert as_type("meta", "boolean", True) == [True]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (SHAPE, 3, "3 is not an object"),
        (SHAPE, {"tags": "x"}, 'tags: "x" is not a list'),
        (SHAPE, {"sizes": {"s": "big"}}, 'sizes: s: "big" is not a number'),
        (SHAPE, {"at": "noon"}, 'at: "noon" is not a time'),
        (SHAPE, {"on": 3}, "on: 3 is not a date"),
        (SHAPE, {"price": 123456.0}, r"price: 123456.0 is not a number that fits decimal\(6,2\)"),
        ("bigint", 1.5, "1.5 is not a whole number"),
        ("bigint", True, "true is not a whole number"),
        ("tinyint", 128, "128 is not a whole number of 8 bits"),
        ("boolean", 1, "1 is not true or false"),
        ("map<string,bigint>", [1], r"\[1\] is not an object"),
    ],
)
def test_json_of_another_shape_is_an_error_saying_where(kind: str, value: Any, reason: str) -> None:
    with pytest.raises(WrongTypeError, match=rf"docs\['row-1'\].meta holds .*\({reason}"):
        as_type("meta", kind, None, value)


# --- What is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("titel string", "no column 'titel'.*Did you mean 'title'"),
        ("Title string", "no column 'Title'.*Did you mean 'title'"),
        ("again string", "is weak"),
        ("lings:a bigint", "no column 'lings:a'"),
    ],
)
def test_a_column_that_is_not_there_is_refused(field: str, message: str) -> None:
    with pytest.raises(UnknownColumnError, match=message):
        chosen(docs, struct(field))
    with pytest.raises(UnknownColumnError, match=message):
        chosen(docs, names=field.split()[0])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("row binary", "Rows of the table 'docs' are str, so 'row' is string"),
        ("title bigint", "holds str, which is string in Spark; it cannot be"),
        ("size string", r"holds int, which is bigint.*\(or int, smallint"),
        ("title decimal(9,2)", "it cannot be decimal"),
        ("loud string", "holds shouted, which is binary"),
        ("links bigint", "is a family, so 'links' is map<string,bigint>"),
        ("links map<bigint,bigint>", "not map<bigint,bigint>"),
        ("links map<string,string>", "it cannot be string"),
        ("links:a string", "docs.links:a holds int"),
        ("meta map<bigint,bigint>", "holds json"),
        ("meta binary", "it cannot be binary"),
    ],
)
def test_a_type_that_a_column_cannot_have_is_refused(field: str, message: str) -> None:
    with pytest.raises(WrongTypeError, match=message):
        chosen(docs, struct(field))


@pytest.mark.parametrize("names", ["", " , ", "[]", '["a", 3]', "[broken"])
def test_lists_of_names_that_are_none_are_refused(names: str) -> None:
    with pytest.raises(SchemaError):
        chosen(docs, names=names)


def test_a_schema_names_columns_once_and_at_least_one() -> None:
    with pytest.raises(SchemaError, match="names no column"):
        chosen(docs, StructType([]))
    with pytest.raises(SchemaError, match="'title' twice"):
        chosen(docs, struct("title string, title string"))


def test_a_table_is_gone_through_as_often_however_many_of_its_columns_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members, looks = Table.members.fget, []  # type: ignore[attr-defined]

    def members_of(table: Table[Any]) -> Any:
        looks.append(table.name)
        return members(table)

    monkeypatch.setattr(Table, "members", property(members_of))
    for name, count in (("narrow", 2), ("wide", 200)):
        table = Table(name)
        for at in range(count):
            table.column(f"c{at}", int)
        assert len(chosen(table, fields_of(table))) == 1 + count
        assert len(chosen(table, None, ",".join(f"c{at}" for at in range(count)))) == 1 + count
    assert 0 < looks.count("wide") == looks.count("narrow")


def test_the_cells_of_rows_are_gone_through_as_often_however_many_columns_they_have() -> None:
    class Watched:
        def __init__(self, cells: CellScan) -> None:
            self.cells, self.looks = cells, 0

        def __getattr__(self, name: str) -> Any:
            self.looks += name == "columns"
            return getattr(self.cells, name)

    looks = []
    for count in (2, 200):
        table = Table("wide")
        names = [table.column(f"c{at}", int).key for at in range(count)]
        rows = [
            (b"a", {name: b"%d" % at for at, name in enumerate(names)}),
            (b"b", {names[1]: b"7"}),
        ]
        watched = Watched(cells_of(rows))
        columns = chosen(table)
        arrays = arrays_of(columns, watched, schema_of(columns))  # type: ignore[arg-type]
        assert [one.to_pylist() for one in arrays] == [
            ["a", "b"],
            *([at, 7 if at == 1 else None] for at in range(count)),
        ]
        looks.append(watched.looks)
    assert 0 < looks[0] == looks[1]
