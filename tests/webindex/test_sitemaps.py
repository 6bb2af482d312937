"""What sitemaps list feeds the frontier, is taken back, and is no link; hostile ones do no harm."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from chains import WORDS, Chain, page
from warc_files import HTML, Crawl
from web_commands import call

from webindex import tables
from webindex.crawl.sitemaps import MAX_SITEMAP, gunzipped
from webindex.crawl.warc import Capture, Rejected, Revisit, Sitemap, read_captures
from webindex.load.removals import scope_of
from webindex.load.transaction import load_captures
from webindex.observers import sitemaps
from webindex.observers.frontier import listed_row
from webindex.page.sitemaps import MOST_ENTRIES, urls_in
from webindex.page.urls import host, page_row
from webindex.reports import frontier, tell
from webindex.reports.summary import summarise
from webindex.takedown.removing import remove

SITE = "https://site.example"
MAP = f"{SITE}/sitemap.xml"
A, B, C = (f"{SITE}/{one}" for one in "abc")


def xml(*urls: str | tuple[str, str], root: str = "urlset", head: str = "") -> bytes:
    """A sitemap of these URLs, some with a lastmod."""
    each = "url" if root == "urlset" else "sitemap"
    made = ""
    for one in urls:
        url, modified = one if isinstance(one, tuple) else (one, "")
        extra = f"<lastmod>{modified}</lastmod><changefreq>daily</changefreq>" if modified else ""
        made += f"<{each}><loc> {url} </loc>{extra}</{each}>\n"
    space = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
    return f'<?xml version="1.0"?>{head}<{root} {space}>{made}</{root}>'.encode()


def sitemap(body: bytes, day: int = 1, url: str = MAP, kind: str = "sitemap") -> Sitemap:
    return Sitemap(url, datetime(2026, 1, day, tzinfo=UTC), kind, body, 0, 1)  # type: ignore[arg-type]


def load(chain: Chain, *records: Sitemap) -> int:
    """How many were newer than what was there."""
    return load_captures(chain.repo, records, "crawl.warc.gz").sitemaps


def listed(chain: Chain, **options: object) -> list[str]:
    return [one.url for one in frontier(chain.repo, **options)]  # type: ignore[arg-type]


# --- Reading --------------------------------------------------------------------------------


def test_a_compressed_sitemap_may_be_several_files_in_a_row() -> None:
    whole = xml(A, B, C)
    parts = [gzip.compress(part) for part in (whole[:150], b"", whole[150:])]
    packed = b"".join(parts)
    assert list(urls_in("sitemap", MAP, gunzipped(packed + b"\0\0"))) == [A, B, C]
    assert gunzipped(packed[:-8]) == whole
    assert gunzipped(parts[0] + parts[1] + b"\x1f\x8b not gzip") == whole[:150]
    assert len(gunzipped(gzip.compress(bytes(3 << 20)) * 2)) == MAX_SITEMAP


def test_a_byte_order_mark_hides_no_line_of_robots() -> None:
    robots = f"\ufeffSitemap: {MAP}\n".encode()
    assert urls_in("robots", f"{SITE}/robots.txt", robots) == {MAP: None}


@pytest.mark.parametrize(
    ("body", "kind"), [(b"User-agent: *\n", Sitemap), (b"\n<html><p>Not found", Capture)]
)
def test_robots_that_is_called_html_is_robots_unless_it_is_a_page(
    tmp_path: Path, body: bytes, kind: type[object]
) -> None:
    path = tmp_path / "site.warc.gz"
    path.write_bytes(Crawl().add(f"{SITE}/robots.txt", body, http=HTML).data)
    [found] = read_captures(path, sitemaps=True)
    assert isinstance(found, kind)


@pytest.mark.parametrize("before", [b"\n", b"\r\n \t\n", b"\xef\xbb\xbf\n", b"\xef\xbb\xbf" * 2])
def test_blank_lines_before_a_sitemap_hide_nothing_of_it(before: bytes) -> None:
    assert list(urls_in("sitemap", MAP, before + xml(A, B))) == [A, B]


def test_sitemaps_indexes_and_robots_are_read_and_only_they(tmp_path: Path) -> None:
    as_xml, packed = [("Content-Type", "application/xml")], [("Content-Type", "application/x-gzip")]
    plain = [("Content-Type", "text/plain")]
    index = xml(f"{SITE}/more.xml.gz", root="sitemapindex")
    robots = b"User-agent: *\nSitemap: https://site.example/sitemap.xml # ours\n"
    robots += b"sitemap:https://elsewhere.example/sitemap.xml\n"
    made = Crawl()
    for path, body, http in (
        ("/sitemap.xml", xml(A), as_xml),
        ("/index.xml", index, as_xml),
        ("/more.xml.gz", gzip.compress(xml(B)), packed),
        ("/declared.xml.gz", gzip.compress(xml(C)), as_xml),
        ("/packed.xml", gzip.compress(b"<page>words</page>"), as_xml),
        ("/not-a-sitemap.xml.gz", gzip.compress(b"<rss></rss>"), packed),
        ("/data.gz", gzip.compress(xml(B)), packed),
        ("/feed.xml", b"<rss></rss>", as_xml),
        ("/map.php", xml(B), HTML),
        ("/feed.php", b"<?xml version='1.0'?><rss></rss>", HTML),
        ("/robots.txt", robots, plain),
        ("/below/robots.txt", robots, plain),
        ("/", b"<html><body>words</body></html>", HTML),
    ):
        made.add(SITE + path, body, http=http)
    path = tmp_path / "site.warc.gz"
    path.write_bytes(made.data)
    found = {
        one.url.removeprefix(SITE): urls_in(one.kind, one.url, one.body)
        for one in read_captures(path, sitemaps=True)
        if isinstance(one, Sitemap)
    }
    assert found == {
        "/sitemap.xml": {A: None},
        "/index.xml": {f"{SITE}/more.xml.gz": None},
        "/more.xml.gz": {B: None},
        "/declared.xml.gz": {C: None},
        "/map.php": {B: None},
        "/robots.txt": {MAP: None},
    }
    kinds = [type(one) for one in read_captures(path)]
    assert kinds == [*[Rejected] * 12, Capture]


BOMB = "<!DOCTYPE urlset [<!ENTITY a 'aaaaaaaaaa'>" + "".join(
    f"<!ENTITY {name} '{f'&{before};' * 10}'>"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
FILE = "<!DOCTYPE urlset [<!ENTITY a SYSTEM 'file:///etc/passwd'>"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (xml(f"{SITE}/&i;", head=f"{BOMB}]>"), []),
        (xml(f"{SITE}/&a;", head=f"{FILE}]>"), []),
        (xml(A, f"{SITE}/&undeclared;", B), [A]),
        (xml(A, B)[:-30], [A]),
        (xml(A, "https://elsewhere.example/", "ftp://site.example/", "not a URL", B), [A, B]),
        (xml(f"{SITE}/{'x' * 5000}", A), [A]),
        # A prefix without a declaration.
        (xml(A, B).replace(b"</loc>", b"</loc><i:image><i:loc>x</i:loc></i:image>"), [A, B]),
        (b"<s:urlset><s:url><s:loc>%s</s:loc></s:url></s:urlset>" % A.encode(), [A]),
        (b"<urlset>" + b"<a>" * 100_000, []),
        (xml(A).replace(b"urlset", b"rss"), []),
        (gunzipped(gzip.compress(xml(A) + b" " * (8 << 20))), [A]),
        (gunzipped(gzip.compress(xml(A, B))[:-8]), [A, B]),
        (gunzipped(b"\x1f\x8b not gzip"), []),
        (b"\xff\xfe<\x00u", []),
        (b"", []),
    ],
)
def test_of_hostile_and_damaged_sitemaps_what_is_sound_counts(
    body: bytes, found: Sequence[str]
) -> None:
    assert list(urls_in("sitemap", MAP, body)) == list(found)


def test_no_more_is_read_of_a_sitemap_than_its_bounds() -> None:
    many = xml(*(f"{SITE}/{n}" for n in range(MOST_ENTRIES + 5)))
    assert len(many) < MAX_SITEMAP
    assert len(urls_in("sitemap", MAP, many)) == MOST_ENTRIES
    longer = gunzipped(gzip.compress(xml(*(f"{SITE}/{n}/{'x' * 1000}" for n in range(5000)))))
    assert len(longer) == MAX_SITEMAP
    assert 3500 < len(urls_in("sitemap", MAP, longer)) < 4200
    lines = b"\n".join(b"Sitemap: https://h%d.site.example/s.xml" % n for n in range(1000))
    assert len(urls_in("robots", f"{SITE}/robots.txt", lines)) == 100


# --- In the index ---------------------------------------------------------------------------


def test_what_a_sitemap_lists_is_in_the_frontier_behind_what_is_linked_and_is_no_link(
    empty: Chain,
) -> None:
    new = page(f"{SITE}/home", f"<p>{WORDS} <a href={B}>b</a>")
    empty.load([new])
    load(empty, sitemap(xml((A, "2026-01-02"), B, (C, "2026-03-04T05:06:07Z"), f"{SITE}/home")))
    empty.work()
    assert listed(empty) == [B, C, A]
    assert listed(empty, host="site.example", limit=2) == [B, C]
    [_, last, _] = frontier(empty.repo)
    assert (last.links, last.sitemap, last.modified) == (0, MAP, "2026-03-04T05:06:07Z")
    assert "It is in the frontier, to be crawled: a sitemap lists it." in (
        tell(empty.repo, empty.index, A).reasons
    )
    story = tell(empty.repo, empty.index, MAP)
    assert story.headline == "Not a page"
    assert story.reasons[0] == (
        "It was captured as a sitemap of 2026-01-01 00:00 UTC. That is no page: search does not "
        "show it."
    )
    with empty.repo.snapshot() as now:
        assert now.get(tables.tally, page_row(A)) is None
    # A captured URL leaves, whatever its status.
    empty.process([page(C, f"<p>{WORDS} c")])
    assert listed(empty) == [B, A]
    with empty.repo.snapshot() as now:
        entries = [row.key for row in now.scan(tables.frontier, prefix="ls/")]
    assert set(entries) == {listed_row(page_row(url)) for url in (A, B)}


def test_a_revisit_of_a_sitemap_waits_for_no_capture(empty: Chain) -> None:
    load(empty, sitemap(xml(A)))
    again = Revisit(MAP, datetime(2026, 1, 2, tzinfo=UTC), "sha1:" + "A" * 32, 0, 1)
    done = load_captures(empty.repo, [again], "crawl.warc.gz")
    assert (done.unchanged, done.unresolved) == (1, 0)
    empty.work()
    assert summarise(empty.repo).unresolved == 0
    story = tell(empty.repo, empty.index, MAP)
    assert story.unresolved == 0 and "revisit" not in " ".join(story.reasons)


@pytest.mark.parametrize(("observer", "rows"), [("list_urls", 1), ("list_url", 2)])
def test_the_sitemaps_of_a_host_are_looked_at_again(empty: Chain, observer: str, rows: int) -> None:
    load(empty, sitemap(xml(A, B)))
    empty.work()
    for name, marked in ((host(MAP), rows), ("other.example", 0)):
        said = call("rerun", "--repo", empty.repo.address, observer, "--host", name, "--json")
        assert (said.code, said.json) == (0, {"observer": observer, "rows": marked})
    assert empty.work()[observer] == rows
    assert sorted(listed(empty)) == sorted([A, B])


def test_a_newer_capture_of_a_sitemap_and_its_removal_take_back_what_it_listed(
    empty: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sitemaps, "STEP", 2)  # so that most of this takes several runs
    many = [f"{SITE}/{n}" for n in range(40)]
    assert load(empty, sitemap(xml(*many, A), day=2)) == 1
    other = f"{SITE}/other.xml"
    assert load(empty, sitemap(xml(A, B), url=other)) == 1
    assert load(
        empty, sitemap(b"Sitemap: " + MAP.encode(), url=f"{SITE}/robots.txt", kind="robots")
    )
    empty.work()
    assert set(listed(empty)) == {*many, A, B}  # its own URL was captured
    assert load(empty, sitemap(xml(C), day=1)) == 0
    assert load(empty, sitemap(xml(*many[:3], C), day=3)) == 1
    empty.work()
    assert set(listed(empty)) == {*many[:3], A, B, C}
    removed = remove(empty.repo, empty.index, [scope_of("url", MAP)])
    assert (removed.sitemaps, removed.pages) == (1, 0)
    empty.work()
    # The robots.txt still names it, and so it is to be crawled; what another one lists stays.
    assert set(listed(empty)) == {A, B, MAP}
    assert load_captures(empty.repo, [sitemap(xml(C), day=4)], "crawl.warc.gz").refused == 1
    remove(empty.repo, empty.index, [scope_of("host", "site.example")], block=True)
    empty.work()
    with empty.repo.snapshot() as now:
        for table in (tables.sitemaps, tables.listed, tables.frontier):
            assert list(now.scan(table)) == []


@pytest.mark.parametrize("status", [404, 301, 200])
def test_a_sitemap_whose_url_is_none_any_more_lists_nothing_until_it_is_one_again(
    empty: Chain, status: int
) -> None:
    empty.process([page(A, f"<p>{WORDS} a")])
    date = datetime(2026, 1, 2, tzinfo=UTC)
    found = page(MAP, f"<p>{WORDS} no sitemap" if status == 200 else "", location="/elsewhere")
    other = replace(found, status=status, date=date)
    load(empty, sitemap(xml(A, B), day=1))
    empty.work()
    assert listed(empty) == [B]
    empty.process([other])
    assert listed(empty) == []
    load(empty, sitemap(xml(C), day=3))
    empty.work()
    assert listed(empty) == [C]


def test_a_page_that_is_erased_is_listed_again(empty: Chain) -> None:
    load(empty, sitemap(xml(A)))
    empty.process([page(A, f"<p>{WORDS} a")])
    assert listed(empty) == []
    remove(empty.repo, empty.index, [scope_of("url", A)])
    empty.work()
    assert listed(empty) == [A]
