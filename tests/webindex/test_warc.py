"""What a capture holds, and which records are rejected. All files are written by warcio."""

from __future__ import annotations

import gzip
import io
import random
import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any

import brotli
import pytest
from fastwarc.stream_io import ZstdWriter
from warc_files import DATE, HTML, Crawl, captures, only, packed, page, pages, rejections, revisits

from webindex.crawl.http_body import decode_leniently
from webindex.crawl.warc import Capture, Rejected, Rejection, Revisit, read_captures
from webindex.load.transaction import describe
from webindex.page.pages import parse, parse_capture

# --- what a capture holds ------------------------------------------------------------------------


@pytest.mark.parametrize("spell", [bytes.lower, bytes.upper])
def test_names_of_warc_fields_may_be_in_any_case(saved, spell: Callable[[bytes], bytes]) -> None:
    crawl = Crawl(gzip=False)
    crawl.add("https://example.org/", page(1) + b"\r\nwarc-type: in the page\r\n")
    header, *rest = crawl.data.partition(b"\r\n\r\n")
    names = re.compile(rb"^[A-Za-z-]+:(?: application/http)?", re.MULTILINE)
    data = names.sub(lambda name: spell(name[0]), header) + b"".join(rest)
    [expected] = captures(read_captures(saved(crawl.data, "usual.warc")))
    assert list(read_captures(saved(data, "crawl.warc"))) == [expected]


def test_spaces_of_a_url_are_read_as_browsers_send_them(saved) -> None:
    crawl = Crawl().add("https://example.org/green tea?q=a b", page(1))
    assert only(read_captures(saved(crawl.data))).url == "https://example.org/green%20tea?q=a%20b"


def test_the_program_of_the_manual_writes_pages_of_ones_own_and_those_that_are_gone(
    tmp_path: Path,
) -> None:
    manual = Path(__file__).resolve().parents[2] / "docs" / "webindex.md"
    [program] = re.findall(r"^```python\n(# pages\.py.*?)^```$", manual.read_text(), re.M | re.S)
    (tmp_path / "program.py").write_text(program)
    folder = tmp_path / "files"
    (folder / "a b").mkdir(parents=True)
    found = []
    for text in (b"<p>one", b"<p>two"):
        (folder / "kept.html").write_bytes(text)
        gone = folder / "a b" / "gone.html"
        gone.unlink() if gone.exists() else gone.write_bytes(b"<p>gone")
        line = [sys.executable, "program.py", "files", "https://docs.example.org/", "x.warc.gz"]
        subprocess.run(line, cwd=tmp_path, check=True)
        records = captures(read_captures(tmp_path / "x.warc.gz"))
        found += [(one.url.rpartition(".org/")[2], one.status, one.body) for one in records]
    assert found == [
        ("a%20b/gone.html", 200, b"<p>gone"),
        ("kept.html", 200, b"<p>one"),
        ("kept.html", 200, b"<p>two"),
        ("a%20b/gone.html", 410, b""),
    ]


@pytest.mark.parametrize("compressed", [True, False])
def test_a_warc_header_whose_lines_end_in_lf_alone_is_read(saved, compressed: bool) -> None:
    data = b""
    for record in pages(3, gzip=False).records:
        header, _, rest = record.partition(b"\r\n\r\n")
        written = header.replace(b"\r\n", b"\n") + b"\n\n" + rest
        data += packed(written) if compressed else written
    found = captures(read_captures(saved(data)))
    assert [one.body for one in found] == [page(n) for n in range(3)]


@pytest.mark.parametrize("compressed", [True, False])
def test_a_capture_has_all_that_was_written(saved, compressed: bool) -> None:
    crawl = Crawl(gzip=compressed)
    crawl.add("https://example.org/a", b"<html>first</html>")
    crawl.add(
        "https://example.org/b?x=1",
        "<html>größer</html>".encode("latin-1"),
        http=[
            ("Content-Type", 'Text/HTML; Charset="ISO-8859-1"'),
            ("X-Robots-Tag", "noarchive"),
            ("x-robots-tag", "otherbot: nofollow, noindex"),
            ("Link", "</c>; rel=canonical"),
            ("link", "</n>; rel=next"),
            ("Server", "not kept"),
        ],
    )
    path = saved(crawl.data)
    first, second = captures(read_captures(path))
    assert first.url == "https://example.org/a"
    assert first.date == datetime(2024, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)
    assert (first.status, first.content_type, first.charset) == (200, "text/html", "utf-8")
    assert first.body == b"<html>first</html>"
    assert first.payload_digest is not None and first.payload_digest.startswith("sha1:")
    assert not first.truncated
    assert second.body.decode(second.charset or "") == "<html>größer</html>"
    assert (second.content_type, second.charset) == ("text/html", "iso-8859-1")
    assert second.headers == {
        "content-type": 'Text/HTML; Charset="ISO-8859-1"',
        # The name of a robot holds for its own header only: these must not run together.
        "x-robots-tag": "noarchive\notherbot: nofollow, noindex",
        "link": "</c>; rel=canonical, </n>; rel=next",
    }


def test_offset_and_length_address_the_record_in_the_file(saved) -> None:
    crawl = pages(4)
    for n, capture in enumerate(captures(read_captures(saved(crawl.data)))):
        assert capture.offset == crawl.offsets[n]
        member = crawl.data[capture.offset : capture.offset + capture.length]
        assert page(n) in gzip.decompress(member)


def test_redirects_and_errors_are_captures_without_a_body(saved) -> None:
    crawl = Crawl()
    crawl.add(
        "http://example.org/old", b"<html>moved", status="301 Moved", http=[("Location", "/new")]
    )
    crawl.add(
        "http://example.org/gone", b"{}", status="410 Gone", http=[("Content-Type", "a/json")]
    )
    moved, gone = captures(read_captures(saved(crawl.data)))
    assert (moved.status, moved.headers["location"], moved.body) == (301, "/new", b"")
    assert (gone.status, gone.content_type, gone.body) == (410, "a/json", b"")


def test_headers_are_text_in_utf_8_or_else_latin_1(saved) -> None:
    crawl = Crawl()
    for value in ("/größe".encode(), "/größe".encode("latin-1"), b"/\xff\x81\x00"):
        crawl.raw(
            _response(), b"HTTP/1.1 301 Moved\r\nLocation: %s\r\nLocation: /2\r\n\r\n" % value
        )
    found = [one.headers["location"] for one in captures(read_captures(saved(crawl.data)))]
    assert found == ["/größe\n/2", "/größe\n/2", "/ÿ\x81\x00\n/2"]


def _chunked(body: bytes, size: int = 700) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def _raw_deflate(body: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(body) + deflate.flush()


def _packed_in_chunks(body: bytes) -> bytes:
    return _chunked(packed(body))


CHUNKED = ("Transfer-Encoding", "chunked")
ENCODINGS: dict[str, tuple[Callable[[bytes], bytes], list[tuple[str, str]]]] = {
    "as it is": (bytes, []),
    "chunked": (_chunked, [CHUNKED]),
    "gzip": (packed, [("Content-Encoding", "gzip")]),
    "deflate": (zlib.compress, [("Content-Encoding", "deflate")]),
    "gzip and chunked": (_packed_in_chunks, [("Content-Encoding", "gzip"), CHUNKED]),
    # Those that only browsers know.
    "raw deflate": (_raw_deflate, [("Content-Encoding", "deflate")]),
    "x-gzip": (packed, [("Content-Encoding", "x-gzip")]),
    "x-gzip and identity": (packed, [("Content-Encoding", "X-GZip, identity")]),
    "x-gzip and chunked": (_packed_in_chunks, [("Content-Encoding", "x-gzip"), CHUNKED]),
    "br": (brotli.compress, [("Content-Encoding", "br")]),
    # As crawlers keep them that put the chunks together.
    "gzip, no more chunked": (packed, [("Content-Encoding", "gzip"), CHUNKED]),
    "br, no more chunked": (brotli.compress, [("Content-Encoding", "br"), CHUNKED]),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_body_is_delivered_without_its_encodings(saved, name: str) -> None:
    encode, headers = ENCODINGS[name]
    body = page(1, size=200_000)
    data = Crawl().add("https://example.org/", encode(body), http=HTML + headers).data
    assert only(read_captures(saved(data))).body == body


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("ends", [(b"\n", b"\n"), (b"\r\n", b"\n"), (b"\n", b"\r\n")])
def test_headers_whose_lines_end_as_only_browsers_read_them_are_headers(
    saved, ends: tuple[bytes, bytes], compressed: bool
) -> None:
    line, last = ends
    fields = (b"HTTP/1.1 200 OK", b"X-Robots-Tag: noindex", b"Content-Type: text/html")
    body = b"<html>one\r\n\r\ntwo\n\nthree" + b"x" * 100
    block = b"".join(field + line for field in fields) + last + body
    digest = f"sha1:{sha1(block).hexdigest()}"
    crawl = Crawl().raw(f"{_response()}\r\nWARC-Block-Digest: {digest}", block, gzip=compressed)
    found = only(read_captures(saved(crawl.data)))
    assert found.headers == {"x-robots-tag": "noindex", "content-type": "text/html"}
    assert found.body == body and not found.truncated
    assert (found.offset, found.length) == (0, len(crawl.data) - (0 if compressed else 4))
    assert only(read_captures(saved(crawl.data), max_body=9)).body == body[:9]


@pytest.mark.parametrize("compressed", [True, False])
def test_a_response_is_read_behind_those_that_announce_it(saved, compressed: bool) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\nLink: </a.css>\n\n"
    body = b"<html>HTTP/1.1 100 Continue\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body)
    crawl = Crawl().raw(_response(), interim + head + body, gzip=compressed)
    found = only(read_captures(saved(crawl.data)))
    assert (found.status, found.body, found.truncated) == (200, body, False)
    assert found.headers == {"content-type": "text/html"}


@pytest.mark.parametrize("name", ["chunked", "gzip", "x-gzip", "raw deflate", "gzip and chunked"])
def test_of_an_encoded_body_that_is_cut_off_the_beginning_is_taken(saved, name: str) -> None:
    encode, headers = ENCODINGS[name]
    body = page(1, size=200_000)
    data = Crawl().add("https://example.org/", encode(body)[:-500], http=HTML + headers).data
    found = only(read_captures(saved(data))).body
    assert body.startswith(found) and len(found) > 190_000


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/xml", "application/xml; charset=utf-8", "application/xhtml+xml"]
)
def test_text_and_xml_are_pages(saved, kind: str) -> None:
    body = b"<?xml version='1.0'?><doc>words</doc>"
    data = Crawl().add("https://example.org/", body, http=[("Content-Type", kind)]).data
    capture = only(read_captures(saved(data)))
    assert (capture.body, capture.content_type) == (body, kind.partition(";")[0])


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain", b"\x0cpage\r\n\t\x1b[1mbold\xe4\xff"),
        ("text/plain", b"w" * 1445 + b"\0"),
        ("text/plain", b""),
        ("text/plain", "\ufeffwords".encode("utf-16-le")),
        ("text/plain; charset=utf-16", "words".encode("utf-16-le")),
        ("text/html", b"words\0"),
    ],
)
def test_text_is_a_page_whatever_else_is_in_it(saved, kind: str, body: bytes) -> None:
    data = Crawl().add("https://example.org/", body, http=[("Content-Type", kind)]).data
    assert only(read_captures(saved(data))).body == body


@pytest.mark.parametrize(
    ("url", "kind", "body"),
    [
        ("https://example.org/robots.txt", "text/plain", b"User-agent: *"),
        ("https://example.org/", "text/xml", b"<?xml version='1.0'?>\n<!-- x --><urlset></urlset>"),
        ("https://example.org/", "application/xml", b"<rss version='2.0'/>"),
        ("https://example.org/", "application/xml", b"<rdf:RDF xmlns:rdf='x'/>"),
        ("https://example.org/", "application/json", b"{}"),
        ("https://example.org/a.zip", "text/plain", b"PK\x03\x04\x14\0\0\0words"),
        ("https://example.org/a.bin", "text/plain; charset=UTF-8", b"w" * 1444 + b"\0"),
        ("https://example.org/a.png", "text/html", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
        ("https://example.org/a.jpg", "text/html; charset=utf-8", b"\xff\xd8\xff\xe0\0\x10JFIF"),
        ("https://example.org/a.docx", "application/xml", b"PK\x03\x04\x14\0\6\0words"),
    ],
)
def test_what_is_written_for_programs_is_no_page(saved, url: str, kind: str, body: bytes) -> None:
    data = Crawl().add(url, body, http=[("Content-Type", kind)]).data
    [rejected] = read_captures(saved(data))
    assert isinstance(rejected, Rejected) and rejected.reason is Rejection.NOT_A_PAGE


@pytest.mark.parametrize(
    "http",
    [
        [("Content-Type", "text/html, text/html")],
        [("Content-Type", "text/html"), ("Content-Type", "text/html; charset=utf-8")],
    ],
)
def test_a_content_type_that_is_there_twice_is_one(saved, http) -> None:
    data = Crawl().add("https://example.org/", page(1), http=http).data
    assert only(read_captures(saved(data))).content_type == "text/html"


@pytest.mark.parametrize(
    "kind", ["text/html charset=utf-8", "text/html\tcharset=utf-8", " text/html ; charset=utf-8"]
)
def test_a_content_type_without_its_semicolon_is_the_one_that_browsers_read(
    saved, kind: str
) -> None:
    data = Crawl().add("https://example.org/", page(1), http=[("Content-Type", kind)]).data
    found = only(read_captures(saved(data)))
    assert found.content_type == "text/html"
    assert parse(found.body, found.url, found.headers["content-type"]).title == "1"


@pytest.mark.parametrize("compressed", [True, False])
def test_records_of_the_draft_0_18_are_read(saved, compressed: bool) -> None:
    crawl = pages(3, gzip=False)
    records = [one.replace(b"WARC/1.0", b"WARC/0.18", 1) for one in crawl.records]
    data = b"".join(packed(one) if compressed else one for one in records)
    assert [one.body for one in captures(read_captures(saved(data)))] == [page(n) for n in range(3)]


@pytest.mark.parametrize("start", [b"", b"Notice: Undefined index: tea on line 9<br>\n"])
@pytest.mark.parametrize(
    "header",
    [
        *(("Content-Encoding", name) for name in ("gzip", "deflate", "br", "zstd", "UTF-8")),
        ("Transfer-Encoding", "chunked"),
    ],
)
def test_a_body_that_was_already_decoded_is_taken_as_it_is(saved, header, start: bytes) -> None:
    data = Crawl().add("https://example.org/", start + page(1), http=[*HTML, header]).data
    assert only(read_captures(saved(data))).body == start + page(1)


def test_a_crawler_that_cut_a_body_off_is_believed(saved) -> None:
    crawl = Crawl()
    crawl.add("https://example.org/1", page(1), WARC_Truncated="length")
    crawl.add("https://example.org/2", page(2), http=[*HTML, ("Content-Length", "99999")])
    crawl.add("https://example.org/3", page(3), http=[*HTML, ("Content-Length", str(len(page(3))))])
    found = captures(read_captures(saved(crawl.data)))
    assert [capture.truncated for capture in found] == [True, True, False]


@pytest.mark.parametrize(
    "said", ["html", "text", '"text/html"', "charset=utf-8", "*/*", "application/unknown"]
)
def test_html_is_recognised_where_the_server_named_what_is_no_type(saved, said: str) -> None:
    http = [("Content-Type", f"{said}; charset=windows-1251")]
    crawl = Crawl().add("https://example.org/1", "<title>чай</title>".encode("cp1251"), http=http)
    crawl.add("https://example.org/2", b"{}", http=http)
    found, other = read_captures(saved(crawl.data))
    assert isinstance(found, Capture) and found.content_type == "text/html"
    assert isinstance(other, Rejected) and other.reason is Rejection.NOT_A_PAGE
    capture = describe(found, found.url, "crawl.warc")
    assert parse_capture(capture, found.body).title == "чай"


@pytest.mark.parametrize("start", [b"\n<!DOCTYPE html><p>", b"<!-- saved -->", b"<H1 id=a>"])
def test_html_is_recognised_where_the_server_named_no_type(saved, start: bytes) -> None:
    crawl = Crawl()
    crawl.add("https://example.org/1", start + b"one", http=[("Server", "x")])
    crawl.add("https://example.org/2", b"plain words", http=[("Server", "x")])
    crawl.add(
        "https://example.org/3",
        b"<p>three",
        http=[("Server", "x")],
        WARC_Identified_Payload_Type="application/xhtml+xml",
    )
    one, two, three = read_captures(saved(crawl.data))
    assert isinstance(one, Capture) and one.content_type == "text/html"
    assert isinstance(two, Rejected) and two.reason is Rejection.NOT_A_PAGE
    assert isinstance(three, Capture) and three.content_type == "application/xhtml+xml"


def test_records_that_are_no_captures_are_counted_and_not_delivered(saved) -> None:
    crawl = Crawl()
    crawl.raw("WARC-Type: warcinfo\r\nContent-Type: application/warc-fields", b"software: x\r\n")
    crawl.add("https://example.org/", b"", kind="request", http=[("Host", "example.org")])
    crawl.add("https://example.org/", page(1))
    crawl.raw("WARC-Type: metadata\r\nContent-Type: application/warc-fields", b"via: x\r\n")
    skipped: Counter[str] = Counter()
    found = list(read_captures(saved(crawl.data), skipped=skipped))
    assert len(captures(found)) == len(found) == 1
    assert skipped == {"warcinfo": 1, "request": 1, "metadata": 1}


# --- reports that a page is unchanged ------------------------------------------------------------

_REVISIT = f"WARC-Type: revisit\r\nWARC-Target-URI: https://example.org/\r\nWARC-Date: {DATE}\r\n"
_DIGEST = "sha1:B2LTWWPUOYAH7UIPQ7ZUPQ4VMBSVC36A"


def revisit(crawl: Crawl, status: str, *http: tuple[str, str], digest: str = _DIGEST) -> Crawl:
    return crawl.add(
        "https://example.org/",
        b"",
        kind="revisit",
        status=status,
        http=list(http),
        WARC_Payload_Digest=digest,
        WARC_Profile="http://netpreserve.org/warc/1.1/revisit/identical-payload-digest",
    )


@pytest.mark.parametrize("compressed", [True, False])
def test_a_revisit_says_when_a_page_was_what_it_had_been(saved, compressed: bool) -> None:
    crawl = revisit(pages(1, gzip=compressed), "200 OK", *HTML)
    revisit(crawl, "200 OK", ("Server", "x"), digest=f" {_DIGEST} ")
    crawl.raw(f"{_REVISIT}WARC-Payload-Digest: {_DIGEST}", b"", gzip=compressed)
    crawl.raw(_REVISIT + "X-Nothing: 1", b"", gzip=compressed)
    skipped: Counter[str] = Counter()
    _, *found = read_captures(saved(crawl.data), skipped=skipped)
    assert [one.payload_digest for one in revisits(found)] == [_DIGEST, _DIGEST, _DIGEST, None]
    for one, offset in zip(revisits(found), crawl.offsets[1:], strict=True):
        assert one.url == "https://example.org/"
        assert one.date == datetime(2024, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)
        assert one.offset == offset and one.length > 0
    assert not skipped


def test_a_revisit_says_which_capture_it_refers_to(saved) -> None:
    refers = {
        "WARC_Refers_To_Target_URI": "<https://example.org/first>",
        "WARC_Refers_To_Date": "2023-12-31T23:59:59Z",
    }
    crawl = Crawl()
    for status, kind in (("200 OK", "revisit"), ("304 Not Modified", "revisit")):
        crawl.add("https://example.org/", b"", kind=kind, status=status, **refers)
    crawl.add("https://example.org/", b"", kind="revisit", **{**refers, "WARC_Refers_To_Date": "?"})
    same, not_modified, unclear = revisits(read_captures(saved(crawl.data)))
    for one in (same, not_modified):
        assert one.refers_to == "https://example.org/first"
        assert one.refers_date == datetime(2023, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert (same.status, same.headers) == (200, {"content-type": "text/html; charset=utf-8"})
    assert (not_modified.status, not_modified.headers) == (None, None)
    assert (unclear.refers_to, unclear.refers_date) == (None, None)


def test_304_means_whatever_was_there(saved) -> None:
    crawl = Crawl().add("https://example.org/", b"", status="304 Not Modified", http=[])
    crawl.add(
        "https://example.org/", b"", status="304 Not Modified", WARC_Payload_Digest=_DIGEST, http=[]
    )
    revisit(crawl, "304 Not Modified")
    found = list(read_captures(saved(crawl.data)))
    assert [one.payload_digest for one in revisits(found)] == [None] * 3 == [None] * len(found)


def test_a_revisit_of_a_redirect_or_an_error_is_a_capture_with_its_own_headers(saved) -> None:
    crawl = revisit(Crawl(), "302 Found", ("Location", "/elsewhere"))
    revisit(crawl, "404 Not Found", *HTML)
    moved, gone = captures(read_captures(saved(crawl.data)))
    assert (moved.status, moved.headers, moved.body) == (302, {"location": "/elsewhere"}, b"")
    assert (gone.status, gone.payload_digest) == (404, _DIGEST)


def test_a_revisit_of_a_robots_txt_is_skipped_for_it_refers_to_no_page(saved) -> None:
    robots, said = "https://example.org/robots.txt", {"WARC_Payload_Digest": _DIGEST}
    crawl = Crawl().add(robots, b"", http=[("Content-Type", "text/plain")], kind="revisit", **said)
    crawl.add(robots, b"", http=[], kind="revisit", **said)
    crawl.add(robots, b"", status="304 Not Modified", http=[], kind="revisit", **said)
    crawl.add(robots, b"", status="304 Not Modified", http=[])
    crawl.raw(_REVISIT.replace("org/", "org/robots.txt").strip(), b"")
    skipped: Counter[str] = Counter()
    path = saved(crawl.data)
    assert list(read_captures(path, sitemaps=True, skipped=skipped)) == []
    assert skipped == {"revisit": 4, "response": 1}
    # An error there is one, and so is what is a page by its type.
    crawl = Crawl().add(robots, b"", status="404 Not Found", kind="revisit", **said)
    crawl.add(robots, b"", kind="revisit", **said)
    found = list(read_captures(saved(crawl.data), sitemaps=True))
    assert [type(one) for one in found] == [Capture, Revisit]


def test_a_revisit_that_cannot_be_used_is_rejected(saved) -> None:
    crawl = revisit(Crawl(), "200 OK", ("Content-Type", "image/png"))
    crawl.raw(_REVISIT.replace(DATE, "today") + "X-Nothing: 1", b"")
    crawl.raw(_REVISIT.replace("https://example.org/", "dns:a.org") + "X-Nothing: 1", b"")
    crawl.raw(_REVISIT + "Content-Type: application/http; msgtype=response", b"nonsense\r\n\r\n")
    crawl.add("https://example.org/after", page(1))
    *found, after = read_captures(saved(crawl.data))
    reasons = [Rejection.NOT_A_PAGE, Rejection.BAD_DATE, *[Rejection.NOT_HTTP] * 2]
    assert [one.reason for one in rejections(found)] == reasons
    assert len(found) == 4 and isinstance(after, Capture) and not isinstance(after, Revisit)


@pytest.mark.parametrize(("text", "second"), [("2016-12-31T23:59:60Z", 59), (DATE, 5)])
def test_a_date_may_be_a_leap_second(saved, text: str, second: int) -> None:
    data = Crawl().raw(_response(date=text), _OK).data
    assert only(read_captures(saved(data))).date.second == second


# --- what is rejected ----------------------------------------------------------------------------

_RESPONSE = "WARC-Type: response\r\nContent-Type: application/http; msgtype=response\r\n"


def _response(url: str = "https://example.org/", date: str = DATE) -> str:
    return f"{_RESPONSE}WARC-Target-URI: {url}\r\nWARC-Date: {date}"


_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>"


def _part(of: bytes, kind: bytes = b"text/html") -> bytes:
    head = b"HTTP/1.1 206 Partial Content\r\nContent-Type: %s\r\nContent-Range: %s" % (kind, of)
    return head + b"\r\n\r\n<html>"


@pytest.mark.parametrize(
    ("header", "block", "reason"),
    [
        (f"{_RESPONSE}WARC-Date: {DATE}", _OK, Rejection.NO_URL),
        (_response("https://a b/"), _OK, Rejection.BAD_URL),
        (_response("https://"), _OK, Rejection.BAD_URL),
        (_response("dns:a.org"), _OK, Rejection.NOT_HTTP),
        (_response(date="yesterday"), _OK, Rejection.BAD_DATE),
        (_response(date="20240102030405"), _OK, Rejection.BAD_DATE),
        (_response(date="0001-01-01T00:00:00Z"), _OK, Rejection.BAD_DATE),
        (_response(date="9999-12-31T23:59:59Z"), _OK, Rejection.BAD_DATE),
        (_response().replace("WARC-Date", "X-No-Date"), _OK, Rejection.BAD_DATE),
        (_response(), b"no status\r\n\r\nx", Rejection.NOT_HTTP),
        (_response(), b"", Rejection.NOT_HTTP),
        (_response().replace("application/http", "text/dns"), b"20240102", Rejection.NOT_HTTP),
        (_response(), _OK.replace(b"text/html", b"image/png"), Rejection.NOT_A_PAGE),
        (_response(), _part(b"bytes 0-5/600"), Rejection.NOT_A_PAGE),
        (
            _response(),
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 900\r\n\r\n",
            Rejection.NOT_A_PAGE,
        ),
        (_response(), _part(b"bytes 594-599/600", b"application/pdf"), Rejection.NOT_A_PAGE),
        (_response(), _OK.replace(b"200 OK", b"204 No Content"), Rejection.NOT_A_PAGE),
        (_response(), _OK.replace(b"200 OK", b"205 Reset Content"), Rejection.NOT_A_PAGE),
        (
            _response(),
            _OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: br\r\n\r\n\xff\x06"),
            Rejection.UNDECODABLE,
        ),
    ],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_a_record_that_cannot_be_used_is_rejected_with_reason_and_place(
    saved, header: str, block: bytes, reason: Rejection, compressed: bool
) -> None:
    crawl = pages(1, gzip=compressed).raw(header, block, gzip=compressed)
    crawl.add("https://example.org/after", page(9))
    before, rejected, after = read_captures(saved(crawl.data))
    assert isinstance(before, Capture) and isinstance(after, Capture)
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, rejected.offset) == (reason, crawl.offsets[1])
    assert str(reason) in str(rejected) and f"{crawl.offsets[1]:,}" in str(rejected)


@pytest.mark.parametrize("of", [b"bytes 0-5/6", b"bytes 0-5/*"])
def test_a_part_of_a_page_that_may_be_all_of_it_is_the_page(saved, of: bytes) -> None:
    data = Crawl().raw(_response(), _part(of)).data
    found = only(read_captures(saved(data)))
    assert isinstance(found, Capture) and (found.status, found.body) == (206, b"<html>")


def test_of_a_body_over_the_limit_the_beginning_is_taken(saved) -> None:
    crawl = pages(3, size=5000)
    size = len(page(0, 5000))
    path = saved(crawl.data)
    assert [one.cut for one in captures(read_captures(path, max_body=size))] == [None] * 3
    found = captures(read_captures(path, max_body=size - 1))
    assert [one.cut for one in found] == [size - 1] * 3
    assert [one.body for one in found] == [page(n, 5000)[:-1] for n in range(3)]


@pytest.mark.parametrize("limit", range(1000, 1004))
def test_a_long_body_is_cut_between_two_characters(saved, limit: int) -> None:
    body = b"<p>" + "日本é".encode() * 500
    data = Crawl().add("https://example.org/", body).data
    capture = only(read_captures(saved(data), max_body=limit))
    assert capture.cut == len(capture.body)
    assert limit - 3 <= len(capture.body) <= limit
    assert body.startswith(capture.body) and capture.body.decode()


@pytest.mark.parametrize("compressed", [True, False])
def test_of_a_record_larger_than_any_buffer_the_beginning_is_read_and_the_next_one(
    saved, compressed: bool
) -> None:
    crawl = Crawl(gzip=compressed).add("https://example.org/0", b"<html>" + bytes(9_000_000))
    crawl.add("https://example.org/1", page(1))
    big, small = read_captures(saved(crawl.data))
    assert isinstance(big, Capture) and big.cut == len(big.body) == 2 << 20
    assert isinstance(small, Capture) and small.body == page(1)


def _zstd(body: bytes) -> bytes:
    out = io.BytesIO()
    writer = ZstdWriter(out)
    writer.write(body)
    writer.close()
    return out.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": partial(packed, level=1),
    "deflate": partial(zlib.compress, level=1),
    "br": partial(brotli.compress, quality=1),
    "zstd": _zstd,
}


@pytest.mark.parametrize("encoding", [*PACKED, ", ".join(["gzip"] * 5000)])
def test_a_body_that_unpacks_to_far_more_than_the_limit_is_not_unpacked(
    saved, encoding: str
) -> None:
    bomb = PACKED[encoding.partition(",")[0]](b"<html>" + bytes(100 << 20))
    crawl = Crawl().add("https://example.org/", bomb, http=[*HTML, ("Content-Encoding", encoding)])
    path = saved(crawl.data)
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
    before = _peak()
    [found] = read_captures(path, max_body=1 << 20)
    assert _peak() - before < 40 << 10
    if encoding in PACKED:
        assert isinstance(found, Capture) and found.cut == len(found.body) == 1 << 20
    else:
        assert isinstance(found, Rejected) and found.reason is Rejection.UNDECODABLE


def _peak() -> int:
    """KiB of memory that this process has used at most; decoders do not ask Python for theirs."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("encoding", PACKED)
def test_of_a_packed_body_that_ends_too_early_the_beginning_is_read(saved, encoding: str) -> None:
    body = page(1, size=400_000)
    part = PACKED[encoding](body)
    part = part[: len(part) // 2]
    crawl = Crawl().add("https://example.org/", part, http=[*HTML, ("Content-Encoding", encoding)])
    found = only(read_captures(saved(crawl.data)))
    assert body.startswith(found.body) and len(found.body) > 100_000


class Counted(bytes):
    """Bytes that count those that are copied from them."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        part = Counted(super().__getitem__(at))
        Counted.copied += len(part)
        return part

    def __radd__(self, before: bytes) -> Counted:
        return Counted(before + bytes(self))


def test_a_packed_body_that_ends_too_early_is_not_copied_again_and_again() -> None:
    body = random.Random(1).randbytes(1 << 20)
    sent = Counted(gzip.compress(body)[:-20])
    found = decode_leniently(sent, "", "gzip", 2 << 20)
    assert found is not None and body.startswith(found) and len(found) > len(body) - 100
    assert Counted.copied <= 2 * len(sent)
