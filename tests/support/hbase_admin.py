"""What an operator does to the tables of a store in HBase."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import jpype

from percola.store.hbase import schema as hbase_settings
from percola.store.hbase.jvm import java_class
from percola.store.hbase.store import HBaseStore

_TIMEOUT: Final = 240.0
"""Seconds for which an operator tries again."""


class Admin:
    """What an operator does to a table of a store: flush, compact, split, move its regions."""

    def __init__(self, store: HBaseStore) -> None:
        self._calls = store._calls
        self._admin = store._calls.client().connection.getAdmin()

    def _ask(self, act: Callable[[], Any]) -> Any:
        """Do what may be done again: `hbase:meta` moves as well, its server may be killed, and
        on a busy machine a flush may take longer than a store's calls may."""
        calls = copy.copy(self._calls)
        calls.timeout_seconds = _TIMEOUT
        return hbase_settings._ask(calls, "asking as an operator", act)

    def flush(self, table: str) -> None:
        """Write what stands in memory to files."""
        self._ask(lambda: self._admin.flush(self._calls.name(table)))

    def compact(self, table: str) -> None:
        """Ask for a major compaction; it goes on when this returns."""
        self._ask(lambda: self._admin.majorCompact(self._calls.name(table)))

    def is_compacting(self, table: str) -> bool:
        """Whether a compaction goes on."""
        return str(self._admin.getCompactionState(self._calls.name(table))) != "NONE"

    def was_compacted(self, table: str) -> bool:
        """Whether a major compaction has ended of every region that has a file."""
        return all(
            int(one.getLastMajorCompactionTimestamp()) > 0
            for one in self._regions(table)
            if int(one.getStoreFileCount())
        )

    def files(self, table: str) -> int:
        """How many files the table's regions have."""
        regions = self._regions(table)
        return sum(int(one.getStoreFileCount()) for one in regions)

    def _regions(self, table: str) -> list[Any]:
        name = self._calls.name(table)
        return [
            one
            for server in self._admin.getRegionServers()
            for one in self._admin.getRegionMetrics(server, name)
        ]

    def split(self, table: str, row: bytes) -> None:
        """Ask to split the region of the row there."""
        self._admin.split(self._calls.name(table), row)

    def servers(self) -> list[str]:
        """The names of the region servers that run."""
        found = self._ask(self._admin.getRegionServers)
        return sorted(str(one.getServerName()) for one in found)

    def regions(self, table: str) -> list[tuple[bytes, str]]:
        """(encoded name, server) of each region, in order."""
        locator = self._calls.client().connection.getRegionLocator(self._calls.name(table))
        locator.clearRegionLocationCache()
        return [
            (bytes(one.getRegion().getEncodedNameAsBytes()), str(one.getServerName()))
            for one in self._ask(locator.getAllRegionLocations)
        ]

    def requests(self) -> dict[str, int]:
        """How many requests all regions of each table of the namespace have had, where they are."""
        namespace, found = self._calls.place.namespace + ":", Counter[str]()
        for server in self._ask(self._admin.getRegionServers):
            for one in self._ask(lambda server=server: self._admin.getRegionMetrics(server)):
                table = str(one.getNameAsString()).partition(",")[0]
                if table.startswith(namespace):
                    found[table.removeprefix(namespace)] += int(one.getRequestCount())
        return found

    def is_open(self, table: str) -> bool:
        """Whether the table has been made and can be used."""
        return bool(self._ask(lambda: self._admin.isTableEnabled(self._calls.name(table))))

    def tables(self) -> list[str]:
        """The tables of the namespace, but for Percola's own."""
        found = self._admin.listTableNamesByNamespace(self._calls.place.namespace)
        names = sorted(str(one.getQualifierAsString()) for one in found)
        return [name for name in names if not name.startswith("0-")]

    def server(self, table: str, row: bytes) -> str:
        """The name of the region server that serves a row."""
        locator = self._calls.client().connection.getRegionLocator(self._calls.name(table))
        again = jpype.JBoolean(True)
        return str(self._ask(lambda: locator.getRegionLocation(row, again)).getServerName())

    def move(self, region: bytes, server: str) -> None:
        """Move a region to a server; it is there when this returns."""
        name = java_class("org.apache.hadoop.hbase.ServerName").valueOf(server)
        self._ask(lambda: self._admin.move(region, name))

    def family(self, table: str, family: str) -> Any:
        """The descriptor of a column family, with its settings."""
        return self._admin.getDescriptor(self._calls.name(table)).getColumnFamily(family.encode())

    def alter(self, table: str, family: str, **settings: Any) -> None:
        """Change settings of a family by the names of their setters."""
        name = self._calls.name(table)
        client = "org.apache.hadoop.hbase.client."
        before = self.family(table, family)
        builder = java_class(client + "ColumnFamilyDescriptorBuilder").newBuilder(before)
        for setter, value in settings.items():
            getattr(builder, setter)(value)
        self._admin.modifyColumnFamily(name, builder.build())
