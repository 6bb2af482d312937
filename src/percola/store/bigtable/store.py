"""§2.1: the store on Cloud Bigtable, the paper's own store.

One conditional mutation of Bigtable prewrites or commits all cells of a row, and a row is read from
one consistent view of it, which is all that the protocol needs. The other modules:

    filters        conditions and reads as request filters
    client         channels, deadlines, retries, error messages
    row_stream     streams of rows
    writes         mutations, many in flight; rows and their notify entries in steps
    reads          cells, scans
    shared_row     the safe point, and which tables keep a feed
    feed           the feed
    schema         tables, families, the application profile

A scan of one family reads all other families of its rows too, because a user cannot give families
separate storage. So the notify entries of a table are stored in a second table, which contains
nothing else: finding work costs in proportion to what is dirty (rule N6).
`percola.store.remote.notify_table` describes the consequences for writers.

`latest_arrival` bounds how late a call that was given up may still take effect. Bigtable has no
condition on the time of day that could fence such a call, so the bound is a sum. The client drops
what it has not sent at the deadline. Data in the kernel's buffers is delivered or dropped within
keep-alive's ten seconds where TCP_USER_TIMEOUT works, and within the quarter of an hour for which
Linux retransmits where it does not, also after the process died. The server counts the deadline, a
minute at most, from the receipt of the request, and gives up then. The sum is below twenty minutes;
a generous bound only means that rollback records are collected later.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import parse_qsl

from percola.cells import Cell, Kind
from percola.clock import elapsed
from percola.errors import (
    RepositoryClosedError,
    RowTooLongError,
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
from percola.store.bigtable.client import Calls, Place
from percola.store.bigtable.feed import Feeds
from percola.store.bigtable.filters import FAMILIES, family, nothing, table_of
from percola.store.bigtable.reads import Reading
from percola.store.bigtable.row_stream import RowStream, StoredRow
from percola.store.bigtable.schema import check_app_profile, create_tables
from percola.store.bigtable.shared_row import Shared
from percola.store.bigtable.writes import apply, steps
from percola.store.remote.shared_row import SHARED_TABLE

_COLUMN_BYTES: Final = 16_000
_ROW_CHANGE_BYTES: Final = 96 * 1024 * 1024
_ROW_CHANGES: Final = 90_000

REQUEST_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 30.0


class BigtableStore(Store):
    """A repository's tables in a Bigtable instance; safe to use from many threads.

    It cannot be used in a child of a process that has used one: gRPC does not survive a fork.

    Args:
        place: the instance.
        request_seconds: how long a single call may take, up to 60.
        patience_seconds: how long a read is retried without an answer.
    """

    # Bigtable's own limits are 4 KiB and 100 MiB.
    limits = Limits(row_bytes=4_000, value_bytes=64 * 1024 * 1024)

    has_notify_table = True

    latest_arrival = 1_200.0

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
        self._feeds = Feeds(self._calls, self._shared)
        self._closed = False
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._known: set[str] = set()
        self._profile_checked = False

    # --- Tables, limits -----------------------------------------------------------------

    def create_tables(self, names: Iterable[str]) -> None:
        self._check_open()
        with self._guard:
            if not self._profile_checked:
                check_app_profile(self._calls)
                self._profile_checked = True
            missing = [one for one in (SHARED_TABLE, *names) if one not in self._known]
            for name in dict.fromkeys(missing):
                create_tables(self._calls, [name])
                self._known.add(name)

    def _check_table(self, table: str) -> None:
        self._check_open()
        if table not in self._known:
            # Reads no row; raises UnknownTableError if the table does not exist.
            for _ in RowStream(self._calls, table, nothing(), keys=[b"\0"]):
                pass
            self._known.add(table)

    def _check_open(self) -> None:
        if self._closed:
            raise RepositoryClosedError("This repository has been closed; open it again.")

    def check_row(self, table: str, row: bytes) -> None:
        if len(row) > self.limits.row_bytes:
            raise RowTooLongError(
                f"A row of {len(row)} bytes does not fit: Bigtable takes up to "
                f"{self.limits.row_bytes}."
            )

    def check_sizes(self, batch: Sequence[RowMutation]) -> None:
        super().check_sizes(batch)
        for mutation in batch:
            size = 0
            for change in mutation.changes:
                if len(change.column) > _COLUMN_BYTES:
                    raise RowTooLongError(
                        f"A column of {len(change.column)} bytes does not fit: Bigtable takes up "
                        f"to {_COLUMN_BYTES}."
                    )
                if isinstance(change, Put):
                    size += len(change.value)
            if size > _ROW_CHANGE_BYTES or len(mutation.changes) > _ROW_CHANGES:
                raise ValueTooLargeError(
                    f"{len(mutation.changes)} changes of one row with {size} bytes do not fit: "
                    f"Bigtable takes up to {_ROW_CHANGES} with {_ROW_CHANGE_BYTES} bytes at once. "
                    "Write fewer columns of a row in one transaction."
                )

    # --- Writing ------------------------------------------------------------------------

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        moment = elapsed()
        for mutation in batch:
            self._check_table(mutation.table)
        self.check_sizes(batch)
        feeds: frozenset[str] = frozenset()
        if any(one.kind is Kind.WRITE for mutation in batch for one in mutation.changes):
            feeds = self._shared.view(moment).feeds
        plans = [steps(self._calls, one, one.table in feeds) for one in batch]
        return apply(self._calls, plans)

    # --- Reading ------------------------------------------------------------------------

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        self._check_open()
        for table in {cell.table for cell in cells}:
            self._check_table(table)
        return self._reading.read(cells, ts)

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        self._check_table(cell.table)
        cell = cell._replace(table=table_of(cell.table, kind))
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

        def take(key: bytes, row: StoredRow) -> int:
            for (_, column), entries in sorted(row.items()):
                ordered = entries if kind is Kind.DATA else reversed(entries)
                found.extend((Cell(table, key, column), ts, value) for ts, value in ordered)
            return len(found)

        following = self._reading.walk(
            table_of(table, kind), family(FAMILIES[kind]), start, end, limit, take
        )
        return found, following

    def versions(
        self, table: str, start: bytes = b"", end: bytes = b"", limit: int = 256
    ) -> tuple[list[tuple[Cell, list[tuple[int, bytes]]]], bytes | None]:
        self._check_table(table)
        found: list[tuple[Cell, list[tuple[int, bytes]]]] = []
        count = 0

        def take(key: bytes, row: StoredRow) -> int:
            nonlocal count
            for (_, column), entries in sorted(row.items()):
                found.append((Cell(table, key, column), entries))
                count += len(entries)
            return count

        following = self._reading.walk(table, family(FAMILIES[Kind.WRITE]), start, end, limit, take)
        return found, following

    def tablets(self, table: str) -> list[Tablet]:
        self._check_table(table)
        cuts = sorted(set(self._calls.sample_keys(table)) - {b""})
        return [Tablet(low, high) for low, high in zip([b"", *cuts], [*cuts, b""], strict=True)]

    # --- The safe point, the feed -------------------------------------------------------

    def safe_point(self) -> int:
        self._check_open()
        return self._shared.look().in_force

    def check_safe_point(self, ts: int) -> None:
        self._check_open()
        self._shared.check(ts)

    def raise_safe_point(self, ts: int) -> None:
        self._check_open()
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
        if not self._closed:
            self._closed = True
            self._calls.close()

    def statistics(self) -> dict[str, int]:
        """The number of calls made to Bigtable, by name."""
        return dict(self._calls.made)


# --- Addresses --------------------------------------------------------------------------

_ADDRESS: Final = re.compile(r"bigtable://([^/?#]*)/([^/?#]*)/?(?:\?([^#]*))?")
_PROJECT: Final = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{0,61}")
_INSTANCE: Final = re.compile(r"[a-z][a-z0-9-]{0,61}")
_PROFILE: Final = re.compile(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}")
_EMULATOR: Final = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:/\s]+):[0-9]{1,5}")
_SHAPE: Final = "'bigtable://project/instance' or 'bigtable://project/instance?app_profile=NAME'"


def place_of(address: str) -> Place:
    """The place that an address names; in an emulator if BIGTABLE_EMULATOR_HOST is set.

    Raises UsageError that says what is wrong with the address.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise UsageError(f"{address!r} is not the address of a Bigtable instance: {_SHAPE}.")
    project, instance, query = found[1], found[2], found[3] or ""
    options = dict(parse_qsl(query, keep_blank_values=True))
    checks: list[tuple[str, str, Callable[[str], object]]] = [
        ("project", project, _PROJECT.fullmatch),
        ("instance", instance, _INSTANCE.fullmatch),
    ]
    if "app_profile" in options:
        checks.append(("application profile", options["app_profile"], _PROFILE.fullmatch))
    for what, name, is_right in checks:
        if not is_right(name):
            raise UsageError(
                f"{name!r} in {address!r} cannot name a Google Cloud {what}: {_SHAPE}."
            )
    unknown = sorted(options.keys() - {"app_profile"})
    if unknown or (query and not options):
        raise UsageError(
            f"{address!r} has an unknown option {(unknown or [query])[0]!r}: {_SHAPE}."
        )
    emulator = os.environ.get("BIGTABLE_EMULATOR_HOST", "")
    if emulator and not _EMULATOR.fullmatch(emulator):
        raise UsageError(
            f"BIGTABLE_EMULATOR_HOST is {emulator!r}: give host:port of a running emulator, or "
            "unset it to use Google's service."
        )
    return Place(project, instance, options.get("app_profile", ""), emulator)


def open_bigtable(
    address: str,
    *,
    request_seconds: float = REQUEST_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> BigtableStore:
    """The store at `bigtable://project/instance[?app_profile=NAME]`.

    Nothing is asked of the server yet: `create_tables` does, and refuses settings that will not do.
    Raises UsageError for a malformed address.
    """
    return BigtableStore(
        place_of(address), request_seconds=request_seconds, patience_seconds=patience_seconds
    )
