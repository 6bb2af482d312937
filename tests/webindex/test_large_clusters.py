"""The documents of clusters that are too large to be read whole for each change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import from_scratch
from chains import WORDS, chain_in_memory, moved, naming, page
from effort import tries
from from_scratch import again, gone
from hypothesis import given, settings
from hypothesis import strategies as st

from percola.recipes import tree
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.observers import documents, inlinks, summaries

PAGES = [f"https://example.org/{number}" for number in range(12)]


@contextmanager
def bounds(large: int = 3) -> Iterator[None]:
    """Call a cluster of a few pages large, with a tree of many levels, and name few of them."""
    with ExitStack() as stack:
        for owner, name, value in [
            (tables, "LARGE_CLUSTER", large),
            (tables, "MOST_URLS", 2),
            (tables, "MOST_TEXTS", 3),
            (documents, "MAX_ANCHORS", 2),
            (from_scratch, "MOST_URLS", 2),
            (from_scratch, "MOST_ANCHORS", 2),
            (summaries, "_DELTAS", 2),
            (inlinks, "LARGE", 4),
            (tree, "MOST_ENTRIES", 2),
            (tree, "FAN_OUT", 2),
        ]:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def any_page(rng: random.Random, url: str, seconds: float) -> Capture:
    """Few texts, and links to others of the pages with few anchors: most are in one cluster."""
    text = WORDS if rng.random() < 0.8 else f"{WORDS} another {rng.randrange(2)}"
    links = "".join(
        f'<a href="{rng.choice(PAGES)}">{rng.choice(["one", "two", "three", "four", "five"])}</a>'
        for _ in range(rng.randrange(4))
    )
    robots = '<meta name="robots" content="noindex">' if rng.random() < 0.2 else ""
    one = page(url, f"<title>Same</title>{robots}<p>{text}{links}", seconds)
    match rng.randrange(12):
        case 0:
            return gone(one, seconds=0)
        case 1:
            return moved(one, rng.choice(PAGES), seconds=0)
        case 2 | 3:
            return again(one, seconds=0, headers=naming(one, rng.choice(PAGES[:2])))
    return one


@settings(max_examples=tries(12), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_history_of_a_large_cluster_ends_in_what_its_pages_say(seed: int) -> None:
    rng = random.Random(seed)
    threads = rng.choice([1, 1, 1, 3])
    with bounds(rng.choice([2, 3, 5])), chain_in_memory() as chain:
        for step in range(rng.choice([2, 6])):
            urls = rng.sample(PAGES, rng.choice([1, 3, 12]))
            chain.load([any_page(rng, url, 60 * step) for url in urls], rng.choice([1, 4, 12]))
            if rng.random() < 0.7:
                chain.work(threads)
                chain.check()
        chain.work(threads)
        chain.check()
