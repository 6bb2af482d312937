"""Adds what the documentation lacks: copies, redirects, dead ends, links between hosts.

Everything is determined by the seed and the documents, and recorded: `Plan.truth` has, for each
addition, what an index must make of it. Invented hosts end in `.example`.

Each document is used for one addition only: the target of a redirect is not removed later,
and the original of a mirror stays indexable. So each line of the truth is independent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from webindex.corpus.answers import Answer, missing, page, redirect, refresh
from webindex.corpus.choosing import blocks, rank, share_of
from webindex.corpus.edits import Canonical, CrossLinks, Edit, NoIndex, Paragraph, Reword
from webindex.corpus.mounting import Document, Kind, Site

__all__ = ["BEYOND", "SHARES", "Located", "Plan", "make_plan"]

SHARES: Final = {
    "pages with links to other hosts": 0.10,
    "mirrored pages": 0.04,
    "printable copies": 0.005,
    "redirects": 0.012,
    "redirects by meta refresh": 0.003,
    "redirect chains": 0.003,
    "redirect chains beyond any hop cap": 0.0002,
    "redirect cycles": 0.0004,
    "redirects to a missing page": 0.0005,
    "noindex pages": 0.005,
    "missing pages": 0.002,
}
"""Fractions of the chosen documents; at least one of each kind, if there are documents."""

BEYOND: Final = 12
"""Hops of the chains that are too long: browsers and crawlers give up after 5 to 10, some at 20."""

_MIRRORS: Final = 3
_MOVED: Final = "https://moved.example"
_STATUSES: Final = (301, 302, 307, 308)
# In turn: exact copies, copies that declare the original, copies with a few other words.
_MANNERS: Final = ("copy", "canonical", "near", "copy", "canonical", "copy", "near", "canonical")


@dataclass(frozen=True, slots=True)
class Located:
    """A document and its site."""

    site: Site
    document: Document

    @property
    def url(self) -> str:
        """The document's URL."""
        return self.document.url

    @property
    def file(self) -> tuple[str, str]:
        """Package and path of the file: the same for all URLs that show it."""
        return self.site.package.name, self.document.path


@dataclass(slots=True)
class Plan:
    """The additions to the documents.

    `answers` are the added responses; those for the documents themselves come from `answer`, which
    is the same for every crawl of a document.
    """

    seed: int
    answers: list[Answer] = field(default_factory=list)
    truth: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    links: dict[tuple[str, str], CrossLinks] = field(default_factory=dict)
    noindex: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def answer(self, site: Site, document: Document, *more: Edit) -> Answer:
        """The response for a document, with its additions and with more edits."""
        edits: list[Edit] = []
        headers: tuple[tuple[str, str], ...] = ()
        if found := self.links.get((site.package.name, document.path)):
            edits.append(found)
        match self.noindex.get(document.url):
            case "meta":
                edits.append(NoIndex())
            case "header":
                headers = (("X-Robots-Tag", "noindex"),)
        return page(site, document, *edits, *more, headers=headers)

    def note(self, what: str, **facts: Any) -> None:
        """Record one line of the truth."""
        self.truth.setdefault(what, []).append(facts)

    def take(self, pool: Iterator[Located], count: int) -> list[Located]:
        """The next unused documents of a pool; fewer when it is exhausted."""
        taken: list[Located] = []
        while len(taken) < count and (one := next(pool, None)) is not None:
            if one.url not in self.used:
                self.used.add(one.url)
                taken.append(one)
        return taken


def make_plan(documents: Sequence[Located], seed: int) -> Plan:
    """Plan the additions to these documents, given in the order of their URLs."""
    plan = Plan(seed)
    plain = [one for one in documents if one.document.kind is Kind.PAGE]
    pool = iter(sorted(plain, key=lambda one: rank(seed, "pool", one.url)))

    def count(what: str) -> int:
        return max(1, round(SHARES[what] * len(documents))) if documents else 0

    _mirrors(plan, plain, count("mirrored pages"))
    _printable(plan, plan.take(pool, count("printable copies")))
    _redirects(plan, plan.take(pool, count("redirects")))
    for one in plan.take(pool, count("redirects by meta refresh")):
        source = _moved("page", one.url)
        plan.answers.append(refresh(source, one.url))
        plan.note("redirects", url=source, kind="refresh", hops=1, end=one.url)
    _chains(plan, plan.take(pool, count("redirect chains")), "chain")
    _chains(plan, plan.take(pool, count("redirect chains beyond any hop cap")), "beyond")
    _cycles(plan, count("redirect cycles"))
    _dead_ends(plan, count("redirects to a missing page"), count("missing pages"))
    for number, one in enumerate(plan.take(pool, count("noindex pages"))):
        plan.noindex[one.url] = ("meta", "header")[number % 2]
        plan.note("noindex", url=one.url, by=plan.noindex[one.url])
    _cross_links(plan, documents)
    # Now that the links are known, add them to the copies of a page.
    plan.answers = [_with_links(plan, one) for one in plan.answers]
    return plan


def _mirrors(plan: Plan, plain: Sequence[Located], count: int) -> None:
    by_url = {one.url: one for one in plain}
    number = 0
    for block in blocks(list(by_url), plan.seed, "mirrors"):
        host = f"https://mirror-{1 + rank(plan.seed, block[0]) % _MIRRORS}.example"
        for url in block:
            if number == count:
                return
            one = by_url[url]
            plan.used.add(url)
            manner = _MANNERS[number % len(_MANNERS)]
            number += 1
            copy = f"{host}/{url.partition('://')[2]}"
            edits: tuple[Edit, ...] = ()
            if manner == "canonical":
                edits = (Canonical(url),)
            elif manner == "near":
                edits = (Reword(1 + number % 3, copy),)
            plan.answers.append(page(one.site, one.document, *edits, url=copy))
            plan.note("mirrors", url=copy, of=url, kind=manner)


def _printable(plan: Plan, chosen: Sequence[Located]) -> None:
    """Copies on the same host with other words, which only their canonical link joins."""
    for one in chosen:
        copy = f"{one.url}?print=1"
        edits = (Reword(25, copy), Paragraph("Printable version of this page."))
        plan.answers.append(page(one.site, one.document, *edits, Canonical(one.url), url=copy))
        plan.note("printable", url=copy, canonical=one.url)


def _moved(kind: str, url: str) -> str:
    return f"{_MOVED}/{kind}/{url.partition('://')[2]}"


def _redirects(plan: Plan, chosen: Sequence[Located]) -> None:
    """One hop, from another host, or on the same host with a relative location."""
    for number, one in enumerate(chosen):
        status = _STATUSES[number % len(_STATUSES)]
        parts = urlsplit(one.url)
        if number // len(_STATUSES) % 2:
            source, location = f"{parts.scheme}://{parts.netloc}/old{parts.path}", parts.path
        else:
            source, location = _moved("old", one.url), one.url
        plan.answers.append(redirect(source, status, location))
        plan.note("redirects", url=source, kind=str(status), hops=1, end=one.url)


def _chains(plan: Plan, chosen: Sequence[Located], kind: str) -> None:
    for number, one in enumerate(chosen):
        hops = BEYOND if kind == "beyond" else 2 + number % 3
        sources = [_moved(f"{kind}-{hop}", one.url) for hop in range(hops)]
        for hop, (source, target) in enumerate(zip(sources, [*sources[1:], one.url], strict=True)):
            status = _STATUSES[(number + hop) % len(_STATUSES)]
            plan.answers.append(redirect(source, status, target))
        plan.note("redirects", url=sources[0], kind=kind, hops=hops, end=one.url)


def _cycles(plan: Plan, count: int) -> None:
    for number in range(max(3, count)):
        members = [f"{_MOVED}/cycle-{number}/{at}" for at in range(1 + number % 3)]
        for source, target in zip(members, [*members[1:], members[0]], strict=True):
            plan.answers.append(redirect(source, _STATUSES[number % len(_STATUSES)], target))
            plan.note("redirects", url=source, kind="cycle", hops=len(members), end=None)


def _dead_ends(plan: Plan, redirects: int, pages: int) -> None:
    for number in range(redirects):
        gone = f"{_MOVED}/gone/{number}"
        source = f"{_MOVED}/to-gone/{number}"
        plan.answers += [redirect(source, 301, gone), missing(gone, 404)]
        plan.note("redirects", url=source, kind="dead", hops=1, end=None)
        plan.note("missing", url=gone, status=404)
    for number in range(pages):
        status = (404, 404, 410)[number % 3]
        url = f"{_MOVED}/missing/{number}"
        plan.answers.append(missing(url, status))
        plan.note("missing", url=url, status=status)


def _cross_links(plan: Plan, documents: Sequence[Located]) -> None:
    """Links to other hosts. Few targets get many of them, as everywhere on the web.

    Where a file has several URLs, all of them show the same links, for they are one page.
    """
    rng = random.Random(f"{plan.seed} links")
    pages_of = [one.url for one in sorted(documents, key=lambda one: rank(plan.seed, one.url))]
    pools = [
        pages_of,
        [one["url"] for one in plan.truth.get("mirrors", ())],
        [one["url"] for one in plan.truth.get("redirects", ())]
        + [one["url"] for one in plan.truth.get("missing", ())],
    ]
    share = SHARES["pages with links to other hosts"]
    linking = share_of(share, (one.file for one in documents), plan.seed, "links")
    for one in documents:
        if one.file in plan.links or one.file not in linking:
            continue
        targets: dict[str, str] = {}
        for _ in range(rng.randint(1, 3)):
            [pool] = rng.choices(pools, (70, 15, 15))
            # The cube makes the first targets of a pool far more frequent than the last.
            target = pool[int(rng.random() ** 3 * len(pool))] if pool else one.url
            if urlsplit(target).netloc != urlsplit(one.url).netloc:
                targets[target] = _words(target)
        if targets:
            plan.links[one.file] = CrossLinks(tuple(targets.items()))


def _words(url: str) -> str:
    """Plausible link text: words of the path, else the host."""
    parts = urlsplit(url)
    name = parts.path.rstrip("/").rpartition("/")[2].partition(".")[0]
    return " ".join(name.replace("-", " ").replace("_", " ").split())[:60] or parts.netloc


def _with_links(plan: Plan, answer: Answer) -> Answer:
    if answer.site is None or answer.document is None:
        return answer
    found = plan.links.get((answer.site.package.name, answer.document.path))
    if found is None:
        return answer
    edits = (found, *answer.edits)
    return page(answer.site, answer.document, *edits, url=answer.url, headers=answer.headers)
