"""What the judge of the index compares, and what it makes of a difference: without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percola import Column, Family
from webindex import tables
from webindex.batch.brief import LONGEST_TEXT, brief, canonical
from webindex.batch.comparing import KEPT, Tally, differences_of
from webindex.batch.invariants import NAMES, Difference, invariant_of, parts_of
from webindex.batch.inverting import Row
from webindex.batch.partition import near_pairs
from webindex.batch.reading import SELECTIONS
from webindex.batch.whole import Placed, canonical_of
from webindex.fingerprints import NEAR, bands, hamming

# Given to the computation, or about work rather than about pages.
UNCOMPARED = {"pages.body", "clusters.version", "outbox.entry", "ranks.run", "journal.report"}


def columns() -> list[Column[Any, Any] | Family[Any, Any]]:
    """Every column of the web index that has values."""
    return [member for member in vars(tables).values() if isinstance(member, Column | Family)]


def test_every_column_is_read_and_shows_an_invariant() -> None:
    compared = {str(one) for chosen in SELECTIONS.values() for one in chosen}
    there = {str(one) for one in columns()}
    assert len(there) > 20
    assert {name.rstrip(":") for name in compared} | UNCOMPARED == {
        name.rstrip(":") for name in there
    }
    for column in (one for chosen in SELECTIONS.values() for one in chosen):
        name = column.name if isinstance(column, Column) else f"{column.name}:x"
        assert invariant_of(column.table.name, name) in NAMES


@given(st.text(max_size=3 * LONGEST_TEXT), st.text(max_size=3 * LONGEST_TEXT))
def test_short_forms_are_equal_exactly_if_texts_are(one: str, other: str) -> None:
    assert (brief(one) == brief(other)) == (one == other)
    assert brief(brief(one)) == brief(one)
    assert len(brief(one)) <= LONGEST_TEXT


def test_a_value_is_the_same_in_whatever_order_its_fields_are() -> None:
    assert canonical({"a": 1, "b": [2, "ü"]}) == canonical({"b": [2, "ü"], "a": 1})
    assert canonical(b"\x00\xff") == '"00ff"'


def test_what_depends_on_time_is_not_compared() -> None:
    member = {"url": "u", "loaded_ms": 1}
    document = {"url": "u", "epoch": 7, "seen": {"a": 1}}
    parts = parts_of(Row("clusters", "c", {"member:a": member, "document": document}))
    assert parts == {
        "member:a": '{"url": "u"}',
        "document": "there",
        "document.url": '"u"',
        "members": "some",
    }


def test_of_a_missing_cell_no_fields_are_told() -> None:
    document = parts_of(Row("clusters", "c", {"document": {"url": "u", "inlinks": 3}}))
    assert [one.part for one in differences_of("clusters", "c", {}, document)] == [
        "document",
        "members",
    ]
    other = {**document, "document.url": '"v"', "document.inlinks": "4"}
    found = list(differences_of("clusters", "c", document, other))
    assert [(one.part, one.invariant) for one in found] == [
        ("document.inlinks", 8),
        ("document.url", 7),
    ]


@pytest.mark.parametrize(("found", "invariant"), [("2023", 12), ("2025", 1)])
def test_an_older_capture_would_be_loaded_again_and_a_newer_one_is_from_nowhere(
    found: str, invariant: int
) -> None:
    here, there = ({"capture.date": f'"{year}"', "capture": "there"} for year in (found, "2024"))
    [one] = differences_of("pages", "r", here, there)
    assert one.invariant == invariant


def test_differences_are_sentences() -> None:
    one = Difference(3, "inlinks", "aa/org)/", "source:1", '{"rel": "follow"}', None)
    assert str(one) == ('inlinks aa/org)/: source:1 should not be there; found {"rel": "follow"}.')
    assert "is missing; expected 1." in str(Difference(9, "hosts", "h", "live", None, "1"))
    assert "differs: found 2, expected 1." in str(Difference(9, "hosts", "h", "live", "2", "1"))


def test_the_first_differences_of_each_invariant_are_kept_whatever_order_they_come_in() -> None:
    made = [
        Difference(number, "t", f"{row:03}", "p", None, "1")
        for row in range(60)
        for number in (2, 9)
    ]
    tally = Tally()
    for at in range(0, len(made), 7):
        tally.add(Tally(first=made[::-1][at : at + 7]))
    assert [one.row for one in tally.first if one.invariant == 9] == [
        f"{row:03}" for row in range(KEPT)
    ]
    assert len(tally.first) == 2 * KEPT


def placed(url: str, *, indexable: bool = True, rank: float = 0.0) -> Placed:
    """A member of a cluster."""
    return Placed("c", url, "near/0", None, "", None, indexable, rank, 0)


def test_the_canonical_page_is_indexable_then_by_rank_https_length_and_letters() -> None:
    order = [
        placed("http://example.org/long-but-ranked", rank=2.0),
        placed("https://example.org/a"),
        placed("https://example.org/b"),
        placed("https://example.org/aa"),
        placed("http://example.org/"),
    ]
    hidden = placed("https://example.org/", indexable=False, rank=9.0)
    for at in range(len(order)):
        assert canonical_of([*reversed(order[at:]), hidden]) == order[at]
    assert canonical_of([hidden]) is None


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20),
    st.lists(st.sets(st.integers(0, 63), max_size=5), min_size=1, max_size=60),
)
def test_the_pairs_of_a_band_are_those_within_the_distance(
    centres: list[int], flips: list[set[int]]
) -> None:
    values = set(centres)
    for number, flipped in enumerate(flips):
        values.add(centres[number % len(centres)] ^ sum(1 << bit for bit in flipped))
    pairs = {tuple(int(key[5:], 16) for key in pair) for pair in near_pairs(values)}
    assert pairs == {
        (one, other)
        for one in values
        for other in values
        if one < other and hamming(one, other) <= NEAR
    }
    for one, other in pairs:
        assert set(enumerate(bands(one))) & set(enumerate(bands(other)))
