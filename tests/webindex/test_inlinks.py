"""Links are counted once, however many there are and whatever runs at the same time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from unittest import mock

import pytest
from chains import WORDS, Chain, chain_in_memory, moved, page
from effort import tries
from from_scratch import again, by_part, gone, recrawl, sample
from hypothesis import given, settings
from hypothesis import strategies as st

import percola
from percola import ConflictError, Repository, Transaction, Worker
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.removals import put, scope_of
from webindex.load.transaction import load_captures
from webindex.observers import inlinks, texts
from webindex.observers.frontier import entry_row
from webindex.observers.inlinks import add_links, count, invert
from webindex.observers.parse import parse
from webindex.page.urls import page_id, page_row
from webindex.takedown.erasing import erase

TARGET = "https://target.example/"
ROW = page_row(TARGET)


@contextmanager
def bounds(*, large: int = 4, shown: int = 3) -> Iterator[None]:
    """Call a page with a few links large, and show few texts."""
    with (
        mock.patch.object(inlinks, "LARGE", large),
        mock.patch.object(inlinks, "_DELTAS", 2),
        mock.patch.object(tables, "MOST_TEXTS", shown),
    ):
        yield


class Links:
    """Pages that link to one target, and transactions that are under way between them."""

    def __init__(self, repo: Repository) -> None:
        self.repo = repo
        self.links: dict[str, list[Any]] = {}
        self._seconds = 0.0
        self._open: list[tuple[Transaction, Callable[[Transaction], None]]] = []
        self.live(True)

    def live(self, live: bool) -> None:
        """Capture the target as a live page, or as one that is gone, and parse it."""
        self.capture(live)
        self.repo.run(lambda t: parse(t, ROW))

    def capture(self, live: bool) -> None:
        self._seconds += 60
        one = page(TARGET, "<p>Here", self._seconds)
        load_captures(self.repo, [one if live else replace(one, status=404)], "crawl.warc.gz")

    def forbid(self) -> None:
        """Refuse all captures of the target so far, as a takedown does before it erases them."""
        found = self.repo.snapshot().get(tables.capture, ROW)
        if found is not None:
            self.repo.run(lambda t: put(t, scope_of("url", TARGET), found["date"], 0))

    def change(self, url: str, *texts: str, rel: str = "follow") -> str:
        """Let a page link to the target with these texts; without texts, no longer."""
        with self.repo.transaction() as t:
            row = page_row(url)
            t.set(tables.capture, row, {"url": url})
            if texts:
                self.links[url] = [[TARGET, list(texts), rel]]
                t.set(tables.links, row, self.links[url])
            else:
                self.links.pop(url, None)
                t.delete(tables.links, row)
        return row

    def begin(self, run: Callable[[Transaction], None]) -> None:
        """Begin a transaction that commits later."""
        t = self.repo.transaction()
        run(t)
        self._open.append((t, run))

    def commit(self, number: int) -> None:
        """Commit one of the transactions under way; if it fails, run it again."""
        if self._open:
            t, run = self._open.pop(number % len(self._open))
            try:
                t.commit()
            except ConflictError:
                self.repo.run(run)

    def work(self) -> None:
        """Commit what is under way, and work until nothing is left."""
        while self._open:
            self.commit(0)
        observers = [erase, invert, count, add_links]
        Worker(self.repo, observers, threads=1, warn_unobserved=False).run_until_idle()

    def check(self, *, live: bool | None = True) -> None:
        """Fail unless the target has the tally of its links, and all else that goes with it.

        `live` is None if the target has no capture.
        """
        now = self.repo.snapshot()
        found = [one for [one] in self.links.values() if one[2] == "follow"]
        numbers = Counter(text for _, anchors, _ in found for text in anchors)
        first = sorted(numbers, key=lambda text: (-numbers[text], text))[: tables.MOST_TEXTS]
        shown = {text: numbers[text] for text in first}
        row = now.get_row(tables.inlinks, ROW)
        tally = {"links": len(found), "anchors": shown} if found and live is not False else None
        assert row.get(tables.tally) == tally
        entries = {one.key: one[tables.uncaptured] for one in now.scan(tables.frontier)}
        listed = found and live is None
        assert entries == ({entry_row(ROW, len(found)): TARGET} if listed else {})
        assert not row.family(tables.delta)
        sources = {page_id(url) for url in self.links}
        assert row.family(tables.source).keys() == sources
        large = row.get(tables.large)
        if large is not None:
            assert tally is not None
            assert large == 2 or len(numbers) <= tables.MOST_TEXTS
        check_texts(now.get_row(tables.anchors, ROW), numbers if large == 2 else {}, shown)


def check_texts(row: Any, numbers: dict[str, int], shown: dict[str, int]) -> None:
    """Fail unless a row of `anchors` has these texts, of which those shown are in the tally."""
    parts, best = by_part(numbers, shown, texts.part_of)
    assert row.family(tables.texts) == parts
    assert row.get(tables.best, {}) == best


# --- Interleavings ------------------------------------------------------------------------


@settings(max_examples=tries(150), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_links_are_counted_once_whatever_runs_between_the_steps(seed: int) -> None:
    rng = random.Random(seed)
    pages = [f"https://s{number}.example/" for number in range(rng.choice([3, 8, 16]))]
    words = [f"t{number}" for number in range(rng.choice([2, 5, 12]))]
    live: bool | None = True
    with bounds(), percola.open("memory:", schema=tables.SCHEMA) as repo:
        links = Links(repo)
        for _ in range(rng.choice([20, 60])):
            match rng.randrange(10):
                case 0 | 1 | 2:
                    some = rng.sample(words, rng.choice([0, 1, 1, 2]))
                    rel = rng.choice(["follow"] * 5 + ["nofollow"])
                    row = links.change(rng.choice(pages), *some, rel=rel)
                    links.begin(lambda t, row=row: invert(t, row))
                case 3:
                    links.begin(lambda t: count(t, ROW))
                case 4 | 5:
                    links.begin(lambda t: add_links(t, ROW))
                case 6 | 7 | 8:
                    links.commit(rng.randrange(10))
                case 9 if rng.random() < 0.6:
                    live = rng.choice([True, False, None])
                    if live is None:
                        links.forbid()
                        links.begin(lambda t: erase(t, ROW))
                    else:
                        links.capture(live)
                        links.begin(lambda t: parse(t, ROW))
                case _:
                    links.work()
                    links.check(live=live)
        links.work()
        links.check(live=live)


@pytest.fixture
def alone(repo: Repository) -> Iterator[Links]:
    """The target, to which no page links."""
    with bounds():
        yield Links(repo)


@pytest.fixture
def links(alone: Links) -> Links:
    """Five pages that link to the target, which is large."""
    for number in range(5):
        alone.change(f"https://s{number}.example/", "Home")
    alone.work()
    alone.check()
    assert alone.repo.snapshot().get(tables.large, ROW) == 1
    return alone


def test_one_more_link_to_a_large_page_does_not_read_the_others(links: Links) -> None:
    with links.repo.transaction(notify=False) as t:
        # A count of all links finds this one, which is in no delta.
        entry = {"url": "https://x.example/", "anchors": ["X"], "rel": "follow"}
        t.set(tables.source["x"], ROW, entry)
    links.change("https://s5.example/", "Home")
    links.work()
    tally = links.repo.snapshot().get(tables.tally, ROW)
    assert tally == {"links": 6, "anchors": {"Home": 6}}


def test_a_link_entered_while_its_target_becomes_large_is_counted(alone: Links) -> None:
    alone.work()
    row = alone.change("https://slow.example/", "Slow")
    slow = alone.repo.transaction()
    invert(slow, row)
    for number in range(5):
        other = alone.change(f"https://s{number}.example/", "Home")
        alone.repo.run(lambda t, other=other: invert(t, other))
    Worker(alone.repo, [count, add_links], threads=1, warn_unobserved=False).run_until_idle()
    assert alone.repo.snapshot().get(tables.large, ROW) == 1
    slow.commit()
    alone.work()
    alone.check()


def test_a_page_that_loses_its_links_is_no_longer_large(links: Links) -> None:
    links.change("https://other.example/", "Other", rel="nofollow")
    for number in range(5):
        links.change(f"https://s{number}.example/")
        links.work()
        links.check()
        assert (links.repo.snapshot().get(tables.large, ROW) is None) == (number == 4)


def test_a_large_page_that_a_count_finds_small_is_no_longer_large(links: Links) -> None:
    for number in range(3):
        links.change(f"https://s{number}.example/")
    links.work()
    assert links.repo.snapshot().get(tables.large, ROW) == 1
    links.repo.run(lambda t: count(t, ROW))
    assert links.repo.snapshot().get(tables.large, ROW) is None
    links.work()
    links.check()


def test_links_that_do_not_vouch_make_a_page_large_and_cause_no_count(alone: Links) -> None:
    alone.work()
    for number in range(6):
        row = alone.change(f"https://s{number}.example/", "Home", rel="nofollow")
        alone.repo.run(lambda t, row=row: invert(t, row))
    assert "inlinks.changed" not in alone.repo.pending()
    alone.change("https://one.example/", "One")
    alone.work()
    alone.check()
    assert alone.repo.snapshot().get(tables.large, ROW) == 1


def test_a_count_takes_the_deltas_that_it_has_seen_and_leaves_later_ones(links: Links) -> None:
    first = links.change("https://first.example/", "First")
    links.repo.run(lambda t: invert(t, first))
    slow = links.repo.transaction()
    count(slow, ROW)
    second = links.change("https://second.example/", "Second")
    with mock.patch.object(inlinks, "shard_of", return_value=64):  # a delta of its own
        links.repo.run(lambda t: invert(t, second))
    slow.commit()
    assert len(links.repo.snapshot().get_row(tables.inlinks, ROW).family(tables.delta)) == 1
    links.work()
    links.check()


def test_a_slow_count_cannot_leave_a_tally_on_a_page_that_has_gone(alone: Links) -> None:
    row = alone.change("https://s.example/", "Home")
    alone.repo.run(lambda t: invert(t, row))
    slow = alone.repo.transaction()
    count(slow, ROW)
    alone.live(False)
    alone.repo.run(lambda t: count(t, ROW))
    with pytest.raises(ConflictError):
        slow.commit()
    alone.work()
    alone.check(live=False)


def test_a_slow_count_leaves_no_entry_in_the_frontier_of_a_page_captured_meanwhile(
    alone: Links,
) -> None:
    alone.forbid()
    alone.repo.run(lambda t: erase(t, ROW))
    alone.work()
    row = alone.change("https://s.example/", "Home")
    alone.repo.run(lambda t: invert(t, row))
    slow = alone.repo.transaction()
    count(slow, ROW)
    alone.live(True)
    with pytest.raises(ConflictError):
        slow.commit()
    alone.work()
    alone.check()


def test_a_slow_count_cannot_restore_links_that_a_faster_one_found_unchanged(links: Links) -> None:
    url = "https://late.example/"
    links.change(url, "Late", rel="nofollow")
    links.work()
    for rel in ("follow", "nofollow"):
        with links.repo.transaction(notify=False) as t:
            entry = {"url": url, "anchors": ["Late"], "rel": rel}
            t.set(tables.source[page_id(url)], ROW, entry)
        if rel == "follow":
            slow = links.repo.transaction()
            count(slow, ROW)
    links.repo.run(lambda t: count(t, ROW))
    with pytest.raises(ConflictError):
        slow.commit()
    links.check()


@pytest.mark.long
def test_pages_with_few_links_and_texts_called_large_end_in_the_same() -> None:
    pages = [one for one in sample() if one.status == 200]
    with bounds(large=3, shown=2), chain_in_memory() as chain:
        for some in (pages[:60], pages[60:], [gone(one) for one in pages[::5]]):
            chain.verify(some)
        chain.load([again(one, seconds=120) for one in pages[::10]])
        chain.load([moved(one, pages[2].url, seconds=120) for one in pages[5::10]])
        chain.verify(recrawl())
        now = chain.repo.snapshot()
        found = Counter(
            row[tables.large] for row in now.scan(tables.inlinks, columns=[tables.large])
        )
    assert min(found[1], found[2]) > 10


def test_of_the_texts_of_each_url_of_a_document_the_most_frequent_count(empty: Chain) -> None:
    first, second = "https://example.org/a", "https://example.org/bb"

    def linking(name: str, url: str, *anchors: str) -> Capture:
        links = "".join(f'<a href="{url}">{text}</a>' for text in anchors)
        return page(f"https://example.org/{name}", f"{name} {WORDS} {name} {name}1{links}")

    same = f'<title>Same</title><p>{WORDS}<a href="{second}">Inside</a><a href="{first}">Own'
    with bounds(large=3, shown=2):
        empty.load([page(first, same), page(second, same)])
        empty.load([linking(f"x{n}", first, "Herons") for n in range(3)])
        empty.load([linking(f"y{n}", second, "Egrets", "Own") for n in range(3)])
        empty.verify([linking(f"z{n}", first, "Inside") for n in range(2)])
    document = empty.document(first)
    assert document["inlinks"] == 8
    assert document["anchors"] == [["Egrets", 3], ["Herons", 3], ["Own", 2], ["Inside", 1]]


# --- Texts ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_the_texts_shown_are_the_most_frequent_ones_after_any_changes(seed: int) -> None:
    rng = random.Random(seed)

    def few_parts(text: str) -> str:
        return f"{blake2b(text.encode()).digest()[0] % 5:02x}"

    words = [f"t{number:02}" for number in range(40)]
    numbers: Counter[str] = Counter(rng.choices(words, k=rng.choice([30, 200])))
    with (
        bounds(large=4, shown=rng.choice([1, 3, 8])),
        mock.patch.object(texts, "part_of", few_parts),
        percola.open("memory:", schema=tables.SCHEMA) as repo,
    ):
        shown = texts.first(numbers)
        repo.run(lambda t: texts.plant(t, ROW, numbers))
        check_texts(repo.snapshot().get_row(tables.anchors, ROW), numbers, shown)
        for _ in range(40):
            changes = {
                text: change
                for text in rng.sample(words, rng.choice([1, 1, 4]))
                if (change := rng.randint(-min(2, numbers[text]), 2))
            }
            with repo.transaction() as t:
                found = texts.Texts(t, ROW, shown).add(changes)
            numbers.update(changes)
            numbers = +numbers
            expected = sorted(numbers, key=lambda text: (-numbers[text], text))
            assert found == {text: numbers[text] for text in expected[: tables.MOST_TEXTS]}
            shown = found
            check_texts(repo.snapshot().get_row(tables.anchors, ROW), numbers, shown)
        repo.run(lambda t: texts.plant(t, ROW, {}))
        assert not list(repo.snapshot().scan(tables.anchors))
