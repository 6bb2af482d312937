"""The corpus: what is written, what the manifest says of it, and what our own reader finds."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from fake_debs import SQLITE, contents, deb, prose, quiet, two_packages
from warc_files import captures, rejections, revisits
from warcio.archiveiterator import ArchiveIterator

from webindex.corpus.building import Wanted, build
from webindex.corpus.edits import (
    Canonical,
    Comment,
    CrossLinks,
    Edit,
    NoIndex,
    Paragraph,
    Reword,
    apply,
)
from webindex.corpus.seeding import BEYOND, SHARES
from webindex.crawl.warc import Capture, Resource, read_captures
from webindex.page import pages

ONLY_NEW = "https://www.postgresql.org/docs/15/new.html"
ONLY_OLD = "https://www.postgresql.org/docs/15/old.html"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A corpus with everything in it, and its manifest; tests only read it."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder))
        cache = two_packages(folder / "cache")
        build(folder / "corpus", Wanted(recrawl=True), cache=cache, step=quiet)
    return folder / "corpus", json.loads((folder / "corpus" / "manifest.json").read_text())


@pytest.fixture
def truth(made: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    """What the manifest says is so in the crawl."""
    found: dict[str, Any] = made[1]["truth"]
    return found


@pytest.fixture
def crawl(made: tuple[Path, dict[str, Any]]) -> dict[str, Capture]:
    """Its first crawl."""
    return read(made[0], "crawl")


def read(folder: Path, name: str) -> dict[str, Capture]:
    """The captures of a crawl by URL; every record must be of use, and no URL come twice."""
    files = sorted(folder.glob(f"{name}-*.warc.gz"))
    found = [one for file in files for one in read_captures(file)]
    assert not rejections(found)
    assert len({one.url for one in found}) == len(found)
    return {one.url: one for one in captures(found)}


def parsed(capture: Capture) -> pages.Page:
    robots = capture.headers.get("x-robots-tag")
    return pages.parse(capture.body, capture.url, capture.content_type, robots)


# --- what is written ----------------------------------------------------------------------


def test_the_reader_finds_what_the_manifest_says(made: tuple[Path, dict[str, Any]]) -> None:
    folder, manifest = made
    for crawl in manifest["crawls"]:
        skipped: Counter[str] = Counter()
        records = [
            one
            for file in crawl["files"]
            for one in read_captures(folder / file["name"], skipped=skipped)
        ]
        found, unchanged = captures(records), revisits(records)
        assert len(found) + len(unchanged) == len(records) == crawl["captures"] > 0
        assert len(unchanged) == crawl["unchanged (revisit records)"]
        assert skipped["request"] == crawl["captures"]
        statuses = Counter(str(one.status) for one in found)
        statuses["200"] += len(unchanged)
        assert statuses == crawl["by status"]
        for file in crawl["files"]:
            assert (folder / file["name"]).stat().st_size == file["bytes"]
    assert not list(folder.glob("*.part")) and not (folder / "unpacked").exists()


def test_records_carry_digests_that_hold_and_refer_to_their_file(
    made: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = made
    kinds: Counter[str] = Counter()
    for file in folder.glob("*.warc.gz"):
        info = ""
        with file.open("rb") as stream:
            for record in ArchiveIterator(stream, check_digests="raise"):
                record.content_stream().read()
                kinds[record.rec_type] += 1
                if record.rec_type == "warcinfo":
                    info = record.rec_headers["WARC-Record-ID"]
                    assert record.rec_headers["WARC-Filename"] == file.name
                else:
                    assert record.rec_headers["WARC-Warcinfo-ID"] == info
                if record.rec_type == "revisit":
                    headers = record.rec_headers
                    assert headers["WARC-Refers-To-Date"] < headers["WARC-Date"]
    assert kinds["request"] == kinds["response"] + kinds["revisit"]
    assert kinds["revisit"] > 20


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(
    tmp_path: Path, cache: Path, made: tuple[Path, dict[str, Any]]
) -> None:
    build(tmp_path / "again", Wanted(recrawl=True), cache=cache, step=quiet)
    build(tmp_path / "other", Wanted(recrawl=True, seed=2), cache=cache, step=quiet)
    assert contents(tmp_path / "again") == contents(made[0])
    assert contents(tmp_path / "other") != contents(made[0])


def test_a_crawl_is_cut_into_files_of_the_size_asked_for(tmp_path: Path, cache: Path) -> None:
    build(tmp_path / "whole", Wanted(), cache=cache, step=quiet)
    build(tmp_path / "cut", Wanted(split=20_000), cache=cache, step=quiet)
    files = sorted((tmp_path / "cut").glob("crawl-*.warc.gz"))
    assert len(files) > 2
    assert all(20_000 <= file.stat().st_size < 25_000 for file in files[:-1])
    assert set(read(tmp_path / "cut", "crawl")) == set(read(tmp_path / "whole", "crawl"))


def test_a_sample_takes_its_share_of_every_package(tmp_path: Path, cache: Path) -> None:
    manifest = build(tmp_path / "small", Wanted(pages=20), cache=cache, step=quiet)
    chosen = {one["name"]: one["chosen"] for one in manifest["packages"]}
    # The folder comes with its index; it is no document of its own.
    assert chosen["sqlite3-doc"] in (14, 15) and 5 <= chosen["postgresql-doc-15"] <= 7
    assert "https://www.sqlite.org/" in read(tmp_path / "small", "crawl")


# --- the truth ----------------------------------------------------------------------------


def test_redirects_lead_where_the_truth_says(
    crawl: dict[str, Capture], truth: dict[str, Any]
) -> None:
    def end(url: str) -> tuple[str | None, int]:
        for hops in range(BEYOND + 2):
            one = crawl[url]
            if one.status == 200 and (target := parsed(one).refresh) is None:
                return url, hops
            if one.status >= 400:
                return None, hops
            url = urljoin(url, one.headers["location"]) if one.status != 200 else target or ""
        return None, BEYOND + 2

    kinds: Counter[str] = Counter()
    for line in truth["redirects"]:
        kinds[line["kind"]] += 1
        reached, hops = end(line["url"])
        assert reached == line["end"], line
        assert hops == line["hops"] or line["kind"] == "cycle"
        if line["kind"] in ("chain", "beyond"):
            assert 2 <= hops <= 4 if line["kind"] == "chain" else hops == BEYOND
    assert set(kinds) == {"301", "refresh", "chain", "beyond", "cycle", "dead"}
    assert crawl["https://www.sqlite.org/"].status == 200


def test_mirrors_are_the_copies_that_the_truth_says(
    crawl: dict[str, Capture], truth: dict[str, Any]
) -> None:
    seen = set()
    for line in truth["mirrors"]:
        copy, original = parsed(crawl[line["url"]]), parsed(crawl[line["of"]])
        seen.add(line["kind"])
        assert (copy.canonical == line["of"]) == (line["kind"] == "canonical")
        assert (copy.text_hash == original.text_hash) == (line["kind"] != "near")
        if line["kind"] == "near":
            assert copy.sketch is not None and original.sketch is not None
            near = copy.heading == original.heading and copy.sketch.is_near(original.sketch)
            assert near == line["near"]
    assert seen == {"copy", "canonical", "near"}
    for line in truth["printable"]:
        copy, original = parsed(crawl[line["url"]]), parsed(crawl[line["canonical"]])
        assert copy.canonical == original.url and copy.text_hash != original.text_hash


def test_noindex_pages_and_links_to_other_hosts_are_there(
    made: tuple[Path, dict[str, Any]], crawl: dict[str, Capture], truth: dict[str, Any]
) -> None:
    marked = {one.url for one in crawl.values() if one.status == 200 and parsed(one).noindex}
    assert marked == {line["url"] for line in truth["noindex"]} != set()
    linking = [one for one in crawl.values() if b"See also elsewhere" in one.body]
    assert len(linking) >= made[1]["counts"]["files with links to other hosts"] > 0
    for one in linking:
        hosts = {link.url.split("/")[2] for link in parsed(one).links}
        assert len(hosts) > 1, one.url


def test_copies_of_a_page_have_its_links_and_robots_are_told_in_either_way(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what, share in (("pages with links to other hosts", 1), ("noindex pages", 0.1)):
        monkeypatch.setitem(SHARES, what, share)
    manifest = build(tmp_path / "corpus", Wanted(), cache=cache, step=quiet)
    crawl = read(tmp_path / "corpus", "crawl")
    linked = 0
    for line in manifest["truth"]["mirrors"]:
        here, there = (crawl[line[one]].body.partition(b"See also")[2] for one in ("url", "of"))
        assert here == there
        linked += here != b""
    assert linked == len(manifest["truth"]["mirrors"]) > 0
    ways = {line["url"]: line["by"] for line in manifest["truth"]["noindex"]}
    assert set(ways.values()) == {"meta", "header"}
    for url, way in ways.items():
        assert parsed(crawl[url]).noindex
        assert ("x-robots-tag" in crawl[url].headers) == (way == "header")


def test_an_alias_has_the_text_of_its_page(crawl: dict[str, Capture]) -> None:
    at = "https://www.postgresql.org/docs/15/"
    assert crawl[f"{at}alias.html"].body == crawl[f"{at}p3.html"].body


# --- recrawls -----------------------------------------------------------------------------


def test_a_newer_version_is_a_real_recrawl(made: tuple[Path, dict[str, Any]]) -> None:
    folder, manifest = made
    before, after = read(folder, "crawl"), read(folder, "recrawl")
    assert ONLY_OLD in before and after[ONLY_OLD].status == 404
    assert ONLY_NEW not in before and after[ONLY_NEW].status == 200
    # The rest of the pages are as they were: revisit records, which are no captures.
    at = "https://www.postgresql.org/docs/15/"
    assert set(after) == {ONLY_OLD, ONLY_NEW, f"{at}p1.html", f"{at}p2.html"}
    assert max(one.date for one in before.values()) < min(one.date for one in after.values())
    [package] = [one for one in manifest["packages"] if one["name"] == "postgresql-doc-15"]
    assert (package["version"], package["recrawl_version"]) == ("15.9-1", "15.10-1")
    differs = {"other text": 1, "new": 1, "gone": 1}
    assert package["recrawl"] == {"pages": 32, "same bytes": 29, **differs}


def test_made_up_changes_are_in_files_that_say_so(made: tuple[Path, dict[str, Any]]) -> None:
    folder, manifest = made
    first = read(folder, "crawl")
    seeded = read(folder, "seeded-recrawl")
    truth = manifest["truth"]
    for line in truth["removed"]:
        if not line["real"]:
            assert seeded[line["url"]].status == line["status"] and line["url"] in first
    assert {line["status"] for line in truth["removed"] if not line["real"]} == {404, 410}
    for line in truth["turned"]:
        assert seeded[line["url"]].headers["location"] == line["end"]
        assert seeded.get(line["end"], first[line["end"]]).status == 200
    rewritten = {line["url"] for line in truth["rewritten"]}
    same = 0
    for url, one in seeded.items():
        if one.status == 200:
            assert url.startswith("https://www.sqlite.org/") and one.body != first[url].body
            assert (parsed(one).text_hash != parsed(first[url]).text_hash) == (url in rewritten)
            same += url not in rewritten
    assert rewritten and same > 40
    assert [one["real"] for one in manifest["crawls"]] == [False, True, False]


@pytest.mark.parametrize("wanted", [True, False])
def test_what_pages_show_is_crawled_and_of_each_package_one_stylesheet_changes(
    tmp_path: Path, cache: Path, wanted: bool
) -> None:
    shown = b'<link rel="stylesheet" href="css/main.css"><img src="logo.png">'
    files: dict[str, bytes | tuple[str, str]] = {
        f"{SQLITE}/s{n}.html": shown + prose(f"styled{n}") for n in range(20)
    }
    main = b"@import 'more.css'; body { background: url(../back.svg) }"
    images = {"logo.png": b"PNG", "back.svg": b"<svg/>", "unused.png": b"PNG"}
    styles = {"css/main.css": main, "css/more.css": b"p {}", "css/unused.css": b"p {}"}
    files |= {f"{SQLITE}/{name}": body for name, body in {**images, **styles}.items()}
    shutil.rmtree(cache)
    deb(cache, "sqlite3-doc", "3.40-1", files)
    deb(cache, "sqlite3-doc", "3.41-1", {**files, f"{SQLITE}/css/more.css": b"p { color: red }"})
    folder = tmp_path / "corpus"
    manifest = build(folder, Wanted(resources=wanted), cache=cache, step=quiet)

    def crawled(name: str) -> dict[str, tuple[str, bytes | None]]:
        return {
            one.url.removeprefix("https://www.sqlite.org/"): (one.content_type, one.body)
            for file in sorted(folder.glob(f"{name}-*.warc.gz"))
            for one in read_captures(file, max_resource=1_000_000)
            if isinstance(one, Resource)
        }

    [package] = manifest["packages"]
    if not wanted:
        assert crawled("crawl") == crawled("seeded-recrawl") == {}
        assert package["resources"] == 0
        return
    assert crawled("crawl") == {
        "css/main.css": ("text/css", main),
        "css/more.css": ("text/css", b"p {}"),
        "logo.png": ("image/png", b"PNG"),
        "back.svg": ("image/svg+xml", b"<svg/>"),
    }
    assert package["resources"] == 4
    again = crawled("recrawl")
    assert again.pop("css/more.css") == ("text/css", b"p { color: red }")
    assert len(again) == 3 and {body for _, body in again.values()} == {None}, "as before"
    [(url, (_, body))] = crawled("seeded-recrawl").items()
    assert url == "css/main.css" and body is not None and body.startswith(main + b"\nh1")
    truth = json.loads((folder / "manifest.json").read_text())["truth"]
    assert truth["restyled"] == [{"url": f"https://www.sqlite.org/{url}", "pages": 20}]


def test_without_being_asked_only_removals_are_made_up(tmp_path: Path, cache: Path) -> None:
    manifest = build(tmp_path / "corpus", Wanted(), cache=cache, step=quiet)
    seeded = read(tmp_path / "corpus", "seeded-recrawl")
    assert {one.status for one in seeded.values()} == {301, 404, 410}
    [said] = [one for one in manifest["not_to_be_had"] if "No real recrawl" in one]
    assert "sqlite3-doc" in said and "postgresql-doc-15" not in said


# --- edits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shell",
    [
        b"<!doctype html><html><head><title>t</title></head><body>%b</body></html>",
        b"<!DOCTYPE html>\n<title>t</title>%b",
        b"<HTML><HEAD CLASS=x><TITLE>t</TITLE></HEAD><BODY>%b</BODY></HTML>\n",
        b"%b",
    ],
)
def test_edits_do_what_they_say_to_pages_of_every_shape(shell: bytes) -> None:
    body = shell % prose("shape").partition(b"<body>")[2].partition(b"</body>")[0]
    url = "https://a.example/x"

    def after(*edits: Edit) -> pages.Page:
        return pages.parse(apply(edits, body), url, "text/html; charset=utf-8")

    plain = after()
    assert after(NoIndex()).noindex and not plain.noindex
    assert after(Canonical("https://b.example/?a=1&b")).canonical == "https://b.example/?a=1&b"
    one, other = Canonical("https://c.example/"), Canonical("https://b.example/")
    assert after(one, other).canonical == "https://b.example/"
    linked = after(CrossLinks((("https://b.example/<i>", "a <b> c"),)))
    assert [(one.url, one.anchors) for one in linked.links if "b.example" in one.url] == [
        ("https://b.example/%3Ci%3E", ("a <b> c",))
    ]
    assert after(Comment("x")).text_hash == plain.text_hash
    assert after(Paragraph("Some words that stand at the very end.")).text != plain.text
    reworded = after(Reword(3, "seed"))
    assert reworded.text != plain.text and len(reworded.text.split()) == len(plain.text.split())
