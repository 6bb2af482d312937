"""A family as long rows: one Spark row for each cell, with the columns that are asked for."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from percola import SchemaError, Table, UnknownColumnError, WrongTypeError
from percola.cells import Cell
from percola.spark.read.family_rows import long_fields, long_rows

docs = Table("docs")
links = docs.family("links", int)

CELLS = [
    (Cell("docs", b"page-1", b"links:nav"), links["nav"].encode_value(3)),
    (Cell("docs", b"page-1", b"links:text:body"), links["text:body"].encode_value(1)),
    (Cell("docs", b"page-2", b"links:nav"), links["nav"].encode_value(-5)),
]


def test_every_cell_is_a_row_with_its_qualifier_and_value() -> None:
    whole = long_rows(links, long_fields(links, "page"), "page")
    assert whole.batch(CELLS).to_pylist() == [
        {"page": "page-1", "qualifier": "nav", "value": 3},
        {"page": "page-1", "qualifier": "text:body", "value": 1},
        {"page": "page-2", "qualifier": "nav", "value": -5},
    ]
    assert whole.batch([]).num_rows == 0


def test_some_columns_in_another_order_and_a_narrower_type() -> None:
    wanted = StructType([StructField("value", IntegerType()), StructField("page", StringType())])
    some = long_rows(links, wanted, "page")
    assert some.batch(CELLS).to_pylist() == [
        {"value": 3, "page": "page-1"},
        {"value": 1, "page": "page-1"},
        {"value": -5, "page": "page-2"},
    ]
    too_wide = [(CELLS[0][0], links["nav"].encode_value(2**40))]
    with pytest.raises(WrongTypeError, match="page-1"):
        some.batch(too_wide)


def test_columns_that_long_rows_do_not_have_are_refused() -> None:
    def asked(name: str, kind: object) -> None:
        long_rows(links, StructType([StructField(name, kind)]), "row")  # type: ignore[arg-type]

    with pytest.raises(UnknownColumnError, match="no column 'title'; it has row, qualifier, value"):
        asked("title", StringType())
    with pytest.raises(WrongTypeError, match=r"'qualifier' .* is string; it cannot be bigint"):
        asked("qualifier", LongType())
    with pytest.raises(WrongTypeError, match=r"'value' .* is bigint; it cannot be string"):
        asked("value", StringType())
    with pytest.raises(SchemaError, match="cannot be called 'value'"):
        long_fields(links, "value")
