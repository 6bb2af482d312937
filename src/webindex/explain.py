"""What a repository knows of one page, and why it stands in the index the way it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from percola import Repository
from webindex import tables
from webindex.observers import election_order
from webindex.urls import normalise, page_row


@dataclass(frozen=True, slots=True)
class Version:
    """One capture of the page that the repository keeps, with its commit timestamp."""

    commit_ts: int
    date: str
    status: int
    digest: str
    file: str
    offset: int


@dataclass(slots=True)
class Explanation:
    """Everything about a page; `reasons` are sentences.

    Attributes:
        known: whether a capture of the page was ever loaded.
        in_links: (URL, anchors, rel) of each page that links to this very page.
        out_links: (URL, anchors, rel) of each link of the page.
        members: URLs of the cluster, canonical first; `canonical` is None if it shows nothing.
    """

    url: str
    row: str
    known: bool
    title: str = ""
    language: str | None = None
    versions: list[Version] = field(default_factory=list)
    cluster: str | None = None
    canonical: str | None = None
    members: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    in_links: list[tuple[str, list[str], str]] = field(default_factory=list)
    out_links: list[tuple[str, list[str], str]] = field(default_factory=list)
    cluster_in_links: int = 0


def explain(repo: Repository, url: str) -> Explanation:
    """Gather what the repository knows of a URL. Raises BadUrlError if it is not one."""
    url = normalise(url)
    row = page_row(url)
    now = repo.snapshot()
    page = now.get_row(
        tables.pages,
        row,
        [tables.capture, tables.fingerprint, tables.links, tables.cluster],
    )
    result = Explanation(url, row, known=tables.capture in page)
    linking = now.get_row(tables.inlinks, row, [tables.source]).family(tables.source)
    result.in_links = sorted((one["url"], one["anchors"], one["rel"]) for one in linking.values())
    if not result.known:
        result.reasons.append(
            "No capture of this page was loaded"
            + (f"; {len(linking)} pages link to it." if linking else ", and no page links to it.")
        )
        return result
    result.out_links = [(u, anchors, rel) for u, anchors, rel in page.get(tables.links, [])]
    result.versions = [
        Version(ts, c["date"], c["status"], c["digest"], c["file"], c["offset"])
        for ts, c in repo.versions(tables.capture, row)
        if c is not None
    ]
    known = page.get(tables.fingerprint)
    if known is None:
        status = page[tables.capture]["status"]
        result.reasons.append(
            f"Its newest capture answered with status {status}: the page is not in the index."
            if not 200 <= status < 300
            else "It has not been processed yet: run 'webindex work'."
        )
        return result
    result.title, result.language = known["title"], known["language"]
    result.cluster = page.get(tables.cluster)
    if result.cluster is None:
        result.reasons.append("It has not joined a cluster yet: run 'webindex work'.")
        return result
    shown = now.get_row(tables.clusters, result.cluster, [tables.member, tables.document])
    members = sorted(shown.family(tables.member).values(), key=election_order)
    document = shown.get(tables.document)
    result.canonical = document["url"] if document else None
    result.members = [one["url"] for one in members]
    result.cluster_in_links = document["inlinks"] if document else 0
    result.reasons = _reasons(url, members, document)
    return result


def _reasons(url: str, members: list[dict[str, Any]], document: dict[str, Any] | None) -> list[str]:
    if not any(one["indexable"] for one in members):
        return ["No page of its cluster may be indexed (noindex): search does not show it."]
    if document is None:
        return ["Its cluster has no document yet: run 'webindex work'."]
    if len(members) == 1:
        return ["No other page has the same text, so it stands for itself."]
    canonical = document["url"]
    rivals = [one for one in members if one["url"] != canonical]
    first = next(one for one in members if one["url"] == canonical)
    reasons = [f"{len(members)} pages have the same text; {canonical} stands for them."]
    for rival in rivals[:5]:
        other = rival["url"]
        if not rival["indexable"]:
            why = "may not be indexed (noindex)"
        elif election_order(first)[0] != election_order(rival)[0]:
            why = "is not https"
        elif len(other) != len(canonical):
            why = f"has the longer URL ({len(other)} characters against {len(canonical)})"
        else:
            why = "comes later in the alphabet"
        reasons.append(f"{other} {why}.")
    if url != canonical:
        reasons.append("Links to this page count for the one that stands for it.")
    return reasons
