"""A page's story says what is known of it, and why search shows it, or does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from from_scratch import sample
from site_client import CANONICAL, DUPLICATE, Served, article, empty, made, site

from percola import Observer, Repository, Worker
from webindex import tables
from webindex.observers import parse as observers
from webindex.observers.clustering import join
from webindex.observers.documents import assemble
from webindex.observers.election import election_order
from webindex.page.urls import page_row
from webindex.reports import cluster, pending
from webindex.site.app import LINKS
from webindex.workers.processes import build_observers

__all__ = ["empty", "site"]

A, B, C = "https://a.example/", "https://a.example/again", "http://b.example/"


def standing(site: Served, url: str, *, status: int = 200) -> str:
    return site.story(url, status=status).words(".standing")


# --- The sample -----------------------------------------------------------------------------


def test_the_canonical_page_says_why_it_stands_for_the_others(site: Served) -> None:
    page = site.story(CANONICAL)
    assert page.words("h1") == "SQLite Home Page"
    said = "In search It is one document with 1 other page, and stands for it."
    assert said in page.words(".standing")
    first, second = page.css(".members li")
    assert "canonical" in (first.attributes["class"] or "") and CANONICAL in first.text()
    assert DUPLICATE in second.text()
    assert "Its URL is longer: 33 characters against 23." in second.text()


def test_a_duplicate_says_who_stands_for_it_and_leads_there(site: Served) -> None:
    page = site.story(DUPLICATE)
    said = page.words(".standing")
    assert "In search, under another page" in said
    assert f"It is one document with {CANONICAL}, which stands for it." in said
    assert f"Its text is that of {CANONICAL}." in said
    assert "33 characters against 23" in said
    assert site.page(page.link(".standing a")).words("h1") == "SQLite Home Page"


def test_links_of_both_directions_are_listed_page_by_page(site: Served) -> None:
    now = site.repo.snapshot()
    row = page_row(DUPLICATE)
    linking = now.get_row(tables.inlinks, row, [tables.source]).family(tables.source)
    linked = now.get(tables.links, row) or []
    assert len(linking) > LINKS and len(linked) > LINKS
    page = site.story(DUPLICATE)
    assert page.words("#in-title .number") == str(len(linking))
    assert page.words("#out-title .number") == str(len(linked))
    seen: list[str] = page.all("#in-links .list .url")
    out = page.all("#out-links .list .url")
    # Going on in one list leaves the other where it is.
    following = site.page(page.link("#in-links .paging a"))
    seen += following.all("#in-links .list .url")
    assert following.all("#out-links .list .url") == out
    assert len(seen) == len(set(seen)) == min(2 * LINKS, len(linking))
    assert set(seen) <= {one["url"] for one in linking.values()}
    back = site.page(following.link("#out-links .paging a"))
    assert back.all("#in-links .list .url") == seen[LINKS:]
    assert set(out) | set(back.all("#out-links .list .url")) == {url for url, _, _ in linked}
    assert set(out).isdisjoint(back.all("#out-links .list .url"))


def test_a_link_says_whether_its_target_is_in_the_index(site: Served) -> None:
    page = site.story(CANONICAL)
    for item in page.css("#out-links li"):
        url = item.css_first(".url").text()  # type: ignore[union-attr]
        known = site.repo.snapshot().get(tables.joined, page_row(url)) is not None
        assert ("not in the index" in item.text()) is not known


def test_the_drawing_leads_to_neighbours_and_says_what_it_leaves_out(site: Served) -> None:
    page = site.story(DUPLICATE)
    for layout in ("wide", "narrow"):
        nodes = page.css(f".around .{layout} a")
        assert len(nodes) == 14 == len(page.css(f".around .{layout} .edge"))
        assert all((one.attributes["href"] or "").startswith("/page?url=https") for one in nodes)
    assert "more that link here" in page.words(".around")


def test_a_story_leads_back_to_the_results_it_came_from(site: Served) -> None:
    results = site.page("/", q="database engine")
    page = site.page(results.link(".hit .story"))
    assert page.link(".back a") == "/?q=database+engine"
    assert not site.story(CANONICAL).css(".back")


def test_a_url_may_be_typed_without_its_scheme(site: Served) -> None:
    assert site.story("www.sqlite.org").words("h1") == "SQLite Home Page"
    assert site.page("/page").css_first("input[name=url]") is not None
    asked = "www.sqlite.org/login?next=https://www.sqlite.org/"
    assert site.story(asked, status=404).words("h1") == f"https://{asked}"


def test_a_url_without_its_scheme_may_be_of_a_page_that_was_captured_by_http(empty: Served) -> None:
    empty.process(made("http://plain.example/page", article("Plain")))
    assert empty.story("plain.example/page").words("h1") == "Plain"
    empty.process(made("https://plain.example/page", article("Secure")))
    assert empty.story("plain.example/page").words("h1") == "Secure"


@pytest.mark.parametrize("url", ["mailto://x", "https://", "ftp://a.example/", "http://a b/"])
def test_what_is_no_web_address_is_refused_in_a_sentence(site: Served, url: str) -> None:
    assert url.partition("://")[0] in site.story(url, status=400).words(".sentence")


# --- One page's life ------------------------------------------------------------------------


def test_a_page_nobody_captured_is_unknown_but_its_in_links_are_shown(empty: Served) -> None:
    assert "no page links to it" in standing(empty, C, status=404)
    empty.process(made(A, article("Alpha", links=f'<a href="{C}">bee</a>')))
    page = empty.story(C)
    assert "Never captured" in page.words(".standing")
    assert "but 1 page links to it" in page.words(".standing")
    assert page.words("#in-links .url") == A and page.words("#in-links q") == "bee"


def test_a_page_that_waits_says_for_what_step_by_step(empty: Served) -> None:
    empty.load(made(A, article("Alpha")))
    said = standing(empty, A)
    assert "Not in search yet" in said and "The page waits to be parsed." in said
    Worker(empty.repo, [observers.parse], threads=1).run_until_idle()
    said = standing(empty, A)
    assert "has not joined a cluster yet" in said and "The page waits to join a cluster." in said
    Worker(empty.repo, [join], threads=1).run_until_idle()
    said = standing(empty, A)
    assert "Its cluster waits to have its document assembled." in said
    Worker(empty.repo, [assemble], threads=1).run_until_idle()
    said = standing(empty, A)
    assert "The search index does not hold its document yet." in said
    assert "Its cluster waits to be exported to search." in said
    empty.work()
    assert standing(empty, A) == (
        "In search No other page is one document with it: it stands for itself."
    )


def test_search_that_lags_behind_is_said_to_show_an_older_state(empty: Served) -> None:
    empty.process(made(A, article("Alpha")))
    empty.load(made(C, article("Beta", "other words", f'<a href="{A}">alpha</a>')))
    Worker(empty.repo, build_observers(empty.index)[:-1], threads=1).run_until_idle()
    assert "Search still shows an older state of it." in standing(empty, A)


def test_versions_say_when_the_text_changed_and_when_it_did_not(empty: Served) -> None:
    alpha = made(A, article("Alpha"))
    steps = [
        (alpha, "The page came into the index."),
        (replace(alpha, body=alpha.body + b"<!-- 1 -->"), "The bytes changed; no change of"),
        (made(A, article("Alpha", "quite another text")), "The text changed."),
        (made(A, "", status=404), "The page left the index."),
        (made(A, "", status=410), "The same bytes as before."),
        (alpha, "The page came into the index."),
        (made(A, article("Alpha"), robots="noindex"), "The page may not be indexed any more; the"),
    ]
    for hour, (capture, _) in enumerate(steps):
        date = alpha.date.replace(year=2026, month=1, day=1, hour=hour, minute=0)
        empty.process(replace(capture, date=date))
    cells = empty.story(A).all("table tbody td")
    rows = [cells[at : at + 5] for at in range(0, len(cells), 5)]
    assert len(rows) == len(steps)
    for hour, ((capture, change), row) in enumerate(zip(steps, reversed(rows), strict=True)):
        when, status, changed, where, _ = row
        assert (when, status) == (f"2026-01-01 {hour:02}:00 UTC", str(capture.status))
        assert changed.startswith(change) and where.startswith("later.warc.gz at ")


def test_after_garbage_collection_the_oldest_version_claims_nothing(empty: Served) -> None:
    for hour, text in enumerate(["one text", "another text", "a third text"]):
        empty.process(made(A, article("Alpha", text), seconds=3600 * hour))
    changes = empty.story(A).all("table tbody td:nth-child(3)")
    assert changes == ["The text changed.", "The text changed.", "The page came into the index."]
    assert empty.repo.collect_garbage(retention=0).complete
    changes = empty.story(A).all("table tbody td:nth-child(3)")
    assert changes == ["The oldest version that is kept."]


def test_a_first_capture_that_changed_nothing_says_why(empty: Served) -> None:
    empty.load(made(A, article("Alpha")), made(B, "", status=302))
    assert "It has not been parsed yet." in empty.story(A).words("table")
    empty.work()
    assert "It has no text to put into the index." in empty.story(B).words("table")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "answered with status 404: the page is gone"),
        (301, "answered with status 301, and does not say where else to go"),
    ],
)
def test_a_page_that_is_gone_or_redirects_says_so(empty: Served, status: int, words: str) -> None:
    empty.process(made(A, article("Alpha")))
    empty.process(made(A, "", seconds=60, status=status))
    assert standing(empty, A).startswith("Not in search ") and words in standing(empty, A)


def test_a_page_that_asks_not_to_be_indexed_says_so(empty: Served) -> None:
    empty.process(made(A, article("Alpha"), robots="noindex"))
    assert standing(empty, A) == "Not in search It asks not to be indexed (noindex)."
    empty.process(made(B, article("Alpha"), robots="noindex"))
    said = "It and all pages that are one document with it ask not to be indexed"
    assert said in standing(empty, A)


def test_the_election_is_told_member_by_member(empty: Served) -> None:
    same = article("The same")
    urls = [
        "https://a.example/b",
        "https://a.example/c",
        "http://b.example/",
        "https://a.example/de",
    ]
    empty.process(*(made(url, same) for url in urls), made(A, same, robots="noindex"))
    page = empty.story(urls[0])
    told = {
        item.css_first(".url").text(): " ".join(item.css_first(".notes").text().split())  # type: ignore[union-attr]
        for item in page.css(".members li")
    }
    text = f"Its text is that of {urls[0]}."
    assert told == {
        urls[0]: f"It stands for the others. Its text is that of {urls[1]}.",
        urls[1]: f"{text} Its URL is as long, but comes later in the alphabet.",
        urls[3]: f"{text} Its URL is longer: 20 characters against 19.",
        urls[2]: f"{text} It is not https, and the page that stands for it is.",
        A: f"{text} It asks not to be indexed (noindex).",
    }
    assert next(iter(told)) == urls[0] and list(told)[-1] == A
    assert "It asks not to be indexed (noindex)." in standing(empty, A)


def test_every_place_of_the_election_order_has_its_sentence() -> None:
    places = len(election_order({"url": A, "indexable": True}, 1.0))
    assert places == len(cluster.BECAUSE) == len(cluster.ORDER) - 1


def test_a_link_within_the_cluster_is_shown_but_does_not_count(empty: Served) -> None:
    linking = article("The same", links=f'<a href="{A}">home</a>')
    empty.load(made(A, linking), made(B, linking))
    empty.process(made(C, article("Other", "other", f'<a rel="nofollow" href="{A}">spam</a>')))
    items = {
        item.css_first(".url").text(): item.text()  # type: ignore[union-attr]
        for item in empty.story(A).css("#in-links li")
    }
    assert "of the same document" in items[B]
    assert "nofollow" in items[C]


def test_an_observer_that_was_dead_lettered_is_shown_with_its_traceback(empty: Served) -> None:
    empty.load(made(A, article("Alpha")))
    with empty.repo.transaction() as t:
        t.set(tables.body, page_row(A), b"this was never compressed")
    empty.work()
    page = empty.story(A)
    trouble = page.words(".trouble")
    assert page.words(".trouble q") == "parse"
    assert "It failed 5 times" in trouble and "zlib.error" in trouble
    assert page.words(".trouble pre").startswith("Traceback (most recent call last)")
    assert "Not in search yet" in page.words(".standing")


def test_the_whole_sample_has_stories(site: Served) -> None:
    heads: Counter[str] = Counter()
    for capture in sample()[::7]:
        page = site.story(capture.url)
        headline = page.words(".headline")
        heads[headline] += 1
        joined = site.repo.snapshot().get(tables.joined, page_row(page.words(".address")))
        assert (joined is None) == (headline == "Not in search")
    assert heads["In search"] > 10 and heads["In search, under another page"] > 1


def test_pending_work_is_found_without_reading_all_that_a_page_ever_was(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = page_row(A)
    for number in range(300):
        with repo.transaction() as t:
            t.set(tables.capture, row, {"number": number})
            t.set(tables.links, row, [])
    Worker(repo, [Observer(tables.links, lambda t, row: None, "invert")]).run_until_idle()

    store, read = repo.context.store, 0
    entries = store.entries

    def counted(*arguments: Any) -> list[tuple[int, bytes]]:
        nonlocal read
        found = entries(*arguments)
        read += len(found)
        return found

    monkeypatch.setattr(store, "entries", counted)
    assert pending.unparsed(repo, row)
    assert list(pending.waiting(repo, repo.snapshot(), row, None)) == [
        "The page waits to be parsed."
    ]
    assert read < 100
