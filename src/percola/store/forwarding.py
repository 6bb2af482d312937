"""§2.1: stores that pass every call on to another store, to be subclassed.

A subclass overrides the methods that it counts, delays or refuses. The optional methods of
`percola.store.capabilities` and `Store.prepare_commit` are not passed on: a reader or committer
calls the contract's other methods instead, so that a subclass sees every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from percola.cells import Cell, Kind
from percola.store.base import (
    CellState,
    ChangedRow,
    OneStepConflict,
    OneStepStore,
    OneStepWrite,
    RowMutation,
    Store,
    Tablet,
)


class ForwardingStore(Store):
    """Passes the calls of the contract on. It commits in two phases only."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.limits = inner.limits
        self.latest_arrival = inner.latest_arrival
        self.has_notify_table = inner.has_notify_table
        self.has_volatile_writes = inner.has_volatile_writes
        self.has_feed_in_rows = inner.has_feed_in_rows
        self.feed_index = inner.feed_index

    def create_tables(self, names: Iterable[str]) -> None:
        self.inner.create_tables(names)

    def check_tables(self, names: Iterable[str]) -> None:
        self.inner.check_tables(names)

    def check_row(self, table: str, row: bytes) -> None:
        self.inner.check_row(table, row)

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        return self.inner.mutate(batch)

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        return self.inner.read(cells, ts)

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        return self.inner.entries(cell, kind, low, high, limit)

    def entries_of(
        self, cells: Sequence[Cell], kind: Kind, low: int, high: int
    ) -> list[list[tuple[int, bytes]]]:
        return self.inner.entries_of(cells, kind, low, high)

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
        return self.inner.scan(table, start, end, ts, columns=columns, limit=limit)

    def scan_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        ts: int,
        *,
        columns: Sequence[tuple[bytes, bool]] | None = None,
        limit: int = 256,
    ) -> dict[bytes, list[tuple[Cell, CellState]]]:
        return self.inner.scan_rows(table, rows, ts, columns=columns, limit=limit)

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
        return self.inner.scan_kind(kind, table, start, end, limit, versions=versions)

    def safe_point(self) -> int:
        return self.inner.safe_point()

    def check_safe_point(self, ts: int) -> None:
        self.inner.check_safe_point(ts)

    def raise_safe_point(self, ts: int) -> None:
        self.inner.raise_safe_point(ts)

    def keep_feed(self, table: str) -> None:
        self.inner.keep_feed(table)

    def changes(
        self, table: str, after: int, upto: int, *, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        return self.inner.changes(table, after, upto, start=start, end=end)

    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        return self.inner.lists_change(cell, commit_ts)

    def forget_changes(
        self, table: str, upto: int, limit: int = 4096, *, start: bytes = b"", end: bytes = b""
    ) -> int:
        return self.inner.forget_changes(table, upto, limit, start=start, end=end)

    def tablets(self, table: str) -> list[Tablet]:
        return self.inner.tablets(table)

    def close(self) -> None:
        self.inner.close()

    def statistics(self) -> dict[str, int]:
        """The statistics of the wrapped store."""
        return self.inner.statistics()


class ForwardingOneStepStore(ForwardingStore, OneStepStore):
    """Passes on the calls of a store that can commit in one step."""

    inner: OneStepStore

    def __init__(self, inner: OneStepStore) -> None:
        super().__init__(inner)

    def commit_one_step(
        self,
        start_ts: int,
        writes: Sequence[OneStepWrite],
        notifications: Sequence[Cell] = (),
        deletes: Sequence[tuple[Kind, Cell, int]] = (),
    ) -> int | OneStepConflict:
        return self.inner.commit_one_step(start_ts, writes, notifications, deletes)

    def draw(self, count: int = 1) -> int:
        return self.inner.draw(count)

    def last_drawn(self) -> int:
        return self.inner.last_drawn()
