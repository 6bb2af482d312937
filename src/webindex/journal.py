"""The journal: reports of loads, rank runs and exports, and how long they are kept.

Every export notifies `journal.trim` (`keep`), and one observer removes old reports of every
kind: loads and rank runs are followed by exports if they change anything. It resumes where it
stopped last: deleted reports leave versions behind until garbage collection removes them, and a
scan from the first row would read over them.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice, takewhile
from typing import Any, Final

from percola import Transaction, observer
from webindex import tables

__all__ = ["EXPORT", "EXPORTS_MS", "KEPT", "counts_of", "keep", "trim"]

EXPORT: Final = "export"

EXPORTS_MS: Final = 3_600_000
"""For how long reports of exports are kept."""

KEPT: Final = {"load": 1000, "rank": 100}
"""Reports that are kept of a kind, the newest; what older loads counted is kept as a total."""

TRIM_SECONDS: Final = 60.0
"""While others have work to do, the journal is trimmed this seldom."""

_SUMMED: Final = ("unavailable", "unchanged", "cut", "pdfs", "unread_pdfs")

STEP: Final = 1000
"""Reports that one run removes."""


def keep(t: Transaction, kind: str, ts: int, report: dict[str, Any]) -> None:
    """Write a report."""
    t.set(tables.report, f"{kind}/{ts:020}", report)
    if kind == EXPORT:
        t.notify(tables.trim_due, EXPORT)


@observer(tables.trim_due, defer=TRIM_SECONDS)
def trim(t: Transaction, row: str) -> None:
    """Remove reports that exceed the limit or are too old, a bounded number at a time."""
    for kind in (EXPORT, *KEPT):
        if _trim(t, kind) == STEP:
            t.notify(tables.trim_due, row)


def _trim(t: Transaction, kind: str) -> int:
    """Remove reports of one kind; return how many."""
    start = t.get(tables.trimmed, kind) or f"{kind}/"
    rows = t.scan(tables.journal, start=start, end=f"{kind}0", columns=[tables.report])
    found = ((row.key, row[tables.report]) for row in rows)
    if kind in KEPT:
        old = list(islice(found, KEPT[kind] + STEP))[: -KEPT[kind]]
    else:
        now = time.time_ns() // 1_000_000
        # In either direction: one of a clock that was ahead would keep all that follow it.
        old = list(
            islice(takewhile(lambda one: abs(now - one[1]["at_ms"]) > EXPORTS_MS, found), STEP)
        )
    if not old:
        return 0
    for key, _ in old:
        t.delete(tables.report, key)
    t.set(tables.trimmed, kind, old[-1][0] + "\0")
    if kind == "load":
        total = Counter(t.get(tables.report, kind) or {})
        for _, report in old:
            total.update(counts_of(report))
        t.set(tables.report, kind, dict(total))
    return len(old)


def counts_of(report: dict[str, Any]) -> dict[str, int]:
    """The counts that a summary adds up, of one load's report or of the total of older loads."""
    rejected = report.get("rejected", 0)
    loaded = report.get("loaded", report)
    return {
        "rejected": rejected if isinstance(rejected, int) else sum(rejected.values()),
        **{name: loaded.get(name, 0) for name in _SUMMED},
    }
