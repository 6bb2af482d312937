"""The whole index from captures alone: every cell that does not depend on when it was written.

    facts ─┬─ follow ──────────▶ resolved, via ─▶ target ─┐
           ├─ content, sketch ─▶ keys, leaders ───────────┴▶ components ─▶ clusters, joined
           ├─ links ────────────▶ in-links, tallies, totals by cluster ─┐        │
           └─ rank (given) ──────────────────────── canonical page ─────┴────────┴▶ documents

A cluster is named here after the smallest id of its pages. The names in a repository do
not matter: comparing pairs them, and writing assigns new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.core.rdd import RDD

from webindex.batch import inlinks as inverting
from webindex.batch.components import leaders, smallest_of
from webindex.batch.facts import Facts, fingerprint_of
from webindex.batch.inlinks import Row, Total
from webindex.batch.redirects import Led, follow
from webindex.page.fingerprints import Sketch
from webindex.page.urls import block_row, host, page_id, page_row

SAMPLE: Final = 16
ENOUGH: Final = 8
"""Pages that judge a page, and how many texts among theirs make a block a repeated one."""

MAX_ANCHORS: Final = 50
MAX_URLS: Final = 50
"""Distinct anchor texts that a document keeps."""


class Placed(NamedTuple):
    """A live page in its cluster, with the fields that other steps need."""

    cluster: str
    url: str
    content: str
    leader: str
    sketch: bytes | None
    target: str | None
    title: str
    language: str | None
    indexable: bool
    rank: float
    loaded_ms: int
    changed: str = ""

    @property
    def member(self) -> dict[str, Any]:
        """The value of `clusters.member`."""
        return {
            "url": self.url,
            "title": self.title,
            "language": self.language,
            "indexable": self.indexable,
            "content": self.content,
            "leader": self.leader,
            "target": self.target,
            "loaded_ms": self.loaded_ms,
            "changed": self.changed,
        }


@dataclass(frozen=True)
class Whole:
    """The index. Each RDD can be evaluated several times; their common inputs are persisted.

    Attributes:
        placed: every live page, with its cluster.
        rows: rows of all tables but `clusters` and `hosts`, in pieces: two may be of one row.
        clusters: rows of `clusters`. A document has its text twice: as the page has it, and
            as `served` in the form of the search index.
        hosts: rows of `hosts`.
    """

    placed: RDD[Placed]
    rows: RDD[Row]
    clusters: RDD[Row]
    hosts: RDD[Row]


def whole_index(facts: RDD[Facts], parts: int) -> Whole:
    """Compute everything that follows from the facts, which should be persisted.

    `parts` is the number of partitions to shuffle into. Some of it is computed at once: redirects
    and components take as many rounds as they need.
    """
    live = facts.filter(lambda page: page.live)
    led = follow(facts, parts).persist(StorageLevel.MEMORY_AND_DISK)
    entered = led.filter(lambda one: one.counts)
    target: RDD[tuple[str, str]] = entered.filter(lambda one: one.kind == "canonical").map(
        lambda one: (one.url, one.end)
    )
    placed = _placed(live, target, parts).persist(StorageLevel.MEMORY_AND_DISK)
    clusters: RDD[tuple[str, str]] = placed.map(lambda page: (page.url, page.cluster))
    redirects: RDD[tuple[str, tuple[str, str]]] = (
        entered.filter(lambda one: one.kind == "redirect")
        .map(lambda one: (one.end, one.url))
        .join(clusters, parts)
        .map(_redirect)
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    linked = inverting.targets(facts, clusters, redirects.map(lambda one: one[1]), parts)
    linked.persist(StorageLevel.DISK_ONLY)
    totals = linked.flatMap(inverting.share_of).reduceByKey(inverting.added, parts)
    left_out = repeated_blocks(live, parts).persist(StorageLevel.MEMORY_AND_DISK)
    rows: list[RDD[Row]] = [
        left_out.map(lambda one: Row("blocks", block_row(one[0]), {"repeated": one[1]})),
        facts.flatMap(_rows_of_page),
        led.map(lambda one: Row("pages", page_row(one.url), {"resolved": one.value})),
        entered.map(_led_here),
        placed.map(_joined),
        linked.flatMap(inverting.rows_of),
        _owners(placed, parts),
        _contents(placed, parts),
    ]
    return Whole(
        placed,
        facts.context.union(rows),
        _clusters(placed, redirects, totals, live, left_out, parts),
        _hosts(placed, parts),
    )


# --- Pages ----------------------------------------------------------------------------------


def _rows_of_page(page: Facts) -> Iterator[Row]:
    if page.url is None:
        return
    values: dict[str, Any] = {}
    if page.live:
        values = {
            "text": page.text,
            "outline": page.outline,
            "fingerprint": fingerprint_of(page),
        }
        if page.sketch is not None:
            values["sketch"] = page.sketch
        if page.links:
            values |= {"links": page.links, "inverted": page.links}
    if page.blocks is not None:
        yield Row("blocks", block_row(page.url), {"outer": page.blocks})
    if page.pointer is not None:
        values["pointer"] = {"kind": page.pointer[0], "url": page.pointer[1]}
        here = {"url": page.url, "kind": page.pointer[0]}
        yield Row("aliases", page_row(page.pointer[1]), {f"from:{page_id(page.url)}": here})
    if values:
        yield Row("pages", page.row, values)


def _led_here(one: Led) -> Row:
    value = {"url": one.url, "kind": one.kind}
    return Row("aliases", page_row(one.end), {f"via:{page_id(one.url)}": value})


def _joined(page: Placed) -> Row:
    value = {"cluster": page.cluster, "content": page.content, "target": page.target}
    return Row("pages", page_row(page.url), {"joined": value})


def _redirect(one: tuple[str, tuple[str, str]]) -> tuple[str, tuple[str, str]]:
    """(end, (redirect, cluster)) as (cluster, (redirect, cluster))."""
    _, (url, cluster) = one
    return cluster, (url, cluster)


# --- What hosts repeat ----------------------------------------------------------------------


class Outer(NamedTuple):
    """The outer blocks of a page: digests from outside inwards, and that of its text."""

    page: str
    url: str
    sides: tuple[tuple[str, ...], tuple[str, ...]]
    text: str


def repeated_blocks(live: RDD[Facts], parts: int) -> RDD[tuple[str, list[str]]]:
    """The value of `blocks.repeated` by URL, of pages that have one.

    The blocks of all pages of a host, some 500 bytes a page, come together in one task.
    """
    blocks: RDD[tuple[str, Outer]] = live.flatMap(_outer)
    return blocks.groupByKey(parts).flatMap(_judge)


def _outer(page: Facts) -> Iterator[tuple[str, Outer]]:
    if page.blocks is not None:
        first, last = (
            tuple(digest for digest, _ in page.blocks[side]) for side in ("first", "last")
        )
        url = page.name
        yield host(url), Outer(page_id(url), url, (first, last), page.blocks["text"])


def _judge(pages: tuple[str, Iterable[Outer]]) -> Iterator[tuple[str, list[str]]]:
    ring = sorted(pages[1])
    # The first pages again: the ring closes.
    window = [*ring, *ring[: SAMPLE - 1]] if len(ring) >= SAMPLE else ring
    for at, page in enumerate(ring):
        sample = window[at : at + SAMPLE] if len(ring) >= SAMPLE else ring
        found: set[str] = set()
        for side in page.sides:
            for digest in side:
                texts = {one.text for one in sample if digest in one.sides[0] + one.sides[1]}
                if len(texts) < ENOUGH:
                    break
                found.add(digest)
        if found:
            yield page.url, sorted(found)


# --- Clusters -------------------------------------------------------------------------------


def _placed(live: RDD[Facts], target: RDD[tuple[str, str]], parts: int) -> RDD[Placed]:
    """Every live page in its cluster."""
    pages: RDD[tuple[str, Placed]] = (
        live.map(lambda page: (page.name, _unplaced(page)))
        .leftOuterJoin(target, parts)
        .map(lambda one: (one[1][0].content, one[1][0]._replace(target=one[1][1])))
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    # For each content, the smallest id of its pages.
    contents: RDD[tuple[str, str]] = pages.mapValues(lambda page: page_id(page.url)).reduceByKey(
        min, parts
    )
    contents.persist(StorageLevel.MEMORY_AND_DISK)
    content_of: RDD[tuple[str, str]] = pages.map(lambda one: (one[1].url, one[0]))
    named: RDD[tuple[str, str]] = pages.flatMap(_names)
    led = leaders(_sketches(pages, parts), parts).persist(StorageLevel.MEMORY_AND_DISK)
    edges = live.context.union([led, named.join(content_of, parts).map(lambda one: one[1])])
    smallest = smallest_of(edges, parts)
    # (component, (content, id)) and so the smallest id of the component, for each content.
    grouped: RDD[tuple[str, tuple[str, str]]] = contents.leftOuterJoin(smallest, parts).map(
        lambda one: (one[1][1] or one[0], (one[0], one[1][0]))
    )
    cluster_of: RDD[tuple[str, str]] = grouped.groupByKey(parts).flatMap(_name_component)
    return (
        pages.join(cluster_of, parts)
        .mapValues(lambda one: one[0]._replace(cluster=one[1]))
        .leftOuterJoin(led, parts)
        .map(lambda one: one[1][0]._replace(leader=one[1][1] or one[0]))
    )


def _sketches(pages: RDD[tuple[str, Placed]], parts: int) -> RDD[tuple[str, bytes]]:
    """The contents of long pages with their sketches, each once."""
    found: RDD[tuple[str, bytes]] = pages.flatMapValues(
        lambda page: () if page.sketch is None else (page.sketch,)
    )
    return found.reduceByKey(min, parts)


def _unplaced(page: Facts) -> Placed:
    return Placed(
        "",
        page.name,
        page.content,
        page.content,
        page.sketch,
        None,
        page.title,
        page.language,
        page.indexable,
        page.rank or 0.0,
        page.loaded_ms,
        page.changed,
    )


def _names(one: tuple[str, Placed]) -> Iterator[tuple[str, str]]:
    """(target, content) of a page that has a canonical page."""
    content, page = one
    if page.target is not None:
        yield page.target, content


def _name_component(
    component: tuple[str, Iterable[tuple[str, str]]],
) -> Iterator[tuple[str, str]]:
    contents = list(component[1])
    name = min(page for _, page in contents)
    for content, _ in contents:
        yield content, name


def _owners(placed: RDD[Placed], parts: int) -> RDD[Row]:
    counted: RDD[tuple[tuple[str, str, str], int]] = placed.map(
        lambda page: ((page.content, page.leader, page.cluster), 1)
    )
    return counted.reduceByKey(lambda one, other: one + other, parts).map(_owner)


def _owner(counted: tuple[tuple[str, str, str], int]) -> Row:
    (content, leader, cluster), pages = counted
    return Row("keys", content, {"owner": {"cluster": cluster, "leader": leader, "pages": pages}})


def _contents(placed: RDD[Placed], parts: int) -> RDD[Row]:
    """The cells of `keys` that follow from the texts alone: sketches, and the bands' contents."""
    sketches = _sketches(placed.keyBy(lambda page: page.content), parts)
    sketches.persist(StorageLevel.MEMORY_AND_DISK)
    return sketches.context.union(
        [
            sketches.map(lambda one: Row("keys", one[0], {"sketch": one[1]})),
            sketches.flatMap(_in_bands).groupByKey(parts).map(_band),
        ]
    )


def _in_bands(content: tuple[str, bytes]) -> Iterator[tuple[str, bytes]]:
    _, heading, text = content[0].split("/")
    for band in Sketch.unpack(content[1]).bands:
        yield f"band/{heading}/{band}", bytes.fromhex(text)


def _band(band: tuple[str, Iterable[bytes]]) -> Row:
    return Row("keys", band[0], {"near": b"".join(sorted(band[1]))})


# --- Documents ------------------------------------------------------------------------------


def canonical_of(members: Iterable[Placed]) -> Placed | None:
    """Of the pages that may be indexed: by rank, then https, then the shorter, then the first."""
    return min(
        (page for page in members if page.indexable),
        key=lambda page: (-page.rank, page.url[:6] != "https:", len(page.url), page.url),
        default=None,
    )


def _clusters(
    placed: RDD[Placed],
    redirects: RDD[tuple[str, tuple[str, str]]],
    totals: RDD[tuple[str, Total]],
    live: RDD[Facts],
    left_out: RDD[tuple[str, list[str]]],
    parts: int,
) -> RDD[Row]:
    members: RDD[tuple[str, Placed]] = placed.map(lambda page: (page.cluster, page))
    aliases: RDD[tuple[str, str]] = redirects.mapValues(lambda one: one[0])
    made: RDD[Row] = members.groupWith(aliases, totals).map(_cluster)
    made.persist(StorageLevel.MEMORY_AND_DISK)
    # The texts are shuffled only once, to the clusters that show them.
    shown: RDD[tuple[str, str]] = made.flatMap(_shown)
    texts: RDD[tuple[str, dict[str, Any]]] = (
        live.keyBy(lambda page: page.name).leftOuterJoin(left_out, parts).mapValues(_text)
    )
    with_text: RDD[Row] = shown.join(texts, parts).map(
        lambda one: Row("texts", one[1][0], one[1][1])
    )
    return (
        live.context.union([made, with_text])
        .map(lambda row: (row.row, row))
        .groupByKey(parts)
        .map(lambda cluster: _complete(cluster[1]))
    )


def _cluster(
    cluster: tuple[str, tuple[Iterable[Placed], Iterable[str], Iterable[Total]]],
) -> Row:
    name, (placed, redirects, totals) = cluster
    members = list(placed)
    values: dict[str, Any] = {f"member:{page_id(page.url)}": page.member for page in members}
    canonical = canonical_of(members)
    if canonical is not None:
        links, anchors = next(iter(totals), (0, Counter[str]()))
        common = sorted((+anchors).items(), key=lambda one: (-one[1], one[0]))
        others = _first({page.url for page in members} - {canonical.url})
        leading = set(redirects)
        aliases = _first(leading)
        more = len(members) - 1 + len(leading) - len(others) - len(aliases)
        values["document"] = {
            "url": canonical.url,
            "title": canonical.title,
            "language": canonical.language,
            "changed": canonical.changed,
            "anchors": [list(one) for one in common[:MAX_ANCHORS]],
            "duplicates": others,
            "aliases": aliases,
            **({"more": more} if more else {}),
            "inlinks": links,
            "rank": canonical.rank,
            "seen": {page_id(page.url): page.loaded_ms for page in members},
        }
    return Row("clusters", name, values)


def _first(urls: Iterable[str]) -> list[str]:
    """The URLs that a document names: of many, those whose ids come first."""
    return sorted(sorted(urls, key=page_id)[:MAX_URLS])


def _text(page: tuple[Facts, list[str] | None]) -> dict[str, Any]:
    facts, repeated = page
    text, served = facts.shown(repeated or ())
    return {"text": text, "served": served, **facts.outline}


def _shown(cluster: Row) -> Iterator[tuple[str, str]]:
    document = cluster.values.get("document")
    if document is not None:
        yield document["url"], cluster.row


def _complete(pieces: Iterable[Row]) -> Row:
    """Add the document's text to a cluster."""
    by_table = {piece.table: piece for piece in pieces}
    cluster, texts = by_table["clusters"], by_table.get("texts")
    if texts is None:
        return cluster
    document = {**cluster.values["document"], **texts.values}
    return cluster._replace(values={**cluster.values, "document": document})


# --- Hosts ----------------------------------------------------------------------------------


def _hosts(placed: RDD[Placed], parts: int) -> RDD[Row]:
    counted: RDD[tuple[str, tuple[int, int]]] = placed.map(
        lambda page: (f"{host(page.url)}/{page_id(page.url)[:2]}", (1, int(page.indexable)))
    )
    return counted.reduceByKey(
        lambda one, other: (one[0] + other[0], one[1] + other[1]), parts
    ).map(lambda one: Row("hosts", one[0], {"live": {"pages": one[1][0], "indexable": one[1][1]}}))
