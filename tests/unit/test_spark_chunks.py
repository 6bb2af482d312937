"""How rows are cut into chunks: nothing lost, in order, and no chunk larger than it has to be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from percola.spark.chunks import chunked, weight
from percola.spark.write.plan import chunks
from percola.transactions.jobs import RowWrites
from webindex.batch.inlinks import Row


@given(st.lists(st.integers(0, 50)), st.integers(1, 10), st.integers(1, 100))
def test_chunks_keep_every_row_in_order_within_both_bounds(
    sizes: list[int], most_rows: int, most_bytes: int
) -> None:
    chunks = list(chunked(sizes, most_rows, most_bytes, lambda size: size))
    assert [size for chunk in chunks for size in chunk] == sizes
    for chunk in chunks:
        assert 1 <= len(chunk) <= most_rows
        assert sum(chunk[:-1]) < most_bytes, "it was full before its last row"
    for chunk in chunks[:-1]:
        assert len(chunk) == most_rows or sum(chunk) >= most_bytes, "it ended too early"


def test_a_chunk_is_handed_out_before_the_next_row_is_asked_for() -> None:
    rows = iter(range(9))
    assert next(chunked(rows, 3, 1000, lambda _: 1)) == [0, 1, 2]
    assert next(rows) == 3


def test_what_a_value_weighs_is_the_text_and_the_bytes_in_it() -> None:
    long = 10_000
    for value in (
        "x" * long,
        b"x" * long,
        bytearray(long),
        ["x" * long, 1],
        ("row", None, b"x" * long),
        {"key": {"x": ["x" * long]}},
        {"x" * long: 1},
        Row("pages", "row", {"text": "x" * long}),
    ):
        assert long <= weight(value) <= long + 100, value.__class__
    assert weight(None) + weight(1) + weight(2.5) < 100


def test_a_chunk_of_writes_is_bounded_also_where_cells_have_names_and_hardly_values() -> None:
    names = [b"links:%0100d" % at for at in range(100)]
    deleted = RowWrites("pages", b"row", dict.fromkeys(names))
    locked = RowWrites("pages", b"row", {}, locks=names)
    for row in (deleted, locked):
        assert [len(chunk) for chunk in chunks(iter([[row] * 10]), 1000, 30_000)] == [3, 3, 3, 1]
