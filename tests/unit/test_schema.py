"""Tables, columns and their types: what they accept, refuse, store and agree on."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import percola
from percola import (
    JSON,
    Codec,
    Column,
    Schema,
    SchemaError,
    Table,
    UnknownColumnError,
    UnknownTableError,
    WrongTypeError,
)
from percola.catalog import reconcile
from percola.cells import MAX_TS, Cell, Kind, failed_column
from percola.errors import DamagedRecordError
from percola.schema import MAX_COLUMN_BYTES, MAX_NAME
from percola.store.base import SYSTEM_TABLE, Put, RowMutation
from tests.unit.wrong_calls import check_message


def upper() -> Codec[str]:
    return Codec("upper", lambda value: value.upper().encode(), bytes.decode)


# --- Names ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "_", "docs", "canonical-url", "a.b_c-9", "x" * MAX_NAME])
def test_a_usable_name_is_taken_as_it_is(name: str) -> None:
    table = Table(name)
    assert table.name == name
    assert table.column(name).name == name
    assert table.weak_column(f"w{name[1:]}").table_name == name


@pytest.mark.parametrize(
    "name", ["", "1a", "-a", "a b", "a:b", "@ack", "é", "a\n", "a\0", "x" * (MAX_NAME + 1), None, 7]
)
def test_an_unusable_name_is_refused_wherever_it_stands(name: Any) -> None:
    table = Table("t")
    for declare in (Table, table.column, table.family, table.weak_column):
        with pytest.raises(SchemaError, match=f"^{re.escape(repr(name))}.* cannot name") as caught:
            declare(name)
        assert type(caught.value) is SchemaError
        check_message(caught.value, str(MAX_NAME))
    assert list(table.members) == []


def test_a_name_is_given_once_in_a_table_whatever_it_names() -> None:
    table = Table("t")
    table.column("a")
    for declare in (table.column, table.family, table.weak_column):
        with pytest.raises(SchemaError, match="two columns named 'a'"):
            declare("a")


def test_the_longest_names_fit_into_percolas_own_columns_of_a_store() -> None:
    longest = "x" * MAX_NAME
    assert len(failed_column(longest, longest.encode())) <= MAX_COLUMN_BYTES


# --- Types ------------------------------------------------------------------------------


def test_bytes_may_be_given_as_any_buffer_and_a_float_as_an_int() -> None:
    table = Table("t")
    for buffer in (bytearray(b"ab"), memoryview(b"ab")):
        assert table.column(f"c{type(buffer).__name__}").encode_value(buffer) == b"ab"  # type: ignore[arg-type]
    column = table.column("f", float)
    assert column.decode_value(column.encode_value(3)) == 3.0
    assert math.isnan(column.decode_value(column.encode_value(math.nan)))


def test_a_long_wrong_value_is_not_repeated_whole() -> None:
    with pytest.raises(WrongTypeError) as caught:
        Table("t").column("c", int).encode_value("x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_a_type_without_a_codec_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SchemaError, match=r"str, int, float, bool, or a Codec .* percola\.JSON"):
        Table("t").column("c", dict)


@pytest.mark.parametrize("name", [5, None, b"money"])
def test_a_codec_whose_name_is_no_text_is_refused_before_it_is_stored(name: Any) -> None:
    codec: Codec[bytes] = Codec(name, bytes, bytes)
    for declare in (Table("t").column, Table("t").family):
        with pytest.raises(SchemaError, match=f"name of a codec is a text.* not {name!r}"):
            declare("price", codec)


@pytest.mark.parametrize("encoded", ["text", None, 5])
def test_a_codec_of_ones_own_that_makes_no_bytes_is_an_error_that_names_it(encoded: Any) -> None:
    wrong: Codec[Any] = Codec("wrong", lambda value: encoded, lambda raw: raw)
    column = Table("docs").column("made", wrong)
    with pytest.raises(
        WrongTypeError, match=r"'wrong' of the column docs\.made has encoded a value"
    ):
        column.encode_value("x")
    buffer: Codec[Any] = Codec("buffer", lambda value: value, lambda raw: raw)
    kept = bytearray(b"abc")
    raw = Table("docs").column("kept", buffer).encode_value(kept)
    kept[:] = b"xyz"
    assert raw == b"abc"


def test_a_codec_of_ones_own_encodes_and_decodes() -> None:
    column = Table("t").column("c", upper())
    assert column.encode_value("abc") == b"ABC"
    assert column.decode_value(b"ABC") == "ABC"


# --- Rows -------------------------------------------------------------------------------


@given(row=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_text_row_is_its_utf8(row: str) -> None:
    table = Table("t")
    assert table.encode_row(row) == row.encode()
    assert table.decode_row(table.encode_row(row)) == row


@given(row=st.binary(min_size=1))
def test_a_bytes_row_is_itself(row: bytes) -> None:
    table = Table("t", rows=bytes)
    assert table.encode_row(row) == table.decode_row(row) == row


@pytest.mark.parametrize("row", ["", b"a", 1, pytest.param(10**5000, id="digits"), None, "\ud800"])
def test_a_row_of_another_type_or_empty_is_refused(row: Any) -> None:
    with pytest.raises(WrongTypeError, match="table 't'"):
        Table("t").encode_row(row)
    if row not in (b"a",):
        with pytest.raises(WrongTypeError, match="table 't'"):
            Table("t", rows=bytes).encode_row(row)


def test_rows_are_text_or_bytes() -> None:
    with pytest.raises(SchemaError, match="rows=str, rows=bytes or a type"):
        Table("t", rows=int)


# --- Families and names of columns ------------------------------------------------------


def test_a_familys_columns_are_named_as_they_are_written() -> None:
    table = Table("t")
    links = table.family("link", int)
    column = links["https://é.example/?a:b"]
    assert column.name == "link:https://é.example/?a:b"
    assert links.qualifier(column) == "https://é.example/?a:b"
    assert column.decode_value(column.encode_value(3)) == 3
    assert not column.observed
    assert column == links["https://é.example/?a:b"] != links["another"]
    assert table.resolve(column.name) == column


@pytest.mark.parametrize(
    "qualifier", ["", "a\0b", None, 1, b"a", "\ud800", "é" * (MAX_COLUMN_BYTES // 2)]
)
def test_an_unusable_qualifier_is_refused(qualifier: Any) -> None:
    with pytest.raises(SchemaError):
        Table("t").family("f")[qualifier]


def test_a_column_is_found_by_name_and_an_unknown_one_named_with_those_there_are() -> None:
    table = Table("t")
    a, weak = table.column("a"), table.weak_column("w")
    table.family("f")
    assert table.resolve("a") is a
    assert table.resolve("w") is weak
    for name in ("b", "f", "a:b", "w:1", ""):
        with pytest.raises(UnknownColumnError, match=r"It has: a, w, f:…"):
            table.resolve(name)
    with pytest.raises(UnknownColumnError, match="It has: none"):
        Table("empty").resolve("a")


# --- The stored schema ------------------------------------------------------------------


def web() -> Schema:
    docs, links = Table("docs"), Table("links", rows=bytes)
    docs.column("contents", observed=True)
    docs.column("title", str)
    docs.column("shout", upper())
    docs.family("member", int)
    docs.weak_column("recluster")
    links.column("to", JSON)
    return Schema([docs, links])


def test_a_schema_is_stored_and_read_as_it_was() -> None:
    schema = web()
    again = Schema.from_json(schema.to_json())
    assert again.to_json() == schema.to_json()
    assert [table.name for table in again] == ["docs", "links"]
    assert again.table("links").rows is bytes
    # A codec that is not built in cannot be stored: its bytes are shown as they are.
    shout = again.table("docs").resolve("shout")
    assert isinstance(shout, Column)
    assert (shout.codec.name, shout.decode_value(b"ABC")) == ("upper", b"ABC")


def test_a_table_that_a_schema_lacks_is_named_with_those_it_has() -> None:
    with pytest.raises(UnknownTableError, match=r"no table 'x'.*docs, links"):
        web().table("x")


def test_a_schema_holds_each_table_once_and_tables_only() -> None:
    with pytest.raises(SchemaError, match="two tables named 't'"):
        Schema([Table("t"), Table("t")])
    with pytest.raises(SchemaError, match="'docs'"):
        Schema(["docs"])  # type: ignore[list-item]


def test_a_program_that_declares_less_or_the_same_changes_nothing() -> None:
    stored = web()
    assert web().merged_into(stored).to_json() == stored.to_json()
    some = Table("docs")
    some.column("title", str)
    assert Schema([some]).merged_into(stored).to_json() == stored.to_json()
    assert Schema([]).merged_into(stored).to_json() == stored.to_json()


def test_new_tables_and_columns_are_added_after_those_that_are_there() -> None:
    docs, more = Table("docs"), Table("more")
    docs.column("rank", float)
    more.column("a")
    merged = Schema([docs, more]).merged_into(web())
    assert [table.name for table in merged] == ["docs", "links", "more"]
    names = [member.name for member in merged.table("docs").members]
    assert names == ["contents", "title", "shout", "member", "recluster", "rank"]


def test_a_column_becomes_observed_if_a_program_declares_it_so() -> None:
    docs = Table("docs")
    docs.column("title", str, observed=True)
    title = Schema([docs]).merged_into(web()).table("docs").resolve("title")
    assert isinstance(title, Column)
    assert title.observed


def test_a_programs_own_codecs_are_used_where_its_table_is_the_stored_one() -> None:
    declared = web()
    merged = declared.merged_into(Schema.from_json(web().to_json())).with_codecs_of(declared)
    shout = merged.table("docs").resolve("shout")
    assert isinstance(shout, Column)
    assert shout.encode_value("abc") == b"ABC"


def test_the_stored_schema_is_json_that_a_person_can_read() -> None:
    docs = json.loads(web().to_json())["tables"][0]
    assert docs["name"] == "docs"
    assert {"column": "title", "type": "str", "observed": False} in docs["columns"]
    assert {"family": "member", "type": "int"} in docs["columns"]
    assert {"weak": "recluster"} in docs["columns"]


def test_of_very_many_tables_and_columns_an_error_names_those_that_are_called_alike() -> None:
    tables = [Table(f"customer_{number:04}") for number in range(1000)]
    for number in range(1000):
        tables[0].column(f"column_{number:04}")
    schema = Schema(tables)
    with pytest.raises(UnknownTableError, match=r"It has: customer_0421, .* and 995 others") as one:
        schema.table("custmer_0421")
    with pytest.raises(UnknownColumnError, match=r"It has: column_0007, .* and 995 others") as two:
        tables[0].resolve("colum_0007")
    assert max(len(str(one.value)), len(str(two.value))) < 250


def test_of_a_schema_that_grows_the_store_keeps_the_newest_version() -> None:
    """Each has all tables: those of a table for every customer would add up to gigabytes."""
    with percola.open("memory:", [Table("a")]) as repo:
        store = repo.context.store
        for name in "bcd":
            reconcile(store, Schema([Table(name)]))
        cell = Cell(SYSTEM_TABLE, b"schema", b"@json")
        [(_, raw)] = store.entries(cell, Kind.DATA, 0, MAX_TS)
    assert [table.name for table in Schema.from_json(raw.decode())] == [*"abcd"]


@pytest.mark.parametrize("raw", [b"", b'{"tables": [{"name": "d\xff', b"[]"])
def test_a_stored_schema_that_cannot_be_read_is_damage_and_no_empty_repository(raw: bytes) -> None:
    with percola.open("memory:", web()) as repo:
        store = repo.context.store
        put = Put(Kind.DATA, b"@json", 9, raw)
        store.mutate([RowMutation(SYSTEM_TABLE, b"schema", (), [put])])
        for use in (lambda: reconcile(store, Schema(())), repo.pending, repo.collect_garbage):
            with pytest.raises(
                DamagedRecordError, match=r"schema cannot be read.*Restore a backup"
            ):
                use()
