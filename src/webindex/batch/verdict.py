"""The result of `webindex verify`: for a program, for a table, in sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from webindex.batch.invariants import NAMES, Difference


@dataclass
class Judged:
    """One invariant: how many rows were compared, how many of them violate it, and the first.

    `note` says what could not be compared, or how it was; `checked` is false if nothing was.
    """

    invariant: int
    compared: int = 0
    differing: int = 0
    first: list[Difference] = field(default_factory=list)
    note: str = ""
    checked: bool = True

    @property
    def name(self) -> str:
        """The statement of the invariant."""
        return NAMES[self.invariant]


@dataclass
class Verdict:
    """The result of comparing the repository with a computation from scratch.

    Attributes:
        address: the repository.
        at: the timestamp that was compared.
        pages, live, clusters: the numbers of captured pages, live pages and their clusters.
        seconds: how long it took, Spark's start (`starting_seconds`) included.
        judged: the sixteen invariants, in order.
        unfinished: why the repository is not at rest, in sentences; empty if it is. If it is not,
            there may be any number of differences that the workers will resolve.
    """

    address: str
    at: int
    judged: list[Judged]
    pages: int = 0
    live: int = 0
    clusters: int = 0
    seconds: float = 0.0
    starting_seconds: float = 0.0
    unfinished: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether no row differs."""
        return not any(one.differing for one in self.judged)

    @property
    def broken(self) -> list[int]:
        """The numbers of the invariants that do not hold."""
        return [one.invariant for one in self.judged if one.differing]

    def __getitem__(self, invariant: int) -> Judged:
        return self.judged[invariant - 1]

    def sentences(self, most: int = 5) -> list[str]:
        """The first differing rows of each invariant that does not hold, as sentences."""
        said = []
        for one in self.judged:
            said += [f"{one.invariant}: {difference}" for difference in one.first[:most]]
            if one.differing > (rows := len({d.row for d in one.first[:most]})) > 0:
                said.append(f"{one.invariant}: and {one.differing - rows:,} more rows.")
        return said

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain values."""
        return {
            "holds": self.holds,
            "repository": self.address,
            "at": self.at,
            "pages": self.pages,
            "live": self.live,
            "clusters": self.clusters,
            "seconds": round(self.seconds, 3),
            "starting_seconds": round(self.starting_seconds, 3),
            "unfinished": self.unfinished,
            "invariants": [
                {
                    "invariant": one.invariant,
                    "name": one.name,
                    "checked": one.checked,
                    "compared": one.compared,
                    "differing": one.differing,
                    "note": one.note,
                    "first": [difference.to_json() for difference in one.first],
                }
                for one in self.judged
            ],
        }
