"""The pages that are one document: what joins each of them to the others, and who stands for all.

`components.partition` and `election.elect` decide; here is said why, member by member.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from percola import Snapshot
from webindex import tables
from webindex.components import band_rows, simhash_of
from webindex.election import election_order
from webindex.fingerprints import NEAR, hamming
from webindex.urls import page_row
from webindex.wording import apart

__all__ = ["MEMBERS", "ORDER", "Kept", "Member", "members_of", "ranks_of", "why_not"]

MEMBERS: Final = 100
"""Members of a cluster that are told one by one; the page itself is always among them."""

ORDER: Final = (
    "may be indexed",
    "the higher rank",
    "https",
    "the shorter URL",
    "the first in the alphabet",
)
"""What decides who stands for a cluster, in this order; `webindex.election` says the same."""

Kept = Mapping[str, Any]
"""A member as `clusters.member` has it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A page of a cluster.

    Attributes:
        canonical: whether it stands for the others; `why` says why it does not.
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

    `canonical` is the page that stands for all; None if there is no document yet.
    """
    ranks = ranks_of(now, members)
    ordered = sorted(
        members.values(),
        key=lambda one: (not one["indexable"], election_order(one, ranks.get(one["url"], 0.0))),
    )
    told = [one for place, one in enumerate(ordered) if place < MEMBERS or one["url"] == url]
    winner = next((one for one in ordered if one["url"] == canonical), None)
    joined = _Joined(now, ordered, told)
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
    """What joins members: looked up among all of them, told of a few."""

    def __init__(self, now: Snapshot, members: Sequence[Kept], told: Sequence[Kept]) -> None:
        self._same: defaultdict[str, list[str]] = defaultdict(list)
        self._naming: defaultdict[str, list[str]] = defaultdict(list)
        self._urls = {one["url"] for one in members}
        self._bands: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        # In the order of election: of several pages to name, the canonical one is the first.
        for place, one in enumerate(members):
            simhash = simhash_of(one["content"])
            if simhash is not None and one["content"] not in self._same:
                for row in band_rows(simhash):
                    self._bands[row].append((simhash, place, one["url"]))
            self._same[one["content"]].append(one["url"])
            if one["target"] is not None:
                self._naming[one["target"]].append(one["url"])
        wanted = {one["url"] for one in told}
        wanted |= {url for one in told for url in self._same[one["content"]][:2]}
        asked = sorted(wanted)
        found = now.get_many((tables.fingerprint, page_row(url)) for url in asked)
        self._hashes = {
            url: known["hash"] for url, known in zip(asked, found, strict=True) if known is not None
        }

    def belongs(self, one: Kept) -> list[str]:
        return [*self._by_text(one), *self._by_name(one)]

    def _by_text(self, one: Kept) -> list[str]:
        url = one["url"]
        other = next((other for other in self._same[one["content"]] if other != url), None)
        if other is not None:
            if self._hashes.get(url) == self._hashes.get(other):
                return [f"Its text is that of {other}."]
            return [f"Its text is nearly that of {other}: their fingerprints are the same."]
        simhash = simhash_of(one["content"])
        if simhash is None:
            return []
        near = [
            (hamming(simhash, its), place, other)
            for row in band_rows(simhash)
            for its, place, other in self._bands[row]
            if its != simhash and hamming(simhash, its) <= NEAR
        ]
        if not near:
            return []
        bits, _, other = min(near)
        return [
            f"Its text is nearly that of {other}: their fingerprints differ in {bits} of 64 bits."
        ]

    def _by_name(self, one: Kept) -> list[str]:
        found = []
        if one["target"] in self._urls:
            found.append(f"It names {one['target']} as its canonical page.")
        naming = self._naming.get(one["url"], [])
        if naming:
            more = f" and {len(naming) - 1:,} more name" if naming[1:] else " names"
            found.append(f"{naming[0]}{more} it as canonical page.")
        return found


# --- Why it does not stand for all ----------------------------------------------------------

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


# One for each place of `election_order`.
BECAUSE: Final[Sequence[Callable[[Kept, Kept, Ranks], str]]] = (
    _rank,
    _scheme,
    _length,
    _alphabet,
)


def why_not(winner: Kept, loser: Kept, ranks: Ranks) -> str:
    """The first thing in the order of election that decided against `loser`.

    A rank or a directive may have changed since the document was made: then nothing did.
    """
    if not loser["indexable"]:
        return _NOINDEX
    first, last = (election_order(one, ranks.get(one["url"], 0.0)) for one in (winner, loser))
    if first < last:
        decided = (one != other for one, other in zip(first, last, strict=True))
        return next(itertools.compress(BECAUSE, decided))(winner, loser, ranks)
    return "It would come first by now: a new election is due."
