"""Cycles among transactions that violate snapshot isolation, and their names.

Each transaction is two nodes, its start and its commit, with an edge from one to the other. A
dependency is an edge between such nodes (see `percola.testing.histories.appends`); real-time order
goes through a chain of moments, so that n transactions need n edges and not n². Components are
found by Tarjan's algorithm, without recursion; a short cycle is searched only in components that
have one, the worst kind first.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from percola.testing.histories.records import Recorded
from percola.testing.histories.violations import (
    CIRCULAR_FLOW,
    DIRTY_WRITE,
    LONG_FORK,
    LOST_UPDATE,
    READ_SKEW,
    STALE_READ,
    Violation,
    name,
    show,
)

_TRIES: Final = 200
"""Edges or nodes of a component from which a short cycle is searched."""


class Edge(NamedTuple):
    """Why one transaction came before another.

    Attributes:
        kind: "ww", "wr", "rw", "process" or "time"; "self" from a start to its commit.
        key: the key that shows it; None for an order in time.
        element: what was appended or read last.
    """

    kind: str
    key: str | None = None
    element: object = None


Step = tuple[Recorded, Edge, Recorded]
_SELF: Final = Edge("self")
_TIME: Final = Edge("time")
_WORST_FIRST: Final = ("self", "ww", "wr", "rw", "process", "time")
_DATA: Final = frozenset({"ww", "wr"})
_ORDER: Final = frozenset({"ww", "wr", "process", "time"})


class Cycles:
    """The graph of a history's transactions; it is filled first and then searched."""

    def __init__(self, records: Sequence[Recorded]) -> None:
        self._records = records
        self._number = {id(record): number for number, record in enumerate(records)}
        # Node 2n is the start of transaction n, 2n+1 its commit; above them are the moments.
        self._targets: list[list[int]] = []
        self._edges: list[list[Edge]] = []
        for number in range(len(records)):
            self._targets += [[2 * number + 1], []]
            self._edges += [[_SELF], []]

    def add(self, before: Recorded, after: Recorded, edge: Edge) -> None:
        """`before` came before `after`: its start if `edge` is an rw edge, else its commit."""
        one, other = 2 * self._number[id(before)], 2 * self._number[id(after)]
        if edge.kind == "rw":
            self._link(one, other + 1, edge)
        else:
            self._link(one + 1, other, edge)

    def add_real_time(self) -> None:
        """Add edges from each transaction to all that began after its end."""
        ended = sorted((r for r in self._records if r.ended is not None), key=attrgetter("ended"))
        times = [record.ended for record in ended]
        first = len(self._targets)
        for at, record in enumerate(ended):
            self._targets.append([])
            self._edges.append([])
            self._link(2 * self._number[id(record)] + 1, first + at, _TIME)
            if at:
                self._link(first + at - 1, first + at, _TIME)
        for number, record in enumerate(self._records):
            over = bisect_left(times, record.began)  # type: ignore[type-var]
            if over:
                self._link(first + over - 1, 2 * number, _TIME)

    def _link(self, source: int, target: int, edge: Edge) -> None:
        self._targets[source].append(target)
        self._edges[source].append(edge)

    # --- Search -------------------------------------------------------------------------

    def violations(self, limit: int) -> Iterator[Violation]:
        """The worst cycle of each component that has one; `limit` at most."""
        for number, component in enumerate(self._components(range(len(self._targets)), None)):
            if number == limit:
                return
            yield self._explain(self._worst(set(component)))

    def _worst(self, nodes: set[int]) -> list[Step]:
        searches: list[Callable[[], list[int] | None]] = [
            lambda: self._cycle(nodes, {"ww"}),
            lambda: self._cycle(nodes, _DATA),
            lambda: self._single(nodes, _DATA),
            lambda: self._cycle(nodes, _DATA | {"rw"}),
            lambda: self._cycle(nodes, _ORDER),
            lambda: self._single(nodes, _ORDER),
            lambda: self._cycle(nodes, _ORDER | {"rw"}),
        ]
        for search in searches:
            path = search()
            if path is not None:
                return self._steps(path)
        raise AssertionError("a strongly connected component has a cycle")

    def _cycle(self, nodes: set[int], kinds: frozenset[str] | set[str]) -> list[int] | None:
        """A short cycle of such edges: its nodes, the first one again at the end."""
        best: list[int] | None = None
        component = next(self._components(sorted(nodes), (nodes, kinds)), None)
        if component is None:
            return None
        inside = set(component)
        for node in component[:_TRIES]:
            path = self._path(node, node, inside, kinds)
            if path is not None and (best is None or len(path) < len(best)):
                best = path
        return best

    def _single(self, nodes: set[int], kinds: frozenset[str]) -> list[int] | None:
        """A short cycle with exactly one rw edge."""
        best: list[int] | None = None
        tries = 0
        for source in sorted(nodes):
            for target, edge in zip(self._targets[source], self._edges[source], strict=True):
                if edge.kind != "rw" or target not in nodes:
                    continue
                tries += 1
                if tries > _TRIES:
                    return best
                path = self._path(target, source, nodes, kinds)
                if path is not None and (best is None or len(path) < len(best)):
                    best = [*path, target]
        return best

    def _path(
        self, source: int, target: int, nodes: set[int], kinds: frozenset[str] | set[str]
    ) -> list[int] | None:
        """The nodes of the shortest path along such edges, of at least one edge."""
        came: dict[int, int] = {}
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for following, edge in zip(self._targets[node], self._edges[node], strict=True):
                if following not in nodes or following in came:
                    continue
                if edge.kind != "self" and edge.kind not in kinds:
                    continue
                came[following] = node
                if following == target:
                    path = [target]
                    while True:
                        path.append(came[path[-1]])
                        if path[-1] == source:
                            return path[::-1]
                queue.append(following)
        return None

    def _components(
        self, roots: Sequence[int], within: tuple[set[int], frozenset[str] | set[str]] | None
    ) -> Iterator[list[int]]:
        """Tarjan's strongly connected components of more than one node, in this part of it."""
        count = len(self._targets)
        index, low = [0] * count, [0] * count
        on_stack = bytearray(count)
        stack: list[int] = []
        reached = 0
        for root in roots:
            if index[root]:
                continue
            reached += 1
            index[root] = low[root] = reached
            stack.append(root)
            on_stack[root] = 1
            work = [(root, self._following(root, within))]
            while work:
                node, following = work[-1]
                for target in following:
                    if not index[target]:
                        reached += 1
                        index[target] = low[target] = reached
                        stack.append(target)
                        on_stack[target] = 1
                        work.append((target, self._following(target, within)))
                        break
                    if on_stack[target] and index[target] < low[node]:
                        low[node] = index[target]
                else:
                    work.pop()
                    if work and low[node] < low[work[-1][0]]:
                        low[work[-1][0]] = low[node]
                    if low[node] == index[node]:
                        component = []
                        while True:
                            member = stack.pop()
                            on_stack[member] = 0
                            component.append(member)
                            if member == node:
                                break
                        if len(component) > 1:
                            yield component

    def _following(
        self, node: int, within: tuple[set[int], frozenset[str] | set[str]] | None
    ) -> Iterator[int]:
        if within is None:
            return iter(self._targets[node])
        nodes, kinds = within
        return iter(
            [
                target
                for target, edge in zip(self._targets[node], self._edges[node], strict=True)
                if target in nodes and (edge.kind == "self" or edge.kind in kinds)
            ]
        )

    # --- Stories ------------------------------------------------------------------------

    def _steps(self, path: list[int]) -> list[Step]:
        """A cycle of nodes as one of transactions, moments and own commits left out."""
        limit = 2 * len(self._records)
        steps: list[Step] = []
        before: Recorded | None = None
        # Begin at a transaction, so that no chain of moments is cut in two.
        first = next(at for at, node in enumerate(path) if node < limit)
        ring = path[first:-1] + path[: first + 1]
        for source, target in itertools.pairwise(ring):
            between = zip(self._targets[source], self._edges[source], strict=True)
            # The worst edge if there are several, since it was searched first.
            edge = min((e for node, e in between if node == target), key=_rank)
            if source < limit:
                before = self._records[source // 2]
            if target < limit and edge.kind != "self" and before is not None:
                steps.append((before, edge, self._records[target // 2]))
        return steps

    def _explain(self, steps: list[Step]) -> Violation:
        kinds = [edge.kind for _, edge, _ in steps]
        timed = "time" in kinds or "process" in kinds
        rw = kinds.count("rw")
        keys = {edge.key for _, edge, _ in steps}
        if rw == 0:
            anomaly = DIRTY_WRITE if "wr" not in kinds and not timed else CIRCULAR_FLOW
        elif rw == 1:
            if "ww" in kinds and len(steps) == 2 and len(keys) == 1:
                anomaly = LOST_UPDATE
            else:
                anomaly = STALE_READ if timed else READ_SKEW
        else:
            anomaly = LONG_FORK
        sentences = "; ".join(_sentence(*step) for step in steps)
        members = " → ".join(f"T{before.id}" for before, _, _ in [*steps, steps[0]])
        return Violation(
            anomaly,
            f"{members} is a cycle: {sentences}.",
            tuple(before.id for before, _, _ in steps),
            next((edge.key for _, edge, _ in steps if edge.key is not None), None),
        )


def _rank(edge: Edge) -> int:
    return _WORST_FIRST.index(edge.kind)


def _sentence(before: Recorded, edge: Edge, after: Recorded) -> str:
    one, other, element = name(before), name(after), show(edge.element)
    if edge.kind == "ww":
        return f"{other} appended {element} to {edge.key} after {one} had appended"
    if edge.kind == "wr":
        return f"{other} read {element} in {edge.key}, which {one} had appended"
    if edge.kind == "rw":
        return f"{one} read {edge.key} without {element}, which {other} appended"
    if edge.kind == "process":
        return f"{one} was over before {other} began in the same process"
    return f"{one} was over before {other} began"
