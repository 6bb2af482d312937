"""§2.4: what caused a cell's value, and what it has caused: `percola why`.

A change of a cell leads to the observer's run that wrote it, this run to the changes that it
answered, and so on, back to a write that no observer made; and forward in the same way. Each step
is exact or says that it is not known:

    change → run       the acknowledgment in the cell's own row whose write record has the change's
                       commit_ts: a run acknowledges in the transaction that writes. For cells of
                       other rows, the record of the run (`percola.observers.run_records`)
    run → change       what the record says; without it, the puts and deletes of the observed cell
                       between the previous acknowledgment and this one's start_ts. Who has sent a
                       weak notification only the record says
    change → its runs  the oldest acknowledgment at or above the change's commit_ts, by observer
    run → what it wrote   the record; without it, the cells of its row with its commit_ts

The cost is a few reads for each change that is returned, whatever the size of the tables. Two
exceptions: without a record, `effects` reads the row of the run; and where feeds are stored in the
rows (HBase, Bigtable), the record of the sender of a weak notification is searched for among all
records, which go back to the safe point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any, Final

from percola.catalog import RUNS, feed_since
from percola.cells import (
    ACKS,
    MAX_TS,
    Cell,
    Kind,
    Op,
    acknowledged_column,
    acknowledging_observer,
    decode_attempts,
    decode_ts,
    decode_write,
    failed_observer,
    is_failed_column,
    retried_letters,
)
from percola.errors import UsageError
from percola.observers.run_records import RunRecord, find_record
from percola.recording import recording
from percola.repository import Repository
from percola.schema import Column, R
from percola.store.walks import walk_kind

MOST: Final = 1_000
"""The most changes that are followed."""

_READ: Final = 64
_OPS: Final = {Op.PUT: "put", Op.DELETE: "delete"}


@dataclass(slots=True)
class Change:
    """A put or delete of a cell, or a notification of a weak column.

    Attributes:
        cell: the cell.
        commit_ts: that of its transaction.
        op: "put", "delete" or "notify"; "write" of a put or delete, if a record does not say which.
        runs: of `causes`, the run that made it, if it is known; of `effects`, the runs that
            answered it.
        end: why the trail does not go on here, or what is missing; empty if nothing is.
    """

    cell: Cell
    commit_ts: int
    op: str
    runs: list[Run] = field(default_factory=list)
    end: str = ""


@dataclass(slots=True)
class Run:
    """A committed run of an observer for one row.

    Attributes:
        observer: its name.
        table: the table of its row.
        row: the row, encoded.
        start_ts: its snapshot.
        commit_ts: that of its writes.
        at_ms: when it committed, by the worker's clock, in milliseconds since the epoch; None if
            the run is not recorded.
        process: the liveness token of the worker; empty if it is not recorded.
        batch: how many rows its transaction answered; 0 if it is not recorded.
        changes: of `causes`, the changes that it answered; of `effects`, those that it made.
        more: how many further ones are left out.
        end: what is missing, or empty.
    """

    observer: str
    table: str
    row: bytes
    start_ts: int
    commit_ts: int
    at_ms: int | None = None
    process: str = ""
    batch: int = 0
    changes: list[Change] = field(default_factory=list)
    more: int = 0
    end: str = ""


def causes(
    repo: Repository,
    column: Column[R, Any],
    row: R,
    *,
    at: int | None = None,
    depth: int = 10,
    width: int = 10,
) -> Change:
    """What caused the cell's value at a timestamp, or now: a tree of changes and runs.

    It goes back over up to `depth` runs, and takes the newest `width` changes that each answered.
    Raises UsageError if the cell was never written, SnapshotTooOldError below the safe point, and
    what `Snapshot.get` raises.
    """
    return _Trail(repo, width).follow(_at(repo, column, row, at), depth, forward=False)


def effects(
    repo: Repository,
    column: Column[R, Any],
    row: R,
    *,
    at: int | None = None,
    depth: int = 10,
    width: int = 10,
) -> Change:
    """What the change that is the cell's value at a timestamp, or now, has caused: as `causes`."""
    return _Trail(repo, width).follow(_at(repo, column, row, at), depth, forward=True)


def _at(repo: Repository, column: Column[R, Any], row: R, at: int | None) -> Change:
    snapshot = repo.snapshot(at)
    commit_ts = snapshot.version(column, row)
    cell = Cell(column.table_name, column.table.encode_row(row), column.key)
    if not commit_ts:
        raise UsageError(f"{repo.schema.shown(cell)} has no value (as of {snapshot.start_ts}).")
    op = "delete" if snapshot.get(column, row) is None else "put"
    return Change(cell, commit_ts, op)


class _Trail:
    def __init__(self, repo: Repository, width: int) -> None:
        self._store = repo.context.store
        self._width = width
        self._written = {
            table.name: {one.key for one in table.members if isinstance(one, Column)}
            for table in repo.schema
        }
        self._safe_point = self._store.safe_point()
        self._recording = recording(self._store)
        self._since = feed_since(self._store, RUNS.name)
        if self._since is not None:
            # A record is in the feed once its commit is complete.
            for lock in walk_kind(self._store, Kind.LOCK, RUNS.name):
                repo.context.resolver.try_resolve(*lock)
        self._records: dict[int, RunRecord | None] = {}

    def follow(self, root: Change, depth: int, *, forward: bool) -> Change:
        """Complete the tree of a change, breadth first."""
        step = self._effects if forward else self._causes
        seen = {(root.cell, root.commit_ts)}
        waiting = deque([(root, 0)])
        while waiting:
            change, level = waiting.popleft()
            if level >= depth:
                change.end = f"not followed beyond {depth} runs"
                continue
            step(change)
            for run in change.runs:
                run.changes.sort(key=lambda one: one.commit_ts, reverse=True)
                for one in run.changes:
                    key = (one.cell, one.commit_ts)
                    if key in seen:
                        one.end = "shown elsewhere"
                    elif len(seen) >= MOST:
                        one.end = f"not followed: {MOST:,} changes are shown"
                    else:
                        seen.add(key)
                        waiting.append((one, level + 1))
        return root

    # --- Backward -----------------------------------------------------------------------

    def _causes(self, change: Change) -> None:
        cell, commit_ts = change.cell, change.commit_ts
        start_ts = self._start_ts(cell, commit_ts) if change.op != "notify" else None
        record = self._record(commit_ts, start_ts)
        if record is not None:
            change.runs = [
                self._recorded(record, index, commit_ts)
                for index, one in enumerate(record.runs)
                if cell in (one.notified if change.op == "notify" else one.wrote)
            ]
            if not change.runs and len(record.runs) == 1:
                change.runs = [self._recorded(record, 0, commit_ts)]
            elif not change.runs:
                change.end = (
                    f"by {record.observer}, in a batch of {len(record.runs)} rows of "
                    f"{record.table}: for which of them is not recorded"
                )
        elif change.op != "notify":
            change.runs = [
                Run(acknowledging_observer(ack.column), cell.table, cell.row, seen, commit_ts)
                for ack, _, seen in self._acks(cell.table, cell.row, commit_ts, commit_ts)
            ]
        if not change.runs:
            change.end = change.end or self._unknown(start_ts, commit_ts)
        for run in change.runs:
            if record is None:
                self._answered(run)
            elif not run.changes:
                run.end = f"what it answered is older than the safe point {self._safe_point}"

    def _start_ts(self, cell: Cell, commit_ts: int) -> int | None:
        for _, raw in self._store.entries(cell, Kind.WRITE, commit_ts, commit_ts):
            return decode_write(raw).start_ts
        return None

    def _recorded(self, record: RunRecord, index: int, commit_ts: int) -> Run:
        """A recorded run, with the changes that it answered."""
        one = record.runs[index]
        run = self._run(record, index, commit_ts)
        found: dict[tuple[Cell, int], str] = {}
        for column, timestamps in one.answered.items():
            cell = Cell(record.table, one.row, column)
            for ts in timestamps:
                found[cell, ts] = "notify"
        for ack, _, seen in self._acks(record.table, one.row, commit_ts, commit_ts):
            cell = Cell(record.table, one.row, acknowledged_column(ack.column) or b"")
            for ts, op in self._changes(cell, self._seen_before(ack, commit_ts), seen):
                found[cell, ts] = op
        changes = [Change(cell, ts, op) for (cell, ts), op in found.items()]
        self._take(run, sorted(changes, key=lambda change: change.commit_ts, reverse=True))
        return run

    def _answered(self, run: Run) -> None:
        """The changes that an unrecorded run answered, as far as its acknowledgments tell."""
        changes: list[Change] = []
        weak = again = False
        for ack, _, seen in self._acks(run.table, run.row, run.commit_ts, run.commit_ts):
            if acknowledging_observer(ack.column) != run.observer:
                continue
            cell = Cell(run.table, run.row, acknowledged_column(ack.column) or b"")
            before = self._seen_before(ack, run.commit_ts)
            found = [Change(cell, ts, op) for ts, op in self._changes(cell, before, seen)]
            if not found and cell.column in self._written.get(cell.table, ()):
                again = True
            elif not found:
                weak = True
            changes += found
        self._take(run, changes)
        old = f"the change that it answered is older than the safe point {self._safe_point}, or "
        if weak:
            run.end = (
                f"{old}was a weak notification, whose sender is not recorded"
                if self._safe_point
                else "it answered a weak notification, whose sender is not recorded"
            )
        elif again:
            # Without a change since its last run, only a rerun has an observer run.
            run.end = (
                f"{old}a rerun had it run again"
                if self._safe_point
                else "a rerun had it run again, without a new change"
            )

    def _seen_before(self, ack: Cell, commit_ts: int) -> int:
        """The start_ts of the acknowledged run before one; 0 if it is not known."""
        for _, raw in self._store.entries(ack, Kind.WRITE, 0, commit_ts - 1, _READ):
            record = decode_write(raw)
            if record.op is Op.PUT and record.value is not None:
                return decode_ts(record.value)
        return 0

    def _changes(self, cell: Cell, after: int, upto: int) -> Iterator[tuple[int, str]]:
        """The puts and deletes of a cell in (after, upto], newest first.

        The newest alone, if the run before may have been forgotten.
        """
        entries = self._store.entries(cell, Kind.WRITE, after + 1, upto, self._width * _READ)
        for ts, raw in entries:
            op = decode_write(raw).op
            if op in _OPS:
                yield ts, _OPS[op]
                if not after and self._safe_point:
                    return

    # --- Forward ------------------------------------------------------------------------

    def _effects(self, change: Change) -> None:
        cell = change.cell
        first: dict[Cell, tuple[int, int]] = {}
        for ack, commit_ts, seen in self._acks(cell.table, cell.row, change.commit_ts, MAX_TS):
            about = acknowledged_column(ack.column)
            if about == cell.column and seen >= change.commit_ts:
                first[ack] = (commit_ts, seen)  # The oldest one comes last.
        for ack, (commit_ts, start_ts) in first.items():
            observer = acknowledging_observer(ack.column)
            record = self._record(commit_ts, start_ts)
            run = Run(observer, cell.table, cell.row, start_ts, commit_ts)
            change.runs.append(self._made(run, record))
        answered = {acknowledging_observer(ack.column) for ack in first}
        ends = []
        if first and change.commit_ts <= self._safe_point:
            ends.append(
                f"older than the safe point {self._safe_point}: records of earlier runs that "
                "answered it may have been removed"
            )
        elif self._is_pending(change, answered):
            ends.append("not answered yet, or not by all observers")
        if dead := self._dead_lettered(change) - answered:
            ends.append(f"dead-lettered for {', '.join(sorted(dead))}: 'percola failed' says why")
        change.end = "; ".join(ends)

    def _is_pending(self, change: Change, answered: Set[str]) -> bool:
        """Whether a change has a notify entry, or one in place of its dead letter."""
        return any(
            ts == change.commit_ts
            or any(
                letter >= change.commit_ts and name not in answered
                for name, letter in retried_letters(decode_attempts(raw)).items()
            )
            for ts, raw in self._store.entries(change.cell, Kind.NOTIFY, change.commit_ts, MAX_TS)
        )

    def _dead_lettered(self, change: Change) -> set[str]:
        """The observers with a dead letter of a cell that is for a change, or for a newer one."""
        table, row, column = change.cell
        return {
            failed_observer(failed.column)
            for failed, ts, _ in walk_kind(self._store, Kind.FAILED, table, row, row + b"\0")
            if ts >= change.commit_ts and is_failed_column(failed.column, column)
        }

    def _made(self, run: Run, record: RunRecord | None) -> Run:
        """The changes that a run has made."""
        if record is not None:
            for index, one in enumerate(record.runs):
                if one.row == run.row:
                    made = self._run(record, index, run.commit_ts)
                    wrote = [Change(cell, run.commit_ts, "write") for cell in one.wrote]
                    sent = [Change(cell, run.commit_ts, "notify") for cell in one.notified]
                    self._take(made, sent + wrote)
                    made.more += record.unlisted
                    return made
        found, _ = self._store.scan(run.table, run.row, run.row + b"\0", MAX_TS)
        changes = []
        for cell, _ in found:
            for _, raw in self._store.entries(cell, Kind.WRITE, run.commit_ts, run.commit_ts):
                if (op := decode_write(raw).op) in _OPS:
                    changes.append(Change(cell, run.commit_ts, _OPS[op]))
        self._take(run, changes)
        run.end = f"what it wrote in other rows is not known: {self._unrecorded(run.commit_ts)}"
        return run

    # --- Both ---------------------------------------------------------------------------

    def _take(self, run: Run, changes: list[Change]) -> None:
        run.changes, run.more = changes[: self._width], max(0, len(changes) - self._width)

    def _run(self, record: RunRecord, index: int, commit_ts: int) -> Run:
        return Run(
            record.observer,
            record.table,
            record.runs[index].row,
            record.start_ts,
            commit_ts,
            record.at_ms,
            record.process,
            len(record.runs),
        )

    def _record(self, commit_ts: int, start_ts: int | None) -> RunRecord | None:
        if self._since is None or commit_ts <= max(self._since, self._safe_point):
            return None
        if commit_ts not in self._records:
            self._records[commit_ts] = find_record(self._store, commit_ts, start_ts)
        return self._records[commit_ts]

    def _acks(self, table: str, row: bytes, low: int, high: int) -> Iterator[tuple[Cell, int, int]]:
        """The acknowledgments in a row: (cell, commit_ts, the run's start_ts), newest first."""
        cells, _ = self._store.scan(
            table, row, row + b"\0", MAX_TS, columns=[(ACKS, True)], limit=1
        )
        for cell, _ in cells:
            for commit_ts, raw in self._store.entries(cell, Kind.WRITE, low, high):
                record = decode_write(raw)
                if record.op is Op.PUT and record.value is not None:
                    yield cell, commit_ts, decode_ts(record.value)

    def _unknown(self, start_ts: int | None, commit_ts: int) -> str:
        """Why it is not known which run made a change, or that none did."""
        known = self._recording
        if commit_ts > self._safe_point:
            if start_ts is not None and known.covers(start_ts, commit_ts):
                return "not written by an observer: by a program, a loader or a job"
            # A notify entry does not say when its transaction began.
            if start_ts is None and known.covers(commit_ts, commit_ts):
                return (
                    "by a program, a loader or a job, or by an observer's run that began before "
                    f"{known.since}, since when runs are recorded"
                )
        return (
            "by a program, a loader or a job, or an observer's run for another row: "
            f"{self._unrecorded(commit_ts)}"
        )

    def _unrecorded(self, commit_ts: int) -> str:
        on, since, until = self._recording
        if commit_ts <= self._safe_point and self._since is not None:
            return f"records go back to the safe point {self._safe_point}"
        if not on and until is None:
            return "runs are not recorded (percola observers record on)"
        if since is None:
            return "since when runs are recorded is not known (percola observers record on)"
        return f"runs {'are' if on else 'were'} recorded since {since}" + (
            "" if on else f", until {until}"
        )
