"""§2.1: the store on HBase: Bigtable's design, on one's own servers.

Percola's rows are HBase rows, kinds are column families. All conditions and changes of a row are
one request to a coprocessor that is part of HBase, and rows of one region are first tried as one
request. A row is read from one consistent view of it, which is all that the protocol needs.

The other modules:

    jvm                  Java in this process: jars, forks, threads
    wire                 the encoding of requests and responses; how entries are stored
    client               the connection, deadlines, retries, error messages
    method_handles       combines several calls into Java in one
    errors               classifies failures: not done, refused, unknown
    kerberos             the check for a ticket, and messages for login failures
    mutations            translates mutations into checks and changes
    writes               sends mutations, grouped by region
    reads                cells, scans
    shared_row           the safe point, and which tables keep a feed
    feed                 the feed
    schema               tables, families, refused settings

`latest_arrival` bounds how late a call that was given up may still take effect. HBase has no
condition on the time of day that could fence such a call, so the bound is a sum. Data in the
kernel's buffers when the caller gives up or dies is delivered or dropped within the quarter of an
hour for which Linux retransmits. The server counts a call's deadline, a minute at most, from its
receipt, and drops calls that are still queued then. A call that it has begun waits for a row's lock
no longer than its deadline, and for the log five minutes (hbase.regionserver.wal.sync.timeout)
before the server aborts. A server that hangs longer than its ZooKeeper session has lost its log's
lease when it resumes, and can append nothing. The sum is below twenty-five minutes; a generous
bound only means that rollback records are collected later.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import parse_qsl

from percola.cells import Cell, Kind
from percola.clock import elapsed
from percola.errors import (
    RowTooLongError,
    UnknownTableError,
    UsageError,
    ValueTooLargeError,
)
from percola.platform import fork_safety as forks
from percola.store.base import (
    CellState,
    ChangedRow,
    Limits,
    Put,
    RowMutation,
    Store,
    Tablet,
)
from percola.store.hbase.client import Calls, Place
from percola.store.hbase.feed import Feeds
from percola.store.hbase.mutations import plan
from percola.store.hbase.reads import Reading, StoredRow
from percola.store.hbase.schema import check_version, create_tables, exists
from percola.store.hbase.shared_row import Shared
from percola.store.hbase.wire import FAMILIES, Ask
from percola.store.hbase.writes import Writing
from percola.store.remote.shared_row import SHARED_TABLE

_COLUMN_BYTES: Final = 16_000
_ROW_CHANGE_BYTES: Final = 64 * 1024 * 1024
_ALL_VERSIONS: Final = 2**31 - 1

REQUEST_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 30.0


class HBaseStore(Store):
    """A repository's tables in a namespace of HBase; safe to use from many threads.

    It cannot be used in a child of a process that has used one: Java does not survive a fork.

    Args:
        place: HBase's ZooKeeper servers, and the namespace.
        request_seconds: how long a single call may take, up to 60.
        patience_seconds: how long calls that had no effect are retried.
    """

    # HBase's own limits are 32,767 bytes and 10 MiB, the latter with the key.
    limits = Limits(row_bytes=32_000, value_bytes=8 * 1024 * 1024)

    latest_arrival = 1_500.0

    def __init__(
        self,
        place: Place,
        *,
        request_seconds: float = REQUEST_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        if not 0 < request_seconds <= 60:
            raise UsageError(
                f"A call may take from 0 to 60 s, not {request_seconds}: for longer than that a "
                "call that was given up could take effect when nobody expects it."
            )
        self.place = place
        self._calls = Calls(
            place, request_seconds=request_seconds, patience_seconds=patience_seconds
        )
        self._shared = Shared(self._calls)
        self._reading = Reading(self._calls, self._shared)
        self._feeds = Feeds(self._calls, self._shared, self._reading)
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._known: set[str] = set()
        self._version_checked = False

    # --- Tables, limits -----------------------------------------------------------------

    def create_tables(self, names: Iterable[str]) -> None:
        self._calls.check_open()
        with self._guard:
            if not self._version_checked:
                check_version(self._calls)
                self._version_checked = True
            for name in dict.fromkeys((SHARED_TABLE, *names)):
                if name not in self._known:
                    create_tables(self._calls, [name])
                    self._known.add(name)

    def _check_table(self, table: str) -> None:
        self._calls.check_open()
        if table not in self._known:
            if not exists(self._calls, table):
                raise UnknownTableError(
                    f"The store has no table {table!r}: there is no "
                    f"{self.place.table(table)!r} in {self.place}."
                )
            self._known.add(table)

    def check_row(self, table: str, row: bytes) -> None:
        if len(row) > self.limits.row_bytes:
            raise RowTooLongError(
                f"A row of {len(row)} bytes does not fit: HBase takes up to "
                f"{self.limits.row_bytes}."
            )

    def check_sizes(self, batch: Sequence[RowMutation]) -> None:
        super().check_sizes(batch)
        for mutation in batch:
            size = 0
            for change in mutation.changes:
                if len(change.column) > _COLUMN_BYTES:
                    raise RowTooLongError(
                        f"A column of {len(change.column)} bytes does not fit: HBase takes up to "
                        f"{_COLUMN_BYTES}."
                    )
                if isinstance(change, Put):
                    size += len(change.value)
            if size > _ROW_CHANGE_BYTES:
                raise ValueTooLargeError(
                    f"{len(mutation.changes)} changes of one row with {size} bytes do not fit: "
                    f"HBase takes up to {_ROW_CHANGE_BYTES} bytes at once. Write fewer columns of "
                    "a row in one transaction."
                )

    # --- Writing ------------------------------------------------------------------------

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        moment = elapsed()
        self._calls.check_open()
        for mutation in batch:
            self._check_table(mutation.table)
        self.check_sizes(batch)
        feeds: frozenset[str] = frozenset()
        if any(one.kind is Kind.WRITE for mutation in batch for one in mutation.changes):
            feeds = self._shared.view(moment).feeds
        return Writing(self._calls).apply([plan(one, one.table in feeds) for one in batch])

    # --- Reading ------------------------------------------------------------------------

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        self._calls.check_open()
        for table in {cell.table for cell in cells}:
            self._check_table(table)
        return self._reading.read(cells, ts)

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        self._check_table(cell.table)
        return self._reading.entries(cell, kind, low, high, limit)

    def scan(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        *,
        columns: Sequence[tuple[bytes, bool]] | None = None,
        limit: int = 256,
    ) -> tuple[list[tuple[Cell, CellState]], bytes | None]:
        self._check_table(table)
        return self._reading.scan(table, start, end, ts, columns, limit)

    def scan_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        ts: int,
        *,
        columns: Sequence[tuple[bytes, bool]] | None = None,
        limit: int = 256,
    ) -> dict[bytes, list[tuple[Cell, CellState]]]:
        self._check_table(table)
        return self._reading.scan_rows(table, rows, ts, columns, limit)

    def scan_kind(
        self, kind: Kind, table: str, start: bytes = b"", end: bytes = b"", limit: int = 256
    ) -> tuple[list[tuple[Cell, int, bytes]], bytes | None]:
        self._check_table(table)
        found: list[tuple[Cell, int, bytes]] = []

        def take(rows: Sequence[tuple[bytes, StoredRow]]) -> Iterator[int]:
            for key, row in rows:
                for (_, column), entries in sorted(row.items()):
                    ordered = entries if kind is Kind.DATA else reversed(entries)
                    found.extend((Cell(table, key, column), ts, value) for ts, value in ordered)
                yield len(found)

        asked = [Ask(FAMILIES[kind], None)]
        following = self._reading.walk(table, asked, _ALL_VERSIONS, start, end, limit, take)
        return found, following

    def versions(
        self, table: str, start: bytes = b"", end: bytes = b"", limit: int = 256
    ) -> tuple[list[tuple[Cell, list[tuple[int, bytes]]]], bytes | None]:
        self._check_table(table)
        found: list[tuple[Cell, list[tuple[int, bytes]]]] = []

        def take(rows: Sequence[tuple[bytes, StoredRow]]) -> Iterator[int]:
            count = 0
            for key, row in rows:
                for (_, column), entries in sorted(row.items()):
                    found.append((Cell(table, key, column), entries))
                count = sum(len(entries) for _, entries in found)
                yield count

        asked = [Ask(FAMILIES[Kind.WRITE], None)]
        following = self._reading.walk(table, asked, _ALL_VERSIONS, start, end, limit, take)
        return found, following

    def tablets(self, table: str) -> list[Tablet]:
        self._check_table(table)
        starts = self._calls.region_starts(table, again=True)
        return [Tablet(low, high) for low, high in zip(starts, [*starts[1:], b""], strict=True)]

    # --- The safe point, the feed -------------------------------------------------------

    def safe_point(self) -> int:
        self._calls.check_open()
        return self._shared.look().in_force

    def check_safe_point(self, ts: int) -> None:
        self._calls.check_open()
        self._shared.check(ts)

    def raise_safe_point(self, ts: int) -> None:
        self._calls.check_open()
        self._shared.raise_safe_point(ts)

    def keep_feed(self, table: str) -> None:
        self._check_table(table)
        self._shared.keep_feed(table)

    def changes(
        self, table: str, start: tuple[int, bytes], upto: int, limit: int = 1024
    ) -> tuple[list[ChangedRow], tuple[int, bytes] | None]:
        self._check_table(table)
        return self._feeds.changes(table, start, upto, limit)

    def walk_changes(
        self,
        table: str,
        after: int,
        upto: int,
        *,
        start: bytes = b"",
        end: bytes = b"",
        limit: int = 1024,
    ) -> Iterator[ChangedRow]:
        self._check_table(table)
        return iter(self._feeds.walk(table, after, upto, start, end))

    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        self._check_table(cell.table)
        return self._feeds.lists(cell, commit_ts)

    def forget_changes(self, table: str, upto: int, limit: int = 4096) -> int:
        self._check_table(table)
        return self._feeds.forget(table, upto, limit)

    # --- The end ------------------------------------------------------------------------

    def close(self) -> None:
        self._calls.close()

    def statistics(self) -> dict[str, int]:
        """The number of calls made to HBase, by name."""
        return dict(self._calls.made)


# --- Addresses --------------------------------------------------------------------------

_ADDRESS: Final = re.compile(r"hbase://([^/?#]*)/([^/?#]*)/?(?:\?([^#]*))?")
_HOST: Final = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::([0-9]{1,5}))?")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_]+")
_SHAPE: Final = "'hbase://host:port/namespace' or 'hbase://host,host,host/namespace'"
_PORT: Final = 2181
_OTHERS: Final = frozenset(("oracle", "zookeeper"))


def place_of(address: str) -> Place:
    """The place that an address names: HBase's ZooKeeper servers and a namespace.

    Raises UsageError if the address is malformed.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise UsageError(f"{address!r} is not the address of an HBase namespace: {_SHAPE}.")
    quorum, namespace, query = found[1], found[2], found[3] or ""
    servers = []
    for one in quorum.split(","):
        server = _HOST.fullmatch(one)
        if server is None or not 0 < int(server[2] or _PORT) < 2**16:
            raise UsageError(
                f"{one!r} in {address!r} is no ZooKeeper server of HBase's: {_SHAPE}. Without a "
                f"port it is {_PORT}."
            )
        servers.append(f"{server[1]}:{server[2] or _PORT}")
    if not _NAMESPACE.fullmatch(namespace) or namespace == "hbase":
        raise UsageError(
            f"{namespace!r} in {address!r} cannot be a namespace of Percola's in HBase: letters, "
            f"digits and underscores, and not 'hbase', which is its own. {_SHAPE}."
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    if "coprocessors" in options:
        raise UsageError(
            f"The option 'coprocessors' in {address!r} is no longer supported: leave it out, and "
            "allow the coprocessor MultiRowMutationEndpoint on the servers."
        )
    unknown = sorted(options.keys() - _OTHERS)
    if unknown or (query and not options):
        raise UsageError(
            f"{address!r} has an unknown option {(unknown or [query])[0]!r}: {_SHAPE}."
        )
    return Place(",".join(servers), namespace)


def open_hbase(
    address: str,
    *,
    request_seconds: float = REQUEST_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> HBaseStore:
    """The store at `hbase://quorum-host[:port][,host…]/namespace`.

    Neither contacts a server nor starts Java: `create_tables` does, and refuses settings that
    would break the protocol. Raises UsageError for a malformed address.
    """
    return HBaseStore(
        place_of(address), request_seconds=request_seconds, patience_seconds=patience_seconds
    )
