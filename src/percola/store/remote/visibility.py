"""§2.1: figure 6's Get, on stores where each read of a row is a call.

One request returns a row's locks, newest write records and newest data at or below the reader's
timestamp. That is nearly always enough. Where it is not, this module decides what to read next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from percola.cells import Cell, Op, decode_write, repeated_change
from percola.store.base import NOTHING, CellState, missing_data
from percola.store.remote.shared_row import SharedRow


class DataAt(NamedTuple):
    """The visible record refers to data that the first request did not return."""

    commit_ts: int
    start_ts: int

    def missing(self, cell: Cell, ts: int, shared: SharedRow) -> NoReturn:
        """Raise the error for missing data: SnapshotTooOldError or DamagedRecordError."""
        # Either it was collected, as the safe point shows, or it never existed.
        shared.look()
        shared.check(ts)
        raise missing_data(cell, self.commit_ts, self.start_ts)


class RecordsBelow(NamedTuple):
    """None of the newest records is visible: those below `ts` are needed."""

    ts: int


def visible(
    records: Sequence[tuple[int, bytes]], data: Sequence[tuple[int, bytes]], asked: int
) -> CellState | DataAt | RecordsBelow:
    """The newest put or delete among records, newest first; `asked` is how many were requested."""
    for commit_ts, raw in records:
        if change := repeated_change(raw):
            commit_ts, raw = change
            if not raw:
                return NOTHING
        op, start_ts, value, *_ = decode_write(raw)
        if op == Op.DELETE:
            return None, commit_ts, None
        if op == Op.PUT:
            if value is None:
                for ts, stored_value in data:
                    if ts == start_ts:
                        return None, commit_ts, stored_value
                return DataAt(commit_ts, start_ts)
            return None, commit_ts, value
    return RecordsBelow(records[-1][0]) if len(records) >= asked else NOTHING
