"""Bigtable's store without a server: addresses, filters, and how rows are put together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percola.cells import MAX_TS, Cell, Kind
from percola.errors import (
    RowTooLongError,
    StoreError,
    TransactionTooLargeError,
    UsageError,
    ValueTooLargeError,
)
from percola.store.base import Condition, Delete, Put, RowMutation, is_wanted
from percola.store.bigtable.client import Calls, Place, ReadRowsResponse
from percola.store.bigtable.filters import (
    FILTER_BYTES,
    MAX_STORED_TS,
    SCALE,
    predicate,
    snapshot,
    stamps,
)
from percola.store.bigtable.reads import RECORDS, _pieces, _snapshot
from percola.store.bigtable.row_stream import assembled
from percola.store.bigtable.store import BigtableStore, open_bigtable, place_of
from percola.store.bigtable.writes import in_requests, plan
from percola.store.remote.column_ranges import ColumnRange, wanted_ranges
from percola.testing.conformance.model import COLUMNS

PLACE = Place("p", "i", emulator="127.0.0.1:1")


# --- Addresses --------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST", raising=False)


def test_an_address_names_project_instance_and_profile() -> None:
    assert place_of("bigtable://my-project/crawl") == Place("my-project", "crawl")
    assert place_of("bigtable://my-project/crawl/") == Place("my-project", "crawl")
    found = place_of("bigtable://example.com:my-project/crawl?app_profile=percola_1")
    assert found == Place("example.com:my-project", "crawl", "percola_1")
    assert found.path == "projects/example.com:my-project/instances/crawl"


def test_the_environment_says_whether_an_emulator_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "localhost:8086")
    store = open_bigtable("bigtable://p/i")
    assert store.place == Place("p", "i", emulator="localhost:8086")
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "http://localhost:8086/")
    with pytest.raises(UsageError, match=r"BIGTABLE_EMULATOR_HOST.*host:port"):
        open_bigtable("bigtable://p/i")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("bigtable://", "not the address"),
        ("bigtable://project", "not the address"),
        ("bigtable:///instance", "''.*project"),
        ("bigtable://project/", "''.*instance"),
        ("bigtable://project/instance/table", "not the address"),
        ("bigtable://project/instance#x", "not the address"),
        ("hbase://project/instance", "not the address"),
        ("bigtable://Project/instance", "'Project'.*project"),
        ("bigtable://project/1instance", "'1instance'.*instance"),
        ("bigtable://project/a b", "'a b'.*instance"),
        ("bigtable://project/instance?app_profile=", "''.*application profile"),
        ("bigtable://project/instance?app_profile=a/b", "'a/b'.*application profile"),
        ("bigtable://project/instance?profile=x", "unknown option 'profile'"),
        ("bigtable://project/instance?&", "unknown option '&'"),
    ],
)
def test_a_malformed_address_is_refused_with_the_right_shape(address: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){words}.*bigtable://project/instance"):
        open_bigtable(address)


@pytest.mark.parametrize("seconds", [0, -1, 61, float("nan")])
def test_a_call_may_not_take_for_ever_or_no_time(seconds: float) -> None:
    with pytest.raises(UsageError, match="60 s"):
        open_bigtable("bigtable://p/i", request_seconds=seconds)


def test_nothing_is_asked_of_a_server_before_it_is_needed() -> None:
    store = open_bigtable("bigtable://p/i")
    store.close()
    assert store.statistics() == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be used (Is a directory)"),
        ("[]", "cannot be used ('list' object has no attribute 'get')"),
        ("{", "is not a valid json file (Expecting property name"),
        ('{"type": "authorized_user"}', "expected format, missing fields"),
        ('{"type": "external_account"}', "external account credentials from"),
    ],
)
def test_a_key_file_that_is_none_is_one_sentence_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, said: str
) -> None:
    file = tmp_path / "key.json"
    if content is None:
        file.mkdir()
    else:
        file.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    store = open_bigtable("bigtable://p/i")
    with pytest.raises(StoreError) as caught:
        store.create_tables([])
    words = str(caught.value)
    assert words.startswith("There are no credentials for the Bigtable instance p/i: ")
    assert str(file) in words and said in words and ". Run 'gcloud auth" in words
    assert "Error(" not in words


# --- Timestamps, columns ----------------------------------------------------------------


@given(
    low=st.integers(0, MAX_STORED_TS + 9) | st.just(MAX_TS),
    high=st.integers(0, MAX_STORED_TS + 9) | st.just(MAX_TS),
    ts=st.integers(0, MAX_STORED_TS),
)
def test_a_range_of_timestamps_lets_those_inside_through(low: int, high: int, ts: int) -> None:
    if low > high:
        return
    for at in {
        ts,
        min(low, MAX_STORED_TS),
        min(high, MAX_STORED_TS),
        max(0, min(low, MAX_STORED_TS) - 1),
    }:
        made = stamps(low, high)
        if made is None:
            passes = True
        elif made.block_all_filter:
            passes = False
        else:
            span = made.timestamp_range_filter
            end = span.end_timestamp_micros or 2**63
            passes = span.start_timestamp_micros <= at * SCALE < end
        assert passes == (low <= at <= high)


@given(
    asked=st.none()
    | st.lists(
        st.tuples(
            st.sampled_from((*COLUMNS, b"", b"\xff", b"\xff\xff", b"c:", b"@ack:")), st.booleans()
        ),
        max_size=4,
    )
)
def test_the_ranges_of_a_scan_hold_each_wanted_column_once_and_no_other(
    asked: list[tuple[bytes, bool]] | None,
) -> None:
    ranges = wanted_ranges(asked)
    for column in (*COLUMNS, b"\0", b"\xff", b"\xff\xff\1", b"c:a", b"A", b"?"):
        held = sum(_holds(one, column) for one in ranges)
        assert held == is_wanted(column, asked), (column, ranges)


def _holds(one: ColumnRange, column: bytes) -> bool:
    if column < one.start:
        return False
    if one.last is not None:
        return column <= one.last
    return one.end is None or column < one.end


def test_many_columns_are_read_in_parts_that_fit_in_a_filter() -> None:
    columns = [b"%0200d" % i for i in range(300)]
    parts = list(_pieces(columns))
    assert [column for part in parts for column in part] == columns
    assert 1 < len(parts) < 40
    for part in parts:
        ranges = [ColumnRange(column, last=column) for column in part]
        assert snapshot(ranges, 7, RECORDS).ByteSize() < FILTER_BYTES
    assert list(_pieces([])) == []


def test_a_column_whose_name_fits_in_no_filter_is_read_with_all_others() -> None:
    longest = ((b"c" * 16_000, False),)
    assert snapshot(wanted_ranges(longest), 7, RECORDS).ByteSize() > FILTER_BYTES
    assert _snapshot(longest, 7).ByteSize() < FILTER_BYTES


# --- Limits -----------------------------------------------------------------------------


def prewrite(columns: int, length: int) -> list[Condition]:
    names = [b"%0*d" % (length, i) for i in range(columns)]
    return [
        Condition(False, kind, name, low, MAX_TS)
        for name in names
        for kind, low in ((Kind.WRITE, 7), (Kind.LOCK, 0))
    ]


def test_conditions_that_no_filter_can_hold_are_refused_in_words() -> None:
    assert predicate(prewrite(100, 20)).filter.ByteSize() < FILTER_BYTES
    for conditions in (prewrite(1_000, 20), prewrite(2, 12_000)):
        with pytest.raises(TransactionTooLargeError, match="fewer columns of a row"):
            predicate(conditions)


def test_what_does_not_fit_is_told_with_its_row_and_table() -> None:
    """Of a job that writes many rows, nobody knew which one was meant."""
    store = BigtableStore(PLACE)
    with pytest.raises(RowTooLongError, match=r"row of 5000 bytes in the table 'docs' .*b'a{60}'"):
        store.check_row("docs", b"a" * 5000)
    wide = RowMutation("docs", b"wide", prewrite(1_000, 20), [Put(Kind.LOCK, b"c", 5, b"")])
    with pytest.raises(TransactionTooLargeError, match=r"b'wide' of the table 'docs' .*fewer"):
        plan(Calls(PLACE, request_seconds=1, timeout_seconds=1), wide, listing=False)


@pytest.mark.parametrize("length", [1, 20, 400])
def test_what_could_be_locked_can_be_committed(length: int) -> None:
    most = 1
    while True:
        try:
            predicate(prewrite(most, length))
        except TransactionTooLargeError:
            break
        held = [Condition(True, Kind.LOCK, one.column, 5, 5) for one in prewrite(most, length)[::2]]
        assert predicate(held).holds_if_any
        most += 1 + most // 10
    assert most > {1: 500, 20: 300, 400: 10}[length]


def test_a_spark_job_of_180_partitions_can_be_committed() -> None:
    """`docs/bigtable.md` says about 200: less with long numbers, as in a session of a year."""
    run, attempt = 10**12, 10**6
    locks = [
        Condition(True, Kind.LOCK, name, run + partition, run + partition)
        for partition in range(180)
        for name in (
            b"primary:%d/%d/%d/0" % (run, partition, attempt + partition),
            b"claim:%d/%d" % (run, partition),
        )
    ]
    assert predicate([Condition(False, Kind.LOCK, b"state", 0, MAX_TS), *locks]).holds_if_any


def test_a_row_mutation_beyond_what_bigtable_takes_at_once_is_refused() -> None:
    store = BigtableStore(PLACE)
    large = bytes(50 * 1024 * 1024)
    puts = [Put(Kind.DATA, b"%d" % i, 5, large) for i in range(2)]
    with pytest.raises(ValueTooLargeError, match=r"the row b'r' of the table 't' .*fewer columns"):
        store.check_sizes([RowMutation("t", b"r", (), puts)])
    many = [Put(Kind.LOCK, b"%d" % i, 5, b"") for i in range(100_000)]
    with pytest.raises(ValueTooLargeError, match="fewer columns"):
        store.check_sizes([RowMutation("t", b"r", (), many)])
    with pytest.raises(RowTooLongError, match=r"column of 20000 bytes in the row b'r' of the"):
        store.check_sizes([RowMutation("t", b"r", (), [Put(Kind.LOCK, b"c" * 20_000, 5, b"")])])


def test_tables_names_are_those_of_bigtable_and_percolas_own_is_nobodys() -> None:
    calls = Calls(PLACE, request_seconds=1, timeout_seconds=1)
    assert calls.path("docs") == "projects/p/instances/i/tables/docs"
    assert calls.path("@percola") == "projects/p/instances/i/tables/0-percola"
    routing = calls.headers("docs")
    assert routing == [
        (
            "x-goog-request-params",
            "table_name=projects%2Fp%2Finstances%2Fi%2Ftables%2Fdocs&app_profile_id=",
        )
    ]


# --- Rows from chunks -------------------------------------------------------------------

CELLS = st.dictionaries(
    st.tuples(st.sampled_from(("data", "lock", "write")), st.sampled_from((b"a", b"b", b"c"))),
    st.dictionaries(st.integers(0, 9), st.binary(max_size=12), min_size=1, max_size=3),
    min_size=1,
    max_size=4,
)


@given(
    rows=st.lists(CELLS, max_size=4),
    cuts=st.lists(st.integers(1, 5), max_size=40),
    resets=st.lists(st.booleans(), max_size=4),
    terse=st.booleans(),
    answer_size=st.integers(1, 5),
)
def test_rows_are_put_together_from_chunks_however_they_were_cut(
    rows: list[dict[tuple[str, bytes], dict[int, bytes]]],
    cuts: list[int],
    resets: list[bool],
    terse: bool,
    answer_size: int,
) -> None:
    chunk_type = ReadRowsResponse.CellChunk
    chunks = []
    pieces = iter(cuts)

    def add(key: bytes, cells: dict[tuple[str, bytes], dict[int, bytes]], commit: bool) -> None:
        last: tuple[str | None, bytes | None] = (None, None)
        made = []
        for (family, column), entries in sorted(cells.items()):
            for ts, value in sorted(entries.items(), reverse=True):
                cell = chunk_type(timestamp_micros=ts * SCALE)
                # Google names what has changed; the emulator names everything each time.
                if not terse or family != last[0]:
                    cell.family_name.value = family
                if not terse or (family, column) != last:
                    cell.qualifier.value = column
                if not terse or not made:
                    cell.row_key = key
                last = (family, column)
                size = next(pieces, 99)
                parts = [value[i : i + size] for i in range(0, len(value), size)] or [b""]
                for part in parts[:-1]:
                    cell.value, cell.value_size = part, len(value)
                    made.append(cell)
                    cell = chunk_type()
                cell.value = parts[-1]
                made.append(cell)
        if commit:
            made[-1].commit_row = True
        else:
            made = made[: max(1, len(made) // 2)]
            made.append(chunk_type(reset_row=True))
        chunks.extend(made)

    for i, cells in enumerate(rows):
        if i < len(resets) and resets[i]:
            add(b"%d" % i, cells, False)
        add(b"%d" % i, cells, True)
    answers = [
        ReadRowsResponse(chunks=chunks[at : at + answer_size])
        for at in range(0, len(chunks), answer_size)
    ]
    found = list(assembled(answers))
    expected = [
        (
            b"%d" % i,
            {cell: sorted(entries.items(), reverse=True) for cell, entries in cells.items()},
        )
        for i, cells in enumerate(rows)
    ]
    assert found == expected


def test_what_was_filtered_out_counts_as_progress() -> None:
    cell = ReadRowsResponse.CellChunk(row_key=b"r", timestamp_micros=SCALE, commit_row=True)
    cell.family_name.value, cell.qualifier.value = "data", b"c"
    answers = [
        ReadRowsResponse(last_scanned_row_key=b"a"),
        ReadRowsResponse(chunks=[cell]),
        ReadRowsResponse(last_scanned_row_key=b"s"),
    ]
    row = {("data", b"c"): [(1, b"")]}
    assert list(assembled(answers)) == [(b"a", None), (b"r", row), (b"s", None)]


def test_a_range_of_timestamps_that_ends_before_it_begins_holds_nothing() -> None:
    store = BigtableStore(PLACE)
    assert store._reading.entries(Cell("t", b"r", b"c"), Kind.LOCK, 5, 4, None) == []


def test_a_request_of_many_rows_has_no_more_changes_than_bigtable_takes() -> None:
    """100,000 in all rows together; deletions are small, so that bytes alone do not cut them."""
    calls = Calls(PLACE, request_seconds=1.0, timeout_seconds=1.0)
    counts = [30_000, 30_000, 30_000, 1, 80_000, 10_000, 5]
    plans = [
        plan(calls, RowMutation("t", b"%d" % n, (), [Delete(Kind.WRITE, b"c", 1)] * count), False)
        for n, count in enumerate(counts)
    ]
    parts = list(in_requests(plans, range(len(plans))))
    assert parts == [[0, 1, 2], [3, 4], [5, 6]]
    assert all(sum(counts[at] for at in part) < 100_000 for part in parts)
