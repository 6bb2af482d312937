"""The frontier lists what is linked and was never captured, in order, and nothing else."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from chains import WORDS, Chain, moved, page
from effort import mostly_long
from from_scratch import again, check_recrawls, compute, gone, recrawl, sample
from web_commands import call, is_error

from percola import Repository
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.removals import scope_of
from webindex.observers.frontier import LEVELS, fewest, level_of
from webindex.page.changes import History, history_of
from webindex.page.urls import host, page_row
from webindex.ranking.writing import begin, write_ranks
from webindex.reports import due, frontier, tell
from webindex.reports import to_crawl as listing
from webindex.takedown.removing import remove, unblock


def linking(url: str, *targets: str, seconds: float = 0.0) -> Capture:
    links = "".join(f'<a href="{one}">to {one[-1]}</a> ' for one in targets)
    return page(url, f"<title>{url}</title><p>{WORDS} {url} {links}", seconds)


def listed(repo: Repository, **options: object) -> list[str]:
    return [one.url for one in frontier(repo, **options)]  # type: ignore[arg-type]


def counted(captures: list[Capture]) -> Counter[str]:
    """The URLs that must be listed, with their links."""
    index = compute(captures)
    captured = {one["url"] for (_, _, column), one in index.cells.items() if column == "capture"}
    links = Counter(
        link.url for one in index.pages.values() for link in one.links if link.rel == "follow"
    )
    return Counter({url: number for url, number in links.items() if url not in captured})


def test_each_number_of_links_is_in_the_level_that_begins_below_it() -> None:
    assert [fewest(level) for level in range(9)] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    for links in [*range(1, 5000), 2**40, 2**40 - 1]:
        level = level_of(links)
        assert fewest(level) <= links < fewest(level + 1)
    assert level_of(2**70) == LEVELS - 1


def test_all_and_those_of_a_host_come_in_order_and_captured_ones_are_missing(chain: Chain) -> None:
    wanted = counted(chain.loaded)
    found = frontier(chain.repo, limit=10_000)
    assert {one.url: one.links for one in found} == wanted
    assert [one.links for one in found] == sorted(wanted.values(), reverse=True)
    assert found[0].anchors
    for limit in (1, 10, 300):
        assert frontier(chain.repo, limit=limit) == found[:limit]
    name = host(found[0].url)
    of_host = [one for one in found if host(one.url) == name]
    assert frontier(chain.repo, host=name, limit=10_000) == of_host


def test_a_url_leaves_when_it_is_loaded_and_returns_when_it_is_erased(empty: Chain) -> None:
    a, b, c = (f"https://{one}.example/" for one in "abc")
    empty.process([linking(a, b, c), linking(c, b)])
    assert frontier(empty.repo) == [listing.Uncaptured(b, 2, None, [f"to {b[-1]}"])]
    said = "It is in the frontier, to be crawled: 2 links vouch for it."
    assert said in tell(empty.repo, empty.index, b).reasons

    empty.load([linking(b)])
    assert listed(empty.repo) == []  # in the transaction of the load
    empty.verify()
    remove(empty.repo, empty.index, [scope_of("url", b)])
    assert listed(empty.repo) == [b]
    empty.work()
    assert listed(empty.repo) == [b]

    # Gone is captured: it is removed from the list as a live page is.
    empty.process([gone(linking(b), seconds=10**9)])
    assert listed(empty.repo) == []
    remove(empty.repo, empty.index, [scope_of("url", b)])
    empty.work()
    assert listed(empty.repo) == [b]
    empty.process([linking(a, c, seconds=60), linking(c, seconds=60)])
    assert listed(empty.repo) == []
    assert not list(empty.repo.snapshot().scan(tables.frontier))


def test_what_is_blocked_is_never_listed_and_what_is_unblocked_at_once(
    empty: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_AT_ONCE", 4)
    names = ["https://in.example", "http://in.example:81", "https://other.example"]
    urls = [f"{name}/{folder}/{n}" for name in names for folder in "xy" for n in range(9)]
    empty.process([linking("https://a.example/", *urls)])
    scopes = [
        scope_of("prefix", "https://in.example/x/"),
        scope_of("url", "https://other.example/y/3"),
        scope_of("host", "in.example"),
    ]
    for number, scope in enumerate(scopes, 1):
        remove(empty.repo, empty.index, [scope], block=True)
        left = [url for url in urls if not any(one.covers(url) for one in scopes[:number])]
        assert listed(empty.repo) == sorted(left)
        of_host = [url for url in left if host(url) == "in.example"]
        assert listed(empty.repo, host="in.example") == sorted(of_host)
    assert "frontier" not in " ".join(tell(empty.repo, empty.index, urls[0]).reasons)
    unblock(empty.repo, scopes)
    assert listed(empty.repo) == sorted(urls)


def test_a_url_too_long_for_its_row_is_listed_whole(empty: Chain) -> None:
    long = f"https://long.example/{'x' * 500}"
    empty.process([linking("https://a.example/", long)])
    assert listed(empty.repo) == [long]
    empty.process([linking(f"https://{n}.example/", long) for n in range(3)])
    assert [(one.url, one.links) for one in frontier(empty.repo)] == [(long, 4)]
    empty.verify([linking(long)])


@pytest.mark.parametrize("seed", mostly_long(range(3)))
def test_any_order_of_loads_ends_in_the_same_frontier(empty: Chain, seed: int) -> None:
    rng = random.Random(seed)
    some = [one for one in sample() if rng.random() < 0.3]
    missing = sorted(counted(some))
    some += [linking(one) for one in rng.sample(missing, 40)]
    some += [gone(linking(one)) for one in rng.sample(missing, 20)]
    some += [moved(linking(one), rng.choice(missing)) for one in rng.sample(missing, 20)]
    some += [gone(one, seconds=90) for one in some[:20]] + list(recrawl())
    rng.shuffle(some)
    for at in range(0, len(some), 50):
        empty.load(some[at : at + 50], group=10)
        empty.work()
    empty.check()
    assert {one.url: one.links for one in frontier(empty.repo, limit=10_000)} == counted(some)


def test_the_command_prints_text_json_and_seeds(empty: Chain) -> None:
    urls = [f"https://new.example/{n}" for n in range(3)]
    empty.process([linking("https://a.example/", *urls), linking("https://b.example/", urls[1])])

    def run(*words: str) -> str:
        result = call("frontier", "--repo", empty.repo.address, *words)
        assert result.code == 0, result
        return result.out

    assert run("--format", "seeds").splitlines() == [urls[1], urls[0], urls[2]]
    assert run("--format", "seeds", "--limit", "1").splitlines() == [urls[1]]
    first = json.loads(run("--format", "json"))[0]
    known = {"url": urls[1], "links": 2, "rank": None, "anchors": ["to 1"]}
    assert first == {**known, "sitemap": None, "modified": None}
    assert run().splitlines()[0] == f"{urls[1]}  2 links · 'to 1'"
    assert "no URL of other.example" in run("--host", "other.example")
    assert is_error(call("frontier", "--repo", empty.repo.address, "--host", "a b/"))


# --- Pages that are due again -----------------------------------------------------------------


def seen(*days: float, contents: str = "") -> History:
    """The history of a page that was seen on these days."""
    start = datetime(2025, 1, 1, tzinfo=UTC)
    dates = [(start + timedelta(days=day)).strftime("%Y-%m-%dT%H:%M:%S.%fZ") for day in days]
    return history_of(zip(dates, contents or "a" * len(days), strict=True))


def days_until(found: History, last: float) -> float:
    due_at = datetime.fromisoformat(found.due) - datetime(2025, 1, 1, tzinfo=UTC)
    return round(due_at / timedelta(days=1) - last, 2)


def test_a_page_is_due_by_the_estimate_of_how_often_it_changes() -> None:
    # -log((10 - 5 + 0.5) / 10.5) = 0.647 changes a day; half of the pages have one in 1.07 days.
    found = seen(*range(11), contents="aabbccddeef")
    assert (found.intervals, found.changes) == (10, 5)
    assert days_until(found, 10) == round(math.log(2) / math.log(10.5 / 5.5), 2) == 1.07
    # Every time another content: more often than it was looked at, and not infinitely often.
    assert days_until(seen(*range(11), contents="abcdefghijk"), 10) == 0.23
    # Never, in ten days: as long again twice, and at most a year. Once: a month.
    assert days_until(seen(*range(11)), 10) == 20
    assert days_until(seen(0, 1000), 1000) == 365
    assert days_until(seen(3), 3) == 30
    # The order and repeated dates do not matter.
    assert seen(2, 0, 1, 1, contents="babb") == seen(0, 1, 2, contents="abb")


def test_pages_that_are_due_come_by_rank_and_move_with_what_is_loaded(empty: Chain) -> None:
    a, b = (linking(f"https://{one}.example/") for one in "ab")
    c = linking("https://c.example/", seconds=-1000 * 86400)
    empty.verify([a, b, c, moved(linking("https://d.example/"), a.url)])
    later = a.date + timedelta(days=31)
    urls = {one.url for one in due(empty.repo, at=later)}
    assert urls == {a.url, b.url, c.url, "https://d.example/"}
    assert [one.url for one in due(empty.repo, at=a.date + timedelta(days=29))] == [c.url]

    run = empty.repo.snapshot().start_ts
    begin(empty.repo, run)
    for one, value in ((b, 7.5), (a, 7.4), (c, 0.2)):
        write_ranks(empty.repo, run, [(page_row(one.url), value)], 0.01)
    empty.work()
    empty.check(ranks={b.url: 7.5, a.url: 7.4, c.url: 0.2})
    assert [one.url for one in due(empty.repo, at=later, limit=3)] == [b.url, a.url, c.url]
    assert [one.url for one in due(empty.repo, host="a.example", at=later)] == [a.url]

    # It changed within a day: due soon. Then it is gone, and not due at all.
    empty.process([again(b, seconds=86400, body=b.body + b" more", payload_digest="sha1:MORE")])
    first = due(empty.repo, at=later)[0]
    assert (first.url, first.intervals, first.changes) == (b.url, 1, 1)
    assert first.due < "2100" and days_between(b, first.due) < 2
    # An older capture adds to its past by the load alone.
    empty.load([again(b, seconds=-86400)])
    assert due(empty.repo, at=later)[0].intervals == 2
    check_recrawls(empty.repo)
    empty.process([gone(b, seconds=2 * 86400)])
    assert [one.url for one in due(empty.repo, at=later, limit=2)] == [a.url, c.url]
    remove(empty.repo, empty.index, [scope_of("url", a.url)])
    empty.work()
    assert a.url not in [one.url for one in due(empty.repo, at=later)]
    check_recrawls(empty.repo)
    answer = call("frontier", "--repo", empty.repo.address, "--recrawl")
    assert answer.out.startswith(f"{c.url}  rank 0.2 · due ")
    assert "seen 1 time, 0 changes" in answer.out


def days_between(one: Capture, due_at: str) -> float:
    return (datetime.fromisoformat(due_at) - one.date) / timedelta(days=1)
