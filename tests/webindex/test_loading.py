"""The loader: which of the captures of a page counts, in whatever order they come."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import plain_captures
import pytest
from effort import tries
from from_scratch import newness
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_captures import bare, in_groups, revisit

import percola
from percola import Repository, Worker, observer
from webindex import tables
from webindex.crawl.warc import Capture, Revisit
from webindex.load.report import LoadReport
from webindex.load.revisits import report_of
from webindex.load.transaction import Loaded, describe, is_conclusive, last_seen, load_captures
from webindex.page.urls import page_row

URL = "https://example.org/tea"
ROW = page_row(URL)


captured = partial(plain_captures.captured, URL)
"""A capture of the page."""


def unchanged(at: float, body: str | None = "words") -> Revisit:
    """A report that the page has this body; without one, that it is what it was."""
    return bare(revisit(URL, at, body))


def load(repo: Repository, *records: Capture | Revisit) -> Loaded:
    return load_captures(repo, records, "crawl.warc.gz")


def there(repo: Repository) -> dict[str, Any]:
    """The page's capture and revisit, without where and when they were loaded."""
    row = repo.snapshot().get_row(tables.pages, ROW)
    found = {
        column.name: value for column, value in row.items() if not column.name.startswith("earlier")
    }
    if "body" in found:
        found["body"] = zlib.decompress(found["body"]).decode().removeprefix("<p>")
    for name in ("file", "offset", "length", "loaded_ms", "identical"):
        found.get("capture", {}).pop(name, None)
    return found


def body(repo: Repository) -> str | None:
    found: str | None = there(repo).get("body")
    return found


# --- what is written of a capture -------------------------------------------------------------


def test_a_capture_is_described_with_all_that_observers_read() -> None:
    headers = {
        "content-type": "text/html; charset=utf-8",
        "x-robots-tag": "noindex\nbot: nofollow",
        "location": "/never looked at",
        "link": "</a>; rel=canonical",
        "content-language": "de",
        "refresh": "5; url=/new",
    }
    one = captured(1.5, headers=headers, body=b"words")
    described = describe(one, URL, "crawl.warc.gz")
    assert isinstance(described.pop("loaded_ms"), int)
    assert described == {
        "url": URL,
        "date": "2024-01-03T12:00:00.000000Z",
        "status": 200,
        "content_type": "text/html; charset=utf-8",
        "robots": "noindex\nbot: nofollow",
        "location": None,
        "link": "</a>; rel=canonical",
        "language": "de",
        "refresh": "5; url=/new",
        "digest": "3be147d0936baf6d1beb65ca7654472b",
        "cut": None,
        "payload": "sha1:WORDS",
        "file": "crawl.warc.gz",
        "offset": 0,
        "length": 10,
    }


@pytest.mark.parametrize(
    ("status", "kept"),
    [(200, None), (300, "/b\n/c"), (301, "/b\n/c"), (399, "/b\n/c"), (404, None)],
)
def test_a_location_is_kept_where_it_redirects(status: int, kept: str | None) -> None:
    one = captured(1, status=status, headers={"location": "/b\n/c", "link": "</x>; rel=next"})
    described = describe(one, URL, "f")
    assert (described["location"], described["link"]) == (kept, None)


@pytest.mark.parametrize("order", [(2, 4, None), (None, 4, 2), (4, None, 2)])
def test_of_a_long_page_that_is_loaded_with_several_limits_the_most_is_kept(
    repo: Repository, order: tuple[int | None, ...]
) -> None:
    for day in range(8):
        # Their digests are in any order.
        whole = f"{day}words"
        for cut in order:
            one = captured(day, "words", body=f"<p>{whole[:cut]}".encode(), cut=cut)
            load(repo, one)
        assert body(repo) == whole
        assert there(repo)["capture"]["cut"] is None


@pytest.mark.parametrize("status", [302, 404, 999])
@pytest.mark.parametrize("order", [1, -1])
def test_of_two_answers_in_one_second_the_page_counts(
    repo: Repository, status: int, order: int
) -> None:
    """As of a server that sets a cookie and sends the browser to the same URL again."""
    for day in range(8):
        # Their digests are in any order.
        found = captured(day, f"{day}words")
        first = captured(day, "", status=status, headers={"location": URL}, body=b"")
        load(repo, *[first, found][::order])
        assert body(repo) == f"{day}words"


# --- captures that say nothing ----------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 416, 429, 500, 502, 503, 599])
def test_a_capture_of_a_broken_or_busy_server_is_counted_and_changes_nothing(
    repo: Repository, status: int
) -> None:
    failed = captured(3, "", status=status)
    assert load(repo, failed) == Loaded(unavailable=1)
    assert there(repo) == {} and repo.pending() == {}
    load(repo, captured(1))
    before = there(repo)
    assert load(repo, failed, replace(failed, url="not a url")) == Loaded(unavailable=2)
    assert there(repo) == before


@pytest.mark.parametrize(
    ("asked", "location"),
    [
        (f"{URL}?utm_source=mail", URL),
        (f"{URL}?fbclid=1#top", URL.removeprefix("https://example.org")),
        (f"{URL};jsessionid=1A", f"{URL}#top"),
        (f"{URL}?", URL),
        (URL, f"{URL}?utm_source=mail"),
    ],
)
def test_a_redirect_to_another_spelling_of_its_url_leaves_the_page_as_it_is(
    repo: Repository, asked: str, location: str
) -> None:
    load(repo, captured(1))
    before = there(repo)
    moved = replace(captured(2, ""), url=asked, status=301, headers={"location": location})
    assert load(repo, moved) == Loaded(unavailable=1)
    assert there(repo) == before


@pytest.mark.parametrize("location", [URL, f"{URL}#top", "https://example.org/other"])
def test_a_redirect_to_the_very_url_or_to_another_page_counts(
    repo: Repository, location: str
) -> None:
    load(repo, captured(1))
    moved = captured(2, "", status=301, headers={"location": location})
    assert load(repo, moved) == Loaded(written=1)
    assert there(repo)["capture"]["status"] == 301


@pytest.mark.parametrize("status", [200, 301, 403, 404, 407, 410, 428, 451, 499, 600, 999])
def test_every_other_status_is_conclusive(repo: Repository, status: int) -> None:
    assert is_conclusive(status)
    assert load(repo, captured(1, status=status)) == Loaded(written=1)
    assert there(repo)["capture"]["status"] == status


def test_the_report_says_in_words_what_was_not_kept_and_what_is_unchanged() -> None:
    report = LoadReport(files=1, bytes=10, started_ms=0)
    assert {"Say nothing of a page", "Reported as unchanged"}.isdisjoint(dict(report.rows()))
    report.loaded.add(Loaded(written=1, older=2, same=3, unavailable=4000, unchanged=5000))
    report.loaded.add(Loaded(unavailable=1, unchanged=1))
    rows = dict(report.rows())
    assert rows["Loaded"].startswith("1 of 4,007 captures")
    assert rows["Say nothing of a page"].startswith("4,001: ")
    assert rows["Reported as unchanged"] == "5,001"
    assert report.to_json()["loaded"]["unavailable"] == 4001


# --- revisits ---------------------------------------------------------------------------------


def test_a_revisit_of_a_page_causes_no_work(repo: Repository) -> None:
    runs: list[str] = []

    @observer(tables.capture)
    def see(t: percola.Transaction, row: str) -> None:
        runs.append(row)

    worker = Worker(repo, [see])
    load(repo, captured(1))
    worker.run_until_idle()
    before = there(repo)
    assert load(repo, unchanged(2), unchanged(3), unchanged(4, None)) == Loaded(unchanged=3)
    assert repo.pending() == {}
    worker.run_until_idle()
    assert runs == [ROW]
    after = there(repo)
    revisited = after.pop("revisited")
    assert revisited["seen"] == "2024-01-06T00:00:00.000000Z"
    assert [one["date"] for one in revisited["reports"]] == ["2024-01-05T00:00:00.000000Z"]
    assert after == before


def test_two_captures_of_one_body_count_by_their_own_dates(repo: Repository) -> None:
    load(repo, unchanged(5))
    one, other = captured(1, status=200), captured(2, headers={"x-robots-tag": "noindex"})
    for order in ((one, other), (other, one)):
        load(repo, *order)
        assert there(repo)["capture"]["robots"] == "noindex"


def test_when_a_page_was_last_seen() -> None:
    one = describe(captured(2, "a"), URL, "f")

    def seen(at: float, payload: str | None) -> str:
        report = report_of(unchanged(at, payload), URL, "f")
        if payload is None:
            return last_seen(one, {"seen": report["date"], "reports": []})
        return last_seen(one, {"seen": None, "reports": [report]})

    assert last_seen(one, None) == one["date"]
    assert seen(3, "a") == seen(3, None) == "2024-01-05T00:00:00.000000Z"
    assert seen(1, "a") == seen(1, None) == seen(3, "b") == one["date"]


def test_what_an_earlier_version_noted_of_revisits_is_read() -> None:
    one = describe(captured(2, "a"), URL, "f")
    date = "2024-01-09T00:00:00.000000Z"
    assert last_seen(one, {"date": date, "payload": None}) == date
    assert last_seen(one, {"date": date, "payload": "sha1:A"}) == one["date"]


def test_a_revisit_of_a_url_that_no_row_can_have_is_counted(repo: Repository) -> None:
    assert load(repo, replace(unchanged(1), url="https://a..b/")) == Loaded(bad_urls=1)


# --- any order --------------------------------------------------------------------------------

_BODIES = ("a", "b", "c")
_captures = st.builds(
    lambda at, text, robots, known: captured(
        at,
        text,
        status=200 if text != "c" else 404,
        headers={"x-robots-tag": robots} if robots else {},
        **({} if known else {"payload_digest": None}),
    ),
    st.integers(0, 4),
    st.sampled_from(_BODIES),
    st.sampled_from(["", "noindex"]),
    st.booleans(),
)
_failed = st.builds(lambda at: captured(at, "", status=503), st.integers(0, 9))


def load_in_groups(records: Sequence[Capture | Revisit], seed: int) -> dict[str, Any]:
    with percola.open("memory:", schema=tables.SCHEMA) as repo:
        for group in in_groups(records, random.Random(seed)):
            load(repo, *group)
        return there(repo)


def expected(records: Iterable[Capture | Revisit]) -> Capture | None:
    """The capture that counts, by definition: the newest."""
    found = [one for one in records if isinstance(one, Capture) and one.status != 503]
    return max(found, key=lambda one: newness(describe(one, URL, "")), default=None)


@settings(max_examples=tries(100), deadline=None)
@given(
    st.lists(st.one_of(_captures, _failed), max_size=7),
    st.lists(st.builds(unchanged, st.integers(0, 9), st.none()), max_size=3),
    st.integers(0, 10**6),
)
def test_any_order_of_captures_and_304s_ends_in_the_same(
    captures: list[Capture], reports: list[Revisit], seed: int
) -> None:
    records = [*captures, *reports]
    found = load_in_groups(records, seed)
    winner = expected(records)
    assert found.get("body") == (winner.body.decode().removeprefix("<p>") if winner else None)
    assert found == load_in_groups(records, seed + 1)
    dates = [one.date.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for one in reports]
    noted = {"seen": max(dates), "reports": []} if reports else None
    assert found.get("revisited") == noted


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"body": b"a"}, {"body": b"b"}),
        ({"status": 404}, {"status": 410}),
        ({"headers": {"content-type": "text/html"}}, {"headers": {"content-type": "a/b"}}),
        ({"headers": {"x-robots-tag": "noindex"}}, {"headers": {}}),
        ({"headers": {"location": "/a"}}, {"headers": {"location": "/b"}}),
        ({"headers": {"link": "</a>; rel=canonical"}}, {"headers": {}}),
        ({"headers": {"content-language": "de"}}, {"headers": {"content-language": "fr"}}),
    ],
)
def test_of_two_captures_at_one_moment_the_same_counts_in_either_order(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    status = 301 if "location" in one.get("headers", {}) else 200
    pair = [captured(1, **{"status": status, **changes}) for changes in (one, other)]
    pair = [replace(found, payload_digest=None) for found in pair]
    ends = []
    for order in (pair, pair[::-1]):
        with percola.open("memory:", schema=tables.SCHEMA) as repo:
            load(repo, *order)
            ends.append(there(repo))
    assert ends[0] == ends[1]


@settings(max_examples=50, deadline=None)
@given(st.lists(_captures, min_size=1, max_size=6), st.integers(0, 10**6))
def test_loading_captures_again_writes_none_of_them(captures: list[Capture], seed: int) -> None:
    order = random.Random(seed)
    with percola.open("memory:", schema=tables.SCHEMA) as repo:
        load(repo, *order.sample(captures, len(captures)))
        before = there(repo)
        again = load(repo, *order.sample(captures, len(captures)))
        assert again.written == 0 and again.same >= 1
        assert there(repo) == before
