"""Where redirects and canonical links lead: all pages are followed at once, one hop a round.

    round 0      P ──▶ where its own pointer leads
    round n      those that are at a redirect go on to its target, `MAX_HOPS` times

A chain resolves if it ends at a live page other than its own beginning. All others lead nowhere:
those that end at a page that is gone or was never captured, or take too many hops, as all circles
do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.core.rdd import RDD

from webindex.batch.facts import Facts
from webindex.page.pointers import MAX_HOPS
from webindex.page.urls import registrable_domain


class Led(NamedTuple):
    """A page `url` whose pointer leads to the live page `end`.

    Attributes:
        kind: of its own pointer: redirect or canonical.
        hops: redirects that were followed after that.
        plain: whether the end declares no canonical page itself.
    """

    url: str
    kind: str
    end: str
    hops: int
    plain: bool

    @property
    def counts(self) -> bool:
        """Whether the page is entered at the end: see `observers.redirects.end_of`."""
        return self.kind == "redirect" or (
            self.plain and registrable_domain(self.url) == registrable_domain(self.end)
        )

    @property
    def value(self) -> dict[str, Any]:
        """The value of `pages.resolved`."""
        return {"kind": self.kind, "url": self.end, "hops": self.hops, "plain": self.plain}


class _Walk(NamedTuple):
    url: str
    kind: str
    hops: int


_Sign = tuple[bool, tuple[str, str] | None]
"""The state of a page: whether it is live, and its pointer."""

_Step = tuple[str, _Walk] | Led


def follow(facts: RDD[Facts], parts: int) -> RDD[Led]:
    """Where the pointers of pages lead; those that lead nowhere are left out."""
    signs: RDD[tuple[str, _Sign]] = (
        facts.filter(lambda page: page.url is not None and (page.live or page.pointer is not None))
        .map(lambda page: (page.name, (page.live, page.pointer)))
        .partitionBy(parts)
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    walking: RDD[tuple[str, _Walk]] = signs.flatMap(_begin)
    ended: list[RDD[Led]] = []
    for _ in range(MAX_HOPS + 1):
        steps: RDD[_Step] = walking.cogroup(signs, parts).flatMap(_step)
        steps.persist(StorageLevel.MEMORY_AND_DISK)
        ended.append(steps.flatMap(_arrived))
        walking = steps.flatMap(_still_walking)
        if walking.isEmpty():
            break
    return facts.context.union(ended)


def _begin(page: tuple[str, _Sign]) -> Iterator[tuple[str, _Walk]]:
    url, (_, pointer) = page
    if pointer is not None:
        yield pointer[1], _Walk(url, pointer[0], 0)


def _step(
    place: tuple[str, tuple[Iterable[_Walk], Iterable[_Sign]]],
) -> Iterator[_Step]:
    """Advance the chains that have reached a page: each ends there, goes on, or leads nowhere."""
    here, (walks, signs) = place
    for live, pointer in signs:
        for walk in walks:
            if live:
                if walk.url != here:
                    yield Led(walk.url, walk.kind, here, walk.hops, pointer is None)
            elif pointer is not None and walk.hops < MAX_HOPS:
                yield pointer[1], walk._replace(hops=walk.hops + 1)


def _arrived(step: _Step) -> Iterator[Led]:
    if isinstance(step, Led):
        yield step


def _still_walking(step: _Step) -> Iterator[tuple[str, _Walk]]:
    if not isinstance(step, Led):
        yield step
