"""Latency of a changed page: from its loader's commit to its document, and to a search.

The time begins when the loader's transaction has returned: it is on disk. The page's *document* is
there when the serving document of its cluster, committed by `assemble`, shows this capture of
the page (`seen`). It is *found* when the search index has this document or a later one. A process
polls for both about once a millisecond: it reads which cluster the page is in and the version of
that cluster's document, some 50 µs, and the document itself only if that version is new. So the
measured latency is at most a millisecond too long.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from benchmarks.crawl import recaptured
from benchmarks.processes import StageError
from percola import Repository, Snapshot
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.transaction import last_seen, load_captures
from webindex.page.pages import parse
from webindex.page.urls import normalise, page_id, page_row
from webindex.serving.base import ServingIndex

_LOOK_SECONDS: Final = 0.0005


@dataclass(slots=True)
class Arrival:
    """A page that was loaded: when, and the milliseconds until its document, and a search."""

    url: str
    loaded_ms: int
    committed: float
    assembled: float | None = None
    found: float | None = None
    _seen: tuple[str, int] | None = None
    _epoch: int = 0

    def look(self, snapshot: Snapshot, index: ServingIndex) -> bool:
        """Check its progress; return whether a search finds it."""
        if self.assembled is None and self._is_assembled(snapshot):
            self.assembled = self._waited()
        if self.assembled is not None and self.found is None:
            assert self._seen is not None
            shown = index.get(self._seen[0])
            if shown is not None and shown.epoch >= self._epoch:
                self.found = self._waited()
        return self.found is not None

    def _is_assembled(self, snapshot: Snapshot) -> bool:
        joined = snapshot.get(tables.joined, page_row(self.url))
        if joined is None:
            return False
        cluster = joined["cluster"]
        version = cluster, snapshot.version(tables.document, cluster)
        if version == self._seen:
            return False
        self._seen = version
        document = snapshot.get(tables.document, cluster)
        if document is None or document["seen"].get(page_id(self.url)) != self.loaded_ms:
            return False
        self._epoch = document["epoch"]
        return True

    def _waited(self) -> float:
        return (time.perf_counter() - self.committed) * 1000


def arrive(repo: Repository, page: Capture) -> Arrival:
    """Load one page, as a crawler does."""
    loaded = load_captures(repo, [page], "arrivals")
    committed = time.perf_counter()
    if not loaded.written:
        raise StageError(f"A changed page was not taken as newer than what is there: {page.url}.")
    url = normalise(page.url)
    capture = repo.snapshot().get(tables.capture, page_row(url))
    assert capture is not None
    return Arrival(url, capture["loaded_ms"], committed)


def pages_of(repo: Repository, count: int, seed: int) -> list[Capture]:
    """Live pages that may be indexed, drawn at random: their newest captures, as loaded.

    Each has the date at which it was last seen, by a report that it is unchanged if there is one.
    Of some pages a sentence more changes nothing: it stands beside what is taken for the text, or
    they have no <body> to put it into. Those are left out.
    """
    snapshot = repo.snapshot()
    rows = [
        row.key
        for row in snapshot.scan(tables.pages, columns=[tables.fingerprint])
        if row[tables.fingerprint]["indexable"]
    ]
    random.Random(seed).shuffle(rows)
    found: list[Capture] = []
    for row in rows:
        if len(found) == count:
            break
        capture, body = snapshot.get(tables.capture, row), snapshot.get(tables.body, row)
        if capture is not None and body is not None:
            seen = last_seen(capture, snapshot.get(tables.revisited, row))
            one = _capture(capture, seen, zlib.decompress(body))
            if _text_hash(recaptured(one, "Another sentence.")) != _text_hash(one):
                found.append(one)
    return found


def _text_hash(page: Capture) -> str:
    return parse(page.body, page.url, page.content_type).text_hash


def _capture(stored: dict[str, Any], seen: str, body: bytes) -> Capture:
    names = {"content-type": "content_type", "x-robots-tag": "robots", "link": "link"}
    headers = {name: stored[key] for name, key in names.items() if stored[key]}
    date = datetime.strptime(seen, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    return Capture(
        url=stored["url"],
        date=date,
        status=stored["status"],
        content_type=stored["content_type"],
        headers=headers,
        body=body,
        offset=0,
        length=0,
        payload_digest=None,
        truncated=False,
    )


def one_at_a_time(
    repo: Repository,
    index: ServingIndex,
    pages: Sequence[Capture],
    rest: Callable[[], None],
    timeout: float,
) -> list[Arrival]:
    """Load changed pages, each when the last one is through and `rest` has returned."""
    found = []
    for number, page in enumerate(pages):
        rest()
        arrival = arrive(repo, recaptured(page, f"Change {number} of a page at rest."))
        while not arrival.look(repo.snapshot(), index):
            if time.perf_counter() - arrival.committed > timeout:
                raise StageError(f"A changed page was not to be found: {page.url}.")
            time.sleep(_LOOK_SECONDS)  # The resolution: nothing tells when an index has changed.
        found.append(arrival)
    return found


class Beside:
    """Changed pages that come while something else is loaded, one every so many seconds.

    Args:
        every: seconds between pages, whether or not the last one is through.
    """

    def __init__(
        self,
        repo: Repository,
        index: ServingIndex,
        pages: Sequence[Capture],
        every: float,
    ) -> None:
        self._repo = repo
        self._index = index
        self._pages = list(pages)
        self._every = every
        self._next: float | None = None
        self.arrivals: list[Arrival] = []

    def step(self) -> None:
        """Load the next page if it is time, and look at those that are under way, for 50 ms.

        The first one comes once there is work to do: the other load has begun.
        """
        until = time.perf_counter() + 0.05
        while (now := time.perf_counter()) < until:
            if self._next is None and not self._repo.is_idle():
                self._next = now
            if self._next is not None and now >= self._next and self._pages:
                number = len(self.arrivals)
                page = recaptured(self._pages.pop(), f"Change {number} of a page beside.", hours=2)
                self.arrivals.append(arrive(self._repo, page))
                self._next = max(now, self._next + self._every)
            began = time.perf_counter()
            for one in self.arrivals:
                if one.found is None:
                    one.look(self._repo.snapshot(), self._index)
            # The more are under way, the more seldom: looking takes a core from the workers.
            time.sleep(max(_LOOK_SECONDS * 2, 10 * (time.perf_counter() - began)))

    def look(self) -> bool:
        """Continue for 50 ms; return whether all pages have been loaded and can be found."""
        self.step()
        return not self._pages and all(one.found is not None for one in self.arrivals)
