"""Loads resources: each capture of a stylesheet, image, font or script, each body once.

The newest capture of a resource wins, in whatever order captures arrive, as with pages. Bodies are
named by their digest and shared by all resources that have them. A transaction that begins to use a
body locks it, and one that ceases to use it notifies `release`, which removes a body without
holders: of the two, if they are concurrent, the second sees what the first has done.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from percola import Repository, Snapshot, Transaction, observer
from webindex.crawl.warc import Resource
from webindex.load.revisits import date_text, payload_id
from webindex.page.urls import BadUrlError, normalise, page_id, page_row
from webindex.rendering import tables as rendering
from webindex.tables import sitemap

__all__ = [
    "LoadedResources",
    "is_no_page",
    "keep_resources",
    "keeps_resources",
    "let_go",
    "load_resources",
    "release",
]


@dataclass(slots=True)
class LoadedResources:
    """Outcome counts of resources.

    Attributes:
        written: captures that are now the newest of their resource.
        known: captures that are stored already, or older than the stored one; and revisits of it.
        unresolved: revisits of a capture that is not there.
        bodies: bodies that were not in the repository before.
        stored_bytes: the size of those, as stored.
        bad_urls: captures whose URL cannot be a row.
    """

    written: int = 0
    known: int = 0
    unresolved: int = 0
    bodies: int = 0
    stored_bytes: int = 0
    bad_urls: int = 0

    def add(self, other: LoadedResources) -> None:
        """Add another's counts to these."""
        self.written += other.written
        self.known += other.known
        self.unresolved += other.unresolved
        self.bodies += other.bodies
        self.stored_bytes += other.stored_bytes
        self.bad_urls += other.bad_urls


def keeps_resources(repo: Repository | Snapshot) -> bool:
    """Whether this repository keeps resources: whether some load was asked to."""
    if isinstance(repo, Repository):
        with repo.snapshot() as now:
            return keeps_resources(now)
    return repo.get(rendering.kept, rendering.SETTINGS) is not None


def keep_resources(repo: Repository) -> None:
    """Have this repository keep resources from now on."""

    def note(t: Transaction) -> None:
        if t.get(rendering.kept, rendering.SETTINGS) is None:
            t.set(
                rendering.kept,
                rendering.SETTINGS,
                {"since": t.start_ts, "since_ms": time.time_ns() // 1_000_000},
            )

    repo.run(note)


def is_no_page(t: Snapshot, row: str) -> bool:
    """Whether a URL was captured as a resource or a sitemap, so that revisits of it say nothing."""
    return any(one is not None for one in t.get_many([(rendering.capture, row), (sitemap, row)]))


def load_resources(t: Transaction, found: Iterable[tuple[str, Resource, str]]) -> LoadedResources:
    """Write captures of resources, each given with the file that contains it and its URL."""
    result = LoadedResources()
    for file, one, url in found:
        row = page_row(url)
        current = t.get(rendering.capture, row)
        if one.body is None:
            new = _revisited(t, one, url, current)
            if new is None:
                known = current is not None and _same_payload(current, one)
                result.known += known
                result.unresolved += not known
                continue
        else:
            new = _described(one, url, file, blake2b(one.body, digest_size=16).hexdigest())
        if current is not None and _age(current) >= _age(new):
            result.known += 1
            continue
        result.written += 1
        t.set(rendering.capture, row, new)
        if current is not None and current["digest"] == new["digest"]:
            continue
        if current is not None:
            let_go(t, current)
        me = rendering.holder[page_id(url)]
        if t.get_for_update(rendering.data, new["digest"]) is None:
            assert one.body is not None
            stored = rendering.packed(one.body)
            t.set(rendering.data, new["digest"], stored)
            result.bodies += 1
            result.stored_bytes += len(stored)
        t.set(me, new["digest"], url)
    return result


def _described(one: Resource, url: str, file: str, digest: str) -> dict[str, Any]:
    """The value of `resources.capture`."""
    return {
        "url": url,
        "date": date_text(one.date),
        "type": one.content_type,
        "kind": one.kind,
        "digest": digest,
        "payload": payload_id(one.payload_digest),
        "file": file,
        "offset": one.offset,
        "length": one.length,
        "loaded_ms": time.time_ns() // 1_000_000,
    }


def _revisited(
    t: Transaction, one: Resource, url: str, current: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The capture that a revisit stands for, if it is not the current one.

    Its body must be there: that of the resource which it refers to, with the same payload digest.
    """
    if current is not None and _same_payload(current, one):
        return None
    if one.refers_to is None or one.payload_digest is None:
        return None
    try:
        original = t.get(rendering.capture, page_row(normalise(one.refers_to)))
    except BadUrlError:
        return None
    if original is None or not _same_payload(original, one):
        return None
    told = _described(one, url, original["file"], original["digest"])
    return {**told, "type": original["type"], "kind": original["kind"]}


def _same_payload(capture: Mapping[str, Any], one: Resource) -> bool:
    return one.payload_digest is not None and capture["payload"] == payload_id(one.payload_digest)


def _age(capture: Mapping[str, Any]) -> tuple[str, str, str]:
    return capture["date"], capture["digest"], capture["type"]


def let_go(t: Transaction, capture: Mapping[str, Any]) -> None:
    """Let a resource hold its body no more; without holders, the body is removed."""
    t.delete(rendering.holder[page_id(capture["url"])], capture["digest"])
    t.notify(rendering.released, capture["digest"])


@observer(rendering.released)
def release(t: Transaction, digest: str) -> None:
    """Remove a body that no resource has any more."""
    if t.get_row(rendering.bodies, digest, [rendering.holder]).family(rendering.holder):
        return
    if t.get(rendering.data, digest) is not None:
        t.delete(rendering.data, digest)
