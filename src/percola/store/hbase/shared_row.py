"""§2.1, rule P12: the shared row (`percola.store.remote.shared_row`) in HBase."""

from __future__ import annotations

from typing import Final

from percola.cells import Kind
from percola.errors import OutcomeUnknownError
from percola.store.hbase.client import Calls
from percola.store.hbase.mutations import Plan
from percola.store.hbase.wire import FAMILIES, Ask, Change, get, rows_of, stored
from percola.store.hbase.writes import Writing
from percola.store.remote.shared_row import ROW, SHARED_TABLE, SharedRow

_FAMILY: Final = FAMILIES[Kind.DATA]
_EVERYTHING: Final = Ask(_FAMILY, None)
_DELETED: Final = 1000
"""The most older entries that are deleted at a time."""


class Shared(SharedRow):
    """The shared row, in a separate HBase table."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def _read(self) -> dict[bytes, int]:
        row: dict[bytes, int] = {}
        for _, entries in rows_of(self._calls.get(SHARED_TABLE, [get(ROW, [_EVERYTHING], 1)])):
            row = {column: ts for _, column, ts, _ in entries}
        return row

    def _put(self, column: bytes, ts: int) -> None:
        # Older entries are deleted by the same mutation: a read would pass all of them.
        gone = [Change(_FAMILY, column, older, None) for older in self._older(column, ts)]
        plan = Plan(SHARED_TABLE, ROW, [Change(_FAMILY, column, ts, stored(b"")), *gone])
        try:
            Writing(self._calls).apply([plan])
        except OutcomeUnknownError:
            Writing(self._calls).apply([plan])

    def _older(self, column: bytes, ts: int) -> list[int]:
        """Entries below a timestamp: one, or some of those that earlier releases have left."""
        asked = get(ROW, [Ask(_FAMILY, [column], 0, ts - 1)], _DELETED)
        found = rows_of(self._calls.get(SHARED_TABLE, [asked]))
        return [older for _, entries in found for _, _, older, _ in entries]
