"""A family as long rows: one Spark row for each cell, with the columns that are asked for."""

from __future__ import annotations

import pyarrow as pa
import pytest
from spark_schemas import struct

from percola import SchemaError, Table, UnknownColumnError, WrongTypeError
from percola.spark.read.family_rows import LongRows, long_fields, long_rows

docs = Table("docs")
links = docs.family("links", int)

CELLS = [
    (b"page-1", b"links:nav", links["nav"].encode_value(3)),
    (b"page-1", b"links:text:body", links["text:body"].encode_value(1)),
    (b"page-2", b"links:nav", links["nav"].encode_value(-5)),
]


def batch(rows: LongRows, cells: list[tuple[bytes, bytes, bytes]]) -> pa.RecordBatch:
    """Cells, given as row, column and encoded value, in the columns of `rows`."""
    return rows.batch(*(pa.array([one[at] for one in cells], pa.binary()) for at in range(3)))


def test_every_cell_is_a_row_with_its_qualifier_and_value() -> None:
    whole = long_rows(links, long_fields(links, "page"), "page")
    assert batch(whole, CELLS).to_pylist() == [
        {"page": "page-1", "qualifier": "nav", "value": 3},
        {"page": "page-1", "qualifier": "text:body", "value": 1},
        {"page": "page-2", "qualifier": "nav", "value": -5},
    ]
    assert batch(whole, []).num_rows == 0


def test_some_columns_in_another_order_and_a_narrower_type() -> None:
    wanted = struct("value int, page string")
    some = long_rows(links, wanted, "page")
    assert batch(some, CELLS).to_pylist() == [
        {"value": 3, "page": "page-1"},
        {"value": 1, "page": "page-1"},
        {"value": -5, "page": "page-2"},
    ]
    too_wide = [CELLS[1], (b"page-9", b"links:nav", links["nav"].encode_value(2**40))]
    with pytest.raises(WrongTypeError, match="page-9"):
        batch(some, too_wide)


def test_parts_of_arrays_are_rows_like_whole_ones() -> None:
    whole = long_rows(links, long_fields(links, "page"), "page")
    rows, names, raws = (pa.array([one[at] for one in CELLS], pa.binary()) for at in range(3))
    parts = [whole.batch(rows[at:], names[at:], raws[at:]).to_pylist() for at in range(3)]
    assert parts == [parts[0][at:] for at in range(3)]


def test_a_qualifier_that_is_not_text_is_named() -> None:
    whole = long_rows(links, long_fields(links, "page"), "page")
    with pytest.raises(WrongTypeError, match=r"has a column b'links:\\xff', which should be"):
        batch(whole, [CELLS[0], (b"page-1", b"links:\xff", b"1")])


def test_columns_that_long_rows_do_not_have_are_refused() -> None:
    def asked(name: str, kind: str) -> None:
        long_rows(links, struct(f"{name} {kind}"), "row")

    with pytest.raises(UnknownColumnError, match="no column 'title'; it has row, qualifier, value"):
        asked("title", "string")
    with pytest.raises(WrongTypeError, match=r"'qualifier' .* is string; it cannot be bigint"):
        asked("qualifier", "bigint")
    with pytest.raises(WrongTypeError, match=r"'value' .* is bigint; it cannot be string"):
        asked("value", "string")
    with pytest.raises(SchemaError, match="cannot be called 'value'"):
        long_fields(links, "value")
