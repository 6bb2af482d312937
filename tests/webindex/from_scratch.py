"""The web index computed at one go from captures alone: what the chain of observers must come to.

Only the parser is shared with the code under test. `check` compares a repository at rest, and the
search index, with it: table by table, row by row, column by column.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from percola import Repository, inspection
from webindex import tables
from webindex.pages import Page
from webindex.pages import parse as parse_page
from webindex.sample import recrawl_path, sample_path
from webindex.serving import ServingDocument, TantivyIndex
from webindex.urls import host, normalise, page_id, page_row
from webindex.warc import Capture, read_captures

Cells = dict[tuple[str, str, str], Any]
"""(table, row, column) → value, without what depends on time and on where a capture stands."""

parse = lru_cache(maxsize=None)(parse_page)


@lru_cache(maxsize=1)
def sample() -> tuple[Capture, ...]:
    """The captures of the sample crawl."""
    return tuple(c for c in read_captures(sample_path()) if isinstance(c, Capture))


@lru_cache(maxsize=1)
def recrawl() -> tuple[Capture, ...]:
    """The captures of the sample's recrawl."""
    return tuple(c for c in read_captures(recrawl_path()) if isinstance(c, Capture))


def again(capture: Capture, *, seconds: float = 60.0, **changes: Any) -> Capture:
    """A later capture of the same page; an earlier one with negative seconds."""
    return replace(capture, date=capture.date + timedelta(seconds=seconds), **changes)


def gone(capture: Capture, *, seconds: float = 60.0) -> Capture:
    """A later capture that found the page gone."""
    return again(capture, seconds=seconds, status=404, body=b"")


@dataclass
class Index:
    """What a web index of some captures has to hold."""

    cells: Cells
    documents: dict[str, dict[str, Any]]
    pages: dict[str, Page]


def compute(captures: Iterable[Capture]) -> Index:
    """Compute the whole index in one pass."""
    newest: dict[str, tuple[Any, dict[str, Any], bytes]] = {}
    for one in captures:
        url = normalise(one.url)
        seen = described(one, url)
        # The later capture; of two at one moment, whichever: but always the same.
        rest = ("digest", "status", "content_type", "robots")
        age = seen["date"], *(str(seen[name]) for name in rest)
        if url not in newest or newest[url][0] < age:
            newest[url] = age, seen, one.body

    cells: Cells = {}
    pages: dict[str, Page] = {}
    for url, (_, seen, body) in newest.items():
        row = page_row(url)
        cells["pages", row, "capture"] = seen
        cells["pages", row, "body"] = body
        if 200 <= seen["status"] < 300:
            page = pages[url] = parse(body, url, seen["content_type"], seen["robots"])
            cells["pages", row, "text"] = page.text
            cells["pages", row, "fingerprint"] = {**shown(page), "hash": page.text_hash}
            cells["pages", row, "cluster"] = page.text_hash
            cells["clusters", page.text_hash, f"member:{page_id(url)}"] = shown(page)
            if page.links:
                links = [[link.url, list(link.anchors), link.rel] for link in page.links]
                cells["pages", row, "links"] = links
                cells["pages", row, "inverted"] = sorted(links)
            for link in page.links:
                entry = {"url": url, "anchors": list(link.anchors), "rel": link.rel}
                cells["inlinks", page_row(link.url), f"source:{page_id(url)}"] = entry

    documents = _documents(pages)
    for name, document in documents.items():
        cells["clusters", name, "document"] = document
    return Index(cells, documents, pages)


def described(one: Capture, url: str) -> dict[str, Any]:
    """What is to be known of a capture."""
    return {
        "url": url,
        "date": one.date.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "status": one.status,
        "content_type": one.headers.get("content-type") or one.content_type,
        "robots": one.headers.get("x-robots-tag"),
        "digest": blake2b(one.body, digest_size=16).hexdigest(),
    }


def shown(page: Page) -> dict[str, Any]:
    """What a cluster knows of its member."""
    return {
        "url": page.url,
        "title": page.title,
        "language": page.language,
        "indexable": not page.noindex,
    }


def _documents(pages: Mapping[str, Page]) -> dict[str, dict[str, Any]]:
    """The serving document of each cluster that has one, from the links of all pages."""
    anchors: defaultdict[str, Counter[str]] = defaultdict(Counter)
    linking: defaultdict[str, set[str]] = defaultdict(set)
    for source, page in pages.items():
        for link in page.links:
            target = pages.get(link.url)
            if target and link.rel == "follow" and target.text_hash != page.text_hash:
                anchors[target.text_hash].update(link.anchors)
                linking[target.text_hash].add(source)
    members: defaultdict[str, list[Page]] = defaultdict(list)
    for page in pages.values():
        members[page.text_hash].append(page)
    documents = {}
    for name, group in members.items():
        group.sort(key=lambda p: (p.noindex, p.url.startswith("http:"), len(p.url), p.url))
        canonical, *others = group
        if not canonical.noindex:
            common = sorted(anchors[name].items(), key=lambda one: (-one[1], one[0]))
            documents[name] = {
                "url": canonical.url,
                "title": canonical.title,
                "text": canonical.text,
                "language": canonical.language,
                "anchors": [list(one) for one in common[:50]],
                "duplicates": sorted(page.url for page in others),
                "inlinks": len(linking[name]),
            }
    return documents


def held(repo: Repository) -> Cells:
    """What a repository holds, in the same form."""
    now = repo.snapshot()
    found: Cells = {}
    for table in (tables.pages, tables.inlinks, tables.clusters, tables.outbox):
        for row in now.scan(table):
            for column, value in row.items():
                found[table.name, row.key, column.name] = _timeless(column.name, value)
    return {cell: value for cell, value in found.items() if value != []}


def _timeless(column: str, value: Any) -> Any:
    if column == "body":
        return zlib.decompress(value)
    if column == "inverted":
        return sorted(value)
    if isinstance(value, dict):
        for name in ("loaded_ms", "file", "offset", "length", "seen", "epoch"):
            value.pop(name, None)
    return value


def check(
    repo: Repository,
    index: TantivyIndex,
    captures: Iterable[Capture],
    *,
    set_aside: int = 0,
) -> Index:
    """Fail unless the repository is at rest and holds what `compute` makes of the captures."""
    at_rest(repo, set_aside=set_aside)
    expected = compute(captures)
    found = held(repo)
    wrong = [
        f"{' / '.join(cell)}\n    found    {_short(found.get(cell))}"
        f"\n    expected {_short(expected.cells.get(cell))}"
        for cell in sorted(found.keys() | expected.cells.keys())
        if found.get(cell) != expected.cells.get(cell)
    ]
    assert not wrong, f"{len(wrong)} cells differ:\n" + "\n".join(wrong[:12])
    check_serving(repo, index, expected)
    return expected


def check_serving(repo: Repository, index: TantivyIndex, expected: Index) -> None:
    """Fail unless search shows exactly the documents, at the epochs that the repository has."""
    epochs = {
        row.key: row[tables.document]["epoch"]
        for row in repo.snapshot().scan(tables.clusters, columns=[tables.document])
    }
    assert dict(index.clusters()) == epochs
    assert index.count() == len(expected.documents)
    for name, document in expected.documents.items():
        assert index.get(name) == ServingDocument(
            cluster=name,
            epoch=epochs[name],
            host=host(document["url"]),
            **{
                **document,
                "anchors": tuple((words, count) for words, count in document["anchors"]),
                "duplicates": tuple(document["duplicates"]),
            },
        )


def at_rest(repo: Repository, *, set_aside: int = 0) -> None:
    """Fail if work, a lock or an unexpected failure is left."""
    assert repo.pending() == {}
    assert list(inspection.locks(repo)) == []
    failed = list(inspection.failures(repo))
    assert len(failed) == set_aside, [(one.observer, one.traceback) for one in failed]
    # What counts as loaded in a document is what its members say.
    for row in repo.snapshot().scan(tables.clusters):
        document = row.get(tables.document)
        if document is not None:
            members = row.family(tables.member)
            assert document["seen"] == {name: one["loaded_ms"] for name, one in members.items()}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}…"
