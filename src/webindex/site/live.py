"""The live view: the pipeline, sampled from the repository.

It does not use the workers' own counters: whichever processes load and work, and however
often they are restarted, the results of their work are in the repository.

    waiting      dirty cells by column, from their notify entries (§2.4)
    searchable   pages that exports reported since the last sample, and how long those took
    commits      timestamps drawn since the last sample: a transaction that writes draws one
    oldest       the oldest notify entry. Its timestamp is converted to a time by earlier samples,
                 each of which knows the last timestamp at its time

A sample costs in proportion to the number of dirty cells, so the next one waits for at least twenty
times as long. Samples are taken each second while a browser has the view open, else every ten
seconds.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from percola import PercolaError, Repository, Snapshot, inspection
from webindex import tables
from webindex.serving.base import ServingError, ServingIndex
from webindex.site.exports import ExportLog

KEPT: Final = 900
"""Samples that are kept."""

LATENCY_WINDOW_MS: Final = 60_000
FAILURES: Final = 50
"""The most failures to list; all are counted."""

log = logging.getLogger("webindex.site")

_DEFECT: Final = "No numbers could be taken. What happened stands in the server's output."
_LOOKED_AT: Final = 1.0
_UNATTENDED: Final = 10.0
_ATTENTION: Final = 15.0
_SHARE: Final = 20
_COUNTING_SHARE: Final = 50
_COUNTING: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The pipeline at one moment; the plots are drawn from these.

    Attributes:
        number: counts up from 1; after a gap, older samples were dropped.
        documents: documents that search can find.
        waiting: dirty cells by column.
        commits, searchable: per second, since the last sample; None for the first one.
        p50, p95, p99: milliseconds from load to searchable, over the last minute's exports.
        oldest_s: seconds since the oldest pending change; 0 if there is none.
    """

    number: int
    at_ms: int
    last_ts: int
    documents: int
    waiting: dict[str, int]
    failed: int
    oldest_s: float
    commits: float | None = None
    searchable: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A dead-lettered cell of an observer; `url` is empty if it belongs to no page."""

    observer: str
    cell: str
    url: str
    attempts: int
    at_ms: int
    error: str


@dataclass(slots=True)
class View:
    """The data shown beside the plots.

    Attributes:
        pages: live pages; None until they have been counted for the first time.
        oldest_at_least: whether the oldest change is older than this server can determine.
        trouble: a message if the last sample could not be taken: the rest is of an earlier one.
    """

    pages: int | None = None
    safe_point: int = 0
    oldest_column: str = ""
    oldest_at_least: bool = False
    newest_export_ms: int | None = None
    processes: list[dict[str, Any]] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)
    trouble: str = ""


class Sampler:
    """Takes samples in its own thread. Any thread may request them."""

    def __init__(self, repo: Repository, index: ServingIndex) -> None:
        self._repo = repo
        self._index = index
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._view = View()
        self._exports = ExportLog()
        self._changed = threading.Condition()
        self._looked = 0.0
        self._stopping = False
        self._tried = 0
        self._counted_ts = -1
        self._count_again = 0.0
        self._thread = threading.Thread(target=self._run, name="webindex-live", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; returns when it has ended."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def look(self, *, seconds: float = 2.0) -> tuple[list[Sample], View]:
        """All samples and the view.

        If the view has not been requested recently, waits up to `seconds` for a new sample. For a
        while after each call, samples are taken each second.
        """
        with self._changed:
            was_looked_at = time.monotonic() - self._looked < _ATTENTION
            self._looked = time.monotonic()
            self._changed.notify_all()
            if not was_looked_at:
                before = self._tried
                self._changed.wait_for(lambda: self._tried > before or self._stopping, seconds)
            return list(self._samples), self._view

    # --- In the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            began = time.monotonic()
            try:
                with self._repo.snapshot() as now:
                    sample, view = self._take(now)
            except (PercolaError, ServingError) as error:
                sample, view = None, replace(self._view, trouble=str(error))
            except Exception:
                # If this thread ended, the plots would freeze without an explanation.
                log.exception("A sample could not be taken.")
                sample, view = None, replace(self._view, trouble=_DEFECT)
            cost = time.monotonic() - began
            with self._changed:
                self._tried += 1
                self._view = view
                if sample is not None:
                    self._samples.append(sample)
                self._changed.notify_all()
                self._rest(began, cost)

    def _rest(self, began: float, cost: float) -> None:
        """Wait until the next sample is due; sooner if a browser opens the view."""
        while not self._stopping:
            now = time.monotonic()
            attended = now - self._looked < _ATTENTION
            pause = max(_LOOKED_AT if attended else _UNATTENDED, _SHARE * cost)
            if now >= began + pause:
                return
            self._changed.wait(began + pause - now)

    def _take(self, now: Snapshot) -> tuple[Sample, View]:
        at_ms = time.time_ns() // 1_000_000
        before = self._samples[-1] if self._samples else None
        waiting: Counter[str] = Counter()
        oldest: tuple[int, inspection.Notification] | None = None
        for one in inspection.notifications(self._repo):
            waiting[inspection.column_name(one.cell)] += 1
            if oldest is None or one.timestamps[0] < oldest[0]:
                oldest = one.timestamps[0], one
        view = View(
            safe_point=self._repo.context.store.safe_point(),
            processes=[asdict(one) for one in inspection.processes(self._repo)],
        )
        oldest_s = 0.0
        if oldest is not None:
            view.oldest_column = inspection.column_name(oldest[1].cell)
            since, view.oldest_at_least = self._since(now, *oldest)
            oldest_s = max(0.0, (at_ms - since) / 1000)
        fresh = self._exports.read(now, at_ms)
        speed = self._exports.latency(at_ms, LATENCY_WINDOW_MS)
        view.newest_export_ms = self._exports.newest_ms()
        failures = list(inspection.failures(self._repo))
        view.failures = [failed(now, one) for one in failures[:FAILURES]]
        view.pages = self._pages(now)
        seconds = (at_ms - before.at_ms) / 1000 if before is not None else 0.0
        sample = Sample(
            number=before.number + 1 if before is not None else 1,
            at_ms=at_ms,
            last_ts=now.start_ts,
            documents=self._index.count(),
            waiting=dict(waiting),
            failed=len(failures),
            oldest_s=round(oldest_s, 3),
            commits=_rate(now.start_ts - before.last_ts, seconds) if before else None,
            searchable=_rate(fresh, seconds) if before else None,
            p50=speed.p50 if speed else None,
            p95=speed.p95 if speed else None,
            p99=speed.p99 if speed else None,
        )
        return sample, view

    def _since(self, now: Snapshot, ts: int, one: inspection.Notification) -> tuple[int, bool]:
        """When the change at `ts` was made; and whether it may have been earlier."""
        if one.cell.table == tables.pages.name:
            capture = now.get(tables.capture, tables.pages.decode_row(one.cell.row))
            if capture is not None:
                return capture["loaded_ms"], False
        # The first sample that includes the change, or this one.
        seen = bisect.bisect_left(self._samples, ts, key=lambda sample: sample.last_ts)
        if seen < len(self._samples):
            return self._samples[seen].at_ms, seen == 0
        return time.time_ns() // 1_000_000, not self._samples

    def _pages(self, now: Snapshot) -> int | None:
        """Count the live pages from the counters of their hosts: 256 rows for a large host."""
        began = time.monotonic()
        attended = began - self._looked < _ATTENTION
        if now.start_ts == self._counted_ts or began < self._count_again or not attended:
            return self._view.pages
        counters = now.scan(tables.hosts, columns=[tables.live])
        found: int = sum(row[tables.live]["pages"] for row in counters)
        self._counted_ts = now.start_ts
        cost = time.monotonic() - began
        self._count_again = time.monotonic() + max(_COUNTING, _COUNTING_SHARE * cost)
        return found


def since(samples: Sequence[Sample], number: int) -> list[Sample]:
    """The samples after the one of this number."""
    if samples and number >= samples[-1].number:
        return []
    start = bisect.bisect_right(samples, number, key=lambda sample: sample.number)
    return list(itertools.islice(samples, start, None))


def failed(now: Snapshot, one: inspection.Failure) -> Failed:
    """A failure, with the page that it concerns."""
    row = one.cell.row.decode("utf-8", "replace")
    url = ""
    if one.cell.table == tables.pages.name:
        capture = now.get(tables.capture, row)
        url = capture["url"] if capture else ""
    elif one.cell.table == tables.clusters.name:
        members = now.get_row(tables.clusters, row, [tables.member]).family(tables.member)
        url = min((member["url"] for member in members.values()), default="")
    cell = f"{row} {inspection.column_name(one.cell)}"
    return Failed(one.observer, cell, url, one.attempts, one.at_ms, one.error)


def _rate(number: int, seconds: float) -> float | None:
    return round(number / seconds, 2) if seconds > 0 else None
