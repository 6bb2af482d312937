"""Clusters are the connected components, too, where many runs of a batch are one transaction."""

from __future__ import annotations

import random
from typing import Any

import pytest
from effort import mostly_long
from test_clustering import FAR, TEXTS, State, become, change, check, found, load, open_memory

from percola import Repository, Worker
from webindex.observers.clustering import join
from webindex.observers.redirects import follow, resolve
from webindex.page.urls import page_id, page_row

MANY = [f"https://example.org/{n}" for n in range(14)]


def any_state(rng: random.Random, url: str) -> tuple[Any, ...]:
    """Few texts and few targets, so that clusters are large and hang together by single pages."""
    if rng.random() < 0.15:
        return ("gone",)
    target = rng.choice(MANY[:3]) if rng.random() < 0.5 else None
    return ("live", rng.choice([*TEXTS, None, None]), None if target == url else target)


@pytest.mark.parametrize("seed", mostly_long(range(8), 2))
def test_runs_of_one_batch_that_share_a_timestamp_end_in_the_components(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        with open_memory(reads_ahead=False) as repo:
            known: State = {}
            for changed in (MANY, *(rng.sample(MANY, rng.randint(2, 6)) for _ in range(3))):
                now = {url: any_state(rng, url) for url in changed}
                known |= now
                repo.run(lambda t, now=now: [become(t, *one) for one in now.items()])
                Worker(repo, [resolve, follow], threads=1).run_until_idle()
                with repo.transaction() as t:
                    for url in rng.sample(MANY, len(MANY)):
                        join.function(t, page_row(url))
                check(repo, known)


def test_two_pages_that_leave_a_cluster_in_one_batch_leave_two_clusters(repo: Repository) -> None:
    # Without `cut` the second half becomes a cluster of its own, and without `hub` that one falls
    # apart again: twice a cluster begins, and both begin with the same page.
    urls = sorted(MANY, key=page_id)
    alone, pair, cut, hub, rest = urls[0], urls[1:3], urls[3], urls[4], urls[5:]
    states: State = dict.fromkeys(rest, ("live", FAR, None))
    states |= dict.fromkeys(pair, ("live", 0, hub))
    states |= {alone: ("live", None, hub), hub: ("live", None, None), cut: ("live", FAR, hub)}
    change(repo, states, states)
    assert len(found(repo)) == 1
    changes: State = {cut: ("gone",), hub: ("gone",)}
    states |= changes
    load(repo, changes)
    Worker(repo, [resolve, follow], threads=1).run_until_idle()
    with repo.transaction() as t:
        for url in (cut, hub):
            join.function(t, page_row(url))
    assert found(repo) >= {frozenset({alone}), frozenset(pair)}
    check(repo, states)
