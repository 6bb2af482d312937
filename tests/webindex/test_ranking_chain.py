"""A rank that is written elects canonical pages anew, and exports what it changes and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chains import Chain, chain_in_memory, page
from from_scratch import sample
from link_graphs import computed, rank_all, written
from numpy.typing import NDArray

from percola import Repository, Worker
from webindex import tables
from webindex.observers import inlinks, interim
from webindex.observers.parse import parse
from webindex.page.urls import normalise, page_row

SHORT, LONG = "https://a.example/x", "https://a.example/of-the-same-text"
MOVED = "https://a.example/moved"
FANS = [f"https://fan{n}.example/" for n in range(12)]
TEXT = "Cormorants carry lanterns across the estuary, and nobody has ever asked them why. " * 9


class Ranked(Chain):
    """A web index whose pages are captured one after the other, and ranked."""

    def put(self, url: str, text: str, links: Sequence[str] = (), status: int = 200) -> None:
        """Load a capture of a page, which is the newest one."""
        anchors = " ".join(f'<a href="{link}">a link</a>' for link in links)
        html = f"<html><title>A page</title><body><p>{text}</p>{anchors}</body></html>"
        location = {"location": links[0]} if status == 301 else {}
        made = page(url, html if status == 200 else "", 60.0 * len(self.loaded), **location)
        loaded = self.load([replace(made, status=status, payload_digest=None)])
        assert loaded.written == 1

    def export(self) -> set[str]:
        """Work until nothing is left; the URLs whose documents were exported."""
        before = dict(self.index.clusters())
        self.work()
        assert self.repo.dead_lettered() == 0
        changed = {one for one, epoch in self.index.clusters() if before.get(one) != epoch}
        return {document.url for one in changed if (document := self.index.get(one))}

    def rank(self, url: str) -> float | None:
        return written(self.repo).get(page_row(url), (None, 0))[0]


def ranks_of(repo: Repository) -> dict[str, dict[str, Any]]:
    """Every rank in the repository, by row."""
    with repo.snapshot() as snapshot:
        return {
            row.key: row[tables.rank] for row in snapshot.scan(tables.pages, columns=[tables.rank])
        }


@pytest.fixture
def chain(empty: Chain) -> Ranked:
    made = Ranked(empty.repo, empty.index, [])
    made.put(SHORT, TEXT)
    made.put(LONG, TEXT)
    for number, fan in enumerate(FANS):
        words = " ".join(f"word{number}x{n}" for n in range(60))
        made.put(fan, words, [MOVED if number % 2 else LONG])
    made.put(MOVED, "", [LONG], status=301)
    return made


def test_the_page_that_others_link_to_becomes_canonical_once_it_is_ranked(chain: Ranked) -> None:
    chain.export()
    [before] = chain.index.search("cormorants").hits
    assert (before.url, before.duplicates, before.rank) == (SHORT, (LONG,), 0.0)
    assert rank_all(chain.repo) == len(FANS) + 2
    assert chain.export() == {LONG, *FANS}
    [after] = chain.index.search("cormorants").hits
    assert (after.url, after.duplicates, after.aliases) == (LONG, (SHORT,), (MOVED,))
    rank = chain.rank(LONG)
    assert rank is not None and rank == after.rank > 4
    # The redirect's links are the page's, and the redirect itself has no rank.
    assert chain.rank(MOVED) is None


def test_a_second_run_exports_only_what_moved(chain: Ranked) -> None:
    chain.export()
    rank_all(chain.repo)
    chain.export()
    assert rank_all(chain.repo) == 0
    assert chain.export() == set()
    # One fan links to another in place of the page; who is linked to by neither stays as it is.
    chain.put(FANS[0], "Something else altogether is said here now. " * 9, [FANS[1]])
    assert chain.export() == {FANS[0], FANS[1], LONG}
    assert rank_all(chain.repo) > 0
    exported = chain.export()
    assert {FANS[1], LONG} <= exported
    documents = [chain.index.get(one) for one, _ in chain.index.clusters()]
    assert {one.url: one.rank for one in documents if one} == {
        one.url: chain.rank(one.url) for one in documents if one
    }


NEW = "https://new.example/"


def test_a_page_that_dies_loses_its_rank_and_a_new_one_has_an_interim_one_until_the_next_run(
    chain: Ranked,
) -> None:
    chain.export()
    rank_all(chain.repo)
    chain.put(FANS[3], "", status=404)
    chain.put(NEW, "Never seen before, and never heard of since. " * 9)
    chain.export()
    assert chain.rank(FANS[3]) is None and chain.rank(NEW) == 0.15
    # A page with one link and the rank of one without any links to it as well, then another.
    (fan,) = {chain.rank(fan) for fan in FANS if fan != FANS[3]}
    assert fan is not None
    interim = []
    for link in FANS[:2]:
        chain.put(link, f"This page, {link}, is about something else now. " * 9, [NEW])
        assert NEW in chain.export()
        interim.append(chain.rank(NEW))
    assert interim == [pytest.approx(0.15 + 0.85 * fan * n, abs=2e-6) for n in (1, 2)]
    # One that is withdrawn gives nothing, nor does it when it is back: it has no rank of that run.
    for text, status in (("", 404), ("This page is here again. " * 9, 200)):
        chain.put(FANS[0], text, [NEW], status=status)
        chain.export()
        assert chain.rank(NEW) == interim[0]
    rank_all(chain.repo)
    chain.export()
    assert not any("interim" in rank for rank in ranks_of(chain.repo).values())
    assert chain.rank(NEW) not in (None, *interim)


def test_before_the_first_run_no_page_has_a_rank(chain: Ranked) -> None:
    chain.export()
    assert ranks_of(chain.repo) == {}


def test_a_page_that_goes_and_returns_at_once_takes_back_what_it_gave(chain: Ranked) -> None:
    chain.export()
    rank_all(chain.repo)
    chain.put(NEW, "Never seen before, and never heard of since. " * 9)
    chain.put(FANS[0], "This page is about something else now. " * 9, [NEW])
    chain.export()
    given = chain.rank(NEW)
    assert given is not None and given > 0.15
    # Parsed at once, while its links have yet to be taken back.
    for text, status in (("", 404), ("This page is here again. " * 9, 200)):
        chain.put(FANS[0], text, [NEW], status=status)
        Worker(chain.repo, [parse]).run_until_idle()
    chain.export()
    assert chain.rank(NEW) == 0.15


def test_of_many_links_a_part_stands_for_all(
    chain: Ranked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inlinks, "LARGE", 8)
    monkeypatch.setattr(interim, "SAMPLE", 8)
    links = 60
    many = [f"https://many{n}.example/" for n in range(links)]
    for n, url in enumerate(many):
        chain.put(url, f"Page {n} says {n * 7919} and {n * 104729}. " * 9, [SHORT])
    chain.export()
    rank_all(chain.repo)
    chain.export()
    chain.put(NEW, "Never seen before, and never heard of since. " * 9)
    for n, url in enumerate(many):
        chain.put(url, f"Page {n} said {n * 7919} or {n * 104729}. " * 9, [NEW])
        if n % 20 == 19:
            chain.export()  # The last ones add to the links of a page that is large.
    (share,) = {chain.rank(url) for url in many}
    assert share is not None
    assert chain.rank(NEW) == pytest.approx(0.15 + 0.85 * share * links, abs=1e-4)
    with chain.repo.snapshot() as now:
        found = now.get_row(tables.inlinks, page_row(NEW), [tables.source]).family(tables.source)
        read = sum(1 for page in found if page.startswith("0"))
    assert 0 < read < 20 < len(found) == links


def interim_and_exact(step: int) -> NDArray[np.float64]:
    """Of pages of the sample that are loaded after a run, each `step`-th: shape (pages, 2)."""
    later = {normalise(one.url) for one in sample()[::step]}
    with chain_in_memory() as chain:
        for new in (False, True):
            chain.process([one for one in sample() if (normalise(one.url) in later) is new])
            if not new:
                rank_all(chain.repo)
                chain.work()
        ranks = ranks_of(chain.repo)
        [read], ranking, _ = computed(chain.repo)
    estimates = {row: one["value"] for row, one in ranks.items() if "interim" in one}
    in_order = (read.rows[at] for at in np.argsort(read.ids))
    exact = dict(zip(in_order, ranking.values.tolist(), strict=True))
    return np.array([(estimate, exact[row]) for row, estimate in estimates.items()])


@pytest.mark.long
def test_interim_ranks_of_the_sample_are_near_those_of_a_run() -> None:
    """As docs/webindex.md says of them where every fifth page is new."""
    pairs = interim_and_exact(5)
    places = pairs.argsort(axis=0).argsort(axis=0)
    assert len(pairs) == 41
    assert np.corrcoef(places.T)[0, 1] > 0.9  # Spearman's
    assert np.abs(np.log(pairs[:, 0] / pairs[:, 1])).mean() < 0.3
