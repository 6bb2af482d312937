"""When to crawl a page again: how often it changes, estimated from when it was seen.

The estimator is the one of J. Cho and H. Garcia-Molina, "Estimating frequency of change", ACM
Transactions on Internet Technology 3(3), 2003, §5.2, for pages that are accessed at intervals and
show only whether they have changed since: of n intervals with X changes, the number of changes in
an interval is estimated as

    r = -log((n - X + 0.5) / (n + 0.5))

which is consistent and, unlike X / n, hardly biased for few intervals or frequent changes. The
intervals between captures are not equal; their mean is taken as the interval. Changes are taken as
a Poisson process, as there: the probability of a change within a time t is 1 - exp(-r t / mean),
and a page is due when it reaches `CHANGED`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

__all__ = ["CHANGED", "FIRST", "LONGEST", "SHORTEST", "History", "history_of"]

CHANGED: Final = 0.5
"""The probability of a change at which a page is due."""

FIRST: Final = timedelta(days=30)
"""After this time a page is due that was seen only once."""

SHORTEST: Final = timedelta(hours=1)
LONGEST: Final = timedelta(days=365)
"""Bounds of the time until a page is due. The time is also at most twice that over which it was
seen: of a page that did not change within a day, no year can be told."""

_TEXT: Final = "%Y-%m-%dT%H:%M:%SZ"


class History(NamedTuple):
    """How often a page was seen, and when it is due.

    Attributes:
        intervals: times between two dates at which the page was seen.
        changes: how many of them ended with another content than they began with.
        due: when to crawl it again, as `2025-01-31T12:00:00Z`.
    """

    intervals: int
    changes: int
    due: str


def history_of(seen: Iterable[tuple[str, str]]) -> History:
    """The history of a page that was seen at these dates, with what content each time.

    Dates are as captures have them, in ISO 8601 and UTC; contents are compared only. Of several
    contents at one date the last in their order counts. There must be one date at least.
    """
    at = dict(sorted(seen))
    dates = [datetime.fromisoformat(date) for date in at]
    contents = list(at.values())
    changes = sum(one != other for one, other in pairwise(contents))
    intervals, span = len(dates) - 1, dates[-1] - dates[0]
    wait = FIRST
    if span:
        a_mean = -math.log((intervals - changes + 0.5) / (intervals + 0.5))
        wait = min(LONGEST, 2 * span)
        if a_mean:
            means = -math.log(1 - CHANGED) / a_mean
            wait = min(wait, timedelta(seconds=means * (span.total_seconds() / intervals)))
    due = dates[-1] + max(SHORTEST, wait)
    return History(intervals, changes, due.strftime(_TEXT))
