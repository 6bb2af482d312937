"""A page's story counts the links that search counts, and lists no more than it can show."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from site_client import Served, article, empty, made

from percola.store.lmdb import store as lmdb
from webindex import reports as story
from webindex import tables
from webindex.cli import explain
from webindex.page.urls import page_id, page_row
from webindex.reports import links as story_links

__all__ = ["empty"]

HOST = "https://a.example"
HOME, AGAIN, MOVED = f"{HOST}/", f"{HOST}/index.html", f"{HOST}/old"


def linked(site: Served) -> None:
    """A page of which a duplicate and a redirect are linked to, and it itself is not."""
    site.process(
        made(HOME, article("Home", links=f'<a href="{AGAIN}">here</a>')),
        made(AGAIN, article("Home", links=f'<a href="{HOME}">here</a>')),
        made(MOVED, "", status=301, to="/"),
        *(
            made(f"{HOST}/{n}", article(f"Page {n}", f"{n} " * 40, f'<a href="{AGAIN}">x</a>'))
            for n in range(3)
        ),
        made(f"{HOST}/4", article("Page 4", "four " * 40, f'<a href="{MOVED}">y</a>')),
        made(
            f"{HOST}/5", article("Page 5", "five " * 40, f'<a rel="nofollow" href="{AGAIN}">z</a>')
        ),
    )


def test_search_and_story_show_one_count_of_links_and_say_what_it_is_made_of(empty: Served) -> None:
    linked(empty)
    results = empty.page("/", q="home")
    assert results.words(".hit h2") == "Home" and "4 links lead here" in results.words(".hit")
    page = empty.story(HOME)
    facts = dict(zip(page.all(".facts dt"), page.all(".facts dd"), strict=True))
    assert facts["Links lead here"] == "4"
    assert page.words("#in-title") == "Links to this URL 1"
    assert page.all("#counted .list li") == [
        f"4 to {AGAIN} duplicate",
        "1 to this URL",
        f"1 to {MOVED} redirect",
        "less 2 between its own pages, which recommend nothing",
    ]


def test_a_terminal_is_told_the_same_count(empty: Served) -> None:
    linked(empty)
    told = story.tell(empty.repo, empty.index, HOME)
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    explain.print_story(console, told, 20)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        f"Links that lead here: 4\n  4 to {AGAIN}  duplicate\n  1 to {HOME}  this URL\n"
        f"  1 to {MOVED}  redirect\n  less 2 between its own pages\n"
    ) in said
    known = explain.story_json(told, 20)
    assert known["document_in_links"] == 4 == sum(one.links for one in told.counted) - told.inside


def test_a_redirect_shows_the_count_of_the_document_that_it_leads_to(empty: Served) -> None:
    linked(empty)
    page = empty.story(MOVED)
    assert page.words("#counted-title") == "Links that lead here 4"
    assert "1 to this URL" in page.all("#counted .list li")
    assert "that this URL leads to" in page.words("#counted")


# --- Pages with many in-links ---------------------------------------------------------------


def fans(site: Served, count: int) -> None:
    """So many pages that link to the home page."""
    row = page_row(HOME)
    for start in range(0, count, 2_500):
        with site.repo.transaction() as t:
            for number in range(start, min(count, start + 2_500)):
                url = f"https://fan.example/{number:05}"
                value = {"url": url, "anchors": ["tea"], "rel": "follow"}
                t.set(tables.source[page_id(url)], row, value)
            t.set(tables.tally, row, {"links": count, "anchors": {"tea": count}})


def test_of_twenty_thousand_in_links_a_story_reads_and_lists_about_a_thousand(
    empty: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.process(made(HOME, article("Home")))
    fans(empty, 20_000)
    looked_at = 0
    is_wanted = lmdb.is_wanted

    def counting(column: bytes, columns: Sequence[tuple[bytes, bool]] | None) -> bool:
        nonlocal looked_at
        looked_at += column.startswith(tables.source.prefix)
        return is_wanted(column, columns)

    monkeypatch.setattr(lmdb, "is_wanted", counting)
    told = story.tell(empty.repo, empty.index, HOME)
    most = story_links.MOST
    assert most <= len(told.in_links) <= 1.5 * most and told.in_links_more
    # Nor does the store walk through the others.
    assert looked_at <= 2 * most
    answer = empty.client.get("/page", params={"url": HOME})
    assert "over 1,0" in answer.text and len(answer.content) < 40_000
    last = empty.story(HOME, **{"in": "999"})
    assert last.all("#in-links .list .url")[-1] == told.in_links[-1].url
    assert "some of them" in last.words("#in-links")


@pytest.mark.parametrize("count", [0, 1, 30, 900])
def test_in_links_that_can_be_listed_are_listed_all(empty: Served, count: int) -> None:
    fans(empty, count)
    with empty.repo.snapshot() as now:
        found, more = story_links.in_links(now, page_row(HOME), set())
    assert [one.url for one in found] == [f"https://fan.example/{n:05}" for n in range(count)]
    assert not more


@given(st.integers(0, 4096), st.integers(0, 4096))
def test_parts_of_the_ids_are_named_once_each_and_by_few_names(one: int, other: int) -> None:
    first, last = sorted((one, other))
    names = list(story_links._starts(first, last))
    covered: list[int] = []
    for name in names:
        size = 1 << 12 - 4 * len(name)
        covered += range(int(name, 16) * size, (int(name, 16) + 1) * size)
    assert covered == list(range(first, last)) and len(names) <= 75
