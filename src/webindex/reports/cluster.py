"""The pages that are one document: what joins each of them to the others, and which is canonical.

`components.partition` and `election.elect` decide; this module explains the result for each member.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from percola import Snapshot
from webindex import tables
from webindex.observers.election import election_order
from webindex.page.fingerprints import Sketch
from webindex.page.urls import page_row
from webindex.text_format import apart

__all__ = ["MEMBERS", "ORDER", "Kept", "Member", "members_of", "ranks_of", "why_not"]

MEMBERS: Final = 100
"""Members of a cluster to list one by one; the page itself is always among them."""

ORDER: Final = (
    "may be indexed",
    "the higher rank",
    "https",
    "the shorter URL",
    "the first in the alphabet",
)
"""The criteria of the election of a canonical page, in the order of `observers.election`."""

Kept = Mapping[str, Any]
"""A member as `clusters.member` stores it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A page of a cluster.

    Attributes:
        canonical: whether it is the canonical page; `why` says why it is not.
        rank: PageRank, 1 being the mean; None if none has been computed for it.
        belongs: what joins it to other members, as sentences.
    """

    url: str
    title: str
    language: str | None
    indexable: bool
    canonical: bool
    rank: float | None
    belongs: list[str]
    why: str


def ranks_of(now: Snapshot, members: Mapping[str, Kept]) -> dict[str, float]:
    """The ranks of a cluster's members by URL; one that is missing has none yet."""
    urls = [one["url"] for one in members.values()]
    found = now.get_many((tables.rank, page_row(url)) for url in urls)
    return {url: rank["value"] for url, rank in zip(urls, found, strict=True) if rank is not None}


def members_of(
    now: Snapshot, members: Mapping[str, Kept], url: str, canonical: str | None
) -> list[Member]:
    """The first `MEMBERS` of a cluster in the order of election, and the page `url`.

    `canonical` is the canonical page; None if there is no document yet.
    """
    ranks = ranks_of(now, members)
    ordered = sorted(
        members.values(),
        key=lambda one: (not one["indexable"], election_order(one, ranks.get(one["url"], 0.0))),
    )
    told = [one for place, one in enumerate(ordered) if place < MEMBERS or one["url"] == url]
    winner = next((one for one in ordered if one["url"] == canonical), None)
    joined = _Joined(now, ordered)
    found = []
    for one in told:
        if one is winner:
            why = ""
        elif winner is None:
            why = "" if one["indexable"] else _NOINDEX
        else:
            why = why_not(winner, one, ranks)
        found.append(
            Member(
                one["url"],
                one["title"],
                one["language"],
                one["indexable"],
                one is winner,
                ranks.get(one["url"]),
                joined.belongs(one),
                why,
            )
        )
    return found


# --- Why it belongs -------------------------------------------------------------------------


class _Joined:
    """What joins members: searched among all of them, reported for a few."""

    def __init__(self, now: Snapshot, members: Sequence[Kept]) -> None:
        self._now = now
        self._same: defaultdict[str, list[Kept]] = defaultdict(list)
        self._led: defaultdict[str, list[Kept]] = defaultdict(list)
        self._naming: defaultdict[str, list[str]] = defaultdict(list)
        self._urls = {one["url"] for one in members}
        # In the order of election: of several candidates to name, the canonical page comes first.
        for one in members:
            self._same[one["content"]].append(one)
            self._led[one["leader"]].append(one)
            if one["target"] is not None:
                self._naming[one["target"]].append(one["url"])

    def belongs(self, one: Kept) -> list[str]:
        return [*self._by_text(one), *self._by_name(one)]

    def _by_text(self, one: Kept) -> list[str]:
        others = (other for other in self._same[one["content"]] if other["url"] != one["url"])
        other = next(others, None)
        if other is not None:
            return [f"Its text is that of {other['url']}."]
        leads = one["leader"] == one["content"]
        near = self._led[one["leader"]] if leads else self._same[one["leader"]]
        other = next((other for other in near if other["url"] != one["url"]), None)
        if other is None:
            return []
        packed = self._now.get_many((tables.sketch_of, a["content"]) for a in (one, other))
        mine, its = (None if stored is None else Sketch.unpack(stored) for stored in packed)
        shared = f": they share {mine.likeness(its):.0%} of their words" if mine and its else ""
        return [f"Its title is that of {other['url']}, and its text nearly the same{shared}."]

    def _by_name(self, one: Kept) -> list[str]:
        found = []
        if one["target"] in self._urls:
            found.append(f"It names {one['target']} as its canonical page.")
        naming = self._naming.get(one["url"], [])
        if naming:
            more = f" and {len(naming) - 1:,} more name" if naming[1:] else " names"
            found.append(f"{naming[0]}{more} it as canonical page.")
        return found


# --- Why it is not the canonical page -------------------------------------------------------

_NOINDEX: Final = "It asks not to be indexed (noindex)."

Ranks = Mapping[str, float]


def _rank(winner: Kept, loser: Kept, ranks: Ranks) -> str:
    higher, lower = apart(ranks.get(winner["url"], 0.0), ranks.get(loser["url"], 0.0))
    if loser["url"] not in ranks:
        return f"It has no rank yet, and the page that stands for it has {higher}."
    return f"Its rank is lower: {lower} against {higher}."


def _scheme(winner: Kept, loser: Kept, ranks: Ranks) -> str:
    return "It is not https, and the page that stands for it is."


def _length(winner: Kept, loser: Kept, ranks: Ranks) -> str:
    return f"Its URL is longer: {len(loser['url'])} characters against {len(winner['url'])}."


def _alphabet(winner: Kept, loser: Kept, ranks: Ranks) -> str:
    return "Its URL is as long, but comes later in the alphabet."


# One for each position in `election_order`.
BECAUSE: Final[Sequence[Callable[[Kept, Kept, Ranks], str]]] = (
    _rank,
    _scheme,
    _length,
    _alphabet,
)


def why_not(winner: Kept, loser: Kept, ranks: Ranks) -> str:
    """The first criterion of the election that decided against `loser`.

    If a rank or a directive has changed since the document was assembled, there may be none.
    """
    if not loser["indexable"]:
        return _NOINDEX
    first, last = (election_order(one, ranks.get(one["url"], 0.0)) for one in (winner, loser))
    if first < last:
        decided = (one != other for one, other in zip(first, last, strict=True))
        return next(itertools.compress(BECAUSE, decided))(winner, loser, ranks)
    return "It would come first by now: a new election is due."
