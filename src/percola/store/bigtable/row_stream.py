"""§2.1: streams of rows from Bigtable: requests, assembly of rows, resumption.

A stream that breaks is resumed after the last row received, or after the last one that the server
reports as scanned, for as long as `Tries` allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from google.cloud.bigtable_v2 import types

from percola.store.bigtable.client import Calls, Tries
from percola.store.bigtable.filters import SCALE, Filter
from percola.store.remote.reads import StoredRow

_ReadRows = types.ReadRowsRequest.pb()


class RowStream:
    """Requested rows, in order; creating the object sends the request.

    Rows are whole: Bigtable never returns part of a mutation. A stream that breaks is resumed
    after the last row received.

    Args:
        keys: the rows, in order; None for those from `start` on up to but not including `end`
            (empty: no end).
        limit: how many rows at most; 0 for all.
    """

    def __init__(
        self,
        calls: Calls,
        table: str,
        filter_: Filter,
        *,
        keys: Sequence[bytes] | None = None,
        start: bytes = b"",
        end: bytes = b"",
        limit: int = 0,
    ) -> None:
        self._calls = calls
        self._table = table
        self._filter = filter_
        self._keys = keys
        self._start, self._end = start, end
        self._limit = limit
        self._last: bytes | None = None
        self.count = 0
        """How many rows have been received."""
        self._answers = self._ask()

    def _ask(self) -> Any:
        calls = self._calls
        request = _ReadRows(
            table_name=calls.path(self._table), app_profile_id=calls.place.app_profile
        )
        request.filter.CopyFrom(self._filter)
        if self._limit:
            request.rows_limit = self._limit - self.count
        last = self._last
        if self._keys is not None:
            keys = self._keys if last is None else [key for key in self._keys if key > last]
            request.rows.row_keys.extend(keys)
        else:
            span = request.rows.row_ranges.add()
            if last is not None:
                span.start_key_open = last
            elif self._start:
                span.start_key_closed = self._start
            if self._end:
                span.end_key_open = self._end
        # The filter may drop much of a range before the first row comes: allow a range the time
        # limit of all retries.
        seconds = calls.request_seconds if self._keys is not None else calls.timeout_seconds
        return calls.read_rows(request, self._table, seconds)

    def __iter__(self) -> Iterator[tuple[bytes, StoredRow]]:
        tries = Tries(self._calls, f"reading the table {self._table!r}")
        while True:
            try:
                for key, row in assembled(self._answers):
                    self._last = key
                    if row is not None:
                        self.count += 1
                        yield key, row
                    tries.progressed()
                return
            except grpc.RpcError as error:
                tries.failed(error, self._table)
                if self._is_complete():
                    return
                self._answers = self._ask()

    def _is_complete(self) -> bool:
        """Whether all rows had been received before the stream broke."""
        if self._last is None:
            return False
        if self._limit and self.count >= self._limit:
            return True
        return self._keys is not None and self._last >= self._keys[-1]

    def cancel(self) -> None:
        """Cancel the request."""
        self._answers.cancel()


def assembled(answers: Any) -> Iterator[tuple[bytes, StoredRow | None]]:
    """Assemble rows from chunks: a row may come in many, and a value in several.

    (row, None) means that everything up to that row has been scanned and filtered out.
    """
    key = b""
    row: StoredRow = {}
    name, qualifier = "", b""
    stamp = 0
    cells: list[tuple[int, bytes]] = []
    parts: list[bytes] = []
    for answer in answers:
        for chunk in answer.chunks:
            if chunk.reset_row:
                row, parts = {}, []
                continue
            if chunk.row_key:
                key = chunk.row_key
            if not parts:
                new_family = chunk.HasField("family_name")
                if new_family:
                    name = chunk.family_name.value
                if chunk.HasField("qualifier"):
                    qualifier = chunk.qualifier.value
                    new_family = True
                if new_family or not row:
                    cells = row.setdefault((name, qualifier), [])
                stamp = chunk.timestamp_micros
            if chunk.value_size:
                parts.append(chunk.value)
                continue
            if parts:
                parts.append(chunk.value)
                value = b"".join(parts)
                parts = []
            else:
                value = chunk.value
            cells.append((stamp // SCALE, value))
            if chunk.commit_row:
                yield key, row
                row = {}
        if answer.last_scanned_row_key:
            yield answer.last_scanned_row_key, None
