"""§2.1: the store as it is on every database on servers: what HBase and Bigtable share.

`RemoteStore` checks tables and sizes, and leaves the rest to

    client         time limits, retries
    reads          cells, scans: which requests a read needs
    column_ranges  the columns of families that a read names
    feed           the feed
    feed_index     where the feed's entries are, by time
    shared_row     the safe point, and which tables keep a feed
    batches        the parts of a batch that may be under way together
    notify_table   mutations in steps, where notify entries are in a separate table

A subclass adds the calls, the requests of reads, and everything about writes and tables.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final

from percola.cells import Cell, Kind
from percola.clock import elapsed
from percola.errors import RowTooLongError, StoreError, UnknownTableError, ValueTooLargeError
from percola.platform import fork_safety as forks
from percola.store.base import (
    SYSTEM_TABLE,
    CellState,
    ChangedRow,
    Put,
    RowMutation,
    Store,
    Tablet,
    check_sizes,
)
from percola.store.remote.client import RemoteCalls
from percola.store.remote.feed import Feed, Index, RemoveChanges
from percola.store.remote.feed_index import FEED_TABLE, unlocked_puts
from percola.store.remote.reads import Columns, Reading
from percola.store.remote.shared_row import SHARED_TABLE, SharedRow

_COLUMN_BYTES: Final = 16_000
_SHOWN: Final = 60
"""The most bytes of a row in a message."""


class RemoteStore(Store):
    """A repository's tables in a database on servers; safe to use from many threads.

    Attributes:
        database: its name in messages.
        row_change_bytes: how many bytes it takes in the changes of one row.
        row_changes: how many changes of one row it takes; None for any number.
        row_locks: how many columns of one row it locks at once, where it checks each by itself, on
            conditions that all name the row; None for any number.

    Args:
        apply: `mutate` without its checks; the second argument is the tables that keep a feed.
    """

    has_feed_in_rows = True
    database: ClassVar[str]
    row_change_bytes: ClassVar[int]
    row_changes: ClassVar[int | None] = None
    row_locks: ClassVar[int | None] = None

    def __init__(
        self,
        calls: RemoteCalls,
        shared: SharedRow,
        reading: Reading,
        apply: Callable[[Sequence[RowMutation], frozenset[str]], list[bool]],
        remove_changes: RemoveChanges,
    ) -> None:
        self._calls = calls
        self._shared = shared
        self._reading = reading
        self._apply = apply
        self._feed = Feed(shared, reading, remove_changes)
        self.feed_index = Index(self, self._make_index, shared, reading)
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._known: set[str] = set()
        self._settings_checked = False

    # --- Requests -----------------------------------------------------------------------

    @abstractmethod
    def _check_settings(self) -> None:
        """Raise StoreError if the database as a whole would make the protocol unsafe."""

    @abstractmethod
    def _create_table(self, name: str) -> None:
        """Create the table if it does not exist; StoreError if it cannot be used."""

    @abstractmethod
    def _find_table(self, name: str) -> None:
        """Raise UnknownTableError if the table does not exist."""

    @abstractmethod
    def _tablet_starts(self, table: str) -> Iterable[bytes]:
        """The first rows of the table's tablets; the empty one may be missing."""

    # --- Tables, limits -----------------------------------------------------------------

    def create_tables(self, names: Iterable[str]) -> None:
        self._calls.check_open()
        with self._guard:
            if not self._settings_checked:
                self._check_settings()
                self._settings_checked = True
            if SHARED_TABLE not in self._known:
                self._create_shared()
            for name in names:
                if name not in self._known:
                    self._create_table(name)
                    self._known.add(name)

    def _create_shared(self) -> None:
        """Create the table of the shared row, unless it was deleted.

        It is the first table of a repository. An empty one would have no safe point and no feeds.
        """
        # In this order: another process that creates the repository now makes the shared one first.
        if self._has(SYSTEM_TABLE) and not self._has(SHARED_TABLE):
            raise self._deleted(SHARED_TABLE)
        self._create_table(SHARED_TABLE)
        self._known.add(SHARED_TABLE)

    def _has(self, table: str) -> bool:
        try:
            self._find_table(table)
        except UnknownTableError:
            return False
        return True

    def _deleted(self, table: str) -> StoreError:
        return StoreError(
            f"A table of this repository has been deleted, {table!r}, without which it cannot be "
            "trusted. Restore it there, from a snapshot of the store of the same moment as the "
            "other tables, or the repository from a backup."
        )

    def check_tables(self, names: Iterable[str]) -> None:
        wanted = list(names)
        self._calls.check_open()
        for name in wanted:
            if name not in self._known:
                self._find_table(name)
        self.create_tables(wanted)  # Checks their settings.

    def _check_table(self, table: str) -> None:
        self._calls.check_open()
        if table not in self._known:
            self._find_table(table)
            self._known.add(table)

    def check_row(self, table: str, row: bytes) -> None:
        # Keys of the index are a row and somewhat more, for which the databases leave room.
        if len(row) > self.limits.row_bytes and table != FEED_TABLE:
            raise RowTooLongError(
                f"A row of {len(row)} bytes in the table {table!r} does not fit: {self.database} "
                f"takes rows of up to {self.limits.row_bytes} bytes. Use a hash of the row's end "
                f"and keep the whole in a column. It begins with {row[:_SHOWN]!r}."
            )

    def check_sizes(self, batch: Sequence[RowMutation]) -> None:
        """Raise RowTooLongError or ValueTooLargeError if the batch exceeds a limit."""
        check_sizes(self, batch)
        most, most_bytes = self.row_changes, self.row_change_bytes
        for mutation in batch:
            size, count, locks = 0, len(mutation.changes), 0
            for change in mutation.changes:
                if len(change.column) > _COLUMN_BYTES:
                    raise RowTooLongError(
                        f"A column of {len(change.column)} bytes in {_place_of(mutation)} does not "
                        f"fit: {self.database} takes up to {_COLUMN_BYTES}."
                    )
                if isinstance(change, Put):
                    size += len(change.value)
                    locks += change.kind is Kind.LOCK
            if self.row_locks is not None:
                if locks > self.row_locks:
                    raise ValueTooLargeError(
                        f"{locks} columns in {_place_of(mutation)} do not fit: {self.database} "
                        f"takes up to {self.row_locks} of a row in one transaction, as it checks "
                        "each. Write fewer columns of a row in one transaction."
                    )
                size += 2 * locks * len(mutation.row)  # Each has two conditions.
            if size > most_bytes or (most is not None and count > most):
                changes = "" if most is None else f"{most} changes with "
                raise ValueTooLargeError(
                    f"{count} changes with {size} bytes in {_place_of(mutation)} do not fit: "
                    f"{self.database} takes up to {changes}{most_bytes} bytes in a row at once. "
                    "Write fewer columns of a row in one transaction."
                )

    def tablets(self, table: str) -> list[Tablet]:
        self._check_table(table)
        starts = sorted({b"", *self._tablet_starts(table)})
        return [Tablet(low, high) for low, high in zip(starts, [*starts[1:], b""], strict=True)]

    # --- Writing ------------------------------------------------------------------------

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        moment = elapsed()
        self._calls.check_open()
        for mutation in batch:
            self._check_table(mutation.table)
        self.check_sizes(batch)
        feeds: frozenset[str] = frozenset()
        if any(one.kind is Kind.WRITE for mutation in batch for one in mutation.changes):
            view = self._shared.view(moment)
            feeds = view.feeds
            if view.indexed and (puts := unlocked_puts(batch, feeds)):
                # Acknowledged before anything of the batch is sent: see `feed_index`.
                self._apply(puts, feeds)
        return self._apply(batch, feeds)

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

    def entries_of(
        self, cells: Sequence[Cell], kind: Kind, low: int, high: int
    ) -> list[list[tuple[int, bytes]]]:
        for table in {cell.table for cell in cells}:
            self._check_table(table)
        return self._reading.entries_of(cells, kind, low, high)

    def scan(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        *,
        columns: Columns = None,
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
        columns: Columns = None,
        limit: int = 256,
    ) -> dict[bytes, list[tuple[Cell, CellState]]]:
        self._check_table(table)
        return self._reading.scan_rows(table, rows, ts, columns, limit)

    def scan_kind(
        self,
        kind: Kind,
        table: str,
        start: bytes = b"",
        end: bytes = b"",
        limit: int = 256,
        *,
        versions: int | None = None,
    ) -> tuple[list[tuple[Cell, int, bytes]], bytes | None]:
        self._check_table(table)
        cells, following = self._reading.scan_kind(kind, table, start, end, limit, versions)
        found = [
            (cell, ts, value)
            for cell, entries in cells
            for ts, value in (entries if kind in (Kind.WRITE, Kind.DATA) else reversed(entries))
        ]
        return found, following

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

    def _make_index(self) -> None:
        """Make the table of the index of feeds if it does not exist."""
        self._calls.check_open()
        with self._guard:
            if FEED_TABLE not in self._known:
                if self._shared.current().indexed_since is not None and not self._has(FEED_TABLE):
                    raise self._deleted(FEED_TABLE)
                self._create_table(FEED_TABLE)
                self._known.add(FEED_TABLE)

    def changes(
        self, table: str, after: int, upto: int, *, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        self._check_table(table)
        return self._feed.changes(table, after, upto, start, end)

    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        self._check_table(cell.table)
        return self._feed.lists(cell, commit_ts)

    def forget_changes(
        self, table: str, upto: int, limit: int = 4096, *, start: bytes = b"", end: bytes = b""
    ) -> int:
        self._check_table(table)
        return self._feed.forget(table, upto, limit, start, end)

    # --- The end ------------------------------------------------------------------------

    def close(self) -> None:
        self._calls.close()

    def statistics(self) -> dict[str, int]:
        """The number of calls made to the database, by name."""
        return dict(self._calls.made)


def _place_of(mutation: RowMutation) -> str:
    """The row of a mutation, for messages."""
    return f"the row {mutation.row[:_SHOWN]!r} of the table {mutation.table!r}"
