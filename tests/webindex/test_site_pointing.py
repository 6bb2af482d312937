"""A story tells where a page points and why that counts, what joins a cluster, and ranks."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from site_client import Served, article, empty, made

from webindex import tables
from webindex.crawl.warc import Capture, Revisit
from webindex.observers.components import partition
from webindex.page.pointers import MAX_HOPS
from webindex.page.urls import page_row
from webindex.reports import Story, tell
from webindex.reports.cluster import MEMBERS
from webindex.site.app import POINTING
from webindex.text_format import apart

__all__ = ["empty"]

HOST = "https://www.tea.example"
A, B, C, D = (f"{HOST}/{name}" for name in "abcd")


def words(seed: int, number: int = 300) -> list[str]:
    """Words that no two seeds share in their order."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(rng.choices(letters, k=rng.randint(3, 8))) for _ in range(number)]


def page(url: str, seed: int, head: str = "", links: str = "", **more: object) -> Capture:
    """A page whose text is that of its seed alone; `text` are its words instead."""
    text = more.pop("text", None) or words(seed)
    assert isinstance(text, list)
    html = (
        f"<!doctype html><html lang=en><head><title>Tea</title>{head}</head><body><h1>Tea</h1>"
        f"<p>{' '.join(text)}.</p>{links}</body></html>"
    )
    return made(url, html, **more)  # type: ignore[arg-type]


def canonical(url: str) -> str:
    return f'<link rel="canonical" href="{url}">'


def redirect(url: str, to: str, status: int = 301) -> Capture:
    return made(url, "", status=status, to=to)


def story_of(site: Served, url: str) -> Story:
    return tell(site.repo, site.index, url)


def agrees(site: Served, url: str) -> bool:
    """Whether the story comes to the same as the observers did."""
    told = story_of(site, url).way
    resolved = site.repo.snapshot().get(tables.resolved, page_row(url))
    end = told.end if told is not None and told.end != url else None
    return end == (resolved["url"] if resolved is not None else None)


# --- Where it points ------------------------------------------------------------------------


def test_a_redirect_tells_its_way_hop_by_hop_and_under_which_page_search_shows_it(
    empty: Served,
) -> None:
    linking = page(D, 4, links=f'<a href="{A}">the tea</a>')
    empty.process(redirect(A, "/b"), redirect(B, C, 302), page(C, 3), linking)
    told = story_of(empty, A)
    assert (told.standing, told.canonical, told.cluster) == ("moved", C, None)
    assert told.reasons[0] == (
        f"It redirects to {B}, and from there through 1 more redirect to {C}."
    )
    assert told.way is not None and told.way.counts
    steps = [(one.url, one.status, one.live) for one in told.way.steps]
    assert steps == [(B, 302, False), (C, 200, True)]
    assert told.anchors == [("the tea", 1)] and told.document_in_links == 1
    assert agrees(empty, A) and agrees(empty, B)
    seen = empty.story(A)
    assert seen.words(".headline") == "In search, under the page it redirects to"
    assert seen.all(".way .url") == [A, B, C] and seen.all(".way .status") == ["301", "302", "200"]
    tags = {one.css_first(".url").text(): one.text() for one in empty.story(D).css("#out-links li")}  # type: ignore[union-attr]
    assert "redirect" in tags[A] and "not in the index" not in tags[A]
    end = story_of(empty, C)
    pointing = [(one.url, one.kind, one.direct, one.counts) for one in end.pointing]
    assert pointing == [(B, "redirect", True, True), (A, "redirect", False, True)]
    assert sorted(end.aliases) == [A, B]


def test_a_redirect_to_a_page_that_something_else_stands_for_leads_to_that(empty: Served) -> None:
    empty.process(page(C, 1), page(C + "/longer", 1), redirect(A, C + "/longer"))
    told = story_of(empty, A)
    assert told.canonical == C
    assert f"That page is one document with {C}, which stands for it." in told.reasons


@pytest.mark.parametrize(
    ("captures", "because"),
    [
        ([], "no capture of it was loaded"),
        ([made(B, "", status=404)], "it is gone (status 404)"),
        ([redirect(B, C)], f"no capture of {C} was loaded"),
        ([redirect(B, C), made(C, "", status=410)], f"{C} is gone (status 410)"),
        ([redirect(B, C), redirect(C, A)], "it leads into a circle"),
        ([redirect(B, C), redirect(C, B)], "it leads into a circle"),
        ([made(B, "", status=301)], "it is a redirect itself (status 301), but does not say"),
    ],
)
def test_a_redirect_that_leads_nowhere_says_why(
    empty: Served, captures: list[Capture], because: str
) -> None:
    empty.process(redirect(A, B), *captures)
    told = story_of(empty, A)
    assert told.standing == "hidden" and told.way is not None and told.way.end is None
    assert told.reasons[0].startswith(f"It redirects to {B}, but that leads to no page: {because}")
    assert agrees(empty, A)
    assert because in empty.story(A).words(".standing")


@pytest.mark.parametrize("hops", [MAX_HOPS, MAX_HOPS + 1])
def test_redirects_are_followed_as_far_as_the_index_follows_them(empty: Served, hops: int) -> None:
    urls = [f"{HOST}/{number}" for number in range(hops + 2)]
    chain = [redirect(one, other) for one, other in itertools.pairwise(urls)]
    empty.process(*chain, page(urls[-1], 1))
    told = story_of(empty, urls[0])
    assert agrees(empty, urls[0])
    assert (told.standing == "moved") == (hops == MAX_HOPS)
    if hops > MAX_HOPS:
        assert told.reasons[0].endswith(f"more than {MAX_HOPS} redirects follow upon it.")


def test_a_markup_that_sends_visitors_on_is_a_redirect(empty: Served) -> None:
    refresh = f'<meta http-equiv="refresh" content="0; url={B}">'
    empty.process(page(A, 1, refresh), page(B, 2))
    told = story_of(empty, A)
    assert told.standing == "moved" and told.status == 200
    assert told.reasons[0] == f"Its markup sends visitors on to {B}."


def test_a_canonical_page_that_counts_makes_one_document(empty: Served) -> None:
    empty.process(page(A + "-long", 1, canonical(B)), redirect(B, A), page(A, 2))
    told = story_of(empty, A + "-long")
    assert (told.standing, told.canonical) == ("folded", A)
    assert told.way is not None and told.way.counts
    assert told.way.verdict == (
        f"It names {B} as its canonical page, which redirects to {A}: both are one document."
    )
    assert f"It names {A} as its canonical page." in told.reasons
    assert story_of(empty, A).members[0].belongs == [f"{A}-long names it as canonical page."]
    assert agrees(empty, A + "-long")


@pytest.mark.parametrize(
    ("named", "captures", "because"),
    [
        (B, [], "no capture of it was loaded"),
        (B, [made(B, "", status=404)], "it is gone (status 404)"),
        (B, [page(B, 2, canonical(C)), page(C, 3)], f"{B} names another page itself, {C}"),
        (B, [redirect(B, A)], "the way from there leads back here"),
        (
            B,
            [redirect(B, "https://other.example/"), page("https://other.example/", 2)],
            "it redirects to https://other.example/, and a page may only name one of its own",
        ),
        (
            "https://other.example/",
            [page("https://other.example/", 2)],
            "a page may only name one of its own domain",
        ),
    ],
)
def test_a_canonical_page_that_is_ignored_says_why(
    empty: Served, named: str, captures: list[Capture], because: str
) -> None:
    empty.process(page(A, 1, canonical(named)), *captures)
    told = story_of(empty, A)
    assert told.standing == "shown" and told.size == 1
    said = f"It names {named} as its canonical page. That is ignored: {because}"
    assert told.way is not None and told.way.verdict.startswith(said)
    assert not told.way.counts and told.reasons[-1] == told.way.verdict
    assert said in empty.story(A).words(".standing")
    # What the index made of it: nothing.
    joined = empty.repo.snapshot().get(tables.joined, page_row(A))
    assert joined is not None and joined["target"] is None


def test_a_page_that_names_itself_points_nowhere(empty: Served) -> None:
    empty.process(page(A, 1, canonical(A)))
    told = story_of(empty, A)
    assert told.way is None and told.pointing == []


def test_who_points_here_in_vain_is_shown_as_such(empty: Served) -> None:
    empty.process(redirect(A, C), page(B, 1, canonical(C)))
    told = story_of(empty, C)
    assert "but 2 pages point to it" in told.reasons[0]
    assert [(one.url, one.counts) for one in told.pointing] == [(A, False), (B, False)]
    assert empty.story(C, status=200).all("section .off .tag")[1::2] == ["does not count"] * 2


def test_of_many_redirects_some_are_listed_and_all_counted(empty: Served) -> None:
    number = POINTING + 7
    empty.process(page(A, 1), *(redirect(f"{HOST}/r{n:03}", A) for n in range(number)))
    seen = empty.story(A)
    assert seen.words("#pointing-title .number") == str(number)
    section = seen.css_first("section[aria-labelledby=pointing-title]")
    assert section is not None and len(section.css("li")) == POINTING
    assert "and 7 more" in section.text()


def test_search_shows_redirects_among_what_is_folded_in(empty: Served) -> None:
    empty.process(page(A, 1), page(A + "-copy", 1), redirect(B, A), redirect(C, A + "-copy"))
    ranked(empty, {A: 2.5}, 0)
    seen = empty.page("/", q="tea")
    assert seen.words(".folded summary") == "1 duplicate and 2 redirects folded in"
    listed = [" ".join(item.split()) for item in seen.all(".folded li")]
    assert listed == [A + "-copy", f"{B} redirect", f"{C} redirect"]
    assert "rank 2.5" in seen.words(".meta")


# --- What joins a cluster -------------------------------------------------------------------


def test_near_duplicates_say_how_near_and_split_when_one_changes(empty: Served) -> None:
    text = words(1)
    other = [*text[:150], "changed", *text[151:]]
    empty.process(page(A, 1), page(A + "-copy", 1, text=other))
    told = story_of(empty, A + "-copy")
    assert (told.standing, told.canonical, told.size) == ("folded", A, 2)
    assert told.reasons[1] == (
        f"Its title is that of {A}, and its text nearly the same: they share 99% of their words."
    )
    empty.process(page(A + "-copy", 2, seconds=60))
    told = story_of(empty, A + "-copy")
    assert (told.standing, told.size) == ("shown", 1)
    assert story_of(empty, A).size == 1


def test_every_member_says_what_joins_it(empty: Served) -> None:
    """What is said of them is enough to make one component of all, and no more than is there."""
    text = words(1)
    near = [*text[:150], "changed", *text[151:]]
    empty.process(
        page(A, 1),
        page(B, 1),
        page(C, 1, text=near),
        page(D, 5, canonical(A)),
        page(f"{HOST}/stranger", 9),
    )
    told = story_of(empty, A)
    assert {one.url for one in told.members} == {A, B, C, D}
    assert all(one.belongs for one in told.members)
    by_url = {one.url: one.belongs for one in told.members}
    assert by_url[A] == [f"Its text is that of {B}.", f"{D} names it as canonical page."]
    assert by_url[B] == [f"Its text is that of {A}."]
    assert by_url[C][0].startswith(f"Its title is that of {A}, and its text nearly the same: ")
    assert by_url[D] == [f"It names {A} as its canonical page."]
    cluster = empty.repo.snapshot().get_row(tables.clusters, told.cluster or "")
    assert len(partition(cluster.family(tables.member))) == 1


def test_of_a_large_cluster_the_first_members_and_the_page_itself_are_told(empty: Served) -> None:
    same = article("The same")
    urls = [f"{HOST}/{number:04}" for number in range(MEMBERS + 30)]
    for at in range(0, len(urls), 50):
        empty.load(*(made(url, same) for url in urls[at : at + 50]))
    empty.work()
    told = story_of(empty, urls[-1])
    assert told.size == len(urls) and len(told.members) == MEMBERS + 1
    assert [one.url for one in told.members] == [*urls[:MEMBERS], urls[-1]]
    assert told.members[0].canonical and told.canonical == urls[0]
    assert "and 29 more" in empty.story(urls[-1]).words("main")


# --- Ranks, revisits, links -----------------------------------------------------------------


def ranked(site: Served, values: dict[str, float], started_ms: int) -> int:
    """Write ranks as the job does, and have the documents made anew; the run."""
    run = site.repo.snapshot().start_ts
    with site.repo.transaction() as t:
        for url, value in values.items():
            t.set(tables.rank, page_row(url), {"value": value, "run": run})
            joined = t.get(tables.joined, page_row(url))
            assert joined is not None
            t.notify(tables.cluster_changed, joined["cluster"])
        t.set(tables.report, f"rank/{run:020}", {"run": run, "started_ms": started_ms})
    site.work()
    return run


def test_the_higher_rank_stands_for_the_others_and_the_numbers_are_told(empty: Served) -> None:
    http = "http://www.tea.example/a-long-address"
    empty.process(*(page(url, 1) for url in (A, B, http)))
    assert story_of(empty, A).canonical == A
    run = ranked(empty, {A: 0.30001, http: 0.30002}, 1_000_000)
    told = story_of(empty, http)
    assert told.canonical == http and told.standing == "shown"
    assert told.rank is not None
    assert (told.rank.value, told.rank.run, told.rank.at_ms) == (0.30002, run, 1_000_000)
    why = {one.url: one.why for one in told.members}
    assert why[A] == "Its rank is lower: 0.30001 against 0.30002."
    assert why[B] == "It has no rank yet, and the page that stands for it has 0.3."
    seen = empty.story(http)
    assert "rank 0.3" in seen.all(".members .tag")
    assert f"Rank computed from timestamp {run:,}, 1970-01-01 00:16:40 UTC" in seen.words("main")


def test_numbers_are_told_apart() -> None:
    assert apart(3.2, 0.15) == ("3.2", "0.15")
    assert apart(1.00001, 1.0) == ("1.00001", "1")
    one, other = apart(0.1 + 0.2, 0.3)
    assert one != other and float(one) > float(other)


def test_a_revisit_says_that_nothing_changed_and_when(empty: Served) -> None:
    first = page(A, 1)
    empty.process(first)
    assert story_of(empty, A).unchanged is None
    later = first.date.replace(year=first.date.year + 1)
    empty.load(Revisit(A, later, first.payload_digest, 0, 0))  # type: ignore[arg-type]
    told = story_of(empty, A)
    assert told.unchanged is not None and told.unchanged.startswith(f"{later.year}-")
    assert told.waiting == [] and len(told.versions) == 1
    assert f"A crawler found it unchanged {later.year}" in empty.story(A).words("main")
    # A newer capture is not what that report was about.
    empty.process(replace(page(A, 2), date=later.replace(year=later.year + 1)))
    assert story_of(empty, A).unchanged is None


def test_directives_are_told(empty: Served) -> None:
    robots = '<meta name="robots" content="nofollow">'
    empty.process(page(A, 1, robots, robots="noindex"), page(B, 2), page(C, 3, robots))
    assert story_of(empty, A).asks == ["noindex", "nofollow"]
    assert story_of(empty, B).asks == []
    assert story_of(empty, C).asks == ["nofollow"]
    seen = empty.story(A)
    facts = dict(zip(seen.all(".facts dt"), seen.all(".facts dd"), strict=True))
    assert facts["Asks for"] == "noindex, nofollow"


def test_links_of_each_kind_are_counted_apart(empty: Served) -> None:
    empty.process(
        page(A, 1),
        page(B, 2, links=f'<a href="{A}">plain</a>'),
        page(C, 3, links=f'<a rel="ugc" href="{A}">said by a user</a>'),
        page(D, 4, f'<link rel="alternate" hreflang="de" href="{A}">'),
        page(f"{HOST}/e", 5, links=f'<a rel="sponsored" href="{A}">buy</a>'),
        page(f"{HOST}/f", 6, links=f'<a rel="nofollow" href="{A}">spam</a>'),
    )
    seen = empty.story(A)
    kinds = ("follow", "nofollow", "ugc", "sponsored", "hreflang")
    assert seen.all("#in-links .kinds .tag") == [f"1 {kind}" for kind in kinds]
    told = story_of(empty, A)
    assert [link.url for link in told.in_links if link.counts] == [B] == [told.in_links[0].url]
    assert told.document_in_links == 1
