"""What is encoded is decoded as it was, and stands in bytes as the docstrings say."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from percola.cells import (
    MAX_TS,
    NO_CHANGE,
    SYSTEM_MARK,
    WRITE_HEADER,
    Cell,
    LastChange,
    LockRecord,
    Op,
    WriteRecord,
    ack_column,
    decode_lock,
    decode_ts,
    decode_write,
    encode_lock,
    encode_ts,
    encode_write,
    failed_column,
    repeated_change,
)
from percola.errors import DamagedRecordError

timestamps = st.integers(0, MAX_TS)
operations = st.sampled_from(Op)
values = st.none() | st.binary(max_size=300)
keys = st.binary(min_size=1, max_size=400)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,47}", fullmatch=True)
locks = st.builds(
    LockRecord,
    op=operations,
    primary=st.builds(Cell, names, keys, keys),
    owner=st.text(max_size=80),
    wall_ms=st.integers(0, 2**63),
    ttl_ms=st.integers(0, 2**32 - 1),
    observed=st.booleans(),
    value=values,
    last_change=st.none(),
)
changes = st.just(NO_CHANGE) | st.builds(
    lambda ts, op, start_ts, value: LastChange(ts, encode_write(op, start_ts, value)),
    st.integers(1, MAX_TS),
    st.sampled_from((Op.PUT, Op.DELETE)),
    timestamps,
    values,
)


@given(op=operations, start_ts=timestamps, value=values)
@example(op=Op.PUT, start_ts=1, value=b"")
@example(op=Op.ROLLBACK, start_ts=0, value=None)
def test_a_write_record_is_read_as_it_was_written(
    op: Op, start_ts: int, value: bytes | None
) -> None:
    record = encode_write(op, start_ts, value)
    assert decode_write(record) == WriteRecord(op, start_ts, value)
    assert record[0] == op
    assert len(record) >= WRITE_HEADER and record[WRITE_HEADER:] == (value or b"")


@given(op=operations, start_ts=timestamps, value=values, change=changes, decides=st.booleans())
def test_a_reader_finds_in_a_write_record_the_change_that_decoding_it_finds(
    op: Op, start_ts: int, value: bytes | None, change: LastChange, decides: bool
) -> None:
    for record in (
        encode_write(op, start_ts, value),
        encode_write(Op.LOCK, start_ts, decides=decides),
        encode_write(Op.LOCK, start_ts, last_change=change, decides=decides),
    ):
        assert repeated_change(record) == decode_write(record).last_change


def test_a_repeated_change_that_is_cut_off_is_damage_and_not_an_empty_cell() -> None:
    record = encode_write(Op.LOCK, 7, last_change=NO_CHANGE)
    for end in range(WRITE_HEADER, len(record)):
        with pytest.raises(DamagedRecordError):
            repeated_change(record[:end])


@given(lock=locks, change=changes)
def test_a_lock_record_is_read_as_it_was_written(lock: LockRecord, change: LastChange) -> None:
    assert decode_lock(encode_lock(lock)) == lock
    unchanging = lock._replace(op=Op.LOCK, value=None, last_change=change)
    assert decode_lock(encode_lock(unchanging)) == unchanging


def test_a_lock_record_holds_a_primary_with_the_longest_row_of_any_store() -> None:
    primary = Cell("t" * 48, b"r" * 65535, b"c" * 112)
    lock = LockRecord(Op.PUT, primary, "owner", 1, 1, True, b"")
    assert decode_lock(encode_lock(lock)) == lock


@given(ts=timestamps)
def test_a_timestamp_as_a_value_is_decimal_digits(ts: int) -> None:
    assert encode_ts(ts) == str(ts).encode()
    assert decode_ts(encode_ts(ts)) == ts


@given(observer=names, column=names)
def test_percolas_columns_are_marked_with_observer_and_column(observer: str, column: str) -> None:
    columns = [ack_column(observer, column.encode()), failed_column(observer, column.encode())]
    for name in columns:
        assert name.startswith(SYSTEM_MARK)
        assert name.split(b":")[1:] == [observer.encode(), column.encode()]
    assert len(set(columns)) == 2


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (Cell("bank", b"Bob", b"bal"), "bank['Bob'].bal"),
        (Cell("t", "é".encode(), b"c"), "t['é'].c"),
        (Cell("t", b"\xff\0", b"c"), r"t['\\xff\x00'].c"),
    ],
)
def test_a_cell_is_shown_so_that_a_person_recognises_it(cell: Cell, shown: str) -> None:
    assert str(cell) == shown
