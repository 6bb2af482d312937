"""What the judge of the index compares, and what it makes of a difference: without Spark."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percola import Column, Family
from webindex import tables
from webindex.batch.compare import KEPT, Tally, differences_of
from webindex.batch.components import leaders_among
from webindex.batch.digest import LONGEST_TEXT, brief, canonical
from webindex.batch.expected import Placed, canonical_of
from webindex.batch.inlinks import Row
from webindex.batch.invariants import NAMES, Difference, invariant_of, parts_of
from webindex.batch.read import SELECTIONS
from webindex.page.fingerprints import Sketch
from webindex.rendering import tables as rendering

# Given to the computation, or about work rather than about pages.
UNCOMPARED = {"pages.body", "clusters.size", "ranks.run", "journal.report"}
# Bodies of earlier captures, and by what waiting revisits are found: which of these there are
# depends on the order of loads.
UNCOMPARED |= {"pages.earlier_body:*", "payloads.held", "waiting.for", "waiting.wanted"}
UNCOMPARED |= {"journal.trimmed"}
# Images, which are told by the digest of what they show (`renders.about`).
UNCOMPARED |= {"renders.image", "renders.thumbnail", "renders.earlier:*", "renders.kept"}
# What the document of a large cluster is made of, which is compared; see test_large_clusters.py.
UNCOMPARED |= {"pages.shared", "summaries.delta:*", "summaries.totals", "summaries.texts:*"}
UNCOMPARED |= {"summaries.best", "summaries.alias:*", "aliases.named:*"}
# What operators have asked for: the computation from scratch starts from it.
UNCOMPARED |= {"removals.page", "removals.under:*"}


def columns() -> list[Column[Any, Any] | Family[Any, Any]]:
    """Every column of the web index that has values."""
    members = [*vars(tables).values(), *vars(rendering).values()]
    return [member for member in members if isinstance(member, Column | Family)]


def test_every_column_is_read_and_shows_an_invariant() -> None:
    compared = {str(one) for chosen in SELECTIONS.values() for one in chosen}
    there = {str(one) for one in columns()}
    assert len(there) > 20
    all_names = {name.rstrip(":") for name in compared} | UNCOMPARED
    assert all_names == {name.rstrip(":") for name in there}
    # What others follow from, and is not compared itself.
    given = {rendering.capture, rendering.about, tables.sitemap, tables.sitemap_body}
    for column in {one for chosen in SELECTIONS.values() for one in chosen} - given:
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
    there = {"document": "there", "members": "some"}
    assert parts == there | {"member:a": '{"url": "u"}', "document.url": '"u"'}


def test_of_a_missing_cell_no_fields_are_told() -> None:
    document = parts_of(Row("clusters", "c", {"document": {"url": "u", "inlinks": 3}}))
    missing = differences_of("clusters", "c", {}, document)
    assert [one.part for one in missing] == ["document", "members"]
    other = {**document, "document.url": '"v"', "document.inlinks": "4"}
    found = differences_of("clusters", "c", document, other)
    told = [(one.part, one.invariant) for one in found]
    assert told == [("document.inlinks", 8), ("document.url", 7)]


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
    kept = [one.row for one in tally.first if one.invariant == 9]
    assert kept == [f"{row:03}" for row in range(KEPT)]
    assert len(tally.first) == 2 * KEPT


def placed(url: str, *, indexable: bool = True, rank: float = 0.0) -> Placed:
    """A member of a cluster."""
    return Placed("c", url, "near/0", "near/0", None, None, "", None, indexable, rank, 0)


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


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=40))
def test_leaders_are_the_first_contents_that_none_before_leads_and_is_near(
    texts: list[tuple[int, int]],
) -> None:
    contents = {}
    for kind, place in texts:
        rng = random.Random(kind)
        words = [rng.getrandbits(29) << 3 for _ in range(140)]
        values = tuple(sorted(words[4 * place : 4 * place + 100]))
        key = f"near/{'c' * 16}/{random.Random(f'{kind} {place}').getrandbits(128):032x}"
        contents[key] = Sketch(tokens=1000, name=0, titled=True, values=values)
    packed = [(key, sketch.pack()) for key, sketch in contents.items()]
    found = dict(leaders_among(packed))
    expected: dict[str, str] = {}
    for key in sorted(contents):
        near = (
            other
            for other in sorted(expected)
            if expected[other] == other
            and not set(contents[other].bands).isdisjoint(contents[key].bands)
            and contents[other].is_near(contents[key])
        )
        expected[key] = next(near, key)
    assert found == expected
