"""Which pages belong together: the connected components of the graph of content keys.

All pages of one content are one node, so a thousand identical pages cost as much as one. Edges
join contents to their leaders, and the content of a page to that of its canonical page.

Components come from large-star and small-star rounds (Kiveris et al., Connected Components in
MapReduce and Beyond, 2014): each node joins its larger neighbours, then its smaller ones, to the
smallest node that it knows of. Every round at least halves the distance to the smallest node of a
component, so a chain of sixty near-duplicates takes a handful of rounds. When a round changes
nothing, every edge leads from a node to the smallest one of its component.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final

from pyspark import StorageLevel
from pyspark.core.rdd import RDD

from webindex.page.fingerprints import Sketch

Edge = tuple[str, str]
_Star = Callable[[str, Iterable[str]], Iterator[Edge]]

_MOST_ROUNDS: Final = 200


def leaders(contents: RDD[tuple[str, bytes]], parts: int) -> RDD[Edge]:
    """(content, its leader) of all given contents, from their sketches.

    Only contents of one heading can be near, so each heading is one group.
    """
    return contents.keyBy(_heading).groupByKey(parts).flatMap(lambda one: leaders_among(one[1]))


def _heading(content: tuple[str, bytes]) -> str:
    return content[0].split("/")[1]


def leaders_among(contents: Iterable[tuple[str, bytes]]) -> Iterator[Edge]:
    """The leader of each of these contents, in the order of their keys."""
    leading: defaultdict[str, list[tuple[str, Sketch]]] = defaultdict(list)
    for content, packed in sorted(contents):
        sketch = Sketch.unpack(packed)
        met = {name: one for band in sketch.bands for name, one in leading[band]}
        leader = min((name for name, one in met.items() if one.is_near(sketch)), default=content)
        if leader == content:
            for band in sketch.bands:
                leading[band].append((content, sketch))
        yield content, leader


def smallest_of(edges: RDD[Edge], parts: int) -> RDD[tuple[str, str]]:
    """For each node of an edge, the smallest node of its component; not for that node itself."""
    known = edges.filter(lambda edge: edge[0] != edge[1]).map(_falling).distinct(parts)
    known = _kept(known)
    sign = _sign(known)
    for _ in range(_MOST_ROUNDS):
        larger = _stars(known.flatMap(_both_ways), parts, _large_star)
        after = _kept(_stars(larger, parts, _small_star).distinct(parts))
        before, sign = sign, _sign(after)
        known.unpersist()
        known = after
        if sign == before:
            return known
    raise AssertionError(f"The components are not found after {_MOST_ROUNDS} rounds.")


def _kept(edges: RDD[Edge]) -> RDD[Edge]:
    edges.persist(StorageLevel.MEMORY_AND_DISK)
    # Cut the lineage: otherwise each round would carry the plans of all rounds before it.
    edges.localCheckpoint()
    return edges


def _sign(edges: RDD[Edge]) -> tuple[int, int]:
    """The number of edges, and a checksum over them: equal for equal sets."""
    return edges.map(lambda edge: (1, _fingerprint(edge))).fold(
        (0, 0), lambda one, other: (one[0] + other[0], one[1] + other[1])
    )


def _fingerprint(edge: Edge) -> int:
    # Not hash(), which differs between Python processes.
    return int.from_bytes(blake2b("\0".join(edge).encode(), digest_size=8).digest(), "big")


def _falling(edge: Edge) -> Edge:
    return (edge[0], edge[1]) if edge[0] > edge[1] else (edge[1], edge[0])


def _both_ways(edge: Edge) -> Iterator[Edge]:
    yield edge
    yield edge[1], edge[0]


def _stars(edges: RDD[Edge], parts: int, star: _Star) -> RDD[Edge]:
    return edges.groupByKey(parts).flatMap(lambda node: star(node[0], node[1]))


def _large_star(node: str, neighbours: Iterable[str]) -> Iterator[Edge]:
    """Join larger neighbours to the smallest node around."""
    around = set(neighbours)
    smallest = min(min(around), node)
    for one in around:
        if one > node:
            yield one, smallest


def _small_star(node: str, smaller: Iterable[str]) -> Iterator[Edge]:
    """Join the node and its smaller neighbours to the smallest of them."""
    around = set(smaller)
    smallest = min(around)
    yield node, smallest
    for one in around:
        if one != smallest:
            yield one, smallest
