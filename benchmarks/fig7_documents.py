"""Figure 7's synthetic repository: documents with three clustering keys, and the check.

A document is drawn from a group at random, and each of its three keys is its group's with
probability `SHARED`, else a key of its own. Documents with a key in common are in one cluster, so a
cluster is a connected component. The paper draws keys uniformly from 750 M for 1,000 M documents;
the connected components of such a draw grow into one huge cluster. The two numbers here are chosen
so that the clusters are the paper's: 3.3 documents on average, and 93 % of the documents in a
cluster with others.

Everything follows from a document's number, so each system is given the same documents, whatever
it has done before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from percola import PercolaError

KEYS: Final = 3
SHARED: Final = 0.7
"""How probable it is that a key of a document is its group's."""
GROUP: Final = 3.64
"""Documents of the repository for each group that documents are drawn from."""
_GAMMA: Final = 0x9E3779B97F4A7C15
_SEED: Final = 0xD1B54A32D192ED03

Numbers = np.ndarray[Any, np.dtype[np.uint64]]


class ClusterError(PercolaError):
    """A system's clusters are not those of the documents' keys."""


def _mix(values: Numbers, salt: int) -> Numbers:
    """A hash of 64-bit numbers (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = values * np.uint64(_GAMMA) + np.uint64(salt * _SEED % (1 << 64))
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a repository of `size`, and those that arrive later: any number of them."""

    size: int

    def keys(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """The keys of the documents from `first` to `end`, all below 2^63."""
        return list(map(tuple, self.key_array(first, end).tolist()))

    def key_array(self, first: int, end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The same as an array with a row for each document."""
        docs = np.arange(first, end, dtype=np.uint64)
        groups = _mix(docs, 1) % np.uint64(max(1, round(self.size / GROUP)))
        columns = []
        for key in range(KEYS):
            shared = (_mix(docs, 2 + key) >> np.uint64(11)) < np.uint64(int(SHARED * (1 << 53)))
            own = _mix(docs, 8 + key)
            columns.append(np.where(shared, _mix(groups, 5 + key), own) >> np.uint64(1))
        return np.stack(columns, axis=1).astype(np.int64)


# --- Clusters -----------------------------------------------------------------------------


def find(parent: list[int], one: int) -> int:
    """The least member of the set of `one`, in a forest of sets."""
    while (above := parent[one]) != one:
        parent[one] = parent[above]
        one = above
    return one


def union(parent: list[int], one: int, other: int) -> int:
    """Join two sets; the least member of both."""
    one, other = find(parent, one), find(parent, other)
    low, high = (one, other) if one < other else (other, one)
    parent[high] = low
    return low


def expected(keys: Sequence[Sequence[int]]) -> list[int]:
    """The cluster of each document, as its least document, from all keys: by union-find."""
    parent = list(range(len(keys)))
    for kind in range(KEYS):
        first: dict[int, int] = {}
        for doc, its in enumerate(keys):
            owner = first.setdefault(its[kind], doc)
            if owner != doc:
                union(parent, owner, doc)
    return [find(parent, doc) for doc in range(len(keys))]


def canonical(labels: Mapping[int, Any]) -> dict[int, int]:
    """Clusters by their least document, whatever a system calls them."""
    least: dict[Any, int] = {}
    for doc, label in labels.items():
        least[label] = min(doc, least.get(label, doc))
    return {doc: least[label] for doc, label in labels.items()}


def check(system: str, keys: Sequence[Sequence[int]], labels: Mapping[int, Any]) -> None:
    """Compare a system's clusters with those of union-find over the same documents.

    Raises ClusterError that names a document which is missing, or in the wrong cluster.
    """
    if len(labels) != len(keys):
        raise ClusterError(f"{system}: {len(labels):,} of {len(keys):,} documents have a cluster.")
    found = canonical(labels)
    right = expected(keys)
    wrong = [doc for doc, cluster in enumerate(right) if found[doc] != cluster]
    if wrong:
        doc = wrong[0]
        raise ClusterError(
            f"{system}: {len(wrong):,} of {len(keys):,} documents are in the wrong cluster; the "
            f"first is {doc}, with {found[doc]} in place of {right[doc]}."
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """What the clusters of a repository are like."""

    documents: int
    clusters: int
    with_others: float
    largest: int

    @property
    def mean(self) -> float:
        """Documents a cluster."""
        return self.documents / self.clusters

    @classmethod
    def of(cls, labels: Sequence[int]) -> Shape:
        """Of documents whose clusters are known."""
        sizes = Counter(labels)
        alone = sum(size == 1 for size in sizes.values())
        return cls(len(labels), len(sizes), 1 - alone / len(labels), max(sizes.values()))

    def __str__(self) -> str:
        return (
            f"{self.documents:,} documents in {self.clusters:,} clusters: {self.mean:.2f} "
            f"documents a cluster (the paper: 3.3), {self.with_others:.1%} in a cluster of more "
            f"than one (93 %), the largest has {self.largest}"
        )
