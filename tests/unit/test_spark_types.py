"""Decimals, dates, times and nested values in Spark: their types, as Arrow, written and read."""

from __future__ import annotations

import datetime
import pickle
from datetime import UTC, date
from decimal import Decimal
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
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType
from spark_schemas import kind, struct

import percola
from percola import (
    DATE,
    FLOAT32,
    INT16,
    INT32,
    INT64,
    JSON,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Codec,
    Table,
    UsageError,
    WrongTypeError,
    array_of,
    decimal_of,
    map_of,
    struct_of,
)
from percola.codecs import OrderedCodec
from percola.spark.arrow_values import decoded, encoded, natural_type
from percola.spark.columns import chosen, fields_of, schema_of, to_batch
from percola.spark.encoding import Encoder
from percola.spark.options import Options
from percola.spark.read.family_rows import long_fields, long_rows
from percola.spark.read.filters import row_ranges_of
from percola.spark.read.snapshot import _bounds
from percola.spark.types import reads, type_of, writes
from percola.spark.versions import arrow_schema

NOON = datetime.datetime(2010, 10, 4, 12)  # noqa: DTZ001


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{scale}"))


FIXED: dict[str, tuple[Codec[Any], st.SearchStrategy[Any]]] = {
    "int16": (INT16, st.integers(-(2**15), 2**15 - 1)),
    "int32": (INT32, st.integers(-(2**31), 2**31 - 1)),
    "int64": (INT64, st.integers(-(2**63), 2**63 - 1)),
    "float32": (FLOAT32, st.floats(width=32, allow_nan=False)),
    "date": (DATE, st.dates()),
    "timestamp": (TIMESTAMP, st.datetimes(timezones=st.just(UTC))),
    "timestamp_ntz": (TIMESTAMP_NTZ, st.datetimes()),
    "decimal(1,1)": (decimal_of(1, 1), decimals(1, 1)),
    "decimal(12,2)": (decimal_of(12, 2), decimals(12, 2)),
    "decimal(38,38)": (decimal_of(38, 38), decimals(38, 38)),
}

shop = Table("shop", rows=decimal_of(5, 1))
shop.column("price", decimal_of(12, 2))
shop.column("made", DATE)
shop.column("seen", TIMESTAMP)
shop.column("due", TIMESTAMP_NTZ)
shop.column("count", INT16)
shop.column("sold", INT64)
shop.column("weight", FLOAT32)
shop.column("size", int)
shop.column("rate", float)
shop.column("tags", array_of(str))
shop.column("prices", map_of(DATE, decimal_of(6, 2)))
shop.column("parts", array_of(struct_of(name=str, cost=decimal_of(6, 2), also=JSON)))
shop.column("meta", JSON)
shop.family("offers", decimal_of(6, 2))
days = Table("days", rows=DATE)
days.column("v", int)


# --- Arrays -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIXED)
@given(data=st.data())
def test_an_array_is_encoded_and_decoded_as_its_values_are(name: str, data: st.DataObject) -> None:
    codec, values = FIXED[name]
    given_ = data.draw(st.lists(st.none() | values, max_size=6))
    first = data.draw(st.integers(0, len(given_)))
    array = pa.array(given_, natural_type(codec)).slice(first)
    raw = encoded(codec, array)
    assert raw.to_pylist() == [None if v is None else codec.encode(v) for v in given_[first:]]
    stored = pa.array([None, *(None if v is None else codec.encode(v) for v in given_)], raw.type)
    assert decoded(codec, stored.slice(first), array.type).to_pylist() == [None, *given_][first:]


@pytest.mark.parametrize("name", FIXED)
@given(raw=st.lists(st.none() | st.binary(max_size=17), min_size=1, max_size=4))
def test_bytes_that_are_no_value_are_none_in_an_array(name: str, raw: list[bytes | None]) -> None:
    codec, _ = FIXED[name]
    try:
        for one in raw:
            if one is not None:
                codec.decode(one)
    except ValueError:
        with pytest.raises(pa.ArrowInvalid):
            decoded(codec, pa.array(raw, pa.binary()), natural_type(codec))
    else:
        decoded(codec, pa.array(raw, pa.binary()), natural_type(codec))


@pytest.mark.parametrize("name", [name for name in FIXED if not name.startswith("int")])
@pytest.mark.parametrize("beyond", [-1, 1])
def test_a_stored_number_beyond_the_range_is_no_value_in_an_array(name: str, beyond: int) -> None:
    codec, _ = FIXED[name]
    if not isinstance(codec, OrderedCodec):
        return
    number = (codec.most + 1) if beyond > 0 else (codec.least - 1)
    raw = (number + (1 << (8 * codec.width - 1))).to_bytes(codec.width, "big")
    with pytest.raises(pa.ArrowInvalid):
        decoded(codec, pa.array([raw], pa.binary()), natural_type(codec))


# --- Types --------------------------------------------------------------------------------


def test_a_table_of_every_type_has_the_types_of_spark() -> None:
    assert {field.name: field.dataType.simpleString() for field in fields_of(shop)} == {
        "row": "decimal(5,1)",
        "price": "decimal(12,2)",
        "made": "date",
        "seen": "timestamp",
        "due": "timestamp_ntz",
        "count": "smallint",
        "sold": "bigint",
        "weight": "float",
        "size": "bigint",
        "rate": "double",
        "tags": "array<string>",
        "prices": "map<date,decimal(6,2)>",
        "parts": "array<struct<name:string,cost:decimal(6,2),also:string>>",
        "meta": "string",
        "offers": "map<string,decimal(6,2)>",
    }


WIDER: list[tuple[Codec[Any], str]] = [
    (INT16, "int"),
    (INT16, "bigint"),
    (INT16, "double"),
    (INT16, "float"),
    (INT16, "decimal(5,0)"),
    (INT32, "decimal(12,2)"),
    (INT32, "double"),
    (INT64, "decimal(19,0)"),
    (INT64, "double"),
    (FLOAT32, "double"),
    (decimal_of(5, 2), "decimal(6,3)"),
    (decimal_of(9), "int"),
    (DATE, "timestamp_ntz"),
    (array_of(INT16), "array<bigint>"),
    (map_of(str, INT16), "map<string,decimal(7,2)>"),
    (struct_of(a=INT16), "struct<a:bigint,b:string>"),
]
NARROWER: list[tuple[Codec[Any], str]] = [
    (INT32, "smallint"),
    (INT64, "int"),
    (INT32, "float"),
    (INT16, "tinyint"),
    (INT16, "decimal(4,0)"),
    (INT64, "decimal(20,2)"),
    (decimal_of(5, 2), "decimal(5,3)"),
    (decimal_of(5, 2), "decimal(5,1)"),
    (decimal_of(5, 2), "double"),
    (decimal_of(5, 2), "int"),
    (decimal_of(10), "int"),
    (DATE, "timestamp"),
    (TIMESTAMP, "timestamp_ntz"),
    (TIMESTAMP_NTZ, "timestamp"),
    (TIMESTAMP, "date"),
    (DATE, "string"),
    (array_of(INT64), "array<smallint>"),
    (array_of(INT64), "array<double>"),
    (map_of(INT64, str), "map<smallint,string>"),
    (struct_of(a=INT16, b=str), "struct<a:smallint>"),
    (FLOAT32, "int"),
]


@pytest.mark.parametrize(("codec", "wide"), WIDER)
def test_a_wider_type_is_read_and_not_written(codec: Codec[Any], wide: str) -> None:
    assert reads(codec, type_of(codec)) and writes(codec, type_of(codec))
    assert reads(codec, kind(wide))
    assert not writes(codec, kind(wide)) or codec.name == "decimal(9,0)"


@pytest.mark.parametrize(("codec", "narrow"), NARROWER)
def test_a_column_is_not_read_as_a_narrower_type(codec: Codec[Any], narrow: str) -> None:
    assert not reads(codec, kind(narrow))


# --- Written and read ---------------------------------------------------------------------


def batch(schema: StructType, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    arrow = arrow_schema(schema)
    lines = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(lines, arrow)


VALUES: dict[str, Any] = {
    "price": Decimal("-12.50"),
    "made": date(2010, 10, 4),
    "seen": NOON.replace(tzinfo=UTC),
    "due": NOON,
    "count": -3,
    "sold": 2**60,
    "weight": 0.5,
    "size": 7,
    "rate": 0.1,
    "tags": ["a", None, "ä"],
    "prices": [(date(2010, 10, 4), Decimal("1.50")), (date(1969, 1, 1), None)],
    "parts": [{"name": "x", "cost": Decimal("0.10"), "also": '{"k":[1]}'}, None],
    "meta": '{"a":1}',
    "offers": [("x", Decimal("9.99"))],
}


def test_what_spark_writes_is_what_the_codecs_write_and_is_read_back(tmp_path: Any) -> None:
    schema = fields_of(shop)
    rows = [
        (Decimal("-1.5"), *VALUES.values()),
        (Decimal("9999.9"), *([None] * (len(VALUES) - 1)), [("y", None)]),
        (Decimal("0.0"), *VALUES.values()),
    ]
    given_ = batch(schema, *rows)
    written = Encoder(shop, schema, "row").encode(given_)
    assert [shop.decode_row(one.row) for one in written] == [row[0] for row in rows]
    columns = {one.name: one for one in shop.members}
    with percola.open(tmp_path / "repo", schema=[shop]) as repo:
        with repo.transaction() as t:
            for name in ("price", "made", "seen", "due", "count", "sold", "weight", "tags"):
                t.set(columns[name], Decimal("-1.5"), VALUES[name])  # type: ignore[arg-type]
            t.set(columns["prices"], Decimal("-1.5"), dict(VALUES["prices"]))  # type: ignore[arg-type]
        with repo.snapshot() as snapshot:
            found = snapshot.get_row(shop, Decimal("-1.5"))._values
    assert {name: written[0].cells[name] for name in found} == found
    read = to_batch(
        chosen(shop),
        [(one.row, {k: v for k, v in one.cells.items() if v is not None}) for one in written],
    )
    assert read.schema == schema_of(chosen(shop))
    back = read.to_pylist()
    assert (
        back[0]
        == dict(zip(schema.names, rows[0], strict=True))
        == {**back[2], "row": back[0]["row"]}
    )
    assert back[1] == dict.fromkeys(schema.names) | {"row": Decimal("9999.9")}


def test_a_task_reads_a_float_whose_bytes_could_be_a_number_as_text() -> None:
    weight = decoded(FLOAT32, pa.array([b"1234"]), pa.float32())[0].as_py()
    columns = [one for one in chosen(shop) if one.name == "weight"]
    rows = [(b"x", {b"weight": FLOAT32.encode(weight)})]
    for read in (columns, pickle.loads(pickle.dumps(columns))):  # As of a stream, sent to a task.
        assert to_batch(read, rows).to_pylist() == [{"weight": weight}]


def test_narrower_values_are_written_as_the_columns_type() -> None:
    schema = struct(
        "row smallint, price bigint, sold tinyint, rate bigint, due date, count decimal(4,0), "
        "prices map<date,smallint>"
    )
    shown = Table("wide", rows=INT64)
    for name, codec in (
        ("price", decimal_of(21, 2)),
        ("sold", INT64),
        ("rate", float),
        ("due", TIMESTAMP_NTZ),
        ("count", INT16),
        ("prices", map_of(DATE, decimal_of(7, 2))),
    ):
        shown.column(name, codec)  # type: ignore[arg-type]
    row = (5, 10**15, 7, 3, date(2010, 10, 4), Decimal(12), [(date(2010, 10, 4), 2)])
    [one] = Encoder(shown, schema, "row").encode(batch(schema, row))
    assert shown.decode_row(one.row) == 5
    values = {
        name: shown.resolve(name).decode_value(one.cells[name.encode()])  # type: ignore[union-attr, arg-type]
        for name in schema.names[1:]
    }
    assert values == {
        "price": 10**15,
        "sold": 7,
        "rate": 3.0,
        "due": datetime.datetime(2010, 10, 4),  # noqa: DTZ001
        "count": 12,
        "prices": {date(2010, 10, 4): Decimal(2)},
    }


@pytest.mark.parametrize(
    ("name", "narrow", "says"),
    [
        ("count", "int", "holds int16, which is smallint in Spark; it cannot be int: cast"),
        ("price", "double", "is decimal(12,2) in Spark; it cannot be double: cast it to"),
        ("price", "decimal(12,3)", "it cannot be decimal(12,3): cast it to decimal(12,2)."),
        ("made", "timestamp", "it cannot be timestamp: cast it to date."),
        ("seen", "timestamp_ntz", "it cannot be timestamp_ntz: cast it to timestamp."),
        ("weight", "double", "it cannot be double: cast it to float."),
        ("tags", "array<bigint>", "it cannot be array<bigint>: cast it to array<string>."),
        ("row", "decimal(6,1)", "Rows of the table 'shop' are decimal(5,1), so 'row' is"),
    ],
)
def test_narrowing_is_refused_in_a_sentence(name: str, narrow: str, says: str) -> None:
    fields = {"row": "decimal(5,1)", "rate": "double", name: narrow}
    schema = struct(", ".join(f"{one} {of}" for one, of in fields.items()))
    with pytest.raises(WrongTypeError) as caught:
        Encoder(shop, schema, "row")
    assert says in str(caught.value) and str(caught.value).endswith(".")


def test_a_number_that_a_double_cannot_hold_is_told_with_its_row() -> None:
    schema = struct("row decimal(5,1), rate bigint")
    rows = [(Decimal(1), 2**53), (Decimal(2), 2**53 + 1)]
    with pytest.raises(WrongTypeError) as caught:
        Encoder(shop, schema, "row").encode(batch(schema, *rows))
    assert str(caught.value) == (
        "shop.rate of 2.0 is 9007199254740993, which float cannot hold exactly."
    )


def test_a_date_beyond_those_of_python_is_told_with_its_row() -> None:
    schema = struct("row decimal(5,1), made date")
    rows = pa.RecordBatch.from_arrays(
        [pa.array([Decimal(1)], pa.decimal128(5, 1)), pa.array([2**30], pa.int32()).cast("date32")],
        names=["row", "made"],
    )
    with pytest.raises(WrongTypeError, match=r"shop.made of 1.0 is .*date cannot hold"):
        Encoder(shop, schema, "row").encode(rows)


def test_wider_types_are_read_and_a_wrong_value_is_told_with_its_cell() -> None:
    row = shop.encode_row(Decimal("1.5"))
    schema = struct("row decimal(10,2), count double, sold double, made timestamp_ntz")
    columns = chosen(shop, schema)
    cells = {b"count": INT16.encode(-3), b"made": DATE.encode(date(2010, 10, 4))}
    [found] = to_batch(columns, [(row, cells)]).to_pylist()
    midnight = datetime.datetime(2010, 10, 4)  # noqa: DTZ001
    assert found == {"row": Decimal("1.5"), "count": -3.0, "sold": None, "made": midnight}
    with pytest.raises(WrongTypeError, match=r"\.sold holds .* cannot be read as double"):
        to_batch(columns, [(row, {b"sold": INT64.encode(2**53 + 1)})])
    with pytest.raises(WrongTypeError, match=r"^shop\[1.5\].count holds b'text', which can"):
        to_batch(columns, [(row, {b"count": b"text"})])
    with pytest.raises(WrongTypeError, match=r"The row b'text' should be decimal\(5,1\)"):
        to_batch(columns, [(b"text", {b"count": INT16.encode(1)})])


def test_an_int_is_read_as_a_decimal_or_a_double_that_holds_it_exactly() -> None:
    row = shop.encode_row(Decimal(1))
    columns = chosen(shop, struct("size decimal(6,2)"))
    assert to_batch(columns, [(row, {b"size": b"1234"})]).to_pylist() == [{"size": Decimal(1234)}]
    with pytest.raises(WrongTypeError, match="size holds b'12345'"):
        to_batch(columns, [(row, {b"size": b"12345"})])
    columns = chosen(shop, struct("size double"))
    assert to_batch(columns, [(row, {b"size": b"-5"})]).to_pylist() == [{"size": -5.0}]
    for large in (2**53 + 1, 10**30 + 1):
        with pytest.raises(WrongTypeError, match="cannot be read as double"):
            to_batch(columns, [(row, {b"size": b"%d" % large})])


def test_a_decimal_in_json_keeps_its_digits() -> None:
    exact = Decimal("12345678901234567.12345678901234567890")
    of_meta = "struct<price:decimal(38,20),at:timestamp_ntz,many:array<decimal(3,0)>>"
    schema = struct(f"row decimal(5,1), meta {of_meta}")
    value = {"price": exact, "at": NOON, "many": [Decimal(2), None]}
    [one] = Encoder(shop, schema, "row").encode(batch(schema, (Decimal(1), value)))
    assert one.cells[b"meta"] == (
        b'{"price":12345678901234567.1234567890123456789,"at":"2010-10-04T12:00:00","many":[2,null]}'
    )
    read = to_batch(chosen(shop, schema), [(one.row, {b"meta": one.cells[b"meta"] or b""})])
    assert read.to_pylist() == [{"row": Decimal(1), "meta": value}]
    with pytest.raises(WrongTypeError, match="is not a time without a time zone"):
        to_batch(chosen(shop, schema), [(one.row, {b"meta": b'{"at":"2010-10-04T12:00:00Z"}'})])


def test_a_decimal_in_json_may_have_every_digit_of_its_type() -> None:
    largest = Decimal("99999999999999999999.999999999999999999")
    least = largest.copy_negate()
    schema = struct("row decimal(5,1), meta array<decimal(38,18)>")
    [one] = Encoder(shop, schema, "row").encode(batch(schema, (Decimal(1), [largest, least])))
    read = to_batch(chosen(shop, schema), [(one.row, {b"meta": one.cells[b"meta"] or b""})])
    assert read.to_pylist() == [{"row": Decimal(1), "meta": [largest, least]}]


def test_a_family_as_rows_has_the_types_of_its_row_and_values() -> None:
    offers: Any = next(one for one in shop.members if one.name == "offers")
    fields = long_fields(offers, "row")
    types = [field.dataType.simpleString() for field in fields]
    assert types == ["decimal(5,1)", "string", "decimal(6,2)"]
    cell = (
        shop.encode_row(Decimal("1.5")),
        b"offers:x",
        decimal_of(6, 2).encode(Decimal("9.99")),
    )
    arrays = [pa.array([one], pa.binary()) for one in cell]
    assert long_rows(offers, fields, "row").batch(*arrays).to_pylist() == [
        {"row": Decimal("1.5"), "qualifier": "x", "value": Decimal("9.99")}
    ]
    arrays[2] = pa.array([b"text"], pa.binary())
    with pytest.raises(WrongTypeError, match=r"^shop\[1.5\].offers:x holds b'text', which"):
        long_rows(offers, fields, "row").batch(*arrays)
    with pytest.raises(WrongTypeError, match=r"^shop\[1.5\].offers:x holds b'text', which"):
        to_batch(chosen(shop), [(cell[0], {b"offers:x": b"text"})])
    narrow = struct("row decimal(4,1)")
    with pytest.raises(WrongTypeError, match=r"'row' .* is decimal\(5,1\); it cannot be decimal"):
        long_rows(offers, narrow, "row")


# --- Rows ---------------------------------------------------------------------------------

OPERATORS: dict[type[Filter], Any] = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


@pytest.mark.parametrize("name", [name for name in FIXED if name != "float32"])
@given(data=st.data())
def test_a_filter_of_ordered_rows_selects_the_rows_it_means(name: str, data: st.DataObject) -> None:
    codec, values = FIXED[name]
    operator = data.draw(st.sampled_from(list(OPERATORS)))
    bound, row = data.draw(values), data.draw(values)
    for one, means in (
        (operator(("row",), bound), OPERATORS[operator](row, bound)),
        (In(("row",), (bound, None, row)), True),
    ):
        ranges = row_ranges_of(one, "row", codec)
        # PySpark hands down longer decimals as others: such a filter is left to Spark.
        asked = (bound, row) if isinstance(one, In) else (bound,)
        rounded = any(isinstance(n, Decimal) and len(n.as_tuple().digits) >= 28 for n in asked)
        assert (ranges is None) == rounded
        if ranges is None:
            continue
        key = codec.encode(row)
        assert means == any(low <= key and (high is None or key < high) for low, high in ranges)


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (INT16, 2**15),
        (INT16, 1.5),
        (decimal_of(5, 1), Decimal("1.55")),
        (decimal_of(5, 1), Decimal(10**6)),
        (DATE, NOON),
        (TIMESTAMP, NOON),
        (TIMESTAMP_NTZ, NOON.replace(tzinfo=UTC)),
        (DATE, "2010-10-04"),
    ],
)
def test_a_bound_that_is_no_row_is_left_to_spark(codec: Codec[Any], value: Any) -> None:
    for one in (LessThan(("row",), value), In(("row",), (value,))):
        assert row_ranges_of(one, "row", codec) is None


def test_bounds_of_rows_are_written_as_text() -> None:
    def bounds(**options: str) -> tuple[bytes, bytes]:
        return _bounds(days, Options({"path": "/r", "table": "days", **options}))

    first, last = date(2010, 10, 1), date(2010, 11, 1)
    assert bounds(startRow="2010-10-01", endRow="2010-11-01") == (
        DATE.encode(first),
        DATE.encode(last),
    )
    with pytest.raises(WrongTypeError, match="but startRow is not: 'x' is not a date such as"):
        bounds(startRow="x")
    with pytest.raises(UsageError, match="by a start and an end"):
        bounds(prefix="2010-10-01")
