"""The report of one URL, and the page's status in search."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from percola import Repository, Snapshot
from percola import Row as RowOf
from webindex import tables
from webindex.load.removals import Rules, rules_for
from webindex.load.transaction import last_seen
from webindex.observers.documents import part_of
from webindex.observers.interim import is_interim
from webindex.page.pages import Page, parse_capture
from webindex.page.urls import normalise, page_row
from webindex.rendering import tables as rendering
from webindex.reports.cluster import Member, members_of
from webindex.reports.links import Counted, Link, counted, in_links, out_links
from webindex.reports.pending import Trouble, troubles, unparsed, waiting
from webindex.reports.picture import Picture, picture_of
from webindex.reports.redirect_paths import PointsHere, Way, points_here, way_of
from webindex.reports.to_crawl import is_listed, links_in_frontier
from webindex.reports.versions import Version, versions_of
from webindex.reports.withheld import asks
from webindex.serving.base import ServingIndex
from webindex.text_format import count, date

_LAST_DATE: Final = "9999"
"""Later than all dates of captures."""

EXCERPT: Final = 600
"""Characters of the text to show."""

SHOWN: Final = "shown"
FOLDED: Final = "folded"
MOVED: Final = "moved"
WAITING: Final = "waiting"
HIDDEN: Final = "hidden"
UNKNOWN: Final = "unknown"

_KINDS: Final = {
    "style": "a stylesheet",
    "image": "an image",
    "font": "a font",
    "script": "a script",
}

HEADLINES: Final = {
    SHOWN: "In search",
    FOLDED: "In search, under another page",
    MOVED: "In search, under the page it redirects to",
    WAITING: "Not in search yet",
    HIDDEN: "Not in search",
    UNKNOWN: "Never captured",
}


@dataclass(frozen=True, slots=True)
class Rank:
    """PageRank of the page, 1 being the mean of all pages.

    Attributes:
        run: the timestamp of the snapshot that it was computed from. A later run that would
            have changed it by very little left it as it was.
        at_ms: when that run began; None if its report is not there.
        interim: whether it is an estimate, from the ranks of that run: the page is newer.
    """

    value: float
    run: int
    at_ms: int | None
    interim: bool = False


@dataclass(slots=True)
class Story:
    """All that is known of a URL.

    Attributes:
        standing: one of the keys of `HEADLINES`; `reasons` are sentences that explain it.
        waiting: pending work for it, as sentences.
        document: for a PDF document, a sentence about it and what could not be read of it.
        left_out: the beginning and the end of its text, as far as search leaves them out because
            its host repeats them. With nosnippet there are none.
        asks: the directives of a live page: of noindex, nofollow, noarchive and nosnippet, those
            that it has. With nosnippet there is no `excerpt`, with noarchive no `picture`.
        unchanged: when a crawler last found it unchanged, without a new capture.
        unresolved: how many newer revisits refer to captures that were not loaded.
        way: where it points; None if it points nowhere.
        pointing: the pages that point to it.
        cluster: its own; None unless it is live. `size` is how many pages it has, of which
            `members` are the first.
        canonical: the URL under which search shows its document; None if there is none.
        anchors: the texts of links to its document, with their numbers, the most frequent first.
        document_in_links: links from outside of its document to a URL of it: what search shows.
        counted: the URLs that they name, with how many links each has.
        inside: links between pages of its document, which are subtracted.
        aliases: redirects that lead to a page of its document.
        picture: its image; None if it was not rendered.
        kept_as: if it was captured as no page, what it is: a sitemap, an image, and when.
        frontier: if it was never captured and is in the frontier, how many links vouch for it.
        listed: whether a sitemap lists it that was never captured.
        in_links: the links to this URL; `in_links_more` says that there are others, not read.
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
    document: str | None = None
    left_out: list[str] = field(default_factory=list)
    asks: list[str] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    unchanged: str | None = None
    unresolved: int = 0
    way: Way | None = None
    pointing: list[PointsHere] = field(default_factory=list)
    rank: Rank | None = None
    cluster: str | None = None
    canonical: str | None = None
    size: int = 0
    members: list[Member] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    anchors: list[tuple[str, int]] = field(default_factory=list)
    document_in_links: int = 0
    counted: list[Counted] = field(default_factory=list)
    inside: int = 0
    picture: Picture | None = None
    kept_as: str | None = None
    frontier: int = 0
    listed: bool = False
    in_links: list[Link] = field(default_factory=list)
    in_links_more: bool = False
    out_links: list[Link] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The status in a few words."""
        if self.standing == UNKNOWN and self.kept_as is not None:
            return "Not a page"
        return HEADLINES[self.standing]

    @property
    def known(self) -> bool:
        """Whether a capture of it was ever loaded."""
        return self.status is not None


_COLUMNS: Final = [
    tables.capture,
    tables.body,
    tables.revisited,
    tables.unresolved,
    tables.text,
    tables.fingerprint,
    tables.links,
    tables.pointer,
    tables.rank,
    tables.joined,
]


def tell(repo: Repository, index: ServingIndex, url: str) -> Story:
    """Compile the report of a URL. Raises BadUrlError if it is not one."""
    url = normalise(url)
    row = page_row(url)
    story = Story(url, row, 0)
    with repo.snapshot() as now:
        story.start_ts = now.start_ts
        page = now.get_row(tables.pages, row, _COLUMNS)
        capture, known = page.get(tables.capture), page.get(tables.fingerprint)
        parsed = not unparsed(repo, row)
        story.unresolved = page.get(tables.unresolved, 0)
        if capture is not None:
            story.status = capture["status"]
            read = _read(page) if known is not None and parsed else None
            story.asks = _asks(read)
            story.document = _document(read)
            seen = last_seen(capture, page.get(tables.revisited))
            story.unchanged = seen if seen > capture["date"] else None
            story.way = way_of(now, capture, page.get(tables.pointer), read)
        if known is not None:
            story.title, story.language = known["title"], known["language"]
            if not asks(known, "nosnippet"):
                text, part = page.get(tables.text, ""), part_of(now, url)
                story.excerpt = text[part][:EXCERPT]
                ends = (text[: part.start], "" if part.stop is None else text[part.stop :])
                story.left_out = [end.strip() for end in ends if end]
        story.rank = _rank(now, page.get(tables.rank))
        story.pointing = points_here(now, row)
        # Of a page that is gone, or redirects, it is not known what it asked for.
        if known is not None and not asks(known, "noarchive"):
            story.picture = picture_of(now, row)
        if capture is None:
            story.kept_as = _kept_as(now, row)
            if story.kept_as is not None:
                story.unresolved = 0
            story.frontier = links_in_frontier(now, url)
            story.listed = is_listed(now, url)
            story.reasons = _removal(rules_for(now, [url]), url)

        joined = page.get(tables.joined)
        story.cluster = joined["cluster"] if joined is not None else None
        shown = _Shown(now, story.cluster or _cluster_at_end(now, story.way))
        if story.cluster is not None:
            story.size = len(shown.members)
            canonical = shown.document["url"] if shown.document is not None else None
            story.members = members_of(now, shown.members, url, canonical)
        if shown.document is not None:
            story.counted, story.inside = counted(now, shown.document)
        story.in_links, story.in_links_more = in_links(now, row, shown.members)
        urls = {one["url"] for one in shown.members.values()}
        story.out_links = out_links(page.get(tables.links, []), urls)
        story.waiting = list(waiting(repo, now, row, story.cluster))
        story.troubles = list(troubles(repo, row, story.cluster))
    if story.known:
        story.versions = versions_of(repo, row)
    if shown.document is not None:
        story.canonical = shown.document["url"]
        story.aliases = shown.document["aliases"]
        story.document_in_links = shown.document["inlinks"]
        story.anchors = [(words, number) for words, number in shown.document["anchors"]]
    if capture is None:
        story.reasons.append(_never_captured(story))
        if story.frontier:
            vouch = count(story.frontier, "link vouches", "links vouch")
            story.reasons.append(f"It is in the frontier, to be crawled: {vouch} for it.")
        elif story.listed:
            story.reasons.append("It is in the frontier, to be crawled: a sitemap lists it.")
    elif known is not None:
        _stand_as_page(story, shown, index)
    else:
        _stand_without_text(story, shown, index, parsed=parsed)
    if story.document is not None:
        story.reasons.append(story.document)
    if story.unresolved:
        story.reasons.append(_unresolved(story.unresolved))
    return story


def _unresolved(number: int) -> str:
    said = "A newer revisit refers" if number == 1 else f"{number} newer revisits refer"
    return f"{said} to a capture that was not loaded: the page becomes what that says once it is."


def places(repo: Repository, urls: Iterable[str]) -> dict[str, str]:
    """The kind of each normalised URL in the index: `page`, `redirect` to one, or `unknown`."""
    found = {}
    with repo.snapshot() as now:
        for url in urls:
            page = now.get_row(tables.pages, page_row(url), [tables.joined, tables.resolved])
            if tables.joined in page:
                found[url] = "page"
            else:
                found[url] = "redirect" if tables.resolved in page else "unknown"
    return found


def _read(page: RowOf[str]) -> Page | None:
    """The parsed page: the repository does not keep all directives of a page."""
    try:
        compressed = page.get(tables.body)
        body = zlib.decompress(compressed) if compressed else b""
        return parse_capture(page[tables.capture], body)
    except zlib.error:
        return None


def _document(read: Page | None) -> str | None:
    if read is None or read.document is None:
        return None
    pages = read.document.pages
    what = f"It is a PDF document of {count(pages, 'page')}." if pages else "It is a PDF document."
    return f"{what} {read.document.problem or ''}".rstrip()


def _asks(read: Page | None) -> list[str]:
    if read is None:
        return []
    names = ("noindex", "nofollow", "noarchive", "nosnippet")
    return [name for name in names if getattr(read, name)]


def _rank(now: Snapshot, rank: Mapping[str, Any] | None) -> Rank | None:
    if rank is None:
        return None
    report = now.get(tables.report, f"rank/{rank['run']:020}") or {}
    return Rank(rank["value"], rank["run"], report.get("started_ms"), is_interim(rank))


class _Shown:
    """The document of a page: its cluster's members by page id, and what it shows."""

    def __init__(self, now: Snapshot, cluster: str | None) -> None:
        self.cluster = cluster
        self.members: dict[str, dict[str, Any]] = {}
        self.document: dict[str, Any] | None = None
        if cluster is not None:
            found = now.get_row(tables.clusters, cluster, [tables.member, tables.document])
            self.members = found.family(tables.member)
            self.document = found.get(tables.document)


def _cluster_at_end(now: Snapshot, way: Way | None) -> str | None:
    """The cluster that a redirect's links count for."""
    if way is None or way.kind != "redirect" or way.end is None:
        return None
    joined = now.get(tables.joined, page_row(way.end))
    return joined["cluster"] if joined is not None else None


# --- Whether and why it is in search --------------------------------------------------------


def _removal(rules: Rules, url: str) -> list[str]:
    """The sentence that says that this URL was removed; none if it was not."""
    if rules.refuses(url, _LAST_DATE):
        return ["It is blocked: no capture of it is loaded."]
    if rules.refuses(url, ""):
        return ["It was removed: only captures made after that are loaded."]
    return []


def _kept_as(now: Snapshot, row: str) -> str | None:
    """What a URL was captured as, and when, if that is no page."""
    sitemap = now.get(tables.sitemap, row)
    if sitemap is not None:
        what = "a robots.txt" if sitemap["kind"] == "robots" else "a sitemap"
        return f"{what} of {date(sitemap['date'])}"
    resource = now.get(rendering.capture, row)
    return None if resource is None else f"{_KINDS[resource['kind']]} of {date(resource['date'])}"


def _never_captured(story: Story) -> str:
    if story.kept_as is not None:
        return f"It was captured as {story.kept_as}. That is no page: search does not show it."
    linked, pointing = len(story.in_links), len(story.pointing)
    over = "more than " if story.in_links_more else ""
    found = [over + count(linked, "page links", "pages link") + " to it"] if linked else []
    if pointing:
        found.append(count(pointing, "page points", "pages point") + " to it")
    but = f", but {' and '.join(found)}" if found else ", and no page links to it"
    return f"No capture of this page was loaded{but}."


def _stand_without_text(story: Story, shown: _Shown, index: ServingIndex, *, parsed: bool) -> None:
    """Set the status of a page that is not live."""
    status = story.status
    assert status is not None
    if story.way is None:
        if not parsed or 200 <= status < 300:
            story.standing = WAITING
            story.reasons = ["Its newest capture has not been parsed yet."]
            return
        story.standing = HIDDEN
        answered = f"Its newest capture answered with status {status}"
        if status < 400:
            story.reasons = [f"{answered}, and does not say where else to go."]
        else:
            story.reasons = [f"{answered}: the page is gone, and its links count no more."]
        return
    story.standing = HIDDEN
    story.reasons = [story.way.verdict]
    if story.way.end is None:
        return
    if shown.document is None:
        story.reasons.append("That page is not in search.")
        return
    story.standing = MOVED
    if shown.document["url"] != story.way.end:
        story.reasons.append(
            f"That page is one document with {shown.document['url']}, which stands for it."
        )
    story.reasons.append("Links to this URL count for the page that search shows.")
    _lagging(story, shown, index)


def _stand_as_page(story: Story, shown: _Shown, index: ServingIndex) -> None:
    """Set the status of a page with a text."""
    story.standing = WAITING
    if story.cluster is None:
        story.reasons = ["It has been parsed, but has not joined a cluster yet."]
        return
    me = next((one for one in story.members if one.url == story.url), None)
    if not any(one["indexable"] for one in shown.members.values()):
        story.standing = HIDDEN
        alone = len(shown.members) == 1
        subject = "It asks" if alone else "It and all pages that are one document with it ask"
        story.reasons = [f"{subject} not to be indexed (noindex)."]
    elif shown.document is None:
        story.reasons = ["Its cluster has no document yet."]
        return
    elif story.url == shown.document["url"]:
        story.standing = SHOWN
        others = len(shown.members) - 1
        story.reasons = [
            f"It is one document with {count(others, 'other page')}, and stands for "
            f"{'it' if others == 1 else 'them'}."
            if others
            else "No other page is one document with it: it stands for itself."
        ]
    else:
        story.standing = FOLDED
        canonical = shown.document["url"]
        story.reasons = [f"It is one document with {canonical}, which stands for it."]
        if me is not None:
            story.reasons += [*me.belongs, me.why]
        story.reasons.append("Links to it count for the page that stands for it.")
    if story.way is not None and not (story.way.counts and story.standing == FOLDED):
        story.reasons.append(story.way.verdict)
    if story.standing != HIDDEN:
        _lagging(story, shown, index)


def _lagging(story: Story, shown: _Shown, index: ServingIndex) -> None:
    """Report where the search index lags the repository."""
    assert shown.cluster is not None and shown.document is not None
    held = index.get(shown.cluster)
    if held is None:
        story.standing = WAITING
        story.reasons.append("The search index does not hold its document yet.")
    elif held.epoch < shown.document["epoch"]:
        story.reasons.append("Search still shows an older state of it.")
