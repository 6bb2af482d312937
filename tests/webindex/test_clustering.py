"""Clusters are the connected components of what pages share, in whatever order that changes."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from effort import tries
from hypothesis import given, settings
from hypothesis import strategies as st

import percola
from percola import Observer, Repository, Transaction, Worker, inspection
from percola.coordination.memory import MemoryCoordination
from percola.oracle.embedded import EmbeddedOracle
from percola.store.memory import MemoryStore
from webindex import tables
from webindex.observers.clustering import join
from webindex.observers.components import band_rows, partition
from webindex.observers.redirects import follow, point, resolve
from webindex.page.fingerprints import Sketch
from webindex.page.pointers import MAX_HOPS
from webindex.page.urls import page_id, page_row

CHAIN: Sequence[Observer[Any]] = (join, resolve, follow)

SITE = [f"https://example.org/{letter}" for letter in "abcdefgh"]
ELSEWHERE = "https://elsewhere.net/x"

FAR, BESIDE = 10, 11
TEXTS = [0, 1, 2, 3, FAR, BESIDE, None]
"""The first four are a chain: each is near to the next one only. So are the two after them."""


def sketch_of(number: int) -> Sketch:
    """The words of a text: of a hundred, four are not those of the number before."""
    rng = random.Random(number // 10)
    words = [rng.getrandbits(29) << 3 for _ in range(140)]
    at = 4 * (number % 10)
    return Sketch(tokens=1000, name=0, titled=True, values=tuple(sorted(words[at : at + 100])))


def key_of(number: int) -> str:
    """The content of a text; the keys are not in the order of the numbers."""
    return f"near/{'c' * 16}/{random.Random(f'key {number}').getrandbits(128):032x}"


State = dict[str, tuple[Any, ...]]
"""By URL: ("live", text, canonical or None), ("redirect", target) or ("gone",)."""


def become(t: Transaction, url: str, state: tuple[Any, ...]) -> None:
    """What `parse` does when a page is found to have become this."""
    row = page_row(url)
    pointer = None
    if state[0] == "redirect":
        pointer = {"kind": "redirect", "url": state[1]}
    elif state[0] == "live" and state[2] is not None:
        pointer = {"kind": "canonical", "url": state[2]}
    t.set(tables.capture, row, {"url": url})
    was_live = t.get(tables.fingerprint, row) is not None
    point(t, row, url, pointer, was_live=was_live, live=state[0] == "live")
    if state[0] == "live":
        text = state[1]
        if text is not None:
            t.set(tables.sketch, row, sketch_of(text).pack())
        elif was_live:
            t.delete(tables.sketch, row)
        known = {"title": "", "language": None, "indexable": True, "loaded_ms": 0}
        known["hash"] = f"bytes:{url}" if text is None else f"text:{key_of(text)[-32:]}"
        known["heading"] = None if text is None else "c" * 16
        t.set(tables.fingerprint, row, known)
    elif was_live:
        t.delete(tables.fingerprint, row)
        t.delete(tables.sketch, row)
    t.notify(tables.join_due, row)


def ends(states: State) -> dict[str, str]:
    """The live pages that redirects lead to."""
    found = {}
    for url, state in states.items():
        at, hops = url, -1
        while states.get(at, ("gone",))[0] == "redirect" and hops <= MAX_HOPS:
            at, hops = states[at][1], hops + 1
        if state[0] == "redirect" and hops <= MAX_HOPS and states.get(at, "?")[0] == "live":
            found[url] = at
    return found


def are_near(one: int, other: int) -> bool:
    """Whether two texts are near, by comparing their words."""
    mine, its = sketch_of(one), sketch_of(other)
    return bool(set(mine.bands) & set(its.bands)) and len(set(mine.values) - set(its.values)) <= 6


def leaders(texts: Collection[int]) -> dict[int, int]:
    """The leader of each text, by comparing every text with every one before it."""
    led: dict[int, int] = {}
    for text in sorted(texts, key=key_of):
        before = (one for one in led if led[one] == one and are_near(one, text))
        led[text] = min(before, key=key_of, default=text)
    return led


def expected(states: State) -> set[frozenset[str]]:
    """The connected components, by comparing every page with every other one."""
    live = {url: state for url, state in states.items() if state[0] == "live"}
    leads = ends(states)
    groups = [{url} for url in live]
    edges = []
    for url, (_, _, canonical) in live.items():
        end = canonical if canonical in live else leads.get(canonical)
        if end is not None and live[end][2] is None and ELSEWHERE not in (url, end):
            edges.append((url, end))
    led = leaders({text for _, text, _ in live.values() if text is not None})
    for (one, (_, mine, _)), (other, (_, its, _)) in combinations(live.items(), 2):
        if mine is not None and its is not None and led[mine] == led[its]:
            edges.append((one, other))
    for one, other in edges:
        [mine] = [group for group in groups if one in group]
        [its] = [group for group in groups if other in group]
        if mine is not its:
            groups.remove(its)
            mine |= its
    return {frozenset(group) for group in groups}


def found(repo: Repository) -> set[frozenset[str]]:
    """The clusters that a repository holds; every cell about them has to agree."""
    now = repo.snapshot()
    clusters: dict[str, set[str]] = {}
    contents: dict[str, list[str]] = {}
    for row in now.scan(tables.pages, columns=[tables.capture, tables.joined]):
        joined = row.get(tables.joined)
        if joined is not None:
            clusters.setdefault(joined["cluster"], set()).add(row[tables.capture]["url"])
            contents.setdefault(joined["content"], []).append(joined["cluster"])
    members = {
        row.key: {one["url"] for one in row.family(tables.member).values()}
        for row in now.scan(tables.clusters, columns=[tables.member])
    }
    assert members == clusters
    owners = {row.key: row[tables.owner] for row in now.scan(tables.keys, columns=[tables.owner])}
    texts = {key_of(text): text for text in TEXTS if text is not None}
    led = leaders([texts[content] for content in contents if content in texts])
    keys = {key_of(text): key_of(leader) for text, leader in led.items()}
    assert owners == {
        content: {"cluster": there[0], "leader": keys.get(content, content), "pages": len(there)}
        for content, there in contents.items()
    }
    listed = {row.key: row[tables.near] for row in now.scan(tables.keys, columns=[tables.near])}
    bands: dict[str, list[str]] = {}
    for content in sorted(keys):
        for row in band_rows(content, sketch_of(texts[content])):
            bands.setdefault(row, []).append(content[-32:])
    assert {row: stored.hex() for row, stored in listed.items()} == {
        row: "".join(there) for row, there in bands.items()
    }
    sketches = {
        row.key: row[tables.sketch_of] for row in now.scan(tables.keys, columns=[tables.sketch_of])
    }
    assert sketches == {content: sketch_of(texts[content]).pack() for content in keys}
    counted = [row[tables.live] for row in now.scan(tables.hosts)]
    assert sum(one["pages"] for one in counted) == sum(map(len, clusters.values()))
    return {frozenset(one) for one in clusters.values()}


def open_memory(*, reads_ahead: bool) -> Repository:
    """A repository in memory, which may be read as one behind a network."""
    if not reads_ahead:
        return percola.open("memory:", schema=tables.SCHEMA)
    store = MemoryStore()
    oracle, coordination = EmbeddedOracle(store), MemoryCoordination()
    return Repository(
        "memory", store, oracle, coordination, tables.SCHEMA, one_step=False, prefetches=True
    )


def work(repo: Repository) -> None:
    """Work off what is dirty; documents are of no interest here."""
    Worker(repo, CHAIN, threads=2, first_wait=0.001).run_until_idle()
    assert [one.traceback for one in inspection.failures(repo)] == []


def load(repo: Repository, states: State) -> None:
    for url, state in states.items():
        repo.run(lambda t, url=url, state=state: become(t, url, state))


def check(repo: Repository, states: State) -> None:
    work(repo)
    assert found(repo) == expected(states)
    now = repo.snapshot()
    resolved = {
        row[tables.capture]["url"]: row[tables.resolved]["url"]
        for row in now.scan(tables.pages, columns=[tables.capture, tables.resolved])
        if tables.resolved in row and row[tables.resolved]["kind"] == "redirect"
    }
    assert resolved == ends(states)


def change(repo: Repository, states: State, changes: State) -> None:
    """Let some pages become this, and compare all."""
    states |= changes
    load(repo, changes)
    check(repo, states)


# --- Any order ----------------------------------------------------------------------------

targets = st.sampled_from([*SITE, ELSEWHERE])
states = st.one_of(
    st.tuples(st.just("live"), st.sampled_from(TEXTS), st.none()),
    st.tuples(st.just("live"), st.sampled_from(TEXTS), st.none() | targets),
    st.tuples(st.just("redirect"), targets),
    st.tuples(st.just("gone")),
)
steps = st.lists(st.tuples(targets, states, st.booleans()), min_size=1, max_size=40)


@pytest.mark.parametrize("reads_ahead", [False, True])
@settings(max_examples=tries(150))
@given(steps=steps)
def test_whatever_pages_become_in_whatever_order_clusters_are_the_components(
    reads_ahead: bool, steps: list[tuple[str, tuple[Any, ...], bool]]
) -> None:
    with open_memory(reads_ahead=reads_ahead) as repo:
        known: State = {}
        for url, state, at_once in steps:
            if state[-1] == url:
                continue  # A page that names itself names nobody: the parser has seen to that.
            known[url] = state
            load(repo, {url: state})
            if at_once:
                check(repo, known)
        check(repo, known)


def test_a_canonical_page_that_becomes_a_redirect_to_nowhere_takes_its_redirects_along() -> None:
    """In either order of the two runs; which comes first is by chance, so it is played often."""
    end, middle, gone = SITE[:3]
    for _ in range(30):
        with open_memory(reads_ahead=True) as repo:
            known: State = {}
            live: State = {end: ("live", 1, None), middle: ("live", None, end)}
            change(repo, known, live | {ELSEWHERE: ("redirect", middle)})
            change(repo, known, {middle: ("redirect", gone)})


def test_a_text_near_two_others_joins_them_if_it_leads_them_and_parts_them_when_it_goes(
    repo: Repository,
) -> None:
    one, between, other = SITE[:3]
    first = next(n for n in (1, 2) if key_of(n) < min(key_of(n - 1), key_of(n + 1)))
    states: State = {}
    change(repo, states, {one: ("live", first - 1, None), other: ("live", first + 1, None)})
    assert len(found(repo)) == 2
    change(repo, states, {between: ("live", first, None)})
    assert len(found(repo)) == 1
    change(repo, states, {between: ("live", FAR, None)})
    assert found(repo) == {frozenset({one}), frozenset({other}), frozenset({between})}


def test_texts_at_the_ends_of_a_chain_of_small_edits_are_in_clusters_of_their_own(
    repo: Repository,
) -> None:
    states: State = {url: ("live", number, None) for number, url in enumerate(SITE[:4])}
    change(repo, states, states)
    clusters = found(repo)
    assert 1 < len(clusters) < 4
    for cluster in clusters:
        texts = [states[url][1] for url in cluster]
        assert max(texts) - min(texts) <= 2, "each is near to one leader"


def test_a_chain_of_redirects_settles_from_its_end_whatever_came_first(repo: Repository) -> None:
    last = "https://example.org/end"
    hops = [f"https://example.org/{n:02}" for n in range(MAX_HOPS + 3)]
    states: State = {url: ("redirect", to) for url, to in itertools.pairwise([*hops, last])}
    change(repo, states, states)
    change(repo, states, {last: ("live", FAR, None)})
    # The first ones are too far away.
    assert set(ends(states)) == set(hops[2:])
    change(repo, states, {last: ("redirect", hops[5])})
    assert ends(states) == {}


def test_a_page_that_names_a_canonical_one_leaves_when_that_names_another(repo: Repository) -> None:
    copy, page, other = SITE[:3]
    states: State = {copy: ("live", None, page), page: ("live", FAR, None)}
    change(repo, states, states | {other: ("live", 0, None)})
    assert frozenset({copy, page}) in found(repo)
    change(repo, states, {page: ("live", FAR, other)})
    assert frozenset({page, other}) in found(repo) and frozenset({copy}) in found(repo)


# --- At the same time (write skew) --------------------------------------------------------

PAIRS = [
    # New pages with one key each, of every kind.
    [("live", FAR, None), ("live", FAR, None)],
    [("live", FAR, None), ("live", BESIDE, None)],
    [("live", None, SITE[1]), ("live", None, None)],
]


@pytest.mark.parametrize("pair", PAIRS)
def test_two_joins_with_a_key_in_common_that_see_none_of_each_other_do_not_both_commit(
    repo: Repository, pair: list[tuple[Any, ...]]
) -> None:
    states = dict(zip(SITE, pair, strict=False))
    load(repo, states)
    Worker(repo, [resolve, follow], threads=1).run_until_idle()
    both = [repo.transaction(), repo.transaction()]
    for t, url in zip(both, states, strict=True):
        join.function(t, page_row(url))
    both[0].commit()
    with pytest.raises(percola.ConflictError):
        both[1].commit()
    check(repo, states)


def test_a_join_does_not_commit_beside_a_split_or_a_merge_of_its_cluster(repo: Repository) -> None:
    between, late = SITE[1], SITE[3]
    states: State = {url: ("live", number, None) for number, url in enumerate(SITE[:3])}
    change(repo, states, states)
    changes: State = {between: ("gone",), late: ("live", 2, None)}
    states |= changes
    load(repo, changes)
    split, joining = repo.transaction(), repo.transaction()
    join.function(split, page_row(between))
    join.function(joining, page_row(late))
    joining.commit()
    with pytest.raises(percola.ConflictError):
        split.commit()
    check(repo, states)


def test_a_text_that_gets_another_leader_conflicts_with_one_that_joins_it(repo: Repository) -> None:
    # Of three in a chain the middle one is last in order, and is led by the first of the two
    # others. That one goes while a text that is near to the middle one alone comes.
    middle = next(
        n
        for n in range(20, 1000)
        if n % 10 in range(2, 8)
        and key_of(n) > key_of(n - 1) < key_of(n + 1)
        and key_of(n) > key_of(n + 1)
    )
    load(repo, {SITE[0]: ("live", middle - 1, None), SITE[1]: ("live", middle, None)})
    work(repo)
    load(repo, {SITE[0]: ("gone",), SITE[2]: ("live", middle + 1, None)})
    Worker(repo, [resolve, follow], threads=1).run_until_idle()
    going, coming = repo.transaction(), repo.transaction()
    join.function(going, page_row(SITE[0]))
    join.function(coming, page_row(SITE[2]))
    coming.commit()
    with pytest.raises(percola.ConflictError):
        going.commit()


@pytest.mark.timeout(360)
def test_pages_that_change_while_workers_run_end_in_the_components(tmp_path: Path) -> None:
    rng = random.Random(4)
    with percola.open(tmp_path / "repo", schema=tables.SCHEMA) as repo:
        worker = Worker(repo, CHAIN, threads=4, first_wait=0.001)
        known: State = {}
        urls = [f"https://example.org/{n}" for n in range(40)]
        shares = [urls[part::4] for part in range(4)]
        lock = threading.Lock()

        def change(share: list[str], seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(60):
                url = rng.choice(share)
                kind = rng.random()
                state: tuple[Any, ...] = ("live", rng.choice(TEXTS), None)
                other = rng.choice([one for one in urls if one != url])
                if kind < 0.2:
                    state = ("gone",)
                elif kind < 0.35:
                    state = ("redirect", other)
                elif kind < 0.5:
                    state = ("live", rng.choice(TEXTS), other)
                load(repo, {url: state})
                with lock:
                    known[url] = state

        worker.start()
        try:
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(change, shares, [rng.random() for _ in shares]))
        finally:
            worker.stop()
        counts = worker.metrics.counts()
        check(repo, known)
        assert counts["observer_runs"]["join"] >= len(known)
        assert counts["observer_conflicts"]["join"] > 0, "nobody met anybody"


# --- The partition alone ------------------------------------------------------------------


def test_a_partition_is_sorted_by_size_and_looks_at_nobody_else() -> None:
    def member(url: str, leader: str, target: str | None = None) -> dict[str, Any]:
        return {"url": url, "content": f"of {url}", "leader": leader, "target": target}

    every = [
        *(member(SITE[0], "one"), member(SITE[1], "one")),
        member(SITE[2], "another", target=SITE[0]),
        *(member(SITE[3], "third"), member(SITE[4], "third")),
        member(SITE[5], "fourth", target=ELSEWHERE),
    ]
    members = {page_id(one["url"]): one for one in every}
    parts = [sorted(members[page]["url"] for page in part) for part in partition(members)]
    assert parts == [SITE[:3], SITE[3:5], [SITE[5]]]
    assert partition({}) == []
