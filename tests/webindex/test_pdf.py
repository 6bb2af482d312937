"""PDF documents: what is read of them, and that none of them harms what is loaded beside it."""

from __future__ import annotations

import io
import os
import signal
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal
from unittest import mock

import pypdf
import pytest
from chains import Chain, page
from children import Child, hear, say
from from_scratch import again, mentions
from pdf_files import document, drawn, pdf
from spark_processes import cmdline
from warc_files import HTML, Crawl

from webindex import tables
from webindex.batch.facts import facts_of
from webindex.crawl import warc
from webindex.crawl.warc import Capture, Rejected, Rejection, Revisit, read_captures
from webindex.load import bodies
from webindex.load.removals import scope_of
from webindex.load.revisits import packed
from webindex.load.transaction import describe, load_captures
from webindex.page.pages import parse
from webindex.page.urls import page_row
from webindex.pdf import extract
from webindex.pdf.process import Bounds, Reader
from webindex.pdf.reading import MAX_PDF, SIGNATURE, Reading, digest_of, reading_in
from webindex.rendering import dependencies
from webindex.reports.page import tell
from webindex.takedown.removing import remove

HOST = "paper.example"
URL = f"https://{HOST}/pots.pdf"
PDF = [("Content-Type", "application/pdf")]
TEA = document(drawn(["Tea for two."]), title="Tea")
CATALOG = "<< /Type /Catalog /Pages 2 0 R >>"
FONT = "/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Courier >> >> >>"
BUSY = document(*[b"BT /F1 9 Tf " + b"(a) Tj 1 0 0 1 3 4 cm " * 90_000 + b"ET"] * 20)
"""A document that takes a minute of processor time to read."""
LARGE = TEA + bytes(100 << 20)


def encrypted(password: str, algorithm: Literal["RC4-128", "AES-256"]) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(TEA))
    writer.encrypt(password, "owner", algorithm=algorithm)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.fixture(scope="module")
def readers() -> Iterator[tuple[Reader, Reader]]:
    with Reader() as one, Reader() as other:
        yield one, other


# --- What is read of a document -----------------------------------------------------------------


def test_text_title_language_and_links_are_read(readers: tuple[Reader, Reader]) -> None:
    body = document(
        drawn(["The ﬁrst glaze was exam-", "ined in A-", "B and well-", "Known."], ["Column two."]),
        drawn(["Page (two)."]),
        title="Čajové konvice",
        language="en-GB",
        links=["https://a.example/x?y", "../kiln.html#top"],
    )
    digest = digest_of(body)
    read = readers[0].read(body, digest)
    assert read.text.split("\n") == [
        *("The first glaze was examined in A-", "B and well-", "Known."),
        *("Column two.", "", "Page (two)."),
    ]
    assert (read.title, read.language, read.pages) == ("Čajové konvice", "en-GB", 2)
    assert (read.problem, read.links) == (None, ("https://a.example/x?y", "../kiln.html#top"))
    found = parse(read.body(digest), f"https://{HOST}/a/b.pdf", "application/pdf", "nofollow")
    assert [(one.url, one.rel) for one in found.links] == [
        ("https://a.example/x?y", "nofollow"),
        (f"https://{HOST}/kiln.html", "nofollow"),
    ]
    assert found.text.endswith("well- Known. Column two. Page (two).")
    assert (found.title, found.language) == ("Čajové konvice", "en")


@pytest.mark.parametrize(
    ("title", "text", "found"),
    [
        ("Microsoft Word - kiln_v2 final.doc", "How to fire a kiln", "How to fire a kiln"),
        ("untitled", "How to fire a kiln", "How to fire a kiln"),
        ("Microsoft PowerPoint - On kilns", "Slide one", "On kilns"),
        ("Document structures", "Page one", "Document structures"),
        ("scan0012.pdf", "", "scan0012.pdf"),
    ],
)
def test_the_name_of_a_file_is_a_title_only_of_what_has_no_text(
    readers: tuple[Reader, Reader], title: str, text: str, found: str
) -> None:
    body = document(drawn([text]), title=title)
    assert readers[0].read(body, digest_of(body)).title == found


SHORT = "Stream has ended unexpectedly"
CASES: dict[str, tuple[bytes, str, str | None]] = {
    "no title": (document(drawn(["- 1 -", "A kiln"])), "- 1 -\nA kiln", None),
    "empty password, RC4": (encrypted("", "RC4-128"), "Tea for two.", None),
    "empty password, AES": (encrypted("", "AES-256"), "Tea for two.", None),
    "password": (encrypted("secret", "AES-256"), "", "It is encrypted with a password."),
    "displaced xref": (TEA.replace(b"startxref\n", b"startxref\n9"), "Tea for two.", None),
    "cut off": (TEA[:600], "", f"It cannot be read as a PDF document: {SHORT}."),
    "markup": (b"<html>Not found", "", "It is no PDF document: it does not begin with %PDF-."),
    "nothing": (b"", "", "It is no PDF document: it does not begin with %PDF-."),
    "scan": (document(b"q 9 0 0 9 0 0 cm /Im1 Do Q"), "", "Its pages have no text, as in a scan."),
    "thousand empty pages": (document(*[b""] * 1000), "", "Its pages have no text, as in a scan."),
    "too many pages": (
        document(*[b""] * 1999, drawn(["last"]), drawn(["too late"])),
        "last",
        "Only the first 2,000 of its 2,001 pages were read.",
    ),
    "bomb": (
        pdf(
            {
                1: CATALOG,
                2: "<< /Type /Pages /Kids [3 0 R 5 0 R] /Count 2 /MediaBox [0 0 9 9] >>",
                3: "<< /Type /Page /Parent 2 0 R /Contents 4 0 R >>",
                4: ("/Filter /FlateDecode", zlib.compress(bytes(extract.MAX_DECODED), 9)),
                5: f"<< /Type /Page /Parent 2 0 R /Contents 6 0 R {FONT} >>",
                6: ("", drawn(["After the bomb."])),
            }
        ),
        "After the bomb.",
        "1 of its pages cannot be read: Limit reached while decompressing",
    ),
    "loop of pages": (
        pdf({1: CATALOG, 2: "<< /Type /Pages /Kids [2 0 R 3 0 R] /Count 2 >>", 3: "2 0 R"}),
        "",
        "It cannot be read as a PDF document: Detected cyclic page references.",
    ),
    "loop of contents": (
        pdf(
            {
                1: "<< /Type /Catalog /Pages 2 0 R /Lang 9 0 R >>",
                2: "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
                3: "<< /Type /Page /Parent 2 0 R /Contents 4 0 R >>",
                4: "4 0 R",
                9: "9 0 R",
            }
        ),
        "",
        "1 of its pages cannot be read",
    ),
    "deep": (pdf({1: "[" * 9000, 2: "<< >>"}), "", "It cannot be read as a PDF document"),
}


@pytest.mark.parametrize("name", CASES)
def test_of_a_damaged_or_hostile_document_what_can_be_is_read(
    readers: tuple[Reader, Reader], name: str
) -> None:
    body, text, problem = CASES[name]
    # What is kept says the same of it, in whichever process it was read.
    digest = digest_of(body)
    read, same = (reader.read(body, digest) for reader in readers)
    assert reading_in(read.body(digest)) == read and read.body(digest) == same.body(digest)
    assert read.text == text
    if problem is None:
        assert read.problem is None
    else:
        assert read.problem is not None and problem in read.problem


@pytest.mark.parametrize(
    ("bounds", "body", "problem"),
    [
        (Bounds(processor_seconds=1), BUSY, "It took more than 1 s of processor time to read."),
        (Bounds(seconds=0.2), BUSY, "It took longer than 0.2 s to read."),
        (Bounds(memory=200 << 20), LARGE, "It takes more than 200 MiB to read."),
    ],
    ids=["processor", "time", "memory"],
)
def test_a_document_beyond_the_bounds_ends_its_process_and_the_next_one_is_read(
    bounds: Bounds, body: bytes, problem: str
) -> None:
    with Reader(bounds) as reader:
        assert reader.read(body, "busy") == Reading(problem=problem)
        assert reader.process is None
        # Its transaction may be run again; then it is not read again.
        assert reader.read(b"", "busy").problem == problem
        if bounds.seconds > 1:
            assert reader.read(TEA, "tea").text == "Tea for two."


def test_one_process_reads_many_documents_and_another_one_follows_if_it_is_killed() -> None:
    with Reader() as reader:
        found = []
        for number in range(3):
            reader.read(TEA, str(number))
            assert reader.process is not None
            found.append(reader.process)
        assert len(set(found)) == 1
        os.kill(found[0], signal.SIGKILL)
        assert reader.read(TEA, "after").text == "Tea for two."
        assert reader.process not in (None, found[0])
    assert reader.process is None
    with pytest.raises(ProcessLookupError):
        os.kill(found[0], 0)


def test_a_reading_that_is_interrupted_is_not_taken_for_that_of_the_next_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = document(drawn(["Coffee for one."]))
    with Reader() as reader:
        reader.read(TEA, "1")
        with monkeypatch.context() as interrupted:
            interrupted.setattr(Connection, "poll", mock.Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                reader.read(other, "2")
        assert reader.read(TEA, "3").text == "Tea for two."


def read_and_wait(pipe: Connection) -> None:
    with Reader() as reader:
        reader.read(TEA, "tea")
        say(pipe, reader.process)
        hear(pipe)


def test_when_a_load_is_killed_the_process_that_reads_for_it_ends(
    wait_until: Callable[..., object],
) -> None:
    with Child(read_and_wait) as load:
        process = load.hear()
        # As one that is busy: it will not see that the load's end of the socket is closed.
        os.kill(process, signal.SIGSTOP)
        assert cmdline(process)
        load.kill()
    wait_until(lambda: not cmdline(process))


# --- What the loader takes for one --------------------------------------------------------------


def recorded(tmp_path: Path, *records: tuple[bytes, list[tuple[str, str]]]) -> list[object]:
    crawl = Crawl()
    for body, http in records:
        crawl.add(URL, body, http=http)
    path = tmp_path / "crawl.warc.gz"
    path.write_bytes(crawl.data)
    return list(read_captures(path, max_body=2000))


def test_documents_are_known_by_their_type_or_their_first_bytes(tmp_path: Path) -> None:
    anything = [("Content-Type", "application/octet-stream")]
    found = recorded(
        tmp_path,
        (TEA, PDF),
        (TEA + bytes(2000), [("Content-Type", "application/x-pdf; charset=binary")]),
        (TEA, anything),
        (TEA, HTML),
        (TEA, []),
        (b"<html>", PDF),
        (b"<html>", anything),
        (SIGNATURE + bytes(MAX_PDF), PDF),
    )
    captures = [one for one in found if isinstance(one, Capture)]
    assert [one.is_pdf for one in captures] == [True] * 7
    assert {one.content_type for one in captures} == {"application/pdf"}
    assert [len(one.body) for one in captures[:3]] == [len(TEA), len(TEA) + 2000, len(TEA)]
    assert [one.cut for one in captures] == [None] * 6 + [MAX_PDF]
    assert [one.detail for one in found if isinstance(one, Rejected)] == [
        "it is application/octet-stream"
    ]


def test_without_the_library_documents_are_rejected_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warc, "can_read", lambda: False)
    found = recorded(tmp_path, (TEA, PDF), (b"<html>", HTML))
    assert [type(one) for one in found] == [Rejected, Capture]
    assert isinstance(found[0], Rejected) and found[0].reason is Rejection.NO_PDF_READER
    assert "pip install 'percola[webindex]'" in str(found[0])


# --- From the capture to search -----------------------------------------------------------------


def captured(url: str, *words: str, links: Sequence[str] = (), seconds: float = 0.0) -> Capture:
    body = document(drawn(words), title="Čajové konvice", links=links)
    one = again(page(url, ""), seconds=seconds, body=body, content_type="application/pdf")
    payload = f"sha1:{digest_of(body).upper()}"
    return replace(one, headers={"content-type": "application/pdf"}, payload_digest=payload)


def test_a_document_is_found_by_its_text_and_changes_and_goes(empty: Chain) -> None:
    copy, kiln = f"https://{HOST}/copy", "https://else.example/kiln"
    first = captured(URL, "A report on earthenware", links=[kiln])
    broken = replace(captured(f"https://{HOST}/broken"), body=b"%PDF-")
    loaded = empty.load([first, replace(first, url=copy), broken])
    assert (loaded.written, loaded.pdfs, loaded.unread_pdfs) == (3, 3, 1)
    empty.work()
    [hit] = empty.index.search("earthenware").hits
    assert (hit.title, {hit.url, *hit.duplicates}) == ("Čajové konvice", {URL, copy})
    assert "A report on earthenware" in "".join(text for text, _ in hit.snippet)
    assert len(mentions(empty.repo, kiln)) > 2
    story = tell(empty.repo, empty.index, broken.url)
    assert story.document is not None and "cannot be read as a PDF document" in story.document
    assert story.document in story.reasons

    # What is there is not read again: no process is started for it.
    with bodies.reading_documents():
        pass
    assert empty.load([first]).same == 1
    reader = bodies._reader()
    assert reader is not None and reader.process is None

    changed = captured(URL, "A report on porcelain", seconds=60.0)
    empty.process([changed, replace(changed, url=copy)])
    assert not empty.found("earthenware")
    # A revisit makes one of them what it was, whatever type its own headers name.
    date = first.date + timedelta(seconds=90)
    revisit = Revisit(copy, date, first.payload_digest, 0, 1, status=200)
    revisit = replace(revisit, headers={"content-type": "application/octet-stream"})
    load_captures(empty.repo, [revisit], "crawl.warc.gz")
    empty.work()
    with empty.repo.snapshot() as now:
        seen = now.get(tables.capture, page_row(copy))
        assert seen is not None and seen["content_type"] == "application/pdf"
        current = dependencies.current(now, page_row(copy))
        assert current is not None and not current.is_page
    assert (empty.found("porcelain"), empty.found("earthenware")) == ([URL], [copy])

    assert remove(empty.repo, empty.index, [scope_of("host", HOST)]).pages == 3
    empty.work()
    assert not empty.found("porcelain") and not mentions(empty.repo, HOST)


def test_a_reading_that_is_not_as_it_was_written_does_not_fit_its_capture() -> None:
    """So `webindex verify` reports it, like the body of another page."""
    seen = describe(captured(URL, "Tea for two."), URL, "crawl.warc.gz")
    body = Reading(text="Tea for two.", pages=1).body(seen["digest"])
    whole = facts_of(page_row(URL), seen, packed(body), None)
    assert (whole.text, whole.digest) == ("Tea for two.", whole.captured)
    for damaged in (body.replace(b"two", b"ten"), body[:-9], b"%PDF-read/1 ", b"%PDF-read/1 \n[]"):
        facts = facts_of(page_row(URL), seen, packed(damaged), None)
        assert facts.digest != facts.captured == whole.captured
