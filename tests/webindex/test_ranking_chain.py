"""A rank that is written elects canonical pages anew, and exports what it changes and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from link_graphs import rank_all, written

import percola
from percola import Repository, Worker
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.transaction import load_captures
from webindex.page.urls import page_row
from webindex.serving import TantivyIndex
from webindex.workers.processes import build_observers

SHORT, LONG = "https://a.example/x", "https://a.example/of-the-same-text"
MOVED = "https://a.example/moved"
FANS = [f"https://fan{n}.example/" for n in range(12)]
TEXT = "Cormorants carry lanterns across the estuary, and nobody has ever asked them why. " * 9


class Chain:
    """A repository with its search index, and pages that are loaded into it."""

    def __init__(self, folder: Path) -> None:
        self.repo: Repository = percola.open(folder / "repo", schema=tables.SCHEMA)
        self.index = TantivyIndex(folder / "repo" / "serving")
        self._day = 1

    def load(self, url: str, text: str, links: Sequence[str] = (), status: int = 200) -> None:
        self._day += 1
        anchors = " ".join(f'<a href="{link}">a link</a>' for link in links)
        html = f"<html><title>A page</title><body><p>{text}</p>{anchors}</body></html>"
        capture = Capture(
            url=url,
            date=datetime(2025, 1, 1, self._day // 60, self._day % 60, tzinfo=UTC),
            status=status,
            content_type="text/html",
            headers={"content-type": "text/html; charset=utf-8"}
            | ({"location": links[0]} if status == 301 else {}),
            body=b"" if status != 200 else html.encode(),
            offset=0,
            length=1,
            payload_digest=None,
            truncated=False,
        )
        assert load_captures(self.repo, [capture], "crawl.warc.gz").written == 1

    def work(self) -> set[str]:
        """Work until nothing is left; the URLs whose documents were exported."""
        before = dict(self.index.clusters())
        Worker(self.repo, build_observers(self.index)).run_until_idle()
        assert self.repo.dead_lettered() == 0
        changed = {one for one, epoch in self.index.clusters() if before.get(one) != epoch}
        return {document.url for one in changed if (document := self.index.get(one))}

    def rank(self, url: str) -> float | None:
        return written(self.repo).get(page_row(url), (None, 0))[0]


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    made = Chain(tmp_path)
    made.load(SHORT, TEXT)
    made.load(LONG, TEXT)
    for number, fan in enumerate(FANS):
        words = " ".join(f"word{number}x{n}" for n in range(60))
        made.load(fan, words, [MOVED if number % 2 else LONG])
    made.load(MOVED, "", [LONG], status=301)
    yield made
    made.index.close()
    made.repo.close()


def test_the_page_that_others_link_to_becomes_canonical_once_it_is_ranked(chain: Chain) -> None:
    chain.work()
    [before] = chain.index.search("cormorants").hits
    assert (before.url, before.duplicates, before.rank) == (SHORT, (LONG,), 0.0)
    assert rank_all(chain.repo) == len(FANS) + 2
    assert chain.work() == {LONG, *FANS}
    [after] = chain.index.search("cormorants").hits
    assert (after.url, after.duplicates, after.aliases) == (LONG, (SHORT,), (MOVED,))
    rank = chain.rank(LONG)
    assert rank is not None and rank == after.rank > 4
    # The redirect's links are the page's, and the redirect itself has no rank.
    assert chain.rank(MOVED) is None


def test_a_second_run_exports_only_what_moved(chain: Chain) -> None:
    chain.work()
    rank_all(chain.repo)
    chain.work()
    assert rank_all(chain.repo) == 0
    assert chain.work() == set()
    # One fan links to another in place of the page; who is linked to by neither stays as it is.
    chain.load(FANS[0], "Something else altogether is said here now. " * 9, [FANS[1]])
    assert chain.work() == {FANS[0], FANS[1], LONG}
    assert rank_all(chain.repo) > 0
    exported = chain.work()
    assert {FANS[1], LONG} <= exported
    documents = [chain.index.get(one) for one, _ in chain.index.clusters()]
    assert {one.url: one.rank for one in documents if one} == {
        one.url: chain.rank(one.url) for one in documents if one
    }


def test_a_page_that_dies_loses_its_rank_and_one_that_is_new_waits_for_the_next_run(
    chain: Chain,
) -> None:
    chain.work()
    rank_all(chain.repo)
    chain.load(FANS[3], "", status=404)
    new = "https://new.example/"
    chain.load(new, "Never seen before, and never heard of since. " * 9)
    chain.work()
    assert chain.rank(FANS[3]) is None and chain.rank(new) is None
    rank_all(chain.repo)
    assert chain.rank(FANS[3]) is None
    assert chain.rank(new) is not None
