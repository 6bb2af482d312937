"""Checks a history for snapshot isolation by its timestamps, in near-linear time.

Percola reports both timestamps of a transaction, so the order need not be inferred. One sweep
through all of them in order tracks the current value of each key:

    at a commit_ts   the previous writer of each cell must have committed by this one's start_ts
    at a start_ts    each value read must be the one that its key has now

In addition: no transaction starts below a timestamp that was acknowledged before it began;
commit_ts is above start_ts and unique; own writes are read; ranges are complete.

A transaction of unknown outcome counts as committed if another saw one of its writes, and then all
of them must be visible. An empty cell does not show who deleted it: if a transaction of unknown
outcome may have, nothing is concluded. Its commit_ts is bounded by the transactions that saw it and
those that wrote after it; within these bounds the latest is as good as any.

The sweep trusts the timestamps; `percola.testing.histories.appends` does not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from percola.testing.histories.anomalies import Diagnosis, Misread
from percola.testing.histories.records import Outcome, Recorded, without_collection
from percola.testing.histories.violations import (
    LOST_UPDATE,
    OVERLAPPING_WRITERS,
    STALE_READ,
    TIMESTAMP_TWICE,
    TIMESTAMPS_DISORDERED,
    Violation,
    explain,
    name,
    show,
)

__all__ = ["Violation", "check", "explain"]

LIMIT: Final = 20
"""The most violations reported: one bug has many consequences."""

_MISREADS: Final = 1_000
_INFINITY: Final = float("inf")
_START, _COMMIT = attrgetter("start_ts"), attrgetter("commit_ts")


def check(history: Iterable[Recorded], *, limit: int = LIMIT) -> list[Violation]:
    """The first `limit` violations of snapshot isolation in a history.

    Values should identify their writers: a value that two transactions wrote may have come from
    either. Takes about 10 seconds and 1.5 GB for a million transactions of four operations.
    """
    records = history if isinstance(history, list) else list(history)
    with without_collection():
        return _Check(records, limit).run()


@dataclass(slots=True)
class _Overlap:
    """Two transactions that both wrote, or locked, a key, though neither saw the other."""

    first: Recorded
    second: Recorded
    key: str


class _Check:
    def __init__(self, records: list[Recorded], limit: int) -> None:
        self._limit = limit
        self._records = records
        self._by_start = sorted(records, key=_START)
        self._unsettled = [
            one for one in records if one.outcome is Outcome.UNKNOWN and (one.writes or one.locked)
        ]
        self._seen: dict[int, tuple[Recorded, int]] = {}
        self._misreads: list[Misread] = []
        self._overlaps: list[_Overlap] = []

    def run(self) -> list[Violation]:
        found = list(self._timestamps())
        known = [
            one
            for one in self._records
            if one.commit_ts is not None and one.outcome is Outcome.COMMITTED
        ]
        settled: list[Recorded] = []
        while True:
            self._misreads, self._overlaps = [], []
            self._sweep(sorted([*known, *settled], key=_COMMIT))
            if not (self._find_seen() or self._find_seen_earlier()):
                break
            settled = self._settle(known)
        self._excuse()
        found += self._stale_starts()
        found += (self._overlap_story(one) for one in self._overlaps[: self._limit])
        if self._misreads:
            everyone = [*(one for one in self._records if id(one) not in self._seen), *settled]
            found += Diagnosis(everyone, self._misreads).violations(self._limit)
        return list(dict.fromkeys(found))[: self._limit]

    # --- The sweep ----------------------------------------------------------------------

    def _sweep(self, committed: list[Recorded]) -> None:
        """Every read against the value that its key has at start_ts, every writer's cells."""
        current: dict[str, tuple[object, Recorded]] = {}
        locks: dict[str, Recorded] = {}
        keys = self._ordered_keys(committed)
        misreads = self._misreads
        commits = iter(committed)
        coming = next(commits, None)
        commit_ts = _INFINITY if coming is None or coming.commit_ts is None else coming.commit_ts
        for reader in self._by_start:
            start_ts = reader.start_ts
            while commit_ts <= start_ts:
                assert coming is not None
                self._apply(coming, current, locks)
                coming = next(commits, None)
                commit_ts = (
                    _INFINITY if coming is None or coming.commit_ts is None else coming.commit_ts
                )
            for key, seen in reader.reads:
                entry = current.get(key)
                if entry is None:
                    if seen is not None:
                        misreads.append(Misread(reader, key, seen, None, None))
                elif entry[0] != seen:
                    misreads.append(Misread(reader, key, seen, *entry))
            for key, seen, written in reader.own_reads:
                if seen != written:
                    misreads.append(Misread(reader, key, seen, written, reader))
            for low, high, there in reader.ranges:
                misreads += _left_out(reader, keys, low, high, there, current)
            if len(misreads) > _MISREADS:
                del misreads[_MISREADS:]
        while coming is not None:
            self._apply(coming, current, locks)
            coming = next(commits, None)

    def _apply(
        self,
        writer: Recorded,
        current: dict[str, tuple[object, Recorded]],
        locks: dict[str, Recorded],
    ) -> None:
        start_ts = writer.start_ts
        for key, value in writer.writes:
            before = current.get(key)
            if before is not None and before[1].commit_ts > start_ts:  # type: ignore[operator]
                self._overlaps.append(_Overlap(before[1], writer, key))
            current[key] = (value, writer)
            if locks and (holder := locks.get(key)) and holder.commit_ts > start_ts:  # type: ignore[operator]
                self._overlaps.append(_Overlap(holder, writer, key))
        for key in writer.locked:
            before = current.get(key)
            if before is not None and before[1].commit_ts > start_ts:  # type: ignore[operator]
                self._overlaps.append(_Overlap(before[1], writer, key))
            if (holder := locks.get(key)) and holder.commit_ts > start_ts:  # type: ignore[operator]
                self._overlaps.append(_Overlap(holder, writer, key))
            locks[key] = writer

    def _ordered_keys(self, committed: list[Recorded]) -> list[str]:
        if not any(one.ranges for one in self._records):
            return []
        return sorted({key for one in committed for key, _ in one.writes})

    # --- Unknown outcomes ---------------------------------------------------------------

    def _find_seen(self) -> bool:
        """Note those of unknown outcome that explain what was misread; whether there are new."""
        wrote: dict[str, list[tuple[object, Recorded]]] = {}
        for one in self._unsettled:
            for key, value in one.writes:
                wrote.setdefault(key, []).append((value, one))
        before = len(self._seen)
        for misread in self._misreads:
            reader, expected = misread.reader, misread.writer
            if misread.seen is None:
                continue
            for value, one in wrote.get(misread.key, ()):
                if (
                    value == misread.seen
                    and one.start_ts < reader.start_ts
                    # Or the reader would have to see the other one's write all the same.
                    and (expected is None or _is_before(expected, one))
                ):
                    self._seen.setdefault(id(one), (one, reader.start_ts))
                    break
        if len(self._seen) == before:
            return False
        self._unsettled = [one for one in self._unsettled if id(one) not in self._seen]
        return True

    def _find_seen_earlier(self) -> bool:
        """Whether one that was seen must have committed earlier: a cell was empty before that."""
        for misread in self._misreads:
            reader = misread.reader
            if misread.seen is not None or self._may_be_deleted(misread):
                continue
            for key, (one, seen_at) in self._seen.items():
                if one.start_ts < reader.start_ts < seen_at and (misread.key, None) in one.writes:
                    self._seen[key] = one, reader.start_ts
                    return True
        return False

    def _excuse(self) -> None:
        """Drop what may be the work of those whose outcome nobody knows.

        A cell in which nothing is found may have been emptied by any of several: unlike a value,
        that does not tell who committed.
        """
        self._misreads = [
            one for one in self._misreads if one.seen is not None or not self._may_be_deleted(one)
        ]

    def _may_be_deleted(self, misread: Misread) -> bool:
        return any(
            one.start_ts < misread.reader.start_ts and (misread.key, None) in one.writes
            for one in self._unsettled
        )

    def _settle(self, known: list[Recorded]) -> list[Recorded]:
        """All that were seen, with the latest commit_ts that they can have."""
        bounds = self._bounds([one for one, _ in self._seen.values()], known)
        return [
            replace(one, commit_ts=one.commit_ts or min(seen_at, bounds.get(id(one), seen_at)))
            for one, seen_at in self._seen.values()
        ]

    def _bounds(self, seen: list[Recorded], known: list[Recorded]) -> dict[int, int]:
        """The least start_ts of those who wrote a cell of each one after it."""
        mine: dict[str, list[Recorded]] = {}
        for one in seen:
            for key in (*(key for key, _ in one.writes), *one.locked):
                mine.setdefault(key, []).append(one)
        bounds: dict[int, int] = {}
        for other in (*known, *seen):
            for key in (*(key for key, _ in other.writes), *other.locked):
                for one in mine.get(key, ()):
                    # One that overlaps it is a violation wherever it is put.
                    if one is not other and other.start_ts > one.start_ts:
                        bounds[id(one)] = min(bounds.get(id(one), other.start_ts), other.start_ts)
        return bounds

    # --- Timestamps ---------------------------------------------------------------------

    def _timestamps(self) -> Iterator[Violation]:
        """commit_ts above start_ts, and nobody else's; a two-phase start_ts as well."""
        committed: dict[int, Recorded] = {}
        for one in self._records:
            commit_ts = one.commit_ts
            if one.outcome is not Outcome.COMMITTED:
                continue
            if commit_ts is None:
                if one.writes:
                    yield Violation(
                        TIMESTAMPS_DISORDERED,
                        f"{name(one)} committed writes but reports no commit timestamp.",
                        (one.id,),
                    )
                continue
            if commit_ts <= one.start_ts:
                yield Violation(
                    TIMESTAMPS_DISORDERED,
                    f"{name(one)} committed at {commit_ts}, which is not above {one.start_ts}, "
                    "where it started.",
                    (one.id,),
                )
            other = committed.setdefault(commit_ts, one)
            if other is not one:
                yield Violation(
                    TIMESTAMP_TWICE,
                    f"{name(other)} and {name(one)} both committed at {commit_ts}.",
                    (other.id, one.id),
                )
        previous: Recorded | None = None
        for one in self._by_start:
            start_ts = one.start_ts
            if (
                previous is not None
                and previous.start_ts == start_ts
                and (one.two_phase or previous.two_phase)
            ):
                yield Violation(
                    TIMESTAMP_TWICE,
                    f"{name(previous)} and {name(one)} both started at {start_ts}, by which a "
                    "two-phase transaction is known.",
                    (previous.id, one.id),
                )
            previous = one
            if one.two_phase and (owner := committed.get(start_ts)) is not None:
                yield Violation(
                    TIMESTAMP_TWICE,
                    f"{name(one)}, a two-phase transaction, started at {start_ts}, at which "
                    f"{name(owner)} committed.",
                    (owner.id, one.id),
                )

    def _stale_starts(self) -> Iterator[Violation]:
        """A start_ts is not below a timestamp that was acknowledged before it was drawn."""
        ended = sorted(
            (one for one in self._records if one.ended is not None), key=attrgetter("ended")
        )
        heard = iter(ended)
        coming = next(heard, None)
        highest, whose = -1, None
        for one in sorted(self._records, key=attrgetter("began")):
            began = one.began
            while coming is not None and coming.ended < began:  # type: ignore[operator]
                known = coming.start_ts
                if coming.commit_ts is not None and coming.outcome is Outcome.COMMITTED:
                    known = coming.commit_ts
                if known > highest:
                    highest, whose = known, coming
                coming = next(heard, None)
            if one.start_ts < highest and whose is not None:
                what = "committed" if whose.commit_ts == highest else "started"
                yield Violation(
                    STALE_READ,
                    f"{name(whose)} had {what} at {highest} and had heard so before {name(one)} "
                    f"began, which yet started at {one.start_ts}: it cannot see what was there.",
                    (whose.id, one.id),
                )

    # --- Overlapping writers ------------------------------------------------------------

    def _overlap_story(self, overlap: _Overlap) -> Violation:
        first, second, key = overlap.first, overlap.second, overlap.key
        both = (first.id, second.id)
        read = next((value for name_, value in second.reads if name_ == key), None)
        written = dict(first.writes).get(key)
        has_read = any(name_ == key for name_, _ in second.reads)
        when = (
            f"{name(second)} started at {second.start_ts}, before {name(first)} committed at "
            f"{first.commit_ts}, and committed at {second.commit_ts}"
        )
        if key in first.locked or key in second.locked:
            what = f"both named {key}, which one of them had read for update: one had to conflict."
            return Violation(OVERLAPPING_WRITERS, f"{when}; {what}", both, key)
        if has_read:
            what = (
                f"it read {key} as {show(read)} and wrote over {show(written)}, which it never saw."
            )
            return Violation(LOST_UPDATE, f"{when}; {what}", both, key)
        what = f"both wrote {key}: one of them had to conflict."
        return Violation(OVERLAPPING_WRITERS, f"{when}; {what}", both, key)


def _is_before(expected: Recorded, one: Recorded) -> bool:
    """Whether `one` may have written after `expected`, of which the place may be a guess."""
    if expected.outcome is not Outcome.COMMITTED or expected.commit_ts is None:
        return expected.start_ts < one.start_ts
    return expected.commit_ts <= one.start_ts


def _left_out(
    reader: Recorded,
    keys: list[str],
    low: str,
    high: str,
    there: list[str],
    current: dict[str, tuple[object, Recorded]],
) -> Iterator[Misread]:
    """The keys of a range that the reader should have found in it and did not."""
    found = set(there)
    own = {key for key, _ in reader.writes}
    for at in range(bisect_left(keys, low), len(keys)):
        key = keys[at]
        if key >= high:
            return
        if key not in found and key not in own and (entry := current.get(key)) is not None:
            value, writer = entry
            if value is not None:
                yield Misread(reader, key, None, value, writer, in_range=True)
