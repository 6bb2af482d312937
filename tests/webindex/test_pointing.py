"""Near-duplicates, redirects, pages that name another one, and what servers say in passing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chains import WORDS, Chain, moved, page
from from_scratch import gone

from webindex import tables

LONG = " ".join(f"word{n} and then some" for n in range(200))


def test_near_duplicates_share_a_document_until_their_texts_part(empty: Chain) -> None:
    first, second = "https://example.org/a", "https://example.org/bb"
    empty.verify([page(first, f"<p>{LONG}"), page(second, f"<p>{LONG} revised")])
    document = empty.document(second)
    assert (document["url"], document["duplicates"]) == (first, [second])
    assert len(empty.found("word7")) == 1
    empty.verify([page(second, f"<p>{WORDS} of another kind", 60)])
    assert sorted(empty.found("word7")) == [first, second]


def test_links_to_a_redirect_count_for_the_page_that_it_leads_to(empty: Chain) -> None:
    old, older, new = (f"https://example.org/{name}" for name in ("old", "older", "new"))
    empty.verify(
        [
            page("https://example.org/x", f'{WORDS} x <a href="{old}">Herons</a>'),
            page("https://example.org/y", f'{WORDS} y <a href="{older}">Herons</a>'),
            moved(page(older, ""), old),
            moved(page(old, ""), new),
            page(new, f'{WORDS} new <a href="{old}">where I was</a>'),
        ]
    )
    document = empty.document(new)
    assert document["aliases"] == [old, older]
    assert (document["inlinks"], document["anchors"]) == (2, [["Herons", 2]])
    assert new in empty.found("Herons")

    # The way there is cut: what came along it goes as well, and comes back.
    empty.verify([gone(page(old, ""), seconds=120)])
    document = empty.document(new)
    assert (document["aliases"], document["inlinks"]) == ([], 0)
    empty.verify([moved(page(old, ""), new, seconds=180)])


@pytest.mark.parametrize("by", ["header", "markup"])
def test_a_page_with_a_refresh_is_a_redirect(empty: Chain, by: str) -> None:
    old, new = "https://example.org/old", "https://example.org/new"
    markup = f'<head><meta http-equiv="refresh" content="0; url={new}"></head><p>{WORDS}'
    said = page(old, markup if by == "markup" else f"<p>{WORDS}")
    if by == "header":
        said = replace(said, headers={**said.headers, "refresh": f"0; url={new}"})
    empty.verify([said, page(new, f"<p>{WORDS} new")])
    assert empty.found("word7") == [new]
    document = empty.document(new)
    assert document["aliases"] == [old]


def test_a_canonical_page_of_another_domain_is_not_believed(empty: Chain) -> None:
    mine, theirs = "https://example.org/mine", "https://example.net/theirs"
    sub = "https://docs.example.org/mine"
    empty.verify(
        [
            page(mine, f'<head><link rel="canonical" href="{theirs}"></head>{WORDS} mine'),
            page(theirs, f"{WORDS} theirs, and something else"),
            page(sub, f'<head><link rel="canonical" href="{mine}"></head>{WORDS} sub of others'),
        ]
    )
    assert sorted(empty.found("word7")) == sorted([mine, theirs])
    document = empty.document(mine)
    assert document["duplicates"] == [sub]


def test_the_host_counters_follow_pages_that_come_change_and_go(empty: Chain) -> None:
    url, other = "https://example.org/a", "https://example.org/bb"

    def counted() -> tuple[int, int]:
        rows = [row[tables.live] for row in empty.repo.snapshot().scan(tables.hosts)]
        return sum(one["pages"] for one in rows), sum(one["indexable"] for one in rows)

    for seconds, captures, expected in [
        (0, [page(url, WORDS), page(other, WORDS)], (2, 2)),
        (60, [page(url, WORDS, 60, **{"x-robots-tag": "noindex"})], (2, 1)),
        (120, [page(url, f"{WORDS} changed", 120)], (2, 2)),
        (180, [gone(page(url, ""), seconds=180)], (1, 1)),
        (240, [gone(page(other, ""), seconds=240)], (0, 0)),
    ]:
        empty.verify(captures)
        assert counted() == expected, seconds
