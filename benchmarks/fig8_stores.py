"""Figure 8 on a network store: the raw operations, by the same client that Percola uses.

Raw HBase is HBase's own Java client in this process on a connection with the same settings:
`Table.put` and `Table.get`. Raw Bigtable is one `MutateRow` or `ReadRows` on a channel with the
same options and messages. Five cells are one call each: HBase's `Table.put` of a list, Bigtable's
`MutateRows`. Neither is a transaction: there is none to be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from percola.cells import Kind

VALUE: Final = b"v" * 100
_COLUMN: Final = b"value"
_TABLE: Final = "cells"


class Raw(Protocol):
    """A raw store; safe to use from many threads."""

    def create(self) -> None:
        """Make its table."""

    def write(self, keys: Sequence[bytes]) -> None:
        """Put a cell in each row, in one call."""

    def read(self, key: bytes) -> bytes:
        """A row's cell."""

    def close(self) -> None:
        """Close it."""


class RawHBase:
    """A table with one family, encoded as Percola's are, in the namespace `raw`."""

    def __init__(self, address: str) -> None:
        from percola.store.hbase.client import Calls
        from percola.store.hbase.jvm import java_class
        from percola.store.hbase.store import place_of
        from percola.store.remote.client import REQUEST_SECONDS, TIMEOUT_SECONDS

        place = place_of(address)._replace(namespace="raw")
        self._calls = Calls(place, request_seconds=REQUEST_SECONDS, timeout_seconds=TIMEOUT_SECONDS)
        self._connection = self._calls.client().connection
        client = "org.apache.hadoop.hbase.client."
        self._class = {name: java_class(client + name) for name in ("Put", "Get")}
        self._list = java_class("java.util.ArrayList")
        self._java = java_class

    def create(self) -> None:
        from percola.store.hbase.schema import block_encoding

        package = "org.apache.hadoop.hbase."
        admin = self._connection.getAdmin()
        described = self._java(package + "NamespaceDescriptor").create("raw").build()
        admin.createNamespace(described)
        family = self._java(package + "client.ColumnFamilyDescriptorBuilder").newBuilder(b"f")
        family.setDataBlockEncoding(block_encoding())
        table = self._java(package + "client.TableDescriptorBuilder").newBuilder(
            self._calls.name(_TABLE)
        )
        admin.createTable(table.setColumnFamily(family.build()).build())
        admin.close()

    def _put(self, key: bytes) -> Any:
        return self._class["Put"](key).addColumn(b"f", _COLUMN, VALUE)

    def write(self, keys: Sequence[bytes]) -> None:
        table = self._calls.table(_TABLE)
        if len(keys) == 1:
            table.put(self._put(keys[0]))
            return
        puts = self._list(len(keys))
        for key in keys:
            puts.add(self._put(key))
        table.put(puts)

    def read(self, key: bytes) -> bytes:
        found = self._calls.table(_TABLE).get(self._class["Get"](key).addColumn(b"f", _COLUMN))
        return bytes(found.value())

    def close(self) -> None:
        self._calls.close()


class RawBigtable:
    """A table in an instance of its own of Bigtable's emulator."""

    def __init__(self, address: str) -> None:
        from google.cloud.bigtable_v2 import types

        from percola.store.bigtable.client import Calls
        from percola.store.bigtable.filters import FAMILIES
        from percola.store.bigtable.store import place_of

        self._address = address.partition("?")[0] + "-raw"
        self._calls = Calls(place_of(self._address), request_seconds=20.0, timeout_seconds=60.0)
        self._types = types
        self._mutate_row = types.MutateRowRequest.pb()
        self._mutate_rows = types.MutateRowsRequest.pb()
        self._read_rows = types.ReadRowsRequest.pb()
        self._put = types.Mutation.pb()(
            set_cell={
                "family_name": FAMILIES[Kind.DATA],
                "column_qualifier": _COLUMN,
                "timestamp_micros": -1,
                "value": VALUE,
            }
        )
        self._newest = types.RowFilter.pb()(cells_per_column_limit_filter=1)

    def create(self) -> None:
        from percola.store.bigtable.store import open_bigtable

        store = open_bigtable(self._address)
        store.create_tables([_TABLE])
        store.close()

    def write(self, keys: Sequence[bytes]) -> None:
        calls, path = self._calls, self._calls.path(_TABLE)
        if len(keys) == 1:
            request = self._mutate_row(table_name=path, row_key=keys[0], mutations=[self._put])
            answer = self._types.MutateRowResponse.pb()
            calls.send("MutateRow", request, answer, _TABLE, alone=True)
            return
        request = self._mutate_rows(table_name=path)
        for key in keys:
            request.entries.add(row_key=key, mutations=[self._put])
        answers = self._types.MutateRowsResponse.pb()
        done = [
            entry.status.code
            for answer in calls.send_many("MutateRows", request, answers, _TABLE)
            for entry in answer.entries
        ]
        assert done == [0] * len(keys), set(done)

    def read(self, key: bytes) -> bytes:
        request = self._read_rows(
            table_name=self._calls.path(_TABLE), rows={"row_keys": [key]}, filter=self._newest
        )
        stream = self._calls.read_rows(request, _TABLE, 20.0)
        return b"".join(chunk.value for answer in stream for chunk in answer.chunks)

    def close(self) -> None:
        self._calls.close()


RAW: Final[dict[str, type[RawHBase] | type[RawBigtable]]] = {
    "HBase": RawHBase,
    "Bigtable": RawBigtable,
}
"""The raw stores by their names."""
