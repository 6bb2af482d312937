"""§3.1: what the pages of a large cluster add up to, without reading all of them for each change.

    a member ──▶ (share) ──▶ share ─┬▶ entry in the tree ─▶ (due) ─▶ summarise: a node
                                    └▶ delta ─────────────▶ (due) ─▶ summarise: the root,
                                                                     and the document

A cluster with more than `LARGE_CLUSTER` members is *large*: `clusters.size` has their number, and a
change of a member no longer notifies `clusters.changed` but `pages.share` of that member. What a
member adds to the document is written once, by `share`, with a record of it in `pages.shared`:

    the election   its place in the order of election is its entry in a tree (`Nodes` of
                   `percola.recipes`), whose root has the first of all
    sums           links and anchors, which `share` adds to a delta, and the run for the root to
                   `totals` and to the texts beside it (`webindex.observers.texts`)
    redirects      one cell for each

Links between members count for neither. The page that links subtracts them: it looks up the
clusters of the pages that it links to. So `share` for a page that has joined or left a cluster,
or for a redirect that has changed, has the pages that link there look again, if they are in large
clusters. Each of these registers its link in one transaction (`invert`) and looks in a later one.

Who notifies what, so that no change is missed while a cluster becomes large or small again:

* `assemble` makes a cluster large, and the run for its root makes it small again. Both write
  `size`, which transactions that add or remove members lock, and both have all members share.
* A transaction that reads `size` only to know whom to notify may be wrong: then `assemble` is
  notified for a large cluster, and has all members share, or `share` for a page of a small one,
  and has the document assembled.
* `share` locks `inverted`: `invert` notifies it only for a page that has a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from percola import Column, Snapshot, Transaction, observer
from percola.recipes import shard_of
from webindex import tables
from webindex.observers.documents import (
    put_document,
    redirects_to,
    share_all,
    show,
)
from webindex.observers.election import election_order
from webindex.observers.texts import SUMMARY, Texts
from webindex.page.urls import page_id, page_row

__all__ = ["share", "summarise"]

_DELTAS: Final = 64
"""Cells for the deltas of one cluster, as of a page with many in-links."""

_SHOWN: Final = ("title", "language", "changed")
"""What the document shows of the elected member, besides its URL."""

Record = Mapping[str, Any]


# --- Members ------------------------------------------------------------------------------


def _read_ahead(t: Snapshot, rows: Sequence[str]) -> None:
    """Prefetch what `share` reads of these pages and of those that they link to."""
    own = (tables.shared, tables.joined, tables.capture, tables.rank, tables.inverted, tables.tally)
    t.get_many((column, row) for row in rows for column in own)
    t.get_rows(tables.aliases, rows, [tables.leads_here])
    cells: list[tuple[Column[str, Any], str]] = []
    for row in rows:
        joined, found = t.get(tables.joined, row), t.get(tables.capture, row)
        if joined is not None and found is not None:
            cells.append((tables.size, joined["cluster"]))
            cells.append((tables.member[page_id(found["url"])], joined["cluster"]))
            linked = _followed(t.get(tables.inverted, row))
            cells += [(tables.joined, page_row(url)) for url, _ in linked]
    t.get_many(cells)


@observer(tables.share_due, batch=tables.BATCH, ahead=_read_ahead)
def share(t: Transaction, row: str) -> None:
    """Replace what a page has added to the summary of a large cluster by what it adds now."""
    before: Record | None = t.get(tables.shared, row)
    joined = t.get(tables.joined, row)
    now = None
    if joined is not None:
        if t.get(tables.size, joined["cluster"]) is None:
            t.notify(tables.cluster_changed, joined["cluster"])
        else:
            now = _contribution(t, row, joined["cluster"])
    if before is None and now is None:
        # A redirect; or it has joined and left a cluster before it could share.
        _have_linking_share(t, {row})
        return
    if before == now:
        return
    tables.set_or_delete(t, tables.shared, row, now)
    if before is not None and now is not None and before["cluster"] == now["cluster"]:
        _add(t, before["cluster"], before, now)
    else:
        if before is not None:
            _add(t, before["cluster"], before, None)
        if now is not None:
            _add(t, now["cluster"], None, now)
    if before is None or now is None or before["since"] != now["since"]:
        urls = {url for one in (before, now) if one for url in (one["url"], *one["aliases"])}
        _have_linking_share(t, {page_row(url) for url in urls})


def _contribution(t: Transaction, row: str, cluster: str) -> dict[str, Any]:
    """What a member adds to the summary of its cluster."""
    found = t.get(tables.capture, row)
    assert found is not None, row
    url = found["url"]
    member = t.get(tables.member[page_id(url)], cluster)
    assert member is not None, (cluster, url)
    rank = t.get(tables.rank, row)
    order = election_order(member, rank["value"] if rank is not None else 0.0)
    aliases = sorted(redirects_to(t.get_rows(tables.aliases, [row], [tables.leads_here])))
    links = 0
    anchors: Counter[str] = Counter()
    for tally in t.get_many((tables.tally, page_row(one)) for one in (url, *aliases)):
        if tally is not None:
            links += tally["links"]
            anchors.update(tally["anchors"])
    linked = _followed(t.get_for_update(tables.inverted, row))
    for (_, words), its in zip(linked, _clusters_of(t, [to for to, _ in linked]), strict=True):
        if its == cluster:
            links -= 1
            anchors.subtract(words)
    return {
        "cluster": cluster,
        # A page that has left and come back has to be looked up again by those that link to it.
        "since": t.version(tables.joined, row),
        "url": url,
        "entry": [*order, *(member.get(name) for name in _SHOWN)] if member["indexable"] else None,
        "links": links,
        "anchors": {text: number for text, number in sorted(anchors.items()) if number},
        "aliases": aliases,
        "loaded_ms": member["loaded_ms"],
    }


def _followed(inverted: Iterable[Any] | None) -> list[tuple[str, list[str]]]:
    """The links of a page that vouch for their targets: URL and anchors."""
    return [(url, words) for url, words, rel in inverted or () if rel == "follow"]


def _clusters_of(t: Snapshot, urls: Sequence[str]) -> list[str | None]:
    """The cluster of each of these pages; of a redirect, that of the page that it leads to."""
    rows = [page_row(url) for url in urls]
    found = list(t.get_many((tables.joined, row) for row in rows))
    others = [at for at, joined in enumerate(found) if joined is None]
    ends = list(t.get_many((tables.resolved, rows[at]) for at in others))
    leading = [
        (at, page_row(end["url"]))
        for at, end in zip(others, ends, strict=True)
        if end is not None and end["kind"] == "redirect"
    ]
    there = t.get_many((tables.joined, row) for _, row in leading)
    for (at, _), joined in zip(leading, there, strict=True):
        found[at] = joined
    return [None if joined is None else joined["cluster"] for joined in found]


def _have_linking_share(t: Transaction, targets: Iterable[str]) -> None:
    """Have the pages of large clusters that link to one of these look again where it is."""
    linking = {
        page_row(one["url"])
        for row in t.get_rows(tables.inlinks, sorted(targets), [tables.source])
        for one in row.family(tables.source).values()
        if one["rel"] == "follow"
    }
    rows = sorted(linking)
    found = list(t.get_many((tables.joined, row) for row in rows))
    clusters = sorted({joined["cluster"] for joined in found if joined is not None})
    sizes = t.get_many((tables.size, cluster) for cluster in clusters)
    large = {cluster for cluster, n in zip(clusters, sizes, strict=True) if n is not None}
    for row, joined in zip(rows, found, strict=True):
        if joined is not None and joined["cluster"] in large:
            t.notify(tables.share_due, row)


def _add(t: Transaction, cluster: str, before: Record | None, now: Record | None) -> None:
    """Add the difference between two contributions of a page to the summary of a cluster."""
    one = before or now
    assert one is not None
    page = page_id(one["url"])
    entries = [None if one is None else one["entry"] for one in (before, now)]
    if entries[0] != entries[1]:
        tables.summary_nodes.enter(t, cluster, page, *entries)
    aliases = [set() if one is None else set(one["aliases"]) for one in (before, now)]
    for url in sorted(aliases[0] ^ aliases[1]):
        # With the page's id: of two pages to which it has led, each has a cell of its own.
        tables.set_or_delete(
            t,
            tables.redirected[f"{page_id(url)}{page}"],
            cluster,
            url if url in aliases[1] else None,
        )
    column = tables.summary_delta[str(shard_of(t.start_ts, _DELTAS))]
    delta = dict(t.get(column, cluster) or {**tables.NOTHING, "fresh": []})
    anchors: Counter[str] = Counter(delta["anchors"])
    for record, sign in ((before, -1), (now, 1)):
        if record is not None:
            delta["pages"] += sign
            delta["aliases"] += sign * len(record["aliases"])
            delta["links"] += sign * record["links"]
            for text, number in record["anchors"].items():
                anchors[text] += sign * number
    delta["anchors"] = {text: number for text, number in sorted(anchors.items()) if number}
    if now is not None and (before is None or before["loaded_ms"] != now["loaded_ms"]):
        delta["fresh"] = [*delta["fresh"], now["loaded_ms"]]
    t.set(column, cluster, delta)
    if entries[0] == entries[1]:
        t.notify(tables.summary_due, cluster)


# --- Clusters -----------------------------------------------------------------------------


def _read_ahead_nodes(t: Snapshot, nodes: Sequence[str]) -> None:
    """Prefetch what `summarise` reads of these nodes."""
    roots = [node for node in nodes if not tables.summary_nodes.depth(node)]
    t.get_many((column, node) for node in roots for column in (tables.size, tables.document))
    t.get_rows(tables.summaries, roots, [tables.totals, tables.summary_delta])


@observer(tables.summary_due, batch=16, ahead=_read_ahead_nodes)
def summarise(t: Transaction, node: str) -> None:
    """Compute a node of a tree; for the root, add deltas to the totals, and write the document."""
    nodes = tables.summary_nodes
    first = nodes.compute(t, node)
    if nodes.depth(node):
        # What has changed an entry has also written a delta.
        t.notify(nodes.due, nodes.root_of(node))
        return
    totals, fresh = _add_deltas(t, node)
    size = t.get(tables.size, node)
    if size is None:
        return
    if size <= tables.LARGE_CLUSTER // 2:
        t.delete(tables.size, node)
        share_all(t, t.get_row(tables.clusters, node, [tables.member]).family(tables.member))
        t.notify(tables.cluster_changed, node)
    elif totals is not None and "until" not in totals:
        before = t.get_for_update(tables.document, node)
        after = None
        if first is not None:
            joined = t.get(tables.joined, page_row(first[3]))
            if joined is None or joined["cluster"] != node:
                return  # It has left, and has yet to leave the tree.
            after = _document(t, node, first, totals, size)
        put_document(t, node, before, after, {}, fresh)


def _add_deltas(t: Transaction, cluster: str) -> tuple[Record | None, list[int]]:
    """Add a cluster's deltas to its totals: these, and when what has changed was loaded."""
    row = t.get_row(tables.summaries, cluster, [tables.totals, tables.summary_delta])
    before = row.get(tables.totals)
    now = dict(before or tables.NOTHING)
    fresh: list[int] = []
    changes: Counter[str] = Counter()
    for shard, delta in row.family(tables.summary_delta).items():
        for name in ("pages", "aliases", "links"):
            now[name] += delta[name]
        changes.update(delta["anchors"])
        fresh += delta["fresh"]
        t.delete(tables.summary_delta[shard], cluster)
    texts = Texts(t, cluster, now["anchors"], SUMMARY)
    now["anchors"] = dict(sorted(texts.add({k: n for k, n in changes.items() if n}).items()))
    # Until all pages that made it large have shared, the document stays as it was. Of one that is
    # about to be small again nobody may be left to share.
    size = t.get(tables.size, cluster) or 0
    if size <= tables.LARGE_CLUSTER // 2 or now["pages"] >= min(now.get("until", 0), size):
        now.pop("until", None)
    if not any(now.values()):
        now = {}
    if now != (before or {}):
        tables.set_or_delete(t, tables.totals, cluster, now)
    return now or None, fresh


def _document(
    t: Transaction, cluster: str, first: Sequence[Any], totals: Record, size: int
) -> dict[str, Any]:
    """The document of a large cluster."""
    negative, _, _, url, *shown = first
    some = _first(t, tables.clusters, cluster, tables.member, tables.MOST_URLS + 1, size)
    aliases = totals["aliases"]
    redirects = _first(t, tables.summaries, cluster, tables.redirected, tables.MOST_URLS, aliases)
    return show(
        t,
        {"url": url, **dict(zip(_SHOWN, shown, strict=True))},
        rank=-negative + 0.0,
        links=totals["links"],
        anchors=totals["anchors"],
        members=[one["url"] for one in some],
        redirects=redirects,
        more=size + aliases,
    )


def _first(t: Snapshot, table: Any, row: str, family: Any, most: int, there: int) -> list[Any]:
    """The values of those cells of a family whose names come first; about `there` are there."""
    found: dict[str, Any] = {}
    read, step = 0, max(1, 300 * most // max(1, there))
    while read < 256 and len(found) < most:
        starts = range(read, min(256, read + step))
        parts = [family.starting(f"{at:02x}") for at in starts] if len(starts) < 256 else [family]
        found |= t.get_row(table, row, parts).family(family)
        read += step
    return [found[name] for name in sorted(found)[:most]]
