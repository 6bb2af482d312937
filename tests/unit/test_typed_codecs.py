"""The types of columns: Python's own, numbers of fixed size, dates, times, what is made of them."""

from __future__ import annotations

import datetime
import json
import math
import pickle
import struct
from collections.abc import Callable
from datetime import UTC, date, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
    Schema,
    SchemaError,
    SchemaMismatchError,
    Table,
    UsageError,
    WrongTypeError,
    array_of,
    decimal_of,
    map_of,
    struct_of,
)
from percola.codecs import UnfitValueError, codec_named, parse_text, parse_type
from percola.codecs.base import MOST_NESTED
from percola.recipes.applied import VALUES

Naive = datetime.datetime

zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.datetimes(min_value=Naive(1, 1, 3), max_value=Naive(9999, 12, 29), timezones=zones)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{scale}"))


ORDERED: dict[str, tuple[Codec[Any], st.SearchStrategy[Any]]] = {
    "int16": (INT16, st.integers(-(2**15), 2**15 - 1)),
    "int32": (INT32, st.integers(-(2**31), 2**31 - 1)),
    "int64": (INT64, st.integers(-(2**63), 2**63 - 1)),
    "date": (DATE, st.dates()),
    "timestamp": (TIMESTAMP, instants),
    "timestamp_ntz": (TIMESTAMP_NTZ, st.datetimes()),
    "decimal(1,0)": (decimal_of(1), decimals(1, 0)),
    "decimal(2,2)": (decimal_of(2, 2), decimals(2, 2)),
    "decimal(12,2)": (decimal_of(12, 2), decimals(12, 2)),
    "decimal(18,18)": (decimal_of(18, 18), decimals(18, 18)),
    "decimal(38,10)": (decimal_of(38, 10), decimals(38, 10)),
    "decimal(38,0)": (decimal_of(38), decimals(38, 0)),
}
text = st.text(st.characters(exclude_categories=["Cs"]))
floats32 = st.floats(width=32, allow_nan=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
prices = st.none() | decimals(12, 2)
flags = st.none() | st.booleans()
int64s = st.none() | st.integers(-(2**63), 2**63 - 1)
NESTED: dict[str, tuple[Codec[Any], st.SearchStrategy[Any]]] = {
    "array<str>": (array_of(str), st.lists(st.none() | text, max_size=4)),
    "array<decimal(12,2)>": (array_of(decimal_of(12, 2)), st.lists(prices, max_size=4)),
    "array<bytes>": (array_of(bytes), st.lists(st.binary(), max_size=4)),
    "array<float>": (array_of(float), st.lists(st.floats(allow_nan=False), max_size=4)),
    "array<float32>": (array_of(FLOAT32), st.lists(floats32, max_size=4)),
    "array<timestamp>": (array_of(TIMESTAMP), st.lists(instants, max_size=4)),
    "map<str,int64>": (map_of(str, INT64), st.dictionaries(text, int64s, max_size=4)),
    "map<date,bool>": (map_of(DATE, bool), st.dictionaries(st.dates(), flags, max_size=4)),
    "map<timestamp_ntz,array<int>>": (
        map_of(TIMESTAMP_NTZ, array_of(int)),
        st.dictionaries(st.datetimes(), st.lists(st.integers(), max_size=3), max_size=3),
    ),
    "struct<name:str,price:decimal(12,2),seen:array<date>>": (
        struct_of(name=str, price=decimal_of(12, 2), seen=array_of(DATE)),
        st.fixed_dictionaries(
            {
                "name": st.none() | text,
                "price": prices,
                "seen": st.none() | st.lists(st.dates(), max_size=3),
            }
        ),
    ),
    "array<json>": (array_of(JSON), st.lists(st.just({"a": [1, None]}) | text, max_size=3)),
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | text | finite,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
OWN: dict[str, tuple[Codec[Any], st.SearchStrategy[Any]]] = {
    "bytes": (codec_named("bytes"), st.binary()),
    "str": (codec_named("str"), text),
    "int": (codec_named("int"), st.integers()),
    "float": (codec_named("float"), st.floats(allow_nan=False)),
    "bool": (codec_named("bool"), st.booleans()),
    "json": (JSON, json_values),
}
"""The types that are Python's own."""
ALL = {**OWN, **ORDERED, **NESTED, "float32": (FLOAT32, floats32)}

EPOCH = Naive(1970, 1, 1)
NOON = Naive(2010, 10, 4, 12)


class Autumn(datetime.tzinfo):
    """A zone in which an hour comes twice."""

    def utcoffset(self, when: Naive | None) -> timedelta:
        return timedelta(hours=1 if when is not None and when.fold else 2)

    def dst(self, when: Naive | None) -> timedelta:
        return timedelta(0)


TWICE = Naive(2010, 10, 31, 2, 30, tzinfo=Autumn())
"""Python takes it to be unequal to the same instant in another zone."""

# What each type refuses, and what the sentence says about it.
MISFITS: list[tuple[Codec[Any], Any, str]] = [
    (INT16, 2**15, "int16, but was given int 32768: it is not between -32768 and 32767."),
    (INT16, -(2**15) - 1, "int16, but was given int -32769: it is not between"),
    (INT32, 2**31, "it is not between -2147483648 and 2147483647."),
    (INT64, 2**63, "it is not between -9223372036854775808 and 9223372036854775807."),
    (INT64, True, "int64, but was given bool True."),
    (INT64, 1.0, "int64, but was given float 1.0."),
    (INT64, "1", "int64, but was given str '1'."),
    (FLOAT32, 1e39, "it is beyond the range of 32-bit floats."),
    (FLOAT32, 2**1024, "it is beyond the range of 32-bit floats."),
    (FLOAT32, "1.0", "float32, but was given str '1.0'."),
    (DATE, NOON, "date, but was given datetime"),
    (DATE, "2010-10-04", "date, but was given str '2010-10-04'."),
    (TIMESTAMP, NOON, "it has no time zone."),
    (TIMESTAMP, date(2010, 10, 4), "timestamp, but was given date"),
    (TIMESTAMP, EPOCH.replace(year=1, tzinfo=timezone(timedelta(hours=1))), "years 1 to 9999."),
    (TIMESTAMP_NTZ, NOON.replace(tzinfo=UTC), "it has a time zone."),
    (decimal_of(12, 2), Decimal("1.234"), "it has more than 2 digits after the point."),
    (decimal_of(12, 2), Decimal("1E10"), "it has more than 10 digits before the point."),
    (decimal_of(12, 2), -(10**10), "it has more than 10 digits before the point."),
    (decimal_of(2, 1), Decimal("1E+999999"), "it has more than 1 digit before the point."),
    (decimal_of(12, 2), Decimal("1E-999999"), "it has more than 2 digits after the point."),
    (decimal_of(12, 2), Decimal("1." + "0" * 300 + "1"), "more than 2 digits after the point."),
    (decimal_of(12, 2), Decimal("NaN"), "it is not a finite number."),
    (decimal_of(12, 2), Decimal("-Infinity"), "it is not a finite number."),
    (decimal_of(12, 2), 1.5, "decimal(12,2), but was given float 1.5."),
    (decimal_of(12, 2), True, "decimal(12,2), but was given bool True."),
    (array_of(INT16), [1, "a"], "array<int16>, but was given list [1, 'a']: [1]: str 'a' is not"),
    (array_of(INT16), [1, 70000], "[1]: it is not between -32768 and 32767."),
    (array_of(str), "text", "array<str>, but was given str 'text'."),
    (array_of(array_of(DATE)), [[], [1]], "[1][0]: int 1 is not date."),
    (map_of(str, DATE), {1: None}, "[1]: int 1 is not str."),
    (map_of(str, DATE), {None: None}, "None is one of its keys."),
    (map_of(FLOAT32, str), {0.1: "a", 0.1 + 1e-12: "b"}, "two of its keys are the same float32."),
    (map_of(TIMESTAMP, str), {TWICE: "a", TWICE.astimezone(UTC): "b"}, "are the same timestamp."),
    (map_of(float, str), {2**53: "a", 2**53 + 1: "b"}, "[9007199254740993]: it would be rounded."),
    (array_of(float), [1, 2**53 + 1], "[1]: it would be rounded."),
    (map_of(str, decimal_of(3)), {"a": Decimal("0.5")}, "['a']: it has more than 0 digits after"),
    (struct_of(a=str), {"b": "x"}, "it has the key 'b', which is no field."),
    (struct_of(a=struct_of(b=INT16)), {"a": {"b": 2.5}}, ".a.b: float 2.5 is not int16."),
    (struct_of(a=str), ["x"], "struct<a:str>, but was given list ['x']."),
    *((codec_named("bytes"), value, ".") for value in ("text", 1, None, [1])),
    *((codec_named("str"), value, ".") for value in (b"bytes", 1, None, "\ud800")),
    *((codec_named("int"), value, ".") for value in ("1", 1.0, True, None)),
    *((codec_named("float"), value, ".") for value in ("1.0", True, None, b"1")),
    (codec_named("float"), 2**53 + 1, "int 9007199254740993: it would be rounded."),
    (codec_named("float"), 10**400, "float, but was given int 1000"),
    *((codec_named("bool"), value, ".") for value in (1, 0, "true", None)),
    *((JSON, value, ".") for value in (b"bytes", {1, 2}, math.nan, math.inf, {"a": object()})),
]


# --- Values -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_a_value_is_read_as_it_was_written(name: str, data: st.DataObject) -> None:
    codec, values = ALL[name]
    column = Table("t").column("c", codec)
    value = data.draw(values)
    raw = column.encode_value(value)
    found = column.decode_value(raw)
    assert type(raw) is bytes
    assert found == value and type(found) is type(value)
    if isinstance(value, Decimal):
        assert found.as_tuple().exponent == value.as_tuple().exponent


@pytest.mark.parametrize("name", ORDERED)
@given(data=st.data())
def test_bytes_sort_as_values_do_and_are_equal_if_these_are(name: str, data: st.DataObject) -> None:
    codec, values = ORDERED[name]
    one, other = data.draw(values), data.draw(values)
    assert (one < other) == (codec.encode(one) < codec.encode(other))
    assert (one == other) == (codec.encode(one) == codec.encode(other))


def test_an_instant_is_one_value_in_every_time_zone_and_is_read_in_utc() -> None:
    there = NOON.replace(tzinfo=timezone(timedelta(hours=5, minutes=30)))
    found = TIMESTAMP.decode(TIMESTAMP.encode(there))
    assert found == there and found.utcoffset() == timedelta(0)
    assert found.isoformat() == "2010-10-04T06:30:00+00:00"


@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_time_of_pandas_that_would_have_to_be_cut_is_refused(zone: str | None) -> None:
    import pandas

    codec: Any = TIMESTAMP if zone else TIMESTAMP_NTZ
    fits = pandas.Timestamp("2010-10-04T12:00:00.123456", tz=zone)
    assert codec.decode(codec.encode(fits)) == fits
    for more in (1, -1):
        with pytest.raises(UnfitValueError, match="finer than a microsecond"):
            codec.encode(fits + pandas.Timedelta(more, unit="ns"))


def test_a_decimal_that_is_written_otherwise_is_the_same_value() -> None:
    codec: Codec[Any] = decimal_of(12, 2)
    for same in (Decimal("1.5"), Decimal("1.500"), Decimal("15E-1"), Decimal("+1.50")):
        assert str(codec.decode(codec.encode(same))) == "1.50"
    assert codec.encode(Decimal("-0")) == codec.encode(0)
    assert str(codec.decode(codec.encode(7))) == "7.00"


def test_a_float_of_32_bits_is_rounded_to_one() -> None:
    found = FLOAT32.decode(FLOAT32.encode(0.1))
    assert found == struct.unpack(">f", struct.pack(">f", 0.1))[0] != 0.1
    assert math.isnan(FLOAT32.decode(FLOAT32.encode(math.nan)))
    assert FLOAT32.decode(FLOAT32.encode(-math.inf)) == -math.inf


def test_missing_fields_of_a_struct_are_none() -> None:
    codec = struct_of(a=str, b=INT16)
    assert codec.decode(codec.encode({"b": 1})) == {"a": None, "b": 1}


@pytest.mark.parametrize(("codec", "value", "says"), MISFITS)
def test_a_value_of_another_type_or_range_is_refused_in_a_sentence(
    codec: Codec[Any], value: Any, says: str
) -> None:
    column = Table("shop").column("price", codec)
    with pytest.raises(WrongTypeError) as caught:
        column.encode_value(value)
    message = str(caught.value)
    assert message.startswith(f"The column shop.price holds {codec.name}, but was given ")
    assert says in message and message.endswith(".")


@pytest.mark.parametrize("name", ALL)
@given(raw=st.binary(max_size=20))
def test_bytes_are_a_value_or_refused_and_a_value_has_one_form(name: str, raw: bytes) -> None:
    codec, _ = ALL[name]
    column = Table("t").column("c", codec)
    try:
        value = column.decode_value(raw)
    except WrongTypeError:
        return
    again = column.encode_value(value)
    if name in ORDERED:
        assert again == raw
    elif not (isinstance(value, float) and math.isnan(value)):
        assert column.decode_value(again) == value


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("str", b"\xff"),
        ("int", b"one"),
        ("float", b"?"),
        ("json", b"{"),
        ("json", b"[NaN, -Infinity]"),
        ("array<float>", b'["one"]'),
        ("array<float32>", b"[1" + b"0" * 400 + b"]"),
        ("map<float,str>", b'[["one","a"]]'),
        ("struct<a:float>", b'{"a":"one"}'),
    ],
)
def test_bytes_of_another_type_are_refused_when_they_are_read(name: str, raw: bytes) -> None:
    with pytest.raises(WrongTypeError, match="written with another type"):
        Table("t").column("c", codec_named(name)).decode_value(raw)


@pytest.mark.parametrize(
    ("codec", "beyond"),
    [
        (DATE, DATE.most + 1),
        (DATE, DATE.least - 1),
        (TIMESTAMP, TIMESTAMP.most + 1),
        (TIMESTAMP_NTZ, TIMESTAMP_NTZ.least - 1),
        (decimal_of(2, 1), 100),
        (decimal_of(2, 1), -100),
    ],
)
def test_a_stored_number_beyond_the_range_is_no_value(codec: Any, beyond: int) -> None:
    raw = (beyond + (1 << (8 * codec.width - 1))).to_bytes(codec.width, "big")
    with pytest.raises(WrongTypeError, match="another type"):
        Table("t").column("c", codec).decode_value(raw)


# --- Names ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_name_leads_back_to_its_codec(name: str) -> None:
    codec, _ = ALL[name]
    assert codec.name == name
    assert codec_named(name) is codec is parse_type(name)
    assert pickle.loads(pickle.dumps(codec)) is codec


def test_a_name_may_have_spaces_where_a_person_writes_it() -> None:
    assert parse_type(" map < str , decimal( 12 , 2 ) > ").name == "map<str,decimal(12,2)>"
    assert parse_type("decimal(9)").name == "decimal(9,0)"


@pytest.mark.parametrize(
    "name",
    [
        *("decimal", "decimal()", "decimal(0,0)", "decimal(39,2)", "decimal(2,3)"),
        *("decimal(12,-2)", "decimal(12,2", "decimal(12,2) ,", "number", ""),
        *("array", "array<>", "array<str", "array<str>>", "array<string>"),
        *("map<str>", "map<array<str>,str>", "map<json,str>"),
        *("struct<>", "struct<a>", "struct<a:str,a:int>", "struct<a:str,A:int>", "struct<1:str>"),
        "array<" * 17 + "str" + ">" * 17,
        "array<" * 100_000,
    ],
)
def test_another_name_is_no_type_and_a_stored_one_reads_bytes(name: str) -> None:
    with pytest.raises(SchemaError):
        parse_type(name)
    assert codec_named(name).decode(b"\xff") == b"\xff"


@pytest.mark.parametrize(
    "declare",
    [
        lambda: decimal_of(39, 0),
        lambda: decimal_of(0),
        lambda: decimal_of(5, 6),
        lambda: decimal_of(5, -1),
        lambda: decimal_of(True),
        lambda: decimal_of("12"),  # type: ignore[arg-type]
        lambda: array_of(list),
        lambda: array_of(Codec("own", bytes, bytes)),
        lambda: map_of(array_of(str), str),
        lambda: map_of(JSON, str),
        struct_of,
        lambda: struct_of(**{"a b": str}),
        lambda: struct_of(a=str, A=str),
    ],
)
def test_an_impossible_type_is_refused_where_it_is_declared(declare: Callable[[], Any]) -> None:
    with pytest.raises(SchemaError) as caught:
        declare()
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("int64", "-5", -5),
        ("decimal(12,2)", "12.5", Decimal("12.50")),
        ("date", "2010-10-04", date(2010, 10, 4)),
        ("timestamp", "2010-10-04T14:00+02:00", NOON.replace(tzinfo=UTC)),
        ("timestamp_ntz", "2010-10-04T12:00", NOON),
        ("timestamp_ntz", "2010-10-04T12:00:00.0000000", NOON),
        ("float", "-Infinity", -math.inf),
        ("array<float>", "[Infinity]", [math.inf]),
        ("float32", "0.5", 0.5),
        ("array<decimal(38,20)>", "[12345678901234567.12345678901234567890]", None),
        ("map<str,date>", '{"a": "2010-10-04"}', {"a": date(2010, 10, 4)}),
        ("struct<a:float,b:bytes>", '{"a": 1.5, "b": "AAE="}', {"a": 1.5, "b": b"\0\1"}),
    ],
)
def test_a_value_is_read_from_text_exactly(name: str, written: str, value: Any) -> None:
    if value is None:
        value = [Decimal(written.strip("[]"))]
    assert parse_text(codec_named(name), written) == value


@pytest.mark.parametrize(
    ("name", "written", "says"),
    [
        ("int16", "40000", "'40000' is not a whole number of 16 bits: it is not between"),
        ("int16", "many", "'many' is not a whole number of 16 bits"),
        ("decimal(12,2)", "1.234", "'1.234' is not a number that decimal(12,2) can hold: it has"),
        ("decimal(12,2)", "1,5", "'1,5' is not a number that decimal(12,2) can hold"),
        ("date", "2010-13-04", "'2010-13-04' is not a date such as 2010-10-04"),
        ("timestamp", "2010-10-04T12:00", "such as 2010-10-04T12:00:00Z: it has no time zone"),
        ("timestamp_ntz", "2010-10-04T12:00Z", "it has a time zone"),
        ("array<int16>", "[1,", "'[1,' is not JSON of the type array<int16>"),
        ("array<int16>", '["1"]', "is not JSON of the type array<int16>"),
        ("array<bytes>", '["?"]', "is not JSON of the type array<bytes>"),
        ("array<float>", '["many"]', "is not JSON of the type array<float>"),
        ("array<float>", f"[1{'0' * 400}]", "00…' is not JSON of the type array<float>"),
        ("map<date,str>", "[1]", "is not JSON of the type map<date,str>"),
        ("struct<a:str>", '{"b": 1}', "is not JSON of the type struct<a:str>"),
        ("timestamp", "2010-10-04T12:00:00.1234567Z", "it is finer than a microsecond"),
        ("timestamp_ntz", "2010-10-04T12:00:00,0000001", "it is finer than a microsecond"),
        ("map<str,timestamp>", '{"a": "2010-10-04T12:00:00.1234567Z"}', "it is finer than"),
        ("float", "1e400", "'1e400' is not a number: it is beyond the range of floats"),
        ("float32", "-1e400", "it is beyond the range of floats"),
        ("array<float>", "[1e400]", "it is beyond the range of floats"),
    ],
)
def test_text_that_is_no_value_is_refused(name: str, written: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below.
        parse_text(codec_named(name), written)
    assert says in str(caught.value)


# --- Schemas ----------------------------------------------------------------------------


def test_a_stored_schema_gives_the_types_back() -> None:
    shop = Table("shop", rows=decimal_of(9, 3))
    for at, (codec, _) in enumerate(ALL.values()):
        shop.column(f"c{at}", codec)
    shop.family("prices", decimal_of(12, 2))
    stored = Schema.from_json(Schema([shop]).to_json())
    again = stored.table("shop")
    assert again.rows is decimal_of(9, 3) and again.rows_name == "decimal(9,3)"
    members: list[Any] = list(again.members)
    assert [one.codec for one in members] == [
        *(codec for codec, _ in ALL.values()),
        decimal_of(12, 2),
    ]
    assert stored.to_json() == Schema([shop]).to_json()


def test_another_type_of_a_column_or_of_rows_does_not_match_the_stored_one() -> None:
    def declared(rows: Any, kind: Any) -> Schema:
        table = Table("shop", rows=rows)
        table.column("price", kind)
        return Schema([table])

    stored = declared(DATE, decimal_of(12, 2))
    assert declared(DATE, decimal_of(12, 2)).merged_into(stored).to_json() == stored.to_json()
    with pytest.raises(SchemaMismatchError, match=r"decimal\(13,2\).* as a column of decimal\(12"):
        declared(DATE, decimal_of(13, 2)).merged_into(stored)
    with pytest.raises(SchemaMismatchError, match=r"rows of timestamp, but .* rows of date"):
        declared(TIMESTAMP, decimal_of(12, 2)).merged_into(stored)


@pytest.mark.parametrize(
    "rows", [int, float, JSON, FLOAT32, array_of(str), Codec("x", bytes, bytes)]
)
def test_rows_of_a_type_without_an_order_are_refused(rows: Any) -> None:
    with pytest.raises(SchemaError, match="use rows=str, rows=bytes or a type whose values"):
        Table("t", rows=rows)


def test_a_column_of_every_type_can_be_pickled() -> None:
    table = Table("t", rows=DATE)
    for at, (codec, _) in enumerate(ALL.values()):
        table.column(f"c{at}", codec)
    again = pickle.loads(pickle.dumps(table))
    for one, (codec, _) in zip(again.members, ALL.values(), strict=True):
        assert one.codec == codec and one.decode == codec.decode and one.table is again
        assert one.row_key(date(2010, 10, 4)) == DATE.encode(date(2010, 10, 4))


ROWS: list[tuple[Codec[Any], list[Any]]] = [
    (INT64, [-(2**63), -1, 0, 1, 2**63 - 1]),
    (DATE, [date.min, date(1969, 12, 31), date(1970, 1, 1), date(2010, 10, 4), date.max]),
    (decimal_of(5, 2), [Decimal(t) for t in ("-999.99", "-0.01", "0.00", "0.01", "999.99")]),
    (TIMESTAMP_NTZ, [Naive.min, EPOCH - timedelta.resolution, EPOCH, NOON, Naive.max]),
]


@pytest.mark.parametrize(("codec", "rows"), ROWS, ids=lambda one: getattr(one, "name", ""))
@pytest.mark.parametrize("address", ["memory:", "lmdb"])
def test_rows_are_scanned_in_the_order_of_their_values(
    codec: Codec[Any], rows: list[Any], address: str, tmp_path: Any
) -> None:
    table = Table("t", rows=codec)
    value = table.column("value", int)
    where = address if address == "memory:" else str(tmp_path / "repo")
    with percola.open(where, schema=[table]) as repo:
        with repo.transaction() as t:
            for at in (3, 0, 4, 1, 2):
                t.set(value, rows[at], at)
        with repo.snapshot() as snapshot:
            assert [row.key for row in snapshot.scan(table)] == rows
            for low in (None, *rows):
                for high in (None, *rows):
                    first = 0 if low is None else rows.index(low)
                    last = len(rows) if high is None else rows.index(high)
                    found = snapshot.scan(table, start=low, end=high)
                    assert [row.key for row in found] == rows[first:last]
            assert snapshot.get(value, rows[2]) == 2
            assert [row.key for row in snapshot.get_rows(table, rows[1:3])] == rows[1:3]
            with pytest.raises(UsageError, match="and nothing by a prefix"):
                snapshot.scan(table, prefix=rows[0])
            with pytest.raises(WrongTypeError, match=r"Rows of the table 't' are .*, but this is"):
                snapshot.get(value, "text")


def test_a_row_of_another_type_is_refused_in_a_sentence() -> None:
    table = Table("t", rows=decimal_of(5, 2))
    with pytest.raises(WrongTypeError) as caught:
        table.encode_row(Decimal("0.001"))
    assert str(caught.value) == (
        "Rows of the table 't' are decimal(5,2), but this is Decimal Decimal('0.001'): it has more "
        "than 2 digits after the point."
    )
    with pytest.raises(WrongTypeError, match="should be decimal"):
        table.decode_row(b"text")


@given(st.text('[]{}:,"1e-. \n\tnulxa', max_size=12))
@example('\n{"a": [1, 2]}\t')
@example("[1]]")
def test_stored_json_is_read_as_python_reads_it_also_with_white_space(text: str) -> None:
    """Others may have written it: `percola set`, an import, another language."""
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(json.JSONDecodeError):
            JSON.decode(text.encode())
    else:
        assert JSON.decode(text.encode()) == expected


def nested(levels: int, inside: Any) -> Any:
    for level in range(levels):
        inside = [inside] if level % 2 else {"][}": inside}
    return inside


@pytest.mark.parametrize("codec", [JSON, array_of(JSON), VALUES])
def test_json_is_refused_where_a_program_that_is_some_calls_deeper_could_not_read_it(
    codec: Codec[Any],
) -> None:
    column = Table("t").column("c", codec)

    def read(calls: int, raw: bytes) -> Any:
        return read(calls - 1, raw) if calls else column.decode_value(raw)

    wide = [["[", '\\"[', {}]] * MOST_NESTED  # Many, but not deep; with brackets in texts.
    deepest = [nested(MOST_NESTED - 4, wide)]
    assert read(300, column.encode_value(deepest)) == deepest
    with pytest.raises(WrongTypeError, match=f"nested more than {MOST_NESTED} deep"):
        column.encode_value([deepest])
    # What an earlier version has written. Where it ends depends on Python's version.
    with pytest.raises(WrongTypeError, match=r"too deep for Python's recursion limit of \d+, "):
        column.decode_value(b"[" * 200_000 + b"]" * 200_000)
