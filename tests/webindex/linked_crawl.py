"""A small crawl with everything in it that brings pages together or leads them elsewhere."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from warc_files import DATE, HTML, Crawl

from percola import Repository, Worker
from webindex.crawl.warc import Rejected, read_captures
from webindex.load.transaction import load_captures
from webindex.workers.processes import build_observers, open_index

SITE = "https://docs.example.org"
ELSEWHERE = "https://mirror.example.net"
_VOCABULARY = [f"w{number:03}x" for number in range(400)]
LONG = 4000
"""Words of a text in which one more or less makes little difference."""

Anchors = Sequence[tuple[str, str]]


_NEXT: Anchors = [(f"/next-{number}", f"next {number}") for number in range(8)]
"""Links to pages that were never captured."""


def words(seed: int, count: int = 400) -> list[str]:
    """Words of a text that is like no other one's."""
    return random.Random(seed).choices(_VOCABULARY, k=count)


def html(title: str, text: Iterable[str], links: Anchors = (), head: str = "") -> bytes:
    """A page with these words and links."""
    anchors = "".join(f'<p><a href="{target}">{words}</a></p>' for target, words in links)
    return (
        f"<html lang=en><head><title>{title}</title>{head}</head>"
        f"<body><p>{' '.join(text)}</p>{anchors}</body></html>"
    ).encode()


def canonical(target: str) -> str:
    """A head that names another page."""
    return f'<link rel="canonical" href="{target}">'


def _links(number: int) -> Anchors:
    """Links that are part of a page's text, as readers see it."""
    links = [(f"/p{(number + step) % 6}", f"page {step}") for step in (1, 2)]
    return [*links, ("/old", "the old address"), ("/gone", "nothing"), ("/p0", "home")]


def crawl() -> Crawl:
    """The crawl as a WARC file. What is in it, `test_verify_index` says."""
    made = Crawl()

    def page(path: str, body: bytes, *, site: str = SITE, date: str = DATE) -> None:
        made.add(site + path, body, WARC_Date=date)

    def redirect(path: str, target: str, status: str = "301 Moved Permanently") -> None:
        made.add(SITE + path, b"", http=[*HTML, ("Location", target)], status=status)

    for number in range(6):
        text = words(number, LONG if number == 2 else 400)
        page(f"/p{number}", html(f"Page {number}", text, _links(number)))
    # Under the same text, or nearly the same; one of their links stays within the cluster.
    page("/p1", html("Page 1", words(1), _links(1)), site=ELSEWHERE)
    page("/p1-copy", html("Page 1", words(1), _links(1)))
    almost = words(2, LONG)
    almost[200] = "different"
    page("/p2-almost", html("Page 2", almost, _links(2)))
    # Too short to be compared but by their bytes.
    page("/short-1", html("Short", ["few", "words"]))
    page("/short-2", html("Short", ["few", "words"]))
    page("/short-3", html("Short", ["few", "others"]))
    # Ways that lead to a page, and ways that lead nowhere.
    redirect("/old", "/p1")
    redirect("/older", "/old", "302 Found")
    refresh = '<meta http-equiv="refresh" content="0; url=/p3">'
    page("/refresh", html("Moved", words(50), head=refresh))
    redirect("/circle-1", "/circle-2")
    redirect("/circle-2", "/circle-1")
    for hop in range(13):
        redirect(f"/hop-{hop}", f"/hop-{hop + 1}" if hop < 12 else "/p4")
    redirect("/to-nothing", "/never-captured")
    # Canonical pages: one that counts, through a redirect, a chain, a foreign and a dead one.
    page("/print", html("Print", words(60), head=canonical("/p3")))
    page("/by-redirect", html("By redirect", words(61), head=canonical("/older")))
    page("/chain", html("Chain", words(62), _NEXT[:2], canonical("/print")))
    page("/foreign", html("Foreign", words(63), head=canonical(f"{ELSEWHERE}/p1")))
    page("/dead", html("Dead", words(64), head=canonical("/gone")))
    # Pages that are not shown, and links that do not vouch.
    noindex = '<meta name="robots" content="noindex">'
    page("/hidden", html("Hidden", words(70), [("/p5", "from a hidden page"), *_NEXT], noindex))
    page("/p5-hidden", html("Page 5", words(5), _links(5), noindex))
    page(
        "/paid",
        b'<html><body><a rel="sponsored" href="/p0">buy</a> <a rel=nofollow href="/p1">no</a> '
        + " ".join(words(71)).encode()
        + b"</body></html>",
    )
    alternate = '<link rel="alternate" hreflang="de" href="/p0">'
    page("/translated", html("Translated", words(72), _NEXT[:1], alternate))
    # Captures that come and go.
    page("/gone", html("Gone", words(80), [("/p0", "before it went")]))
    made.add(f"{SITE}/gone", b"", status="404 Not Found", WARC_Date="2024-02-02T03:04:05Z")
    made.add(f"{SITE}/p0", b"", status="503 Service Unavailable", WARC_Date="2025-01-01T00:00:00Z")
    page("/p4", html("Page 4 of old", words(90)), date="2020-01-01T00:00:00Z")
    made.add(f"{SITE}/p3", b"", status="304 Not Modified", WARC_Date="2024-03-01T00:00:00Z")
    return made


# --- In a repository ----------------------------------------------------------------------


def load(repo: Repository, path: Path) -> None:
    """Load a WARC file in this process."""
    records = [one for one in read_captures(path) if not isinstance(one, Rejected)]
    load_captures(repo, records, str(path))


def work(repo: Repository) -> None:
    """Run all observers until nothing is left to do."""
    with open_index(repo, create=True) as index:
        Worker(repo, build_observers(index), threads=3).run_until_idle()
    assert repo.is_idle() and not repo.dead_lettered()
