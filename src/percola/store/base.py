"""§2.1, §2.5: what Percola asks of a store.

A store is a sorted map from (table, row, column, kind, timestamp) to bytes, with atomic
conditional mutations of one row. Everything above asks for nothing else, batch first, so
that each store can do its best: LMDB applies a batch in one transaction, HBase sends one
request a region, Bigtable keeps many calls in flight.

A store may offer more: `OneStepStore` can apply a whole transaction atomically at a
timestamp drawn under its own lock. The full two-phase protocol runs on every store.

Promises that every store keeps, and that `percola.testing.conformance.suite` checks:

* A `RowMutation` is applied whole or not at all; its conditions and its changes see no
  other mutation of that row in between. Rows of a batch are independent of each other.
  Only notify entries may be another matter: `Store.has_notify_table` says so.
* Rows and columns are any bytes but the empty ones, in byte order; columns hold no NUL. A cell
  has at most one lock at a time: the protocol's conditions see to that.
* A mutation whose call returned is seen by every later read, and is as durable as the
  store's mode promises.
* A write record that changes nothing may repeat the newest change below it (`percola.cells`): a
  reader that meets one believes it, and looks no further.
* `read`, `scan` and `scan_rows` look for locks no later than they look for writes (rule P9's base).
* Below the safe point nothing is read and nothing is committed in one step: SnapshotTooOldError,
  never a wrong answer, however late the safe point was raised (rule P12).
* A put or delete of a table that keeps a feed is listed in it by the very mutation that writes its
  record, whoever writes it. A table that keeps none pays nothing for that.
* Nothing above a limit is ever written in part: the check of the whole batch comes first.
* The driver's exceptions become `StoreError`s here, the cause chained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from percola.cells import SYSTEM_MARK, Cell, Kind
from percola.errors import DamagedRecordError, SnapshotTooOldError, ValueTooLargeError

_RECORD_ROOM: Final = 4096
"""Bytes that a record may add to a value that stands in it."""


class Condition(NamedTuple):
    """A cell has (or has no) entry of a kind in a range of timestamps, both ends included."""

    present: bool
    kind: Kind
    column: bytes
    low: int
    high: int


class Put(NamedTuple):
    """Put an entry at an explicit timestamp, replacing one that stands there."""

    kind: Kind
    column: bytes
    ts: int
    value: bytes


class Delete(NamedTuple):
    """Delete the entry at exactly this timestamp; deleting none is fine."""

    kind: Kind
    column: bytes
    ts: int


@dataclass(slots=True)
class RowMutation:
    """Conditions and changes of one row, applied atomically: if all hold, then all changes."""

    table: str
    row: bytes
    conditions: Sequence[Condition]
    changes: Sequence[Put | Delete]


CellState: TypeAlias = tuple[tuple[int, bytes] | None, int, bytes | None]
"""What a reader at a timestamp sees of a cell: (lock, commit_ts, value).

`lock` is (start_ts, record) of the lock that blocks the reader, or None. `commit_ts` is that
of the newest put or delete at or below the reader's timestamp, 0 if there is none. `value` is
what it put, None for a delete. With a blocking lock the other two mean nothing.
"""

NOTHING: CellState = (None, 0, None)


class Blocked(Enum):
    """The type of BLOCKED."""

    BLOCKED = "blocked"


BLOCKED: Final = Blocked.BLOCKED
"""What a `Reader` answers if a lock is in the way: `read` says which."""

Reader: TypeAlias = Callable[[bytes, int], "bytes | Blocked | None"]
"""(row, timestamp) → what a reader at that timestamp finds in the cell."""


OneStepWrite: TypeAlias = tuple[Cell, int, bytes | None, bool]
"""One cell of a transaction that commits in one step: (cell, op, value, observed).

`op` is the write record's operation, `value` what it puts (None unless it puts), `observed`
whether a notify entry goes with it. A plain tuple, because it is made for every write.
"""


class OneStepConflict(NamedTuple):
    """Why a one-step commit was refused: the cell, and either a lock or a newer write."""

    cell: Cell
    lock: tuple[int, bytes] | None
    commit_ts: int


class ChangedRow(NamedTuple):
    """What a feed lists: a row, the timestamp at which it changed, which columns were written.

    `columns` are those that got a put or a delete, in byte order; Percola's own are left out.
    """

    commit_ts: int
    row: bytes
    columns: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a store can hold, in bytes."""

    row_bytes: int
    value_bytes: int


class Tablet(NamedTuple):
    """A contiguous range of rows, [start, end); an empty `end` means to the table's end."""

    start: bytes
    end: bytes


class ColumnScan(NamedTuple):
    """A range of rows, column by column: what `Store.scan_columns` finds.

    Attributes:
        rows: the rows, in order, as an Arrow array of bytes.
        values: for each column asked for, an Arrow array of bytes with one value a row; null
            where the row has none.
        blocked: (index of the row, index of the column, (start_ts, lock record)) where a lock
            is in the way; there the value is null and means nothing.
        following: the row to go on from, or None at the end.
    """

    rows: Any
    values: list[Any]
    blocked: list[tuple[int, int, tuple[int, bytes]]]
    following: bytes | None


class Store(ABC):
    """The contract: see the module's text for the promises behind the methods."""

    limits: Limits

    has_notify_table: bool = False
    """Whether notify entries stand apart from their rows, where finding them costs what is dirty
    (rule N6) though the store cannot read one kind of entry without passing over the others. A
    transaction puts them before its commit point then, and a mutation with other changes beside
    them is applied in steps: `percola.store.remote.notify_table` says which, and why that is
    safe."""

    latest_arrival: float = 0.0
    """How long, in seconds, a call may still take effect after its caller has given it up or
    died. 0 where no call outlives its caller, as in an embedded store."""

    @abstractmethod
    def create_tables(self, names: Iterable[str]) -> None:
        """Make sure that the tables exist. Idempotent, and safe beside others doing the same."""

    @abstractmethod
    def check_row(self, table: str, row: bytes) -> None:
        """Raise RowTooLongError if the row's key does not fit this store."""

    def check_sizes(self, batch: Sequence[RowMutation]) -> None:
        """Raise RowTooLongError or ValueTooLargeError if something of the batch does not fit."""
        for mutation in batch:
            self.check_row(mutation.table, mutation.row)
            for change in mutation.changes:
                if (
                    isinstance(change, Put)
                    and len(change.value) > self.limits.value_bytes + _RECORD_ROOM
                ):
                    raise ValueTooLargeError(
                        f"A value of {len(change.value)} bytes does not fit: the store takes up "
                        f"to {self.limits.value_bytes}."
                    )

    @abstractmethod
    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        """Apply each row's mutation atomically; say for each whether its conditions held.

        Raises UnknownTableError, RowTooLongError, ValueTooLargeError or StoreFullError with
        nothing of the batch written, OutcomeUnknownError if the store did not answer (some
        rows may have been applied), other StoreErrors if it refused.
        """

    @abstractmethod
    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        """The state of each cell for a reader at `ts`, in the order asked (rule P9)."""

    def reader(self, table: str, column: bytes) -> Reader:
        """A function that reads one column of a table: see `Reader`.

        The same as `read` for single cells, without the timestamps; a store may have a
        shorter way. It stays usable for as long as the store.
        """

        def read(row: bytes, ts: int) -> bytes | Blocked | None:
            lock, _, value = self.read((Cell(table, row, column),), ts)[0]
            return value if lock is None else BLOCKED

        return read

    @abstractmethod
    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        """The cell's entries of a kind with `low` ≤ timestamp ≤ `high`, newest first."""

    @abstractmethod
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
        """Read rows in order from `start` up to but not including `end` (empty: no end).

        `columns` lists (name, is_prefix) pairs to be read; None reads all columns but
        Percola's own. Cells with neither a lock nor a visible write are left out. Returns
        the cells of at least one whole row if there is any, of about `limit` cells, and the
        row to go on from, or None at the end.
        """

    def scan_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        ts: int,
        *,
        columns: Sequence[tuple[bytes, bool]] | None = None,
        limit: int = 256,
    ) -> dict[bytes, list[tuple[Cell, CellState]]]:
        """What `scan` finds in each of some rows, all different, which need not be neighbours.

        The first of `rows` is read, and others until about `limit` cells have come: a row that
        the answer lacks has not been read, one with no cells has nothing. Rows are whole. Behind
        a network it is one call for as many rows as a request may name.
        """
        found: dict[bytes, list[tuple[Cell, CellState]]] = {}
        count = 0
        for row in rows:
            if found and count >= limit:
                break
            found[row], _ = self.scan(table, row, row + b"\0", ts, columns=columns, limit=limit)
            count += len(found[row])
        return found

    def scan_columns(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        columns: Sequence[bytes],
        limit: int = 8192,
    ) -> ColumnScan:
        """What `scan` finds in single columns, as Arrow arrays; about `limit` whole rows of it.

        For readers of whole tables, to whom a store may have a shorter way. The only part of
        the contract that needs pyarrow: the extra `spark` brings it.
        """
        import pyarrow as pa

        asked = [(column, False) for column in columns]
        cells, following = self.scan(
            table, start, end, ts, columns=asked, limit=limit * max(1, len(columns))
        )
        places = {column: at for at, column in enumerate(columns)}
        rows: list[bytes] = []
        values: list[list[bytes | None]] = [[] for _ in columns]
        blocked = []
        for cell, (lock, _, value) in cells:
            if not rows or rows[-1] != cell.row:
                rows.append(cell.row)
                for one in values:
                    one.append(None)
            place = places[cell.column]
            if lock is None:
                values[place][-1] = value
            else:
                blocked.append((len(rows) - 1, place, lock))
        arrays = [pa.array(one, pa.binary()) for one in values]
        return ColumnScan(pa.array(rows, pa.binary()), arrays, blocked, following)

    @abstractmethod
    def scan_kind(
        self, kind: Kind, table: str, start: bytes = b"", end: bytes = b"", limit: int = 256
    ) -> tuple[list[tuple[Cell, int, bytes]], bytes | None]:
        """All LOCK, NOTIFY, FAILED or DATA entries of a range of rows: (cell, timestamp, value).

        A cell's entries go up in time, those of DATA down. For the first three it costs
        in proportion to the entries of that kind, not to the table (rule N6). Returns whole
        rows, about `limit` entries, and the row to go on from, or None at the end.
        """

    @abstractmethod
    def versions(
        self, table: str, start: bytes = b"", end: bytes = b"", limit: int = 256
    ) -> tuple[list[tuple[Cell, list[tuple[int, bytes]]]], bytes | None]:
        """All write records of a range of rows: (cell, [(commit_ts, record), …] newest first).

        Percola's own columns are included, at any timestamp: what the collector and the check
        walk through. Returns whole rows, about `limit` records, and the row to go on from, or
        None at the end.
        """

    @abstractmethod
    def safe_point(self) -> int:
        """The oldest timestamp that can be read: 0 before the first garbage collection."""

    def check_safe_point(self, ts: int) -> None:
        """SnapshotTooOldError if something that stood there at `ts` or later may be removed by now.

        For whoever has looked at the store and asks afterwards whether all of it was there: a
        reader, or a transaction that has locked what it writes (rule P12). It may cost less than
        `safe_point`, for it need not know of one that is about to be raised.
        """
        if (safe_point := self.safe_point()) > ts:
            raise SnapshotTooOldError(ts, safe_point)

    @abstractmethod
    def raise_safe_point(self, ts: int) -> None:
        """Raise the safe point to `ts`, durably and for all processes; it never goes down.

        A read or check below it that begins after this has returned fails, and so does one that
        ends after something has been removed on the strength of it.
        """

    # --- The feed of a table's changes --------------------------------------------------

    @abstractmethod
    def keep_feed(self, table: str) -> None:
        """List every put and delete of the table for `changes`, from the next mutation on.

        Durably, and whichever process writes. Idempotent; there is no way back. Raises
        UnknownTableError.
        """

    @abstractmethod
    def changes(
        self, table: str, start: tuple[int, bytes], upto: int, limit: int = 1024
    ) -> tuple[list[ChangedRow], tuple[int, bytes] | None]:
        """The rows that were put or deleted in, from (commit_ts, row) `start` on and up to `upto`.

        In the order of commit_ts, and of rows within one. Returns up to `limit` rows, and where to
        go on from, or None at the end. What is put later at a timestamp that has been passed is
        missed: `percola.feed.settled` says up to where nothing comes any more.

        Raises NoFeedError if the table keeps no feed; SnapshotTooOldError if the commit_ts of
        `start` is at or below the safe point, for then some may have been removed.
        """

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
        """All that `changes` finds at `after` < commit_ts ≤ `upto`, call by call.

        With `start` and `end`, of the rows in [start, end) only; an empty end has none.
        """
        position: tuple[int, bytes] | None = (after + 1, b"")
        while position is not None and position[0] <= upto:
            found, position = self.changes(table, position, upto, limit)
            for one in found:
                if start <= one.row and (not end or one.row < end):
                    yield one

    @abstractmethod
    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        """Whether the feed lists the cell as changed at `commit_ts`; False without a feed."""

    @abstractmethod
    def forget_changes(self, table: str, upto: int, limit: int = 4096) -> int:
        """Remove what the feed lists at or below `upto`, which the safe point has reached.

        Removes at most about `limit` entries, one a changed cell, and returns how many they were:
        0 once there are none left, or if there is no feed.
        """

    def walk_kind(
        self,
        kind: Kind,
        table: str,
        start: bytes = b"",
        end: bytes = b"",
        *,
        first: int = 256,
        limit: int = 256,
    ) -> Iterator[tuple[Cell, int, bytes]]:
        """All that `scan_kind` finds, call by call; `first` is the limit of the first one."""
        position: bytes | None = start
        most = first
        while position is not None:
            entries, position = self.scan_kind(kind, table, position, end, most)
            most = limit
            yield from entries

    @abstractmethod
    def tablets(self, table: str) -> list[Tablet]:
        """The table's tablets in order: at least one, together covering every row."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Later calls raise RepositoryClosedError."""

    def statistics(self) -> dict[str, int]:
        """Sizes and counters that the store can tell cheaply, by name."""
        return {}


class OneStepStore(Store):
    """A store that can apply a whole transaction atomically, and owns the timestamps.

    Rule P11: the commit timestamp is drawn under the lock that makes the batch atomic, and a
    reader's start timestamp is the last one drawn in the same store snapshot. So whoever
    draws a start_ts at or above a commit_ts sees that commit.
    """

    @abstractmethod
    def commit_one_step(
        self,
        start_ts: int,
        writes: Sequence[OneStepWrite],
        notifications: Sequence[Cell] = (),
        deletes: Sequence[tuple[Kind, Cell, int]] = (),
    ) -> int | OneStepConflict:
        """Commit a transaction whole: return its commit_ts, or why it was refused.

        Refused if any cell written carries a lock, or a write record above `start_ts`. Raises
        SnapshotTooOldError if `start_ts` is below the safe point: what it conflicts with may
        have been removed.
        `notifications` are weak ones, put at the commit timestamp; `deletes` are notify and
        failed entries that the transaction answers, deleted with it.
        """

    @abstractmethod
    def draw(self, count: int = 1) -> int:
        """Draw `count` fresh timestamps from the store's counter; returns the highest."""

    @abstractmethod
    def last_drawn(self) -> int:
        """The last timestamp drawn, as of a store snapshot taken now. Costs a read only."""


def is_wanted(column: bytes, columns: Sequence[tuple[bytes, bool]] | None) -> bool:
    """Whether a scan that was asked for `columns` reads `column`; None: all but Percola's own."""
    if columns is None:
        return not column.startswith(SYSTEM_MARK)
    return any(
        column.startswith(name) if is_prefix else column == name for name, is_prefix in columns
    )


def missing_data(cell: Cell, commit_ts: int, start_ts: int) -> DamagedRecordError:
    """The error of a reader that finds a put's record and not the long value that belongs to it."""
    return DamagedRecordError(
        f"{cell} has a write record at {commit_ts} for data at {start_ts}, which is missing: the "
        "store is damaged. 'percola check' says where."
    )
