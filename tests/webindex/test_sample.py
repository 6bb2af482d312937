"""The sample crawl is what the demonstration and the documentation say it is."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest
from from_scratch import recrawl
from selectolax.lexbor import LexborHTMLParser
from warcio.archiveiterator import ArchiveIterator

from webindex.crawl.warc import Capture, Rejected, Rejection, read_captures
from webindex.sample import (
    CHANGED_URL,
    CHANGED_WORDS,
    NEW_LINK,
    OLDER_URL,
    OLDER_WORDS,
    recrawl_path,
    sample_path,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def skipped() -> Counter[str]:
    return Counter()


@pytest.fixture(scope="module")
def records(skipped: Counter[str]) -> list[Capture | Rejected]:
    return list(read_captures(sample_path(), skipped=skipped))


@pytest.fixture(scope="module")
def pages(records) -> dict[str, Capture]:
    return {r.url: r for r in records if isinstance(r, Capture) and r.status == 200}


@pytest.fixture(scope="module")
def recrawled() -> dict[str, Capture]:
    return {capture.url: capture for capture in recrawl()}


def links(page: Capture) -> set[str]:
    """Addresses that a page links to, itself not among them."""
    anchors = LexborHTMLParser(page.body).css("a[href]")
    found = {urldefrag(urljoin(page.url, a.attributes["href"] or "")).url for a in anchors}
    return found - {page.url}


def test_the_sample_is_under_a_megabyte_and_has_about_200_pages_of_three_sites(pages) -> None:
    assert sample_path().stat().st_size < 1_000_000
    assert recrawl_path().stat().st_size < 20_000
    assert 190 <= len(pages) <= 220
    sites = Counter(url.split("/")[2] for url in pages)
    assert set(sites) == {"httpd.apache.org", "www.postgresql.org", "www.sqlite.org"}
    assert min(sites.values()) >= 50
    assert all(len(page.body) < 20_000 for page in pages.values())


def test_the_pages_are_in_four_languages_and_three_charsets(pages) -> None:
    languages: Counter[str] = Counter()
    charsets = Counter()
    for page in pages.values():
        tree = LexborHTMLParser(page.body)
        html = tree.css_first("html")
        languages[html.attributes.get("lang") or "none"] += 1
        declared = tree.css_first("meta[http-equiv][content*='charset=' i]")
        charsets[declared.attributes["content"].lower().rpartition("=")[2]] += 1
    assert {language for language, count in languages.items() if count >= 9} >= {
        "en",
        "de",
        "fr",
        "ko",
    }
    assert set(charsets) == {"utf-8", "iso-8859-1", "euc-kr"}
    # The Korean pages can only be read by what they say of themselves: their server says nothing.
    korean = pages["https://httpd.apache.org/docs/2.4/ko/bind.html"]
    assert korean.charset is None
    assert "아파치" in korean.body.decode("euc-kr")


def test_at_least_ten_pages_are_served_under_several_addresses(pages) -> None:
    groups = Counter(page.body for page in pages.values())
    repeated = [count for count in groups.values() if count > 1]
    assert len(repeated) >= 10
    assert max(repeated) >= 3
    same = [pages[f"https://httpd.apache.org/docs/2.4/{path}bind.html"] for path in ("", "en/")]
    assert same[0].body == same[1].body
    assert same[0].payload_digest == same[1].payload_digest


def test_the_pages_link_to_one_another(pages) -> None:
    inside = {url: links(page) & set(pages) for url, page in pages.items()}
    assert sum(map(len, inside.values())) >= 1000
    linked = set().union(*inside.values())
    assert len(linked) > 0.8 * len(pages)


def test_the_sample_has_what_a_reader_must_cope_with(records, skipped) -> None:
    rejected = [record for record in records if isinstance(record, Rejected)]
    assert [one.reason for one in rejected] == [Rejection.DAMAGED, Rejection.NOT_A_PAGE]
    # The damage is in the middle: there are pages before it and behind it.
    assert 0.4 < rejected[0].offset / sample_path().stat().st_size < 0.6
    others = {r.status: r for r in records if isinstance(r, Capture) and r.status != 200}
    assert set(others) == {301, 404}
    assert others[301].headers["location"] == "https://httpd.apache.org/docs/2.4/en/"
    assert skipped == {"warcinfo": 1, "request": 1}


def test_another_reader_agrees_about_the_recrawl(recrawled) -> None:
    with recrawl_path().open("rb") as file:
        read = {
            record.rec_headers["WARC-Target-URI"]: record.content_stream().read()
            for record in ArchiveIterator(file)
            if record.rec_type == "response"
        }
    assert read == {url: capture.body for url, capture in recrawled.items()}


def test_the_recrawl_changes_one_page_by_a_sentence_and_a_link(pages, recrawled) -> None:
    before, after = pages[CHANGED_URL], recrawled[CHANGED_URL]
    assert after.date > max(page.date for page in pages.values())
    assert not any(CHANGED_WORDS.encode() in page.body for page in pages.values())
    body = LexborHTMLParser(after.body).body
    assert body is not None and CHANGED_WORDS in body.text()
    assert links(after) - links(before) == {NEW_LINK}
    assert links(before) <= links(after)
    assert NEW_LINK in pages


def test_the_other_recrawled_page_is_older_than_the_sample(pages, recrawled) -> None:
    assert set(recrawled) == {CHANGED_URL, OLDER_URL}
    assert recrawled[OLDER_URL].date < min(page.date for page in pages.values())
    assert OLDER_WORDS.encode() in recrawled[OLDER_URL].body
    assert OLDER_WORDS.encode() not in pages[OLDER_URL].body


def test_notices_and_licences_lie_beside_the_sample(pages) -> None:
    folder = sample_path().parent
    notices = (folder / "NOTICES.md").read_text(encoding="utf-8")
    assert f"has {len(pages)} pages" in notices
    for package in ("apache2-doc", "postgresql-doc-15", "sqlite3-doc"):
        assert f"| {package} | " in notices
        copyright_file = folder / "licences" / f"{package}.copyright.txt"
        assert f"`licences/{copyright_file.name}`" in notices
        assert "Copyright:" in copyright_file.read_text(encoding="utf-8")
    licence = (folder / "licences" / "Apache-2.0.txt").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in licence and "END OF TERMS AND CONDITIONS" in licence
    postgresql = (folder / "licences" / "postgresql-doc-15.copyright.txt").read_text("utf-8")
    assert "and without a written agreement" in postgresql
    assert CHANGED_URL in notices and OLDER_URL in notices


def test_the_script_writes_the_same_bytes_again(tmp_path: Path, pages) -> None:
    path = ROOT / "scripts" / "make_sample_crawl.py"
    spec = importlib.util.spec_from_file_location("make_sample_crawl", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    try:
        spec.loader.exec_module(script)
    finally:
        del sys.modules[spec.name]
    # What the packages hold, taken from the sample itself.
    by_url = {package.url: package for package in script.PACKAGES}
    changed = datetime(2022, 12, 28, 14, 23, 41, tzinfo=UTC)
    given = [
        script.Page(url, pages[url].body, by_url["https://www.sqlite.org/"], changed)
        for url in (CHANGED_URL, OLDER_URL)
    ]
    again = tmp_path / "recrawl.warc.gz"
    script.write_recrawl(again, given)
    assert again.read_bytes() == recrawl_path().read_bytes()
