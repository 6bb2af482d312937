"""Resources of pages, from real WARC records: which are kept, which capture counts, bodies once."""

from __future__ import annotations

import gzip
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from warc_files import Crawl, captures

import percola
from percola import Repository, Worker
from webindex import tables
from webindex.crawl.warc import Rejected, Rejection, Resource, read_captures
from webindex.load.report import LoadReport
from webindex.load.resources import keep_resources, keeps_resources, release
from webindex.load.transaction import Loaded, load_captures, load_from
from webindex.page.urls import page_id, page_row
from webindex.rendering import tables as rendering

CSS = [("Content-Type", "text/css; charset=utf-8")]
PNG = [("Content-Type", "image/png")]
SQUARE = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
STYLE = "https://example.org/style.css"
COPY = "https://cdn.example.org/style.css"
MOST = 10_000


def read(crawl: Crawl, folder: Path, most: int | None = MOST) -> list[Any]:
    path = folder / "crawl.warc.gz"
    path.write_bytes(crawl.data)
    return list(read_captures(path, max_resource=most))


def load(repo: Repository, crawl: Crawl, folder: Path) -> Loaded:
    found = [one for one in read(crawl, folder) if not isinstance(one, Rejected)]
    return load_captures(repo, found, "crawl.warc.gz")


def release_all(repo: Repository) -> None:
    Worker(repo, [release], threads=1, warn_unobserved=False).run_until_idle()


def stored(repo: Repository, url: str) -> bytes | None:
    """The body of a resource, as the repository has it."""
    now = repo.snapshot()
    capture = now.get(rendering.capture, page_row(url))
    data = now.get(rendering.data, capture["digest"]) if capture is not None else None
    return None if data is None else rendering.unpacked(data)


def capture_of(repo: Repository, url: str) -> dict[str, Any]:
    found = repo.snapshot().get(rendering.capture, page_row(url))
    assert found is not None
    return found


def bodies(repo: Repository) -> list[bytes]:
    rows = repo.snapshot().scan(rendering.bodies, columns=[rendering.data])
    return sorted(rendering.unpacked(row[rendering.data]) for row in rows)


def dated(day: int) -> dict[str, str]:
    return {"WARC_Date": f"2024-01-{day:02}T00:00:00Z"}


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("text/css", "style"),
        ("Text/CSS; charset=utf-8", "style"),
        ("image/svg+xml", "image"),
        ("image/png", "image"),
        ("font/woff2", "font"),
        ("application/font-woff", "font"),
        ("text/javascript", "script"),
        ("application/javascript", "script"),
    ],
)
def test_a_resource_is_told_by_its_media_type(tmp_path: Path, content_type: str, kind: str) -> None:
    crawl = Crawl().add(STYLE, b"bytes", http=[("Content-Type", content_type)])
    [found] = read(crawl, tmp_path)
    assert isinstance(found, Resource)
    assert (found.kind, found.content_type, found.body) == (kind, content_type, b"bytes")
    [rejected] = read(crawl, tmp_path, None)
    assert isinstance(rejected, Rejected) and rejected.reason is Rejection.NOT_A_PAGE


@pytest.mark.parametrize("content_type", ["application/zip", "video/mp4", "application/json"])
def test_what_no_page_shows_is_rejected(tmp_path: Path, content_type: str) -> None:
    [found] = read(Crawl().add(STYLE, b"x", http=[("Content-Type", content_type)]), tmp_path)
    assert isinstance(found, Rejected) and found.reason is Rejection.NOT_A_PAGE


def test_a_body_is_decoded_and_must_be_whole_and_within_the_limit(tmp_path: Path) -> None:
    packed = [*CSS, ("Content-Encoding", "gzip")]
    crawl = Crawl()
    crawl.add(STYLE, gzip.compress(b"b" * MOST), http=packed)
    crawl.add(STYLE, gzip.compress(b"b" * (MOST + 1)), http=packed)
    crawl.add(STYLE, b"b" * (1 << 20), http=CSS)
    crawl.add(STYLE, b"half", http=[*CSS, ("Content-Length", "8")])
    crawl.add(STYLE, b"half", http=CSS, WARC_Truncated="length")
    crawl.add(STYLE, b"\xff\x06", http=packed)
    first, *others = read(crawl, tmp_path)
    assert first.body == b"b" * MOST
    reasons = [one.reason for one in others]
    assert reasons[:4] == [Rejection.TOO_LARGE] * 2 + [Rejection.INCOMPLETE] * 2
    assert reasons[4] is Rejection.UNDECODABLE


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "utf-8"])
@pytest.mark.parametrize(("body", "http"), [(b"p { color: teal }", CSS), (SQUARE, PNG)])
def test_a_body_that_was_already_decoded_is_taken_as_it_is(
    tmp_path: Path, body: bytes, http: list[tuple[str, str]], encoding: str
) -> None:
    crawl = Crawl().add(STYLE, body, http=[*http, ("Content-Encoding", encoding)])
    [found] = read(crawl, tmp_path)
    assert isinstance(found, Resource) and found.body == body


def test_pages_are_read_as_without_resources(tmp_path: Path) -> None:
    crawl = Crawl().add("https://example.org/", b"<p>words").add(STYLE, b"a{}", http=CSS)
    with_resources, without = read(crawl, tmp_path), read(crawl, tmp_path, None)
    assert captures(with_resources) == captures(without) != []


def test_the_newest_capture_counts_in_any_order(tmp_path: Path) -> None:
    texts = [b"first", b"second", b"third"]
    for order in itertools.permutations(range(3)):
        with percola.open("memory:", schema=tables.SCHEMA) as repo:
            for n in order:
                load(repo, Crawl().add(STYLE, texts[n], http=CSS, **dated(n + 1)), tmp_path)
            release_all(repo)
            assert stored(repo, STYLE) == b"third"
            assert bodies(repo) == [b"third"]


def test_a_body_is_stored_once_and_removed_with_its_last_holder(
    repo: Repository, tmp_path: Path
) -> None:
    body = b"p { color: red }" * 100
    crawl = Crawl().add(STYLE, body, http=CSS, **dated(1)).add(COPY, body, http=CSS, **dated(1))
    loaded = load(repo, crawl, tmp_path).resources
    assert (loaded.written, loaded.bodies) == (2, 1)
    assert 0 < loaded.stored_bytes < len(body) / 2
    assert bodies(repo) == [body]
    load(repo, Crawl().add(STYLE, b"new", http=CSS, **dated(2)), tmp_path)
    release_all(repo)
    assert bodies(repo) == sorted([body, b"new"]) and stored(repo, COPY) == body
    load(repo, Crawl().add(COPY, b"new", http=CSS, **dated(2)), tmp_path)
    release_all(repo)
    assert bodies(repo) == [b"new"] and stored(repo, COPY) == b"new"


def test_the_same_file_again_changes_nothing(repo: Repository, tmp_path: Path) -> None:
    crawl = Crawl().add(STYLE, b"a{}", http=CSS).add(COPY, b"\x89PNG", http=PNG)
    load(repo, crawl, tmp_path)
    before = repo.snapshot().version(rendering.capture, page_row(STYLE))
    loaded = load(repo, crawl, tmp_path).resources
    assert (loaded.written, loaded.known, loaded.bodies) == (0, 2, 0)
    assert repo.snapshot().version(rendering.capture, page_row(STYLE)) == before


def test_a_body_that_is_taken_up_while_it_is_released_stays(
    repo: Repository, tmp_path: Path
) -> None:
    """The loader saw the body, and `release` saw no holder: only one of them commits."""
    load(repo, Crawl().add(STYLE, b"old", http=CSS, **dated(1)), tmp_path)
    digest = capture_of(repo, STYLE)["digest"]
    load(repo, Crawl().add(STYLE, b"new", http=CSS, **dated(2)), tmp_path)
    [again] = read(Crawl().add(COPY, b"old", http=CSS, **dated(3)), tmp_path)
    loading, releasing = repo.transaction(), repo.transaction()
    load_from(loading, [("crawl.warc.gz", again)])
    release.function(releasing, digest)
    loading.commit()
    with pytest.raises(percola.ConflictError):
        releasing.commit()
    assert stored(repo, COPY) == b"old"


def test_loaders_of_one_body_at_a_time_keep_it_once(tmp_path: Path) -> None:
    urls = [f"https://example.org/{n}.png" for n in range(8)]
    records = [read(Crawl().add(url, b"pixel", http=PNG), tmp_path) for url in urls]
    with percola.open(tmp_path / "repo", schema=tables.SCHEMA) as repo:
        with ThreadPoolExecutor(len(records)) as threads:
            list(threads.map(lambda one: load_captures(repo, one, "crawl.warc.gz"), records))
        assert bodies(repo) == [b"pixel"]
        [row] = repo.snapshot().scan(rendering.bodies)
        assert set(row.family(rendering.holder)) == {page_id(url) for url in urls}


def test_a_revisit_of_another_resource_has_its_body(repo: Repository, tmp_path: Path) -> None:
    load(repo, Crawl().add(STYLE, b"a{}", http=CSS, **dated(1)), tmp_path)
    payload = capture_of(repo, STYLE)["payload"]

    def revisit(url: str, digest: str) -> Loaded:
        crawl = Crawl().add(
            url,
            b"",
            http=CSS,
            kind="revisit",
            WARC_Refers_To_Target_URI=STYLE,
            WARC_Refers_To_Date="2024-01-01T00:00:00Z",
            WARC_Payload_Digest=digest,
            **dated(2),
        )
        return load(repo, crawl, tmp_path)

    assert revisit(STYLE, payload).resources.known == 1
    assert revisit(COPY, "sha1:OTHER").resources.unresolved == 1
    assert stored(repo, COPY) is None
    assert revisit(COPY, payload).resources.written == 1
    assert stored(repo, COPY) == b"a{}"


def test_a_repository_keeps_resources_once_it_was_asked_to(repo: Repository) -> None:
    assert not keeps_resources(repo)
    keep_resources(repo)
    since = repo.snapshot().get(rendering.kept, rendering.SETTINGS)
    keep_resources(repo)
    assert keeps_resources(repo)
    assert repo.snapshot().get(rendering.kept, rendering.SETTINGS) == since


def test_the_report_counts_resources() -> None:
    report = LoadReport(files=1, bytes=10, started_ms=0)
    assert "Resources" not in dict(report.rows())
    found = report.loaded.resources
    found.written, found.known, found.bodies, found.stored_bytes = 2, 1, 1, 1_500_000
    assert dict(report.rows())["Resources"] == "2 of 3, with 1 new body (1.5 MB)"
    assert report.to_json()["loaded"]["resources"]["bodies"] == 1
