"""A page's story: what is known of one URL, and why search shows it, or does not.

Everything is read at one timestamp, but the versions, which are all that is kept, and the search
index, which follows the repository by milliseconds: where it has not yet, the story says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from percola import Column, Repository, Snapshot, Table, WeakColumn, inspection
from webindex import tables
from webindex.observers import election_order
from webindex.serving.base import ServingIndex
from webindex.site.election import why_not
from webindex.site.shown import count
from webindex.urls import normalise, page_row

EXCERPT: Final = 600
"""Characters of the text that are shown."""

SHOWN: Final = "shown"
FOLDED: Final = "folded"
WAITING: Final = "waiting"
HIDDEN: Final = "hidden"
UNKNOWN: Final = "unknown"

HEADLINES: Final = {
    SHOWN: "In search",
    FOLDED: "In search, under another page",
    WAITING: "Not in search yet",
    HIDDEN: "Not in search",
    UNKNOWN: "Never captured",
}

STEPS: Final[Mapping[str, str]] = {
    "pages.capture": "to be parsed",
    "pages.links": "to have its links inverted",
    "pages.fingerprint": "to join a cluster",
    "inlinks.changed": "to tell its cluster of new in-links",
    "clusters.changed": "to have its document assembled",
    "outbox.ready": "to be exported to search",
}
"""What a dirty column waits for. One that is not here is shown by its name."""


@dataclass(frozen=True, slots=True)
class Version:
    """One capture that is kept, and what it changed."""

    commit_ts: int
    date: str
    status: int
    file: str
    offset: int
    change: str


@dataclass(frozen=True, slots=True)
class Member:
    """A page of the cluster; `why` says why it does not stand for the others."""

    url: str
    title: str
    language: str | None
    canonical: bool
    why: str


@dataclass(frozen=True, slots=True)
class Link:
    """A link to or from the page; `counts` says whether it recommends the target's cluster."""

    url: str
    anchors: list[str]
    rel: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Trouble:
    """An observer that was set aside on something of this page."""

    observer: str
    attempts: int
    at_ms: int
    error: str
    traceback: str


@dataclass(slots=True)
class Story:
    """All that is known of a URL.

    Attributes:
        standing: one of the keys of `HEADLINES`; `reasons` are sentences that say why.
        waiting: what is still to be done for it, as sentences.
        canonical: the URL that stands for the cluster; None if nothing does.
        anchors: what the links to the cluster say, with how many do, the most frequent first.
        cluster_in_links: pages outside of the cluster that link to one of it.
    """

    url: str
    row: str
    start_ts: int
    standing: str = UNKNOWN
    title: str = ""
    language: str | None = None
    excerpt: str = ""
    status: int | None = None
    reasons: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    cluster: str | None = None
    canonical: str | None = None
    members: list[Member] = field(default_factory=list)
    anchors: list[tuple[str, int]] = field(default_factory=list)
    in_links: list[Link] = field(default_factory=list)
    out_links: list[Link] = field(default_factory=list)
    cluster_in_links: int = 0

    @property
    def headline(self) -> str:
        """The standing in a few words."""
        return HEADLINES[self.standing]


def tell(repo: Repository, index: ServingIndex, url: str) -> Story:
    """Gather the story of a URL. Raises BadUrlError if it is not one."""
    url = normalise(url)
    row = page_row(url)
    with repo.snapshot() as now:
        story = Story(url, row, now.start_ts)
        columns = [tables.capture, tables.fingerprint, tables.links, tables.cluster, tables.text]
        page = now.get_row(tables.pages, row, columns)
        story.cluster = page.get(tables.cluster)
        members, document = _cluster(now, story.cluster)
        capture, known = page.get(tables.capture), page.get(tables.fingerprint)
        if known is not None:
            story.title, story.language = known["title"], known["language"]
            story.excerpt = page.get(tables.text, "")[:EXCERPT]
        story.in_links = _in_links(now, row, members)
        story.out_links = [
            Link(target, anchors, rel, rel == "follow")
            for target, anchors, rel in page.get(tables.links, [])
        ]
        if document is not None:
            story.canonical = document["url"]
            story.cluster_in_links = document["inlinks"]
            story.anchors = [(words, number) for words, number in document["anchors"]]
        story.members = _members(members, story.canonical)
        story.waiting = list(_waiting(repo, now, story))
        story.troubles = list(_troubles(repo, story))
    if capture is not None:
        story.status = capture["status"]
        story.versions = _versions(repo, row)
    story.standing, story.reasons = _standing(index, story, known, members, document)
    return story


def captured(repo: Repository, urls: Iterable[str]) -> set[str]:
    """Those of the normalised URLs of which a live capture is known."""
    asked = list(urls)
    with repo.snapshot() as now:
        found = now.get_many([(tables.cluster, page_row(url)) for url in asked])
    return {url for url, cluster in zip(asked, found, strict=True) if cluster is not None}


# --- The cluster ----------------------------------------------------------------------------


def _cluster(
    now: Snapshot, cluster: str | None
) -> tuple[dict[str, dict[str, Any]], dict[str, Any] | None]:
    """Its members by page id, and its document."""
    if cluster is None:
        return {}, None
    found = now.get_row(tables.clusters, cluster, [tables.member, tables.document])
    return found.family(tables.member), found.get(tables.document)


def _members(members: Mapping[str, dict[str, Any]], canonical: str | None) -> list[Member]:
    ordered = sorted(members.values(), key=lambda one: (not one["indexable"], election_order(one)))
    winner = next((one for one in ordered if one["url"] == canonical), None)
    found = []
    for one in ordered:
        if one is winner:
            why = ""
        elif winner is None:
            why = "" if one["indexable"] else "It asks not to be indexed (noindex)."
        else:
            why = why_not(winner, one)
        found.append(Member(one["url"], one["title"], one["language"], one is winner, why))
    return found


# --- Links ----------------------------------------------------------------------------------


def _in_links(now: Snapshot, row: str, members: Mapping[str, Any]) -> list[Link]:
    linking = now.get_row(tables.inlinks, row, [tables.source]).family(tables.source)
    links = [
        Link(one["url"], one["anchors"], one["rel"], one["rel"] == "follow" and name not in members)
        for name, one in linking.items()
    ]
    return sorted(links, key=lambda link: (not link.counts, link.url))


# --- Versions -------------------------------------------------------------------------------


def _versions(repo: Repository, row: str) -> list[Version]:
    """The captures that are kept, newest first, each with what the parser made of it."""
    captures = [(ts, one) for ts, one in repo.versions(tables.capture, row) if one is not None]
    states = repo.versions(tables.fingerprint, row)
    safe_point = repo.services.store.safe_point()
    found = []
    following: float = float("inf")
    for place, (ts, capture) in enumerate(captures):
        older = captures[place + 1][1] if place + 1 < len(captures) else None
        after = next(((at, state) for at, state in states if ts < at < following), None)
        # What came before it may have been collected, unless it is above the safe point.
        first = older is None and ts > safe_point
        before = next((state for at, state in states if at < ts), None)
        found.append(
            Version(
                ts,
                capture["date"],
                capture["status"],
                capture["file"],
                capture["offset"],
                _change(capture, older, before, after, first=first),
            )
        )
        following = ts
    return found


def _change(
    capture: Mapping[str, Any],
    older: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
    after: tuple[int, Mapping[str, Any] | None] | None,
    *,
    first: bool,
) -> str:
    """What a capture changed, given the states of the page before it and after it."""
    if older is None and not first:
        return "The oldest version that is kept."
    if after is not None:
        state = after[1]
        if state is None:
            return "The page left the index."
        if before is None:
            return "The page came into the index."
        if state["hash"] != before["hash"]:
            return "The text changed."
        if state["title"] != before["title"]:
            return "The title changed; the text did not."
        return "The text did not change."
    if older is None:
        live = 200 <= capture["status"] < 300
        return "It has not been parsed yet." if live else "It has no text to put into the index."
    if capture["digest"] == older["digest"]:
        return "The same bytes as before."
    return "The bytes changed; no change of the text was seen."


# --- What is still to be done ---------------------------------------------------------------


def _cells(story: Story) -> Iterator[tuple[Table[str], str]]:
    """The rows whose notifications and failures concern the page."""
    yield tables.pages, story.row
    yield tables.inlinks, story.row
    if story.cluster is not None:
        yield tables.clusters, story.cluster


def _waiting(repo: Repository, now: Snapshot, story: Story) -> Iterator[str]:
    for table, row in _cells(story):
        for column in table.members:
            if not isinstance(column, WeakColumn) and not (
                isinstance(column, Column) and column.observed
            ):
                continue
            if any(version.notify for version in inspection.history(repo, column, row)):
                whose = "Its cluster" if table is tables.clusters else "The page"
                step = STEPS.get(repr(column), f"for the observer of {column!r}")
                yield f"{whose} waits {step}."
    if story.cluster is not None and any(
        True for _ in now.scan(tables.outbox, prefix=f"{story.cluster}/", columns=[tables.entry])
    ):
        yield f"Its cluster waits {STEPS['outbox.ready']}."


def _troubles(repo: Repository, story: Story) -> Iterator[Trouble]:
    for table, row in [*_cells(story), (tables.outbox, tables.OUTBOX_ROW)]:
        for one in inspection.failures(repo, table=table, row=row):
            yield Trouble(one.observer, one.attempts, one.at_ms, one.error, one.traceback)


# --- Whether and why it is in search --------------------------------------------------------


def _standing(
    index: ServingIndex,
    story: Story,
    known: Mapping[str, Any] | None,
    members: Mapping[str, Mapping[str, Any]],
    document: Mapping[str, Any] | None,
) -> tuple[str, list[str]]:
    if story.status is None:
        linked = len(story.in_links)
        return UNKNOWN, [
            "No capture of this page was loaded"
            + (
                f", but {count(linked, 'page links', 'pages link')} to it."
                if linked
                else ", and no page links to it."
            )
        ]
    if known is None:
        if 200 <= story.status < 300:
            return WAITING, ["Its newest capture has not been parsed yet."]
        if 300 <= story.status < 400:
            return HIDDEN, [
                f"Its newest capture is a redirect (status {story.status}): it has no text."
            ]
        gone = f"Its newest capture answered with status {story.status}: the page is gone,"
        return HIDDEN, [f"{gone} and its links count no more."]
    if story.cluster is None:
        return WAITING, ["It has been parsed, but has not joined a cluster yet."]
    if not any(one["indexable"] for one in members.values()):
        subject = "It asks" if len(members) == 1 else "All pages with this text ask"
        return HIDDEN, [f"{subject} not to be indexed (noindex)."]
    if document is None:
        return WAITING, ["Its cluster has no document yet."]
    reasons = []
    if story.url == document["url"]:
        standing = SHOWN
        if len(members) == 1:
            reasons.append("No other page has the same text, so it stands for itself.")
        else:
            others = count(len(members) - 1, "other page has", "other pages have")
            reasons.append(f"{others} the same text, and this one stands for them.")
    else:
        standing = FOLDED
        reasons.append(f"It has the same text as {document['url']}, which stands for it.")
        reasons += [one.why for one in story.members if one.url == story.url and one.why]
        reasons.append("Links to it count for the page that stands for it.")
    held = index.get(story.cluster)
    if held is None:
        return WAITING, [*reasons, "The search index does not hold its document yet."]
    if held.epoch < document["epoch"]:
        reasons.append("Search still shows an older state of it.")
    return standing, reasons
