"""PageRank as arithmetic: the rank that a reader's random walk gives to each page.

    rank(Q) = 1 - d + d · ( Σ rank(P) / links(P) over the P that link to Q  +  lost / pages )

where d = 0.85 is the probability of following a link of the page rather than starting anywhere,
links(P) the number of edges from P, and `lost` the rank of all pages without an edge, which is
thereby distributed evenly. Starting with 1 for each, the mean stays 1.

A step brings any two rankings closer by the factor d, in the sum over all pages of how much they
differ. So the iteration terminates: after k steps a step changes a page by less than 2·d^k on
average, so that 90 are enough for the tolerance of a millionth; and the ranks are then, on
average, within d / (1 - d) = 5.7 tolerances of where further steps would take them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from webindex.observers.interim import DAMPING
from webindex.ranking.graph import Numbers, Values


@dataclass(frozen=True, slots=True)
class Block:
    """The edges to the pages from number `low` up to `high`, exclusive.

    Attributes:
        sources, targets: shape (e,) each; ascending by target and then source, so that sums are
            identical to the last bit however the graph was partitioned. Targets count from `low`.
    """

    low: int
    high: int
    sources: Numbers
    targets: Numbers

    @classmethod
    def of(cls, low: int, high: int, edges: Numbers) -> Block:
        """The block of edges given as sources and targets, shape (2, e), in any order."""
        order = np.lexsort((edges[0], edges[1]))
        return cls(low, high, edges[0][order], edges[1][order] - low)

    def receive(self, shares: Values) -> Values:
        """What each page of the block receives; `shares` is what each page gives along one edge."""
        given = np.bincount(
            self.targets, weights=shares[self.sources], minlength=self.high - self.low
        )
        return given.astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The outcome of the iteration.

    Attributes:
        values: the rank of each page, shape (n,); their mean is 1.
        iterations: the number of steps.
        residual: how much the last one changed a page, on average.
    """

    values: Values
    iterations: int
    residual: float


def steps_for(tolerance: float) -> int:
    """A number of steps that is certainly enough; a thousand if there is no such bound."""
    if tolerance <= 0:
        return 1000
    return max(1, math.ceil(math.log(tolerance / 2) / math.log(DAMPING)))


def iterate(
    degrees: Numbers,
    receive: Callable[[Values, int], Values],
    *,
    tolerance: float,
    most: int,
) -> Ranking:
    """Iterate until a step changes pages by less than `tolerance` on average.

    Args:
        degrees: the number of edges from each page, shape (n,).
        receive: called with what each page gives along one edge, and the number of the step from
            1; returns what each page receives, shape (n,) both.
        most: the maximum number of steps.
    """
    size = len(degrees)
    ranks: Values = np.ones(size)
    if not size:
        return Ranking(ranks, 0, 0.0)
    ends = degrees == 0
    divisors = np.where(ends, 1, degrees)
    iteration, residual = 0, np.inf
    while iteration < most and residual > tolerance:
        iteration += 1
        given = receive(np.where(ends, 0.0, ranks / divisors), iteration)
        lost = ranks[ends].sum() / size
        after = 1 - DAMPING + DAMPING * (given + lost)
        residual = float(np.abs(after - ranks).sum()) / size
        ranks = after
    # Sums are rounded: without this the mean would drift by a few units of the 15th digit.
    return Ranking(ranks / ranks.mean(), iteration, residual)
