"""Rows of Spark as writes of cells: every type, every null, and every wrong row in a sentence."""

from __future__ import annotations

import datetime
import decimal
import tracemalloc
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_schemas import struct
from spark_writes import docs, links, open_table

from percola import (
    JSON,
    TIMESTAMP,
    PercolaError,
    Table,
    ValueTooLargeError,
    WrongTypeError,
    array_of,
    map_of,
)
from percola.spark.columns import chosen, to_batch
from percola.spark.encoding import Encoder
from percola.spark.options import Options
from percola.spark.stream.sink import stream_writer
from percola.spark.versions import arrow_schema
from percola.spark.write.changes import CHANGE, ChangeEncoder
from percola.spark.write.plan import writer
from percola.store.base import Limits
from percola.transactions.jobs import JOBS, RowWrites


def encode(
    kinds: str, rows: list[tuple[Any, ...]], table: Table[Any] = docs, **more: Any
) -> list[RowWrites]:
    schema = struct(kinds)
    arrow = arrow_schema(schema)
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], arrow
    )
    return Encoder(table, schema, "row", **more).encode(batch)


def test_values_become_what_the_codecs_write_and_reading_gives_them_back() -> None:
    kinds = (
        "row string, title string, size bigint, score double, good boolean, body binary, "
        "meta struct<n: int, when: date, x: array<map<string, double>>>, links map<string, string>"
    )
    meta = {"n": 3, "when": datetime.date(2010, 10, 4), "x": [{"k": 0.5}, None]}
    rows = [
        ("ä", "Ü", -(2**63), 0.1, True, b"\0", meta, {"p": "1", "q": "2"}),
        ("b", "", 0, -1e300, False, b"", None, {}),
    ]
    found = encode(kinds, rows)
    assert [one.row for one in found] == ["ä".encode(), b"b"]
    assert found[0].cells == {
        b"title": "Ü".encode(),
        b"size": b"-9223372036854775808",
        b"score": b"0.1",
        b"good": b"true",
        b"body": b"\0",
        b"meta": b'{"n":3,"when":"2010-10-04","x":[{"k":0.5},null]}',
        b"links:p": b"1",
        b"links:q": b"2",
    }
    columns = chosen(docs, struct(kinds))
    read = to_batch(
        columns, [(one.row, {k: v or b"" for k, v in one.cells.items()}) for one in found]
    )
    again = read.to_pylist()
    assert again[0]["meta"] == {**meta, "x": [[("k", 0.5)], None]}
    assert [one["links"] for one in again] == [[("p", "1"), ("q", "2")], None]
    for at, name in enumerate(("row", "title", "size", "score", "good", "body")):
        assert [one[name] for one in again] == [row[at] for row in rows]


def test_narrower_types_text_json_and_bytes_rows() -> None:
    found = encode(
        "row string, size decimal(20,0), score float, meta string",
        [("a", decimal.Decimal(10**19), 0.5, ' {"b": 1,  "a": "ä"} ')],
    )
    assert found[0].cells == {
        b"size": b"10000000000000000000",
        b"score": b"0.5",
        b"meta": '{"b":1,"a":"ä"}'.encode(),
    }
    blobs = Table("blobs", rows=bytes)
    blobs.column("n", int)
    assert encode("row binary, n tinyint", [(b"\0\1", 7)], blobs) == [
        RowWrites("blobs", b"\0\1", {b"n": b"7"})
    ]


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ('{"n": 0.12345678901234567890}', '{"n":0.12345678901234567890}'),
        (
            '[{"é": [1.00000000000000000001, 2.50, 3]}, null]',
            '[{"é":[1.00000000000000000001,2.5,3]},null]',
        ),
        ("1e-400", "1E-400"),
        ("1e-9999999999999999999", "0.0"),
        ("1.10", "1.1"),
    ],
)
def test_json_text_keeps_digits_that_no_float_has(text: str, stored: str) -> None:
    [found] = encode("row string, meta string", [("a", text)])
    assert found.cells == {b"meta": stored.encode()}


@pytest.mark.parametrize("zone", ["America/New_York", "GMT+3", "Z", "+01:00"])
def test_times_inside_of_values_are_those_of_spark_in_any_zone_of_a_session(zone: str) -> None:
    """In New York the two instants are both half past one; GMT+3 and Z are zones of Java alone."""
    table = Table("t")
    table.column("names", map_of(TIMESTAMP, str))
    table.column("seen", array_of(TIMESTAMP))
    table.column("meta", JSON)
    schema = struct(
        "row string, names map<timestamp,string>, seen array<timestamp>, "
        "meta struct<at: timestamp, more: array<timestamp>>"
    )
    first, second = (
        datetime.datetime(2026, 11, 1, hour, 30, tzinfo=datetime.UTC) for hour in (5, 6)
    )
    values = {
        "row": "a",
        "names": [(first, "first"), (second, "second")],
        "seen": [first, None, second],
        "meta": {"at": first, "more": [second]},
    }
    here = pa.timestamp("us", zone)
    kinds = pa.schema(
        {
            "row": pa.string(),
            "names": pa.map_(here, pa.string()),
            "seen": pa.list_(here),
            "meta": pa.struct({"at": here, "more": pa.list_(here)}),
        }
    )
    [written] = Encoder(table, schema, "row").encode(
        pa.RecordBatch.from_pylist([values], arrow_schema(schema)).cast(kinds)
    )
    assert written.cells == {
        b"names": map_of(TIMESTAMP, str).encode({first: "first", second: "second"}),
        b"seen": array_of(TIMESTAMP).encode([first, None, second]),
        b"meta": b'{"at":"2026-11-01T05:30:00+00:00","more":["2026-11-01T06:30:00+00:00"]}',
    }


def test_nulls_leave_alone_or_delete_and_the_delete_column_clears() -> None:
    kinds = "row string, title string, size int, links map<string,string>, gone boolean"
    rows = [
        ("a", None, 1, {"x": None, "y": "1"}, None),
        ("b", "t", None, None, False),
        ("c", "t", 1, {"z": "1"}, True),
    ]
    left = encode(kinds, rows, delete_column="gone")
    assert left == [
        RowWrites("docs", b"a", {b"size": b"1", b"links:y": b"1"}),
        RowWrites("docs", b"b", {b"title": b"t"}),
        RowWrites("docs", b"c", {}, clears=True),
    ]
    deleted = encode(kinds, rows, delete_column="gone", deletes_nulls=True)
    assert [one.cells for one in deleted] == [
        {b"title": None, b"size": b"1", b"links:x": None, b"links:y": b"1"},
        {b"title": b"t", b"size": None},
        {},
    ]


def test_families_of_a_table_may_have_columns_of_one_name() -> None:
    table = Table("t")
    table.family("counts", int)
    table.family("labels", str)
    kinds = "row string, counts map<string,bigint>, labels map<string,string>"
    found = encode(kinds, [("a", {"x": 1}, {"x": "one", "y": "two"}), ("b", {"y": 2}, None)], table)
    assert [one.cells for one in found] == [
        {b"counts:x": b"1", b"labels:x": b"one", b"labels:y": b"two"},
        {b"counts:y": b"2"},
    ]


def test_names_of_a_familys_columns_take_no_memory_for_as_long_as_a_task_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("percola.spark.encoding._NAMES", 1000)
    schema = struct("row string, links map<string,string>")
    encoder = Encoder(docs, schema, "row")
    held = []
    tracemalloc.start()
    try:
        for part in range(6):
            rows = [{"row": "a", "links": [(f"{part}/{at}", "x") for at in range(5000)]}]
            batch = pa.RecordBatch.from_pylist(rows, arrow_schema(schema))
            assert len(encoder.encode(batch)[0].cells) == 5000
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[-1] - held[0] < 500_000


def test_a_slice_of_a_batch_is_encoded_as_what_it_is() -> None:
    schema = struct("row string, links map<string,string>")
    rows = [{"row": f"r{n}", "links": [(f"q{n}", str(n))] * (n % 2)} for n in range(10)]
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema(schema)).slice(3, 4)
    found = Encoder(docs, schema, "row").encode(batch)
    assert found == [
        RowWrites("docs", b"r%d" % n, {b"links:q%d" % n: b"%d" % n} if n % 2 else {})
        for n in range(3, 7)
    ]


@pytest.mark.parametrize(
    ("kinds", "row", "message"),
    [
        ("row string, size int", (None, 1), "The column 'row' is null in a row"),
        ("row string, size int", ("", 1), "is empty in a row .* of at least one character"),
        ("row string, meta string", ("a", "{"), r"docs.meta of 'a' should be JSON, but is '\{'"),
        ("row string, meta string", ("a", "[1e400]"), r"docs.meta of 'a' should be JSON"),
        ("row string, meta string", ("a", "[NaN, 0.12345678901234567890]"), "should be JSON"),
        ("row string, meta double", ("a", float("nan")), "docs.meta of 'a' should be JSON"),
        (
            "row string, links map<string,string>",
            ("a", {"": "x"}),
            "In the row 'a' of 'docs': '' can",
        ),
        ("row string, links map<string,string>", ("a", {"q" * 120: ""}), "row 'a' .* at most 112"),
    ],
)
def test_a_wrong_value_is_told_with_its_row(kinds: str, row: tuple[Any, ...], message: str) -> None:
    with pytest.raises(PercolaError, match=message):
        encode(kinds, [row])


def test_a_value_too_large_for_the_store_is_told_with_its_row() -> None:
    limits = Limits(row_bytes=100, value_bytes=1000)
    assert encode("row string, body binary", [("a", b"x" * 1000)], limits=limits)
    with pytest.raises(ValueTooLargeError, match=r"1001 bytes for docs.body of 'b'"):
        encode("row string, body binary", [("a", b""), ("b", b"x" * 1001)], limits=limits)


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        ("key string, size bigint", {}, "have no column 'row'"),
        ("row string", {}, "have a key and nothing else"),
        ("row string, sise bigint", {}, "Did you mean 'size'"),
        ("row string, size string", {}, "holds int, which is bigint in Spark"),
        ("row string, size void", {}, "cannot be void: cast it to bigint"),
        ("row int, size bigint", {}, "is string in Spark, not int"),
        ("row string, refresh string", {}, "is weak"),
        ("row string, links string", {}, "is a family"),
        ("row string, size int", {"deleteColumn": "gone"}, "no column 'gone'"),
        ("row string, size int, g int", {"deleteColumn": "g"}, "has to be a boolean"),
        ("row string, good boolean", {"deleteColumn": "good"}, "of its own"),
        ("row string, size int", {"table": "dogs"}, "has no table 'dogs'"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_before_anything_is(
    tmp_path: Path, kinds: str, options: dict[str, str], message: str
) -> None:
    with open_table(tmp_path / "repo") as repo:
        given = Options({"path": str(tmp_path / "repo"), "table": "docs", **options})
        for make in (writer, stream_writer):
            with pytest.raises(PercolaError, match=message):
                make(given, struct(kinds), False)
        assert JOBS.name not in repo.schema


def test_overwriting_is_refused_in_words(tmp_path: Path) -> None:
    with open_table(tmp_path / "repo"):
        given = Options({"path": str(tmp_path / "repo"), "table": "docs"})
        schema = struct("row string, size int")
        with pytest.raises(PercolaError, match=r"no mode\('overwrite'\).*mode\('append'\)"):
            writer(given, schema, True)
        with pytest.raises(PercolaError, match=r"outputMode\('complete'\)"):
            stream_writer(given, schema, True)


def test_a_json_column_takes_values_of_any_kind_but_no_bytes() -> None:
    table = Table("t")
    table.column("meta", JSON)
    assert encode("row string, meta array<bigint>", [("a", [1, None])], table)[0].cells == {
        b"meta": b"[1,null]"
    }
    with pytest.raises(WrongTypeError):
        encode("row string, meta binary", [("a", b"")], table)


def test_what_an_update_leaves_of_a_wide_row_is_locked_and_looked_up_at_once(
    tmp_path: Path,
) -> None:
    """Each cell of the row is looked for among the locks: in a list, that takes the square."""
    with open_table(tmp_path / "repo") as repo:
        with repo.transaction() as t:
            for number in range(3):
                t.set(links[f"q{number}"], "a", "x")
        given = {"path": str(tmp_path / "repo"), "table": "docs", "changesAt": str(t.commit_ts)}
        schema = struct(f"row string, title string, links map<string,string>, {CHANGE} string")
        row = ["a", "new", [(f"q{number}", "x") for number in range(3)], "update"]
        batch = pa.RecordBatch.from_pylist(
            [dict(zip(schema.names, row, strict=True))], arrow_schema(schema)
        )
        [changes] = ChangeEncoder(repo, Options(given), schema).encode(batch)
        assert changes.cells == {b"title": b"new"}
        assert changes.locks == {b"links:q0", b"links:q1", b"links:q2"}
        assert isinstance(changes.locks, Set)


def test_large_rows_that_are_deleted_are_not_read_all_at_once(tmp_path: Path) -> None:
    keys = [f"{number:02}" for number in range(40)]
    with open_table(tmp_path / "repo") as repo:
        with repo.transaction() as t:
            for key in keys:
                t.set(links["large"], key, "x" * (1 << 20))
        given = {"path": str(tmp_path / "repo"), "table": "docs", "changesAt": str(t.commit_ts)}
        schema = struct(f"row string, title string, links map<string,string>, {CHANGE} string")
        batch = pa.RecordBatch.from_pylist(
            [{"row": key, CHANGE: "delete"} for key in keys], arrow_schema(schema)
        )
        encoder = ChangeEncoder(repo, Options(given), schema)
        read: list[int] = []
        some_rows = encoder._reader.some_rows

        def counted(rows: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
            found = some_rows(rows)
            read.append(len(found))
            return found

        encoder._reader.some_rows = counted  # type: ignore[method-assign]
        changes = list(encoder.encode(batch))
    assert [one.row.decode() for one in changes] == keys
    assert all(one.cells == {b"links:large": None} for one in changes)
    assert sum(read) == len(keys) and max(read) < 20
