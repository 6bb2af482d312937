"""PageRank without Spark: what counts as a link, the arithmetic, and how graphs may be cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_graphs import Web, computed, edges, put, random_web, ranks

import percola
from webindex import tables
from webindex.page.urls import page_id
from webindex.ranking.graph import Numbering
from webindex.ranking.pagerank import Ranking

A, B, C = (f"https://{name}.example/" for name in "abc")


def compute(web: Web, **options: Any) -> tuple[dict[str, float], Ranking, set[tuple[str, str]]]:
    """Rank a web by the steps that the Spark job takes, with options of `computed`."""
    with percola.open("memory:", schema=tables.SCHEMA) as repo:
        put(repo, web)
        read, ranking, joined = computed(repo, **options)
    urls = {bytes.fromhex(page_id(url)).rstrip(b"\0"): url for url in web.live}
    names = [urls[one] for one in sorted(bytes(one) for part in read for one in part.ids)]
    return (
        dict(zip(names, ranking.values.tolist(), strict=True)),
        ranking,
        {(names[source], names[target]) for source, target in joined.T.tolist()},
    )


def follow(*urls: str) -> list[tuple[str, str]]:
    return [(url, "follow") for url in urls]


def test_three_pages_have_the_ranks_that_one_finds_by_hand() -> None:
    # a → b, a → c, b → c, and c leads nowhere. With s for what c spreads over all,
    # a = 0.15 + s, b = a + 0.425 a, c = a + 0.425 a + 0.85 b, and s = 0.85 c / 3.
    found, _, _ = compute(Web({A: follow(B, C), B: follow(C), C: []}))
    a = 3 / (1 + 1.425 + 1.425 + 0.85 * 1.425)
    assert found == pytest.approx({A: a, B: 1.425 * a, C: (1.425 + 0.85 * 1.425) * a}, abs=1e-8)


def test_a_link_counts_once_and_never_to_the_page_itself_or_without_a_vouch() -> None:
    web = Web(
        {
            A: [*follow(B, B, A), (C, "nofollow"), (C, "ugc"), (C, "sponsored"), (C, "alternate")],
            B: follow(A),
            C: follow("https://never.example/captured"),
        }
    )
    _, _, found = compute(web)
    assert found == {(A, B), (B, A)}


def test_a_link_to_a_redirect_counts_for_the_live_page_that_it_leads_to() -> None:
    moved, lost = "https://moved.example/", "https://lost.example/"
    web = Web(
        {A: follow(moved, lost), B: follow(moved), C: follow(B, moved)},
        redirects={moved: B, lost: "https://dead.example/"},
        dead=["https://dead.example/"],
    )
    _, _, found = compute(web)
    # From b it would be a link to itself, and c has a link to b besides.
    assert found == {(A, B), (C, B)}


def test_a_link_to_a_live_page_counts_for_it_whatever_it_declares_canonical() -> None:
    _, _, found = compute(Web({A: follow(B), B: [], C: []}, canonicals={B: C}))
    assert found == {(A, B)}


def test_a_web_without_pages_or_without_links_has_nothing_to_iterate() -> None:
    nothing, ranking, _ = compute(Web({}, dead=[A]))
    assert (nothing, ranking.iterations, ranking.residual) == ({}, 0, 0.0)
    found, ranking, _ = compute(Web({A: [], B: follow(C), C: []}))
    assert sum(found.values()) == pytest.approx(3)
    assert compute(Web({A: [], B: []}))[0] == {A: 1.0, B: 1.0}
    assert ranking.iterations > 1


WEBS = st.integers(1, 12).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.lists(
            st.tuples(
                st.sampled_from(["live", "live", "live", "redirect", "dead", "absent"]),
                st.lists(
                    st.tuples(
                        st.integers(0, size - 1),
                        st.sampled_from(["follow", "follow", "nofollow", "alternate"]),
                    ),
                    max_size=6,
                ),
                st.one_of(st.none(), st.integers(0, size - 1)),
            ),
            min_size=size,
            max_size=size,
        ),
        st.lists(st.integers(1, size), max_size=4),
        st.lists(st.integers(1, size), max_size=3),
    )
)


@given(WEBS)
def test_every_web_has_the_ranks_that_solve_its_equations_however_it_is_cut(
    drawn: tuple[int, list[tuple[str, list[tuple[int, str]], int | None]], list[int], list[int]],
) -> None:
    size, pages, parts, blocks = drawn
    urls = [f"https://host{n % 3}.example/{n}" for n in range(size)]
    web = Web(
        live={
            urls[at]: [(urls[to], rel) for to, rel in links]
            for at, (kind, links, _) in enumerate(pages)
            if kind == "live"
        },
        redirects={
            urls[at]: urls[to]
            for at, (kind, _, to) in enumerate(pages)
            if kind == "redirect" and to is not None
        },
        canonicals={
            urls[at]: urls[to]
            for at, (kind, _, to) in enumerate(pages)
            if kind == "live" and to is not None
        },
        dead=[urls[at] for at, (kind, _, _) in enumerate(pages) if kind == "dead"],
    )
    found, _, found_edges = compute(web, parts=parts, blocks=blocks)
    assert found_edges == edges(web)
    assert found == pytest.approx(ranks(web) if web.live else {}, abs=1e-6)


def test_ranks_are_the_same_to_the_last_bit_however_the_graph_is_cut() -> None:
    web = random_web(300, seed=1)
    whole, _, _ = compute(web)
    for parts, blocks in ([[128], [150]], [[3, 50, 200], [1, 2, 77, 299]]):
        assert compute(web, parts=parts, blocks=blocks)[0] == whole


def test_ninety_steps_are_enough_for_a_millionth_and_the_residual_tells_the_error() -> None:
    ring = Web({A: follow(B), B: follow(A), C: follow(A)})
    for web in (ring, random_web(200, seed=2)):
        found, ranking, _ = compute(web, tolerance=1e-6)
        assert ranking.residual <= 1e-6 and ranking.iterations <= 90
        exact = ranks(web)
        error = sum(abs(found[url] - exact[url]) for url in exact) / len(exact)
        assert error <= 5.7 * ranking.residual + 1e-12
    _, cut_short, _ = compute(ring, tolerance=1e-6, most=5)
    assert cut_short.iterations == 5 and cut_short.residual > 1e-6
    assert np.mean(cut_short.values) == pytest.approx(1)


def test_ids_that_end_in_zero_bytes_are_not_mistaken_for_others() -> None:
    ids = np.frombuffer(b"\1" + bytes(15) + b"\1" + bytes(14) + b"\1", dtype="S16")
    none = np.frombuffer(b"", dtype="S16")
    numbering = Numbering(ids, none, none)
    assert numbering.of(ids).tolist() == [0, 1]
    assert numbering.of(np.frombuffer(b"\1\1" + bytes(14), dtype="S16")).tolist() == [-1]
