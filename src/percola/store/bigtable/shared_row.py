"""§2.1, rule P12: the shared row (`percola.store.remote.shared_row`) in Bigtable."""

from __future__ import annotations

from typing import Final

import grpc
from google.cloud.bigtable_v2 import types

from percola.cells import Kind
from percola.store.bigtable.client import DATA, Calls
from percola.store.bigtable.filters import FAMILIES, family, stored
from percola.store.bigtable.row_stream import RowStream
from percola.store.remote.shared_row import ROW, SHARED_TABLE, SharedRow

_FAMILY: Final = FAMILIES[Kind.DATA]

_MutateRow = types.MutateRowRequest.pb()
_MutateRowAnswer = types.MutateRowResponse.pb()


class Shared(SharedRow):
    """The shared row, in a separate Bigtable table."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def _read(self) -> dict[bytes, int]:
        row: dict[bytes, int] = {}
        for _, cells in RowStream(self._calls, SHARED_TABLE, family(_FAMILY), keys=[ROW]):
            row = {column: entries[0][0] for (_, column), entries in cells.items()}
        return row

    def _put(self, column: bytes, ts: int) -> None:
        # Older entries are deleted by the same mutation.
        request = _MutateRow(
            table_name=self._calls.path(SHARED_TABLE),
            row_key=ROW,
            app_profile_id=self._calls.place.app_profile,
        )
        older = request.mutations.add().delete_from_column
        older.family_name, older.column_qualifier = _FAMILY, column
        older.time_range.start_timestamp_micros = 0
        older.time_range.end_timestamp_micros = stored(ts)
        cell = request.mutations.add().set_cell
        cell.family_name, cell.column_qualifier = _FAMILY, column
        cell.timestamp_micros = stored(ts)
        what = "changing what all processes must know"
        routing = self._calls.headers(SHARED_TABLE)[0][1]
        try:
            self._calls.ask(
                DATA, "MutateRow", request, _MutateRowAnswer, routing=routing, what=what
            )
        except grpc.RpcError as error:
            raise self._calls.refusal(error, what, SHARED_TABLE) from error
