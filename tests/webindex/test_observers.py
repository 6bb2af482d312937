"""The chain of observers keeps what a computation from scratch would make of the same captures."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from chains import WORDS, Chain, chain_in_memory, moved, naming, of, page
from effort import tries
from from_scratch import again, at_rest, compute, gone, parse, recrawl, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from percola import ConflictError, Worker, inspection
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.transaction import Loaded, load_captures
from webindex.observers.clustering import join
from webindex.observers.documents import assemble
from webindex.observers.inlinks import count, invert
from webindex.observers.parse import parse as parse_page
from webindex.page.urls import page_id, page_row
from webindex.sample import CHANGED_URL, CHANGED_WORDS, NEW_LINK, OLDER_URL, OLDER_WORDS
from webindex.workers.processes import build_observers

# --- The whole sample ---------------------------------------------------------------------


def test_a_load_ends_in_what_a_computation_from_scratch_makes_of_the_sample(chain: Chain) -> None:
    chain.check()
    expected = compute(sample())
    assert len(expected.pages) == 204
    assert len(expected.documents) == chain.index.count() == 183
    assert sum(len(one["duplicates"]) for one in expected.documents.values()) == 21
    assert sum(one["inlinks"] for one in expected.documents.values()) > 1000
    assert max(len(one["anchors"]) for one in expected.documents.values()) >= 5


def test_a_recrawl_reaches_the_search_and_an_older_capture_changes_nothing(chain: Chain) -> None:
    assert chain.found(CHANGED_WORDS) == []
    before = chain.document(OLDER_URL)
    assert chain.load(recrawl()) == Loaded(written=1, older=1)
    runs = chain.work()
    chain.check()
    assert chain.found(CHANGED_WORDS) == [CHANGED_URL]
    assert chain.found(OLDER_WORDS) == []
    assert chain.document(OLDER_URL) == before
    assert runs["parse"] == runs["join"] == runs["invert"] == runs["count"] == 1
    target = chain.repo.snapshot().get_row(tables.inlinks, page_row(NEW_LINK))
    assert tables.source[page_id(CHANGED_URL)] in target


def test_an_older_capture_that_comes_later_causes_no_run(chain: Chain) -> None:
    older = [again(one, seconds=-3600, body=one.body + b"older") for one in sample()[:50]]
    assert chain.load(older) == Loaded(older=50)
    assert chain.repo.pending() == {}
    assert chain.work() == {}


def test_an_older_capture_of_another_payload_is_only_offered_to_revisits(chain: Chain) -> None:
    older = [
        again(one, seconds=-3600, body=one.body + b"older", payload_digest=f"sha1:{n}")
        for n, one in enumerate(sample()[:50])
        if one.status == 200
    ]
    assert chain.load(older) == Loaded(older=len(older))
    assert chain.repo.pending() == {"pages.offer": len(older)}
    assert chain.work() == {"offer": len(older)}
    chain.check()


def test_loading_the_same_crawl_twice_causes_no_run_and_no_export(chain: Chain) -> None:
    documents, exports = sorted(chain.index.clusters()), chain.exports()
    assert chain.load(sample()) == Loaded(same=206)
    assert chain.repo.pending() == {}
    assert chain.work() == {}
    assert sorted(chain.index.clusters()) == documents
    assert chain.exports() == exports
    chain.check()


def test_other_bytes_with_the_same_text_are_parsed_and_cause_nothing_else(chain: Chain) -> None:
    live = [one for one in sample() if one.status == 200]
    # Those with hardly a word of their own, as tables of contents, are known by their bytes.
    live = [one for one in live if parse(one.body, one.url, one.content_type).sketch is not None]
    documents = sorted(chain.index.clusters())
    chain.load([again(one, body=one.body + b"<!-- generated anew -->") for one in live])
    assert chain.work() == {"parse": 200}
    assert sorted(chain.index.clusters()) == documents
    chain.check()


@pytest.mark.parametrize(
    "url",
    [
        "https://www.sqlite.org/index.html",  # a duplicate that is not canonical
        "https://www.sqlite.org/",  # a canonical page, linked to by most of its site
        "https://www.postgresql.org/docs/15/tutorial-start.html",  # a page for itself
    ],
)
def test_a_page_that_goes_takes_its_links_along_and_brings_them_back(
    chain: Chain, url: str
) -> None:
    linked = compute(sample()).pages[url].links[0].url

    def is_entered() -> bool:
        in_links = chain.repo.snapshot().get_row(tables.inlinks, page_row(linked))
        return tables.source[page_id(url)] in in_links

    assert is_entered()
    chain.verify([gone(of(url))])
    assert not is_entered()
    chain.verify([again(of(url), seconds=120)])
    assert is_entered()


# --- Any order ----------------------------------------------------------------------------


def history() -> list[Capture]:
    """Some forty pages, each with captures from several times: changed, gone, back, at once."""
    of_cluster: dict[str, list[Capture]] = {}
    for one in sample():
        if one.status == 200:
            parsed = parse(one.body, one.url, one.headers.get("content-type"))
            of_cluster.setdefault(parsed.text_hash, []).append(one)
    groups = sorted(of_cluster.values(), key=lambda group: (-len(group), group[0].url))
    subset = [one for group in groups[:24] for one in group]
    found = list(subset)
    for number, one in enumerate(subset):
        other = subset[(number * 7 + 3) % len(subset)].url
        match number % 10:
            case 0:
                found.append(again(one, body=one.body + b"<p>changed</p>"))
            case 1:
                found.append(gone(one))
            case 2:
                found += [gone(one), again(one, seconds=120)]
            case 3:  # two answers at the same moment
                found.append(again(one, body=one.body + b"<p>here</p>"))
                found.append(again(one, body=one.body + b"<p>there</p>"))
            case 4 | 5:
                found.append(moved(one, other))
            case 6:  # and from there to the next one, in the end in a circle or to a live page
                found += [moved(one, other), again(one, seconds=90, status=503, body=b"")]
            case 7:
                found.append(again(one, headers=naming(one, other)))
            case 8:  # for a while
                found += [again(one, headers=naming(one, other)), again(one, seconds=120)]
    # A server that answers twice in a second, both times without a body.
    found += [gone(subset[0], seconds=500), again(subset[0], seconds=500, status=302, body=b"")]
    return found


@settings(max_examples=tries(6))
@given(seed=st.integers(0, 2**32))
def test_any_order_of_loads_ends_in_the_same_state(seed: int) -> None:
    rng = random.Random(seed)
    captures = history()
    assert len({one.url for one in captures}) >= 40 and len(captures) >= 75
    rng.shuffle(captures)
    with chain_in_memory() as chain:
        while captures:
            some = rng.randint(1, 30)
            chain.load(captures[:some], group=rng.randint(1, 8))
            del captures[:some]
            if rng.random() < 0.4:
                chain.work()
        chain.verify()


# --- Duplicates ---------------------------------------------------------------------------


def test_links_to_a_duplicate_count_for_its_canonical_page(empty: Chain) -> None:
    same = f"<title>Same</title><p>{WORDS}"
    short, long = "https://example.org/a", "https://example.org/longer"
    empty.verify(
        [
            page(short, same + f'<a href="{long}">myself under another name</a>'),
            page(long, same + f'<a href="{long}">myself under another name</a>'),
            page("https://example.org/x", f'{WORDS} x <a href="{long}">Pelicans</a>'),
            page("https://example.org/y", f'{WORDS} y <a href="{long}">Pelicans</a>'),
            page("https://example.org/z", f'{WORDS} z <a rel=nofollow href="{long}">Unseen</a>'),
        ]
    )
    document = empty.document(long)
    assert document["url"] == short
    assert document["duplicates"] == [long]
    assert document["inlinks"] == 2
    assert document["anchors"] == [["Pelicans", 2]]
    assert short in empty.found("Pelicans")
    assert empty.found("Unseen") == ["https://example.org/z"]


def test_a_change_of_a_duplicate_that_is_not_shown_is_noted_and_not_exported(empty: Chain) -> None:
    first, second = "https://example.org/a", "https://example.org/bb"
    empty.process(
        [
            page(first, f"<title>Tea of 2021</title>{WORDS}"),
            page(second, f"<title>Tea of 2022</title>{WORDS}"),
        ]
    )
    documents, exports = list(empty.index.clusters()), empty.exports()
    empty.load([page(second, f"<title>Tea of 2023</title>{WORDS}", 60)])
    runs = empty.work()
    empty.check()
    assert runs == {"parse": 1, "join": 1, "assemble": 1}
    assert (list(empty.index.clusters()), empty.exports()) == (documents, exports)


def test_a_page_that_may_not_be_indexed_hands_over_to_one_that_may(empty: Chain) -> None:
    same = f"<title>Same</title><p>{WORDS}"
    first, second = "https://example.org/a", "https://example.org/bb"
    empty.process([page(first, same), page(second, same)])
    assert empty.found("word7") == [first]
    empty.verify([page(first, same, 60, **{"x-robots-tag": "noindex"})])
    assert empty.found("word7") == [second]
    empty.verify([page(second, same, 60, **{"x-robots-tag": "noindex"})])
    assert empty.found("word7") == []


def test_a_short_page_whose_bytes_are_read_otherwise_is_shown_otherwise(empty: Chain) -> None:
    url = "https://example.org/short"
    body = "<title>x</title><p>Gruyère".encode()
    one = replace(page(url, ""), body=body)
    empty.process([replace(one, headers={"content-type": "text/html; charset=koi8-r"})])
    assert empty.found("Gruyère") == []
    empty.verify([replace(again(one), headers={"content-type": "text/html; charset=utf-8"})])
    assert empty.found("Gruyère") == [url]


# --- At the same time ---------------------------------------------------------------------


def test_pages_of_one_text_that_are_loaded_at_once_end_in_one_cluster(empty: Chain) -> None:
    copies = [page(f"https://example.org/copy/{n:03}", f"<p>{WORDS}") for n in range(80)]
    worker = Worker(empty.repo, build_observers(empty.index), threads=4)
    start = threading.Barrier(4)

    def load(part: int) -> None:
        start.wait()
        for one in copies[part::4]:
            load_captures(empty.repo, [one], "copies")

    worker.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(load, range(4)))
    finally:
        worker.stop()
    empty.loaded = copies
    empty.work(threads=4)
    empty.check()
    clusters = empty.repo.snapshot().scan(tables.clusters)
    sizes = [len(row.family(tables.member)) for row in clusters]
    assert [size for size in sizes if size] == [80]
    assert empty.index.count() == 1


def test_a_slow_assembly_cannot_overwrite_a_faster_one_that_found_nothing_new(empty: Chain) -> None:
    target, source = "https://example.org/target", "https://example.org/source"
    with_link = f'{WORDS} source <a href="{target}">Cormorants</a>'

    def change_links(html: str, seconds: float) -> None:
        empty.load([page(source, html, seconds)])
        for one in (parse_page, invert):
            empty.repo.run(lambda t, one=one: one(t, page_row(source)))

    empty.process([page(target, WORDS), page(source, f"{WORDS} source")])
    cluster = empty.cluster(target)
    change_links(with_link, 60)
    slow = empty.repo.transaction()
    assemble(slow, cluster)
    change_links(f"{WORDS} source", 120)
    empty.repo.run(lambda t: assemble(t, cluster))
    with pytest.raises(ConflictError):
        slow.commit()
    empty.verify()


def test_a_count_does_not_commit_beside_a_move_of_its_page_to_another_cluster(empty: Chain) -> None:
    target, source = "https://example.org/target", "https://example.org/source"
    empty.load([page(target, f"{WORDS} alone"), page(source, f'{WORDS} s <a href="{target}">x')])
    for one in (parse_page, join):
        empty.repo.run(lambda t, one=one: one(t, page_row(target)))
    for one in (parse_page, invert):
        empty.repo.run(lambda t, one=one: one(t, page_row(source)))
    slow = empty.repo.transaction()
    count(slow, page_row(target))
    # Meanwhile the page leaves for another cluster, whose document is made without that count.
    empty.load([page(target, f"{WORDS} s", 60)])
    for one in (parse_page, join):
        empty.repo.run(lambda t, one=one: one(t, page_row(target)))
    with pytest.raises(ConflictError):
        slow.commit()
    empty.verify()


# --- Pages that mean no good --------------------------------------------------------------


def test_hostile_pages_do_not_stop_the_chain(empty: Chain) -> None:
    many = "".join(f'<a href="/t/{n}">to {n}</a> ' for n in range(2_500))

    def own(name: str) -> str:
        """Words enough for a page of its own."""
        return WORDS + " " + " ".join(f"{name}{n}" for n in range(20))

    empty.load(
        [
            page("https://example.org/empty", ""),
            page("https://example.org/empty2", ""),
            page("https://example.org/links", f"<p>{WORDS}{many}"),
            page("https://example.org/me", f'<p>{own("me")} <a href="/me#here">me</a><a href="">'),
            page("https://example.org/title", f"<title>{'long ' * 100_000}</title>{WORDS} t"),
            page("https://example.org/deep", "<div>" * 20_000 + WORDS),
            page("https://example.org/nul", f"<title>a\0b\ud7ff</title>{WORDS} \0 \x1b[31m red"),
            replace(page("https://example.org/bytes", ""), body=bytes(range(256)) * 20),
            page(f"https://example.org/{'u' * 3_000}", f'<p>{own("u")} <a href="/links">x</a>'),
            page("https://example.org/honest", f'<p>{own("o")} <a href="/links">honest</a>'),
        ]
    )
    bad = replace(page("https://example.org/x", ""), url="https://[not a url/")
    assert load_captures(empty.repo, [bad], "crawl") == Loaded(bad_urls=1)
    empty.verify()
    row = page_row("https://example.org/links")
    assert len(empty.repo.snapshot().get(tables.links, row) or []) == 2_000
    assert "https://example.org/links" in empty.found("honest")
    assert len(empty.found("word7")) == 7  # all that have words


def test_an_observer_that_raises_on_one_page_is_dead_lettered_and_the_rest_goes_on(
    empty: Chain,
) -> None:
    live = [one for one in sample() if one.status == 200][:30]
    empty.load(live)
    broken = page_row(live[7].url)
    with empty.repo.transaction() as t:
        t.set(tables.body, broken, b"this was never compressed")
    empty.work()
    at_rest(empty.repo, dead_lettered=1)
    [failure] = inspection.failures(empty.repo)
    assert failure.observer == "parse" and failure.cell.row.decode() == broken
    assert "zlib.error" in failure.error
    now = empty.repo.snapshot()
    rest = [one for one in live if page_row(one.url) != broken]
    assert all(now.get(tables.joined, page_row(one.url)) for one in rest)
    assert {url for url, _ in compute(rest).pages.items()} == {
        url for one in compute(rest).documents.values() for url in (one["url"], *one["duplicates"])
    }
    assert empty.index.count() == len(compute(rest).documents)

    # A capture that can be read mends it: nothing of the failure is left.
    empty.verify([again(live[7])])
