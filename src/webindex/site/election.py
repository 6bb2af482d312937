"""Why one page of a cluster stands for the others, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from webindex.observers import election_order

Member = Mapping[str, Any]

ORDER: Final = ("may be indexed", "https", "the shorter URL", "the first in the alphabet")
"""What decides, in this order; `observers.elect` and `observers.election_order` say the same."""


def _scheme(winner: Member, loser: Member) -> str:
    return "It is not https, and the page that stands for it is."


def _length(winner: Member, loser: Member) -> str:
    return f"Its URL is longer: {len(loser['url'])} characters against {len(winner['url'])}."


def _alphabet(winner: Member, loser: Member) -> str:
    return "Its URL is as long, but comes later in the alphabet."


# One for each place of `election_order`.
_BECAUSE: Final[Sequence[Callable[[Member, Member], str]]] = (_scheme, _length, _alphabet)


def why_not(winner: Member, loser: Member) -> str:
    """The first thing in the order of election that decided against `loser`."""
    if not loser["indexable"]:
        return "It asks not to be indexed (noindex)."
    pairs = zip(election_order(winner), election_order(loser), strict=True)
    for place, (one, other) in enumerate(pairs):
        if one != other:
            if place < len(_BECAUSE):
                return _BECAUSE[place](winner, loser)
            break
    return "It comes later in the order of election."
