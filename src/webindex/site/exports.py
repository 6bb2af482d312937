"""Throughput and latency of exports, from their reports in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from percola import Snapshot
from webindex import tables
from webindex.reports.summary import Latency, latency

WINDOW_MS: Final = 15 * 60_000
"""How long exports are remembered."""

# Reports are named by start_ts and appear at their commit: one may be this many timestamps late.
_OVERLAP: Final = 5_000
_FIRST_LOOK: Final = 10_000


@dataclass(frozen=True, slots=True)
class Export:
    """One export: when it ended, and how long each page had been waiting since it was loaded."""

    at_ms: int
    latency_ms: tuple[int, ...]


class ExportLog:
    """The exports of the last minutes, by the rows of their reports. For one thread."""

    def __init__(self) -> None:
        self._known: dict[str, Export] = {}
        self._from: int | None = None

    def read(self, now: Snapshot, at_ms: int) -> int:
        """Read new reports; return how many pages have become searchable since the last call."""
        since = at_ms - WINDOW_MS
        if self._from is None:
            self._from = self._beginning(now, since)
        fresh = 0
        end = f"export/{now.start_ts + 1:020}"
        for row in now.scan(tables.journal, start=f"export/{self._from:020}", end=end):
            found = _export(row.get(tables.report))
            if found is not None and found.at_ms >= since and row.key not in self._known:
                self._known[row.key] = found
                fresh += len(found.latency_ms)
        self._from = max(self._from, now.start_ts - _OVERLAP)
        for name in [name for name, one in self._known.items() if one.at_ms < since]:
            del self._known[name]
        return fresh

    def latency(self, at_ms: int, window_ms: int) -> Latency | None:
        """Percentiles over the pages that became searchable in the last `window_ms` ms."""
        since = at_ms - window_ms
        return latency(
            [w for one in self._known.values() if one.at_ms >= since for w in one.latency_ms]
        )

    def newest_ms(self) -> int | None:
        """When the last export ended; None if there was none in the window."""
        return max((one.at_ms for one in self._known.values()), default=None)

    def _beginning(self, now: Snapshot, since: int) -> int:
        """A timestamp before the window begins, found without reading a journal of years."""
        step = _FIRST_LOOK
        while step < now.start_ts:
            at = now.start_ts - step
            row = next(now.scan(tables.journal, start=f"export/{at:020}", end="export0"), None)
            found = _export(row.get(tables.report)) if row is not None else None
            if found is not None and found.at_ms < since:
                return at
            step *= 4
        return 0


def _export(report: Any) -> Export | None:
    """Parse a report; None for one of another version."""
    if not isinstance(report, Mapping) or "latency_ms" not in report:
        return None
    return Export(report["at_ms"], tuple(report["latency_ms"]))
