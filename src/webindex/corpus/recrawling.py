"""The second crawl: another version of a package, or changes generated from the seed.

A *real* recrawl is what a crawler would have found after the package's newer version came out: new
bytes, new pages, removed pages. A *seeded* one consists of the same documents with small
changes; the names of its files and the manifest mark it as such.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from webindex.corpus.answers import Answer, missing, page, redirect
from webindex.corpus.choosing import rank, share_of
from webindex.corpus.edits import Comment, Paragraph, Reword, Rule
from webindex.corpus.mounting import Document, Kind, Site
from webindex.corpus.resources import most_used_style
from webindex.corpus.seeding import Located, Plan

__all__ = ["SHARES", "real_recrawl", "removals", "restyled", "seeded_recrawl"]

SHARES: Final = {
    "pages that are gone (404)": 0.01,
    "pages that are gone for good (410)": 0.005,
    "pages that became a redirect": 0.005,
    "pages of a seeded recrawl with a changed text": 0.03,
}
"""Fractions of the chosen documents."""


def real_recrawl(
    plan: Plan, old: Site, new: Site, chosen: Collection[str], counts: Counter[str]
) -> Iterator[Answer]:
    """The responses of the newer version for the chosen URLs of either version."""
    for url, document in new.documents.items():
        if _is_chosen(url, chosen):
            counts["new"] += url not in old.documents
            yield plan.answer(new, document)
    for url in old.documents:
        if url not in new.documents and _is_chosen(url, chosen):
            counts["gone"] += 1
            plan.note("removed", url=url, status=404, real=True)
            yield missing(url)


def _is_chosen(url: str, chosen: Collection[str]) -> bool:
    """Whether a URL is chosen; a folder is if its index is."""
    return (url + "index.html" if url.endswith("/") else url) in chosen


def removals(plan: Plan, documents: Sequence[Located]) -> Iterator[Answer]:
    """Pages that were removed, and pages that became a redirect to another page of their site.

    Takes unused documents only, and marks them as used.
    """
    plain = [one for one in documents if one.document.kind is Kind.PAGE]
    pool = iter(sorted(plain, key=lambda one: rank(plan.seed, "removals", one.url)))

    def take(what: str) -> list[Located]:
        return plan.take(pool, max(1, round(SHARES[what] * len(documents))))

    for one in take("pages that are gone (404)"):
        plan.note("removed", url=one.url, status=404, real=False)
        yield missing(one.url, 404)
    for one in take("pages that are gone for good (410)"):
        plan.note("removed", url=one.url, status=410, real=False)
        yield missing(one.url, 410)
    turned = take("pages that became a redirect")
    for one in turned:
        # The target must stay, so it is marked as used, too.
        others = [other for other in plain if other.site is one.site]
        at = rank(plan.seed, "target", one.url) % len(others)
        around = iter([*others[at:], *others[:at]])
        for target in plan.take(around, 1):
            plan.note("turned", url=one.url, status=301, end=target.url)
            yield redirect(one.url, 301, target.url)


def restyled(plan: Plan, site: Site, pages: Sequence[Document]) -> Iterator[Answer]:
    """The stylesheet that most pages of a site name, with a rule that it did not have."""
    found = most_used_style(site, pages)
    if found is not None:
        style, by = found
        plan.note("restyled", url=style.url, pages=by)
        yield page(site, style, Rule(f"{rank(plan.seed, style.url) % 0x1000000:06x}"))


def seeded_recrawl(
    plan: Plan, documents: Sequence[Located], taken: Collection[str], counts: Counter[str]
) -> Iterator[Answer]:
    """All documents again, a fraction of them with another text, the rest with other bytes.

    `taken` are URLs that have a response in this crawl already.
    """
    rest = [one for one in documents if one.url not in taken]
    share = SHARES["pages of a seeded recrawl with a changed text"]
    # By file, as several URLs of one file show one page.
    changed = share_of(share, (one.file for one in rest), plan.seed, "text")
    for one in rest:
        mark = f"{rank(plan.seed, *one.file):016x}"
        if one.file in changed:
            counts["rewritten"] += 1
            plan.note("rewritten", url=one.url)
            edits = (
                Reword(6, mark),
                Paragraph(f"This page was revised; the revision is known as {mark}."),
            )
            yield plan.answer(one.site, one.document, *edits)
        else:
            counts["other bytes"] += 1
            yield plan.answer(one.site, one.document, Comment(f"generated {mark}"))
