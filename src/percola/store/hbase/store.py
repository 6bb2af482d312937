"""§2.1: the store on HBase: Bigtable's design, on one's own servers.

Percola's rows are HBase rows, kinds are column families. All conditions and changes of a row are
one request to a coprocessor that is part of HBase, and rows of one region are first tried as one
request. A row is read from one consistent view of it, which is all that the protocol needs.

`percola.store.remote.store` has what this store shares with that on Bigtable. The other modules:

    jvm                  Java in this process: jars, forks, threads
    wire                 the encoding of requests and responses; how entries are stored
    client               the connection, deadlines, retries, error messages
    method_handles       combines several calls into Java in one
    errors               classifies failures: not done, refused, unknown
    kerberos             the check for a ticket, and messages for login failures
    mutations            translates mutations into checks and changes
    writes               sends mutations, grouped by region
    commits              commits whose phases are one call into Java each
    reads                the requests of reads
    shared_row           the row that all processes share
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
from collections.abc import Sequence
from functools import partial
from typing import Final
from urllib.parse import parse_qsl

from percola.cells import LockRecord
from percola.errors import UnknownTableError, UsageError
from percola.store.base import CommitRow, Limits, PreparedCommit
from percola.store.hbase.client import Calls, Place
from percola.store.hbase.commits import CELLS, prepare
from percola.store.hbase.reads import HBaseReading
from percola.store.hbase.schema import check_version, create_tables, exists
from percola.store.hbase.shared_row import Shared
from percola.store.hbase.writes import apply, remove_changes
from percola.store.remote.client import REQUEST_SECONDS, TIMEOUT_SECONDS
from percola.store.remote.store import RemoteStore


class HBaseStore(RemoteStore):
    """A repository's tables in a namespace of HBase; safe to use from many threads.

    It cannot be used in a child of a process that has used one: Java does not survive a fork.

    Args:
        place: HBase's ZooKeeper servers, and the namespace.
        request_seconds: how long a single call may take, up to 60.
        timeout_seconds: how long calls that had no effect are retried.
    """

    database = "HBase"
    has_volatile_writes = True
    prepared_cells = CELLS

    # HBase's own limits are 32,767 bytes and 10 MiB, the latter with the key.
    limits = Limits(row_bytes=32_000, value_bytes=8 * 1024 * 1024)
    row_change_bytes = 64 * 1024 * 1024
    # Servers look up each: some thousand a second, and of 80,000 one with a small heap has died.
    row_locks = 20_000

    _calls: Calls

    latest_arrival = 1_500.0

    def __init__(
        self,
        place: Place,
        *,
        request_seconds: float = REQUEST_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.place = place
        calls = Calls(place, request_seconds=request_seconds, timeout_seconds=timeout_seconds)
        shared = Shared(calls)
        super().__init__(
            calls,
            shared,
            HBaseReading(calls, shared),
            partial(apply, calls),
            partial(remove_changes, calls),
        )

    def prepare_commit(
        self, start_ts: int, lock: LockRecord, rows: Sequence[CommitRow]
    ) -> PreparedCommit | None:
        self._calls.check_open()
        for row in rows:
            self._check_table(row.table)
        return prepare(self._calls, self._shared, start_ts, lock, rows)

    def _check_settings(self) -> None:
        check_version(self._calls)

    def _create_table(self, name: str) -> None:
        create_tables(self._calls, [name])

    def _find_table(self, name: str) -> None:
        if not exists(self._calls, name):
            raise UnknownTableError(
                f"The store has no table {name!r}: there is no "
                f"{self.place.table(name)!r} in {self.place}."
            )

    def _tablet_starts(self, table: str) -> Sequence[bytes]:
        return self._calls.region_starts(table, again=True)


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
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> HBaseStore:
    """The store at `hbase://quorum-host[:port][,host…]/namespace`.

    Neither contacts a server nor starts Java: `create_tables` does, and refuses settings that
    would break the protocol. Raises UsageError for a malformed address.
    """
    return HBaseStore(
        place_of(address), request_seconds=request_seconds, timeout_seconds=timeout_seconds
    )
