"""A web index of a test's own: load captures, work them off, compare with a computation.

The fixture `chain` has the sample, which workers have processed; `empty` has nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from from_scratch import again, check, sample

import percola
from percola import Repository, Worker
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.transaction import Loaded, load_captures
from webindex.page.urls import page_row
from webindex.sample import CHANGED_URL
from webindex.serving import TantivyIndex
from webindex.workers.processes import build_observers

GROUP = 32


@dataclass
class Chain:
    """A repository, its search index, and every capture that was loaded into it."""

    repo: Repository
    index: TantivyIndex
    loaded: list[Capture]

    def load(self, captures: Sequence[Capture], group: int = GROUP) -> Loaded:
        self.loaded += captures
        total = Loaded()
        for at in range(0, len(captures), group):
            total.add(load_captures(self.repo, captures[at : at + group], "crawl.warc.gz"))
        return total

    def work(self, threads: int = 3) -> dict[str, int]:
        """Work until nothing is left; how often each observer ran."""
        worker = Worker(self.repo, build_observers(self.index), threads=threads, first_wait=0.001)
        worker.run_until_idle()
        runs = worker.metrics.counts().get("observer_runs", {})
        return {name: int(count) for name, count in runs.items() if count}

    def process(self, captures: Sequence[Capture]) -> dict[str, int]:
        """Load captures and work until nothing is left; how often each observer ran."""
        self.load(captures)
        return self.work()

    def verify(self, captures: Sequence[Capture] = ()) -> None:
        """The same; then compare all that is there with a computation from scratch."""
        self.process(captures)
        self.check()

    def check(self, *, dead_lettered: int = 0, ranks: Mapping[str, float] | None = None) -> None:
        check(self.repo, self.index, self.loaded, dead_lettered=dead_lettered, ranks=ranks)

    def cluster(self, url: str) -> str:
        """The name of the cluster that a page has joined."""
        joined = self.repo.snapshot().get(tables.joined, page_row(url))
        assert joined is not None, f"{url} has joined no cluster"
        return str(joined["cluster"])

    def document(self, url: str) -> dict[str, Any]:
        """The document of the cluster that a page is in."""
        found = self.repo.snapshot().get(tables.document, self.cluster(url))
        assert found is not None, f"there is no document of {url}"
        return found

    def exports(self) -> int:
        return sum(1 for _ in self.repo.snapshot().scan(tables.journal, prefix="export/"))

    def found(self, words: str) -> list[str]:
        return [hit.url for hit in self.index.search(words, limit=1000).hits]


@contextmanager
def open_chain(folder: Path, address: str | None = None) -> Iterator[Chain]:
    """A web index in a folder; at another address, only its search index is there."""
    with percola.open(address or folder / "repo", schema=tables.SCHEMA) as repo:
        chain = Chain(repo, TantivyIndex(folder / "repo" / "serving"), [])
        try:
            yield chain
        finally:
            chain.index.close()


@contextmanager
def chain_in_memory() -> Iterator[Chain]:
    """A web index whose repository is in memory."""
    with tempfile.TemporaryDirectory() as folder, open_chain(Path(folder), "memory:") as chain:
        yield chain


def of(url: str) -> Capture:
    [found] = [one for one in sample() if one.url == url]
    return found


def page(url: str, html: str, seconds: float = 0.0, **headers: str) -> Capture:
    """A page made for a test, captured at the time of the sample."""
    one = again(of(CHANGED_URL), seconds=seconds, url=url, body=html.encode())
    return replace(one, headers={"content-type": "text/html; charset=utf-8"} | headers)


WORDS = " ".join(f"word{n}" for n in range(40))


def moved(one: Capture, target: str, seconds: float = 60.0) -> Capture:
    """A later capture that was sent elsewhere."""
    return again(one, seconds=seconds, status=301, body=b"", headers={"location": target})


def naming(one: Capture, canonical: str) -> dict[str, str]:
    """The headers of a capture, with a canonical page named in them."""
    return {**one.headers, "link": f'<{canonical}>; rel="canonical"'}
