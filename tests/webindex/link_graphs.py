"""Small webs for the tests of PageRank: their cells, and their ranks from another computation."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from percola import Repository, Transaction
from webindex import tables
from webindex.page.urls import page_row
from webindex.ranking.graph import Numbering, PageRow, PagesRead, edges_of, read_pages
from webindex.ranking.pagerank import Block, Ranking, iterate
from webindex.ranking.report import EPSILON
from webindex.ranking.writing import begin, write_ranks

Links = Sequence[tuple[str, str]]
"""(URL, rel) of each link of a page."""


@dataclass(frozen=True)
class Web:
    """A web at rest.

    Attributes:
        live: the links of each live page, by its URL.
        redirects: pages that are redirects, and the live page that they lead to in the end.
        canonicals: live pages that lead to another one by a declaration.
        dead: pages that were captured and are nothing.
    """

    live: Mapping[str, Links]
    redirects: Mapping[str, str] = field(default_factory=dict)
    canonicals: Mapping[str, str] = field(default_factory=dict)
    dead: Sequence[str] = ()


def put(repo: Repository, web: Web) -> None:
    """Write the cells of a web, as the chain of observers leaves them."""
    urls = [*web.live, *web.redirects, *web.dead]
    for low in range(0, len(urls), 200):
        some = urls[low : low + 200]
        repo.run(lambda t, some=some: _put(t, web, some))  # type: ignore[misc]
    # Nobody works here: only what a test does is to be seen as waiting.
    assert repo.pending().keys() <= {"pages.capture", "pages.links"}


def _put(t: Transaction, web: Web, urls: Sequence[str]) -> None:
    for url in urls:
        row = page_row(url)
        t.set(tables.capture, row, {"url": url})
        if url in web.live:
            t.set(tables.fingerprint, row, {"url": url})
            t.set(tables.joined, row, {"cluster": f"cluster of {url}"})
            if web.live[url]:
                t.set(tables.links, row, [[to, [], rel] for to, rel in web.live[url]])
        for found, kind in ((web.redirects, "redirect"), (web.canonicals, "canonical")):
            if url in found:
                t.set(tables.resolved, row, {"kind": kind, "url": found[url], "hops": 0})


def edges(web: Web) -> set[tuple[str, str]]:
    """The edges as the definition has them."""
    found = set()
    for source, links in web.live.items():
        for url, rel in links:
            target = url if url in web.live else web.redirects.get(url)
            if rel == "follow" and target in web.live and target != source:
                found.add((source, str(target)))
    return found


def ranks(web: Web) -> dict[str, float]:
    """PageRank by solving its equations, not by iteration."""
    urls = list(web.live)
    size = len(urls)
    number = {url: at for at, url in enumerate(urls)}
    follows = np.zeros((size, size))
    for source, target in edges(web):
        follows[number[source], number[target]] = 1.0
    for row in follows:
        row[:] = row / row.sum() if row.any() else 1.0 / size
    solved = np.linalg.solve(np.eye(size) - 0.85 * follows.T, np.full(size, 0.15))
    return dict(zip(urls, solved.tolist(), strict=True))


def random_web(pages: int, seed: int) -> Web:
    """Some hundred pages or more: a few hubs, redirects, canonicals, and pages without a link."""
    dice = random.Random(seed)
    urls = [f"https://host{n % 7}.example/{n}" for n in range(pages)]
    moved = {f"https://old.example/{n}": dice.choice(urls) for n in range(pages // 10)}
    anywhere = [*urls, *moved, *(f"https://unknown.example/{n}" for n in range(20))]
    return Web(
        {
            url: [
                (
                    dice.choice(anywhere[:10] if dice.random() < 0.3 else anywhere),
                    "follow" if dice.random() < 0.9 else "nofollow",
                )
                for _ in range(dice.choice((0, 1, 3, 12)))
            ]
            for url in urls
        },
        moved,
        {url: dice.choice(urls) for url in urls[::10]},
    )


def rows(repo: Repository) -> list[PageRow]:
    """What a task of the Spark job is given of each row of `pages`."""
    with repo.snapshot() as snapshot:
        found = []
        for row in snapshot.scan(tables.pages):
            fingerprint, resolved = row.get(tables.fingerprint), row.get(tables.resolved)
            links = row.get(tables.links)
            redirect = resolved is not None and resolved["kind"] == "redirect"
            found.append(
                PageRow(
                    row.key,
                    fingerprint["url"] if fingerprint else None,
                    None if links is None else [url for url, _, rel in links if rel == "follow"],
                    row[tables.capture]["url"],
                    resolved["url"] if resolved and redirect else None,
                )
            )
    return found


def computed(
    repo: Repository,
    *,
    parts: Sequence[int] = (),
    blocks: Sequence[int] = (),
    tolerance: float = 1e-9,
    most: int = 500,
) -> tuple[list[PagesRead], Ranking, NDArray[np.int32]]:
    """The steps of the Spark job in this process: what was read, the ranks, and the edges.

    Args:
        parts, blocks: which rows and which pages to cut before; not at all by default.
    """
    found = rows(repo)
    cuts = [0, *sorted({at for at in parts if 0 < at < len(found)}), len(found)]
    read = [read_pages(found[low:high]) for low, high in pairwise(cuts)]
    live = np.concatenate([one.ids for one in read])
    numbering = Numbering(
        live,
        np.concatenate([one.redirects for one in read]),
        np.concatenate([one.destinations for one in read]),
    )
    joined = np.concatenate([edges_of(one, numbering) for one in read], axis=1)
    bounds = [0, *sorted({at for at in blocks if 0 < at < len(live)}), len(live)]
    made = [
        Block.of(low, high, joined[:, (joined[1] >= low) & (joined[1] < high)])
        for low, high in pairwise(bounds)
    ]
    ranking = iterate(
        np.bincount(joined[0], minlength=len(live)).astype(np.int32),
        lambda shares, step: np.concatenate([block.receive(shares) for block in made]),
        tolerance=tolerance,
        most=most,
    )
    return read, ranking, joined


def rank_all(repo: Repository) -> int:
    """What `webindex rank` does, without Spark; the number of ranks that it wrote."""
    with repo.snapshot() as snapshot:
        run = snapshot.start_ts
    begin(repo, run)
    [read], ranking, edges = computed(repo, tolerance=1e-6)
    in_order = [read.rows[at] for at in np.argsort(read.ids)]
    ranks = sorted(zip(in_order, ranking.values.tolist(), strict=True))
    links = dict(zip(in_order, np.bincount(edges[0], minlength=len(ranks)).tolist(), strict=True))
    return write_ranks(repo, run, ranks, EPSILON, links).written


def written(repo: Repository) -> dict[str, tuple[float, int]]:
    """Value and run of every rank in the repository, by row."""
    with repo.snapshot() as snapshot:
        return {
            row.key: (row[tables.rank]["value"], row[tables.rank]["run"])
            for row in snapshot.scan(tables.pages, columns=[tables.rank])
        }
