"""Which tables and rows a wake-up is about, as it is sent and joined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percola.coordination.wake_ups import (
    EVERY_TABLE,
    ROW_BYTES,
    Place,
    first_of,
    joined,
    mark_of,
    marks_of,
    marks_of_pool,
    parted,
    pool_of,
    read_marks,
    rows_of,
    wake_up_of,
)
from percola.rpc import frames

names = st.lists(st.text(), min_size=1)
orders = st.randoms(use_true_random=False)


@given(names, names, orders)
def test_a_wake_up_for_two_names_what_either_names(
    some: list[str], others: list[str], order: object
) -> None:
    both = joined(marks_of(some), marks_of(others))
    assert both == marks_of(some + others) == joined(joined(None, marks_of(others)), marks_of(some))
    assert set(both) == {mark_of(table) for table in some + others}
    sent = list(marks_of(some) + marks_of(others))
    order.shuffle(sent)  # type: ignore[attr-defined]
    assert read_marks(bytes(sent)) == both, "as they are read from a FIFO"


@given(names)
def test_one_for_all_tables_stays_one(tables: list[str]) -> None:
    marks = marks_of(tables)
    assert marks != EVERY_TABLE == marks_of(None) == marks_of([])
    assert joined(marks, EVERY_TABLE) == joined(EVERY_TABLE, marks) == EVERY_TABLE
    assert joined(None, EVERY_TABLE) == EVERY_TABLE == read_marks(b"")
    assert read_marks(b"!" + marks) == read_marks(marks + b"!") == EVERY_TABLE


rows = st.binary(min_size=1, max_size=40)
places = st.lists(st.text(max_size=3) | st.tuples(st.text(max_size=3), rows), min_size=1)


def is_about(wake_up: bytes, place: Place) -> bool:
    table, row = (place, None) if isinstance(place, str) else place
    about = rows_of(wake_up)
    named = about.get(mark_of(table), frozenset())
    return not about or named is None or (row is not None and row[:ROW_BYTES] in named)


@given(places, places)
def test_two_wake_ups_about_rows_are_one_about_all_of_them(
    some: list[Place], others: list[Place]
) -> None:
    both = joined(wake_up_of(some), wake_up_of(others))
    assert both == wake_up_of(some + others) != EVERY_TABLE
    assert joined(None, both) == joined(both, both) == both
    assert all(is_about(both, place) for place in some + others)
    assert not is_about(both, "of a longer name") or mark_of("of a longer name") in both
    tables = {mark_of(place if isinstance(place, str) else place[0]) for place in some + others}
    assert rows_of(both).keys() == tables


@given(places, st.lists(st.text(max_size=3)), st.integers(1, 60))
def test_its_rows_of_some_tables_are_given_out_a_few_at_a_time_and_the_rest_is_kept(
    some: list[Place], tables: list[str], most: int
) -> None:
    wake_up, marks = wake_up_of(some), {mark_of(table) for table in tables}
    left, rows = parted(wake_up, marks)
    waiting, given_out = dict.fromkeys(rows), []
    while waiting:
        part = rows_of(first_of(waiting, most))
        given_out.append([(mark, row) for mark, of in part.items() for row in of or ()])
        assert 0 < len(given_out[-1]) <= most
    assert sorted(row for part in given_out for row in part) == sorted(rows)
    about = {} if left is None else dict(rows_of(left))
    assert all(about[mark] is None for mark in about.keys() & marks)
    assert not about.keys() & {mark for mark, _ in rows}
    for mark, row in rows:
        about[mark] = {*(about.get(mark) or ()), row}
    assert about == rows_of(wake_up)


def test_a_pool_is_of_the_same_observers_and_has_the_tables_that_are_not_apart() -> None:
    pool = pool_of(["docs.text index", "links.to count"], ["docs", "links"])
    assert pool == pool_of(["links.to count", "docs.text index"], ["links", "docs"])
    assert pool != pool_of(["docs.text index"], ["docs", "links"])
    assert marks_of_pool(pool) == {mark_of("docs"), mark_of("links")}
    apart = pool_of(["docs.text index", "links.to count"], ["docs", "links"], ["links"])
    assert marks_of_pool(apart) == {mark_of("docs")}
    assert pool_of(["links.to count"], ["links"], ["links"]) == b""
    assert marks_of_pool(b"") == frozenset()
    for broken in (pool[:8], pool[:3], pool + b"\x01"):
        with pytest.raises(ValueError, match="without the marks"):
            marks_of_pool(broken)


def test_it_is_about_rows_alone_if_they_are_few() -> None:
    few: list[Place] = [("docs", b"%032d" % number) for number in range(24)]
    assert rows_of(wake_up_of(few)) == {mark_of("docs"): {row for _, row in few}}
    assert rows_of(wake_up_of([*few, ("docs", b"24")])) == {mark_of("docs"): None}
    short: list[Place] = [("docs", b"%04d" % number) for number in range(137)]
    assert rows_of(wake_up_of(short[:136])) == {mark_of("docs"): {row for _, row in short[:136]}}
    assert rows_of(wake_up_of(short)) == {mark_of("docs"): None}
    assert rows_of(joined(wake_up_of(few), wake_up_of([("links", b"a")]))) == {
        mark_of("docs"): None,
        mark_of("links"): None,
    }
    assert rows_of(wake_up_of([*few, "docs"])) == {mark_of("docs"): None}


def test_the_longest_one_fits_into_a_frame() -> None:
    tables = {mark_of(str(number)): str(number) for number in range(5000)}
    assert len(tables) == 128
    some = tables.pop(128)
    few: list[Place] = [(some, b"%2d" % number * 99) for number in range(24)]
    longest = wake_up_of([*tables.values(), *few])
    assert len(rows_of(longest)[128] or ()) == 24
    assert len(frames.frame(frames.WAKE, 1, longest)) < frames.MOST


@given(st.binary())
def test_one_that_cannot_be_read_is_about_all_tables(raw: bytes) -> None:
    about = rows_of(raw)
    if not about:
        assert joined(wake_up_of([("docs", b"a")]), raw) == EVERY_TABLE
    cut = wake_up_of([("docs", b"a row"), "links"])[:-1]
    assert rows_of(cut) == {} and joined(cut, wake_up_of(["docs"])) == EVERY_TABLE
    assert rows_of(b"!") == {}, "as releases before marks send it"


def test_a_hundred_tables_have_many_marks() -> None:
    """Those that share one are scanned in vain."""
    assert len({mark_of(f"table {number}") for number in range(100)}) > 50
