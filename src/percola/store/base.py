"""§2.1, §2.5: the storage interface.

A store is a sorted map from (table, row, column, kind, timestamp) to bytes, with atomic
conditional mutations of one row. The layers above need nothing else. The methods take batches,
so that each store can use its fastest path: LMDB applies a batch in one transaction, HBase
sends one request per region, Bigtable keeps many calls in flight.

A store may offer more: faster reads (`percola.store.capabilities`), and `OneStepStore` can apply
a whole transaction atomically at a timestamp drawn under its own lock. The full two-phase protocol
runs on every store.

Every store guarantees the following, and `percola.testing.conformance.suite` checks it:

* A `RowMutation` is applied whole or not at all; no other mutation of that row is applied
  between its conditions and its changes. Rows of a batch are independent of each other.
  Notify entries are the one exception: see `Store.has_notify_table`.
* Rows and columns are arbitrary non-empty bytes, in byte order; columns contain no NUL. A cell
  has at most one lock at a time, which the protocol's conditions ensure.
* A mutation whose call returned is visible to every later read, and is as durable as the
  store's mode promises.
* A write record that changes nothing may repeat the newest change below it (`percola.cells`): a
  reader that finds one uses it and reads no older records.
* `read`, `scan` and `scan_rows` read locks no later than they read writes (rule P9 relies on it).
* Reads and one-step commits below the safe point raise SnapshotTooOldError and never return a
  wrong result, however late the safe point was raised (rule P12).
* A put or delete in a table that keeps a feed is listed in the feed by the same mutation that
  writes its record, whichever client writes it. A table without a feed pays nothing for that.
* A batch that exceeds a limit is not written in part: the whole batch is checked first.
* Exceptions of the driver are raised as `StoreError`s, with the cause chained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from percola.cells import SYSTEM_MARK, Cell, Kind, LockRecord
from percola.errors import DamagedRecordError, SnapshotTooOldError, ValueTooLargeError

SYSTEM_TABLE: Final = "@percola"
"""The table of the schema, which every repository has (`percola.catalog`)."""

MOST_CHANGES: Final = 10_000
"""The most changes of one row in one mutation: stores limit that, Bigtable to 100,000."""

_RECORD_ROOM: Final = 4096
"""Bytes that a record may add to a value stored in it."""
_LONG_BYTES: Final = 16 << 20


class Condition(NamedTuple):
    """A cell has (or has no) entry of a kind in a range of timestamps, both ends included."""

    present: bool
    kind: Kind
    column: bytes
    low: int
    high: int


class Put(NamedTuple):
    """Put an entry at an explicit timestamp, replacing an existing one."""

    kind: Kind
    column: bytes
    ts: int
    value: bytes


class Delete(NamedTuple):
    """Delete the entry at exactly this timestamp, if there is one."""

    kind: Kind
    column: bytes
    ts: int


@dataclass(slots=True)
class RowMutation:
    """Conditions and changes of one row: all changes are applied atomically if all hold.

    Attributes:
        durable: False for changes that may be lost: see `Store.has_volatile_writes`.
    """

    table: str
    row: bytes
    conditions: Sequence[Condition]
    changes: Sequence[Put | Delete]
    durable: bool = True


CellState: TypeAlias = tuple[tuple[int, bytes] | None, int, bytes | None]
"""A cell as a reader at a timestamp sees it: (lock, commit_ts, value).

`lock` is (start_ts, record) of the lock that blocks the reader, or None. `commit_ts` is that
of the newest put or delete at or below the reader's timestamp, 0 if there is none. `value` is
the value put, None for a delete. With a blocking lock the other two are meaningless.
"""

NOTHING: CellState = (None, 0, None)


class Blocked(Enum):
    """The type of BLOCKED."""

    BLOCKED = "blocked"


BLOCKED: Final = Blocked.BLOCKED
"""Returned by a `Reader` if a lock blocks it; `Store.read` returns the lock."""

Reader: TypeAlias = Callable[[bytes, int], "bytes | Blocked | None"]
"""(row, timestamp) → the value of the cell for a reader at that timestamp, or BLOCKED."""


OneStepWrite: TypeAlias = tuple[Cell, int, bytes | None, bool | None]
"""One cell of a transaction that commits in one step: (cell, op, value, observed).

`op` is the write record's operation, `value` the value put (None for other operations),
`observed` whether a notify entry is written with it; None: the column is observed, and the write
record says that it was to notify nobody. A plain tuple, because one is created for
every write.
"""


class OneStepConflict(NamedTuple):
    """Why a one-step commit was refused: the cell, and either a lock or a newer write."""

    cell: Cell
    lock: tuple[int, bytes] | None
    commit_ts: int


class ChangedRow(NamedTuple):
    """An entry of a feed: a row, the timestamp at which it changed, and the columns written.

    `columns` are those that were put or deleted, in byte order; Percola's own are left out.
    """

    commit_ts: int
    row: bytes
    columns: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest row key and value that a store accepts, in bytes."""

    row_bytes: int
    value_bytes: int


class Tablet(NamedTuple):
    """A contiguous range of rows, [start, end); an empty `end` means to the table's end."""

    start: bytes
    end: bytes


class ColumnScan(NamedTuple):
    """A range of rows, column by column: see `percola.store.capabilities.scan_columns`.

    Attributes:
        rows: the rows, in order, as an Arrow array of bytes.
        values: for each column asked for, an Arrow array of bytes with one value a row; null
            where the row has none.
        blocked: (index of the row, index of the column, (start_ts, lock record)) where a lock
            blocks the reader; the value there is null and meaningless.
        following: the row to continue from, or None at the end.
    """

    rows: Any
    values: list[Any]
    blocked: list[tuple[int, int, tuple[int, bytes]]]
    following: bytes | None


class CellScan(NamedTuple):
    """A range of rows, cell after cell: see `percola.store.capabilities.scan_cells`.

    Attributes:
        rows: the rows, in order, as an Arrow array of bytes.
        offsets: an Arrow array of 32-bit integers, one longer: the cells of row i have the numbers
            from `offsets[i]` to before `offsets[i + 1]`.
        columns: the column's name of each cell, in the order of names within a row, as an Arrow
            array of bytes.
        values: an Arrow array of bytes with the value of each cell.
        blocked: (number of the cell, (start_ts, lock record)) where a lock blocks the reader; the
            value there is null and meaningless.
        following: the row to continue from, or None at the end.
    """

    rows: Any
    offsets: Any
    columns: Any
    values: Any
    blocked: list[tuple[int, tuple[int, bytes]]]
    following: bytes | None


PendingEntry: TypeAlias = tuple[int, bytes, Sequence[int]]
"""The timestamp of a pending entry, the row, and each start_ts of the transaction's locks there."""


class PendingRow(NamedTuple):
    """A row that a transaction was about to commit when it began to, and what has come of it.

    Attributes:
        ts: the timestamp of its pending entry.
        row: the row's key.
        started: the start_ts of its locks there: several if a joint transaction has written them.
        locks: (column, start_ts, lock record) of each of them that is left.
        commit_ts: that of its write records in the row; None if it has none there.
    """

    ts: int
    row: bytes
    started: Sequence[int]
    locks: Sequence[tuple[bytes, int, bytes]]
    commit_ts: int | None


class FeedIndex(Protocol):
    """The index of feeds and locks (`percola.store.remote.feed_index`)."""

    def begin(self, latest: Callable[[], int]) -> bool:
        """Have every process that commits keep the index, from now on; False if they do.

        `latest` returns the newest timestamp that was drawn. May be repeated if interrupted.
        """

    def floor(self, tables: Iterable[str]) -> int:
        """Pending entries of the tables are to be put above this timestamp.

        To be asked again once the commit_ts has been drawn, as `of`.
        """

    def now(self) -> float:
        """The moment, in seconds, for `looked`."""

    def looked(self, table: str, upto: int, began: float, gone: float, left: int | None) -> None:
        """Raise the floor now and then, from looks that removed pending entries.

        Such a look began at a moment by `now`, read the entries up to `upto` and
        removed `gone`; `left` is the timestamp of the oldest that is still there. With `gone` as
        math.inf the floor is worth raising in any case.
        """

    def of(self, tables: Iterable[str]) -> frozenset[str]:
        """Those of the tables whose changed rows a commit must list as pending.

        To be asked again once the commit_ts has been drawn: who misses a table then commits below
        the timestamp from which its feed, or the index, is complete.
        """

    def since(self) -> int | None:
        """The timestamp above which every commit has its entries; None if there is none yet."""

    def is_walked(self, table: str) -> bool:
        """Whether all locks of a table that matter to its followers have pending entries."""

    def note_walked(self, table: str) -> None:
        """Note that for good: all locks were looked at since its feed and the index began."""

    def pending(self, table: str, upto: int) -> Iterator[PendingEntry]:
        """The pending entries up to a timestamp."""

    def look(self, table: str, entries: Sequence[PendingEntry]) -> list[PendingRow]:
        """What has come of pending entries: what holds no lock any more is decided."""

    def missing(
        self, table: str, records: Iterable[tuple[int, bytes, int]], pending_at: dict[int, int]
    ) -> list[tuple[int, bytes]]:
        """(commit_ts, row) of those (commit_ts, row, start_ts) without any entry for followers.

        `pending_at` remembers from call to call where the entries of a start_ts were pending.
        """

    def forget(self, table: str, upto: int) -> Iterator[int]:
        """Remove the committed entries at or below `upto`; yields the number of each batch.

        Also pending ones that nobody reads any more. It begins where the last call came to its end,
        so that no call reads past what earlier ones have deleted. The safe point has reached
        `upto`.
        """


CommitCell: TypeAlias = tuple[bytes, int, "bytes | None", bool]
"""One cell of a commit: (column, op, value, whether committing it puts a notify entry)."""


class CommitRow(NamedTuple):
    """What a transaction in two phases writes in a row.

    Attributes:
        cells: puts of values up to `percola.cells.INLINE_BYTES`, and deletes.
        answered: entries that the commit of the row deletes.
    """

    table: str
    row: bytes
    cells: Sequence[CommitCell]
    answered: Sequence[Put | Delete]


class PreparedCommit(Protocol):
    """A commit that the store sends by itself: see `Store.prepare_commit`.

    Each method is one phase. It sends the first attempt of each row's mutation, the primary's row
    first and the others only once that was applied, and sends nothing after one that was not. For
    each row, in the order given, it returns whether it was applied: True; False if it certainly
    was not and will not be; None if that is unknown. All that follows from False or None is the
    caller's.
    """

    def prewrite(self, seconds: float) -> Sequence[bool | None]:
        """Lock the rows. What is not sent within `seconds` is not sent at all: False."""

    def commit(self, commit_ts: int) -> Sequence[bool | None] | None:
        """Replace the locks by write records; None if nothing was sent.

        To be called once all rows are locked and commit_ts was drawn after that.
        """


class Store(ABC):
    """The storage interface: see the module docstring for the guarantees of its methods."""

    limits: Limits

    has_notify_table: bool = False
    """Whether notify entries are stored in a separate table. A store needs one if it cannot read
    one kind of entry without reading the others: with it, finding notify entries costs in
    proportion to what is dirty (rule N6). A transaction then puts them before its commit point,
    and a mutation that also has other changes is applied in steps:
    `percola.store.remote.notify_table` lists them, and why that is safe."""

    has_feed_in_rows: bool = False
    """Whether a table's feed is stored in the changed rows, so that what concerns a range of rows
    costs no more than that range. Otherwise it is one list, in the order of commit_ts."""

    has_volatile_writes: bool = False
    """Whether a mutation costs less if it is not `durable`, as it is not written to a server's log.
    If that server dies, all of its changes may be lost, and what they replaced returns, until a
    durable mutation has changed the same entries. Only locks may be put so: others ignore it."""

    feed_index: FeedIndex | None = None
    """Where the feeds are in the rows: the index of feeds and locks by time."""

    prepared_cells: int = 0
    """The most cells of a commit that `prepare_commit` may take; 0: none."""

    latest_arrival: float = 0.0
    """How long, in seconds, a call may still take effect after its caller has given up or died.
    0 where no call outlives its caller, as in an embedded store."""

    @abstractmethod
    def create_tables(self, names: Iterable[str]) -> None:
        """Create the tables that do not exist. Idempotent, and safe to run concurrently."""

    def check_tables(self, names: Iterable[str]) -> None:
        """Look at tables that were created before: UnknownTableError if one was deleted.

        Tables of an embedded store are deleted by nobody.
        """
        self.create_tables(names)

    @abstractmethod
    def check_row(self, table: str, row: bytes) -> None:
        """Raise RowTooLongError if the row's key does not fit this store."""

    @abstractmethod
    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        """Apply each row's mutation atomically; return for each whether its conditions held.

        Raises UnknownTableError, RowTooLongError, ValueTooLargeError or StoreFullError with
        nothing of the batch written, OutcomeUnknownError if the store did not answer (some
        rows may have been applied), other StoreErrors if it refused.
        """

    def prepare_commit(
        self, start_ts: int, lock: LockRecord, rows: Sequence[CommitRow]
    ) -> PreparedCommit | None:
        """Prepare to send a commit, of up to `prepared_cells` cells; None: by `mutate`, as always.

        Sent are the mutations that `percola.transactions.two_phase` sends by `mutate` if nothing
        is unusual, with volatile locks in the primary's row, for a fraction of the client's
        time. `lock` is the lock of the primary, which is the first cell of the first row. Raises
        as `mutate`, with nothing sent.
        """
        return None

    @abstractmethod
    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        """The state of each cell for a reader at `ts`, in the order of `cells` (rule P9)."""

    @abstractmethod
    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        """The cell's entries of a kind with `low` ≤ timestamp ≤ `high`, newest first."""

    def entries_of(
        self, cells: Sequence[Cell], kind: Kind, low: int, high: int
    ) -> list[list[tuple[int, bytes]]]:
        """`entries` of each cell, in as few calls as possible where a call takes long."""
        return [self.entries(cell, kind, low, high) for cell in cells]

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
        whole rows, at least one if there is any, up to about `limit` cells, fewer if their values
        are long, and the row to continue from, or None at the end.
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
        """The cells that `scan` returns for each of `rows`: distinct, not necessarily adjacent.

        Reads the first row, and further rows until it has about `limit` cells, or many megabytes
        of values. A row that is missing from the result has not been read; a row with an empty
        list has no cells. Rows are whole. A remote store makes a few calls for hundreds of rows.
        """
        found: dict[bytes, list[tuple[Cell, CellState]]] = {}
        count = size = 0
        for row in rows:
            if found and (count >= limit or size >= _LONG_BYTES):
                break
            cells, _ = self.scan(table, row, row + b"\0", ts, columns=columns, limit=limit)
            found[row] = cells
            count += len(cells)
            size += sum(len(value) for _, (_, _, value) in cells if value is not None)
        return found

    @abstractmethod
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
        """All entries of a kind of a range of rows, at all timestamps: (cell, timestamp, value).

        Includes Percola's own columns. The entries of a cell are in ascending order of timestamp,
        those of WRITE and DATA in descending order. For LOCK, NOTIFY and FAILED the cost is
        proportional to the entries of that kind, not to the table (rule N6). Returns whole rows,
        about `limit` entries or fewer, and the row to continue from, or None at the end.
        `percola.store.walks` makes walks of such calls.

        With `versions`, of each cell only the newest so many, at least one: a cell that is written
        all the time may have millions. `entries` reads those below.
        """

    @abstractmethod
    def safe_point(self) -> int:
        """The oldest timestamp that can be read: 0 before the first garbage collection."""

    def check_safe_point(self, ts: int) -> None:
        """Raise SnapshotTooOldError if data visible at `ts` or later may have been removed.

        For a client that has read the store and checks afterwards that nothing it read was
        incomplete: a reader, or a transaction that has locked its writes (rule P12). It may cost
        less than `safe_point`, as it need not know of a safe point that is about to be raised.
        """
        if (safe_point := self.safe_point()) > ts:
            raise SnapshotTooOldError(ts, safe_point)

    @abstractmethod
    def raise_safe_point(self, ts: int) -> None:
        """Raise the safe point to `ts`, durably and for all processes; it never goes down.

        A read or check below it that begins after this call has returned fails, and so does one
        that ends after the garbage collector has removed something below the new safe point.
        """

    # --- The feed of a table's changes --------------------------------------------------

    @abstractmethod
    def keep_feed(self, table: str) -> None:
        """List every put and delete of the table for `changes`, from the next mutation on.

        Durable, and in effect for every process that writes. Idempotent; a feed cannot be
        turned off again. Raises UnknownTableError.
        """

    @abstractmethod
    def changes(
        self, table: str, after: int, upto: int, *, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        """The changed rows in [start, end) with `after` < commit_ts ≤ `upto`; no `end`: no bound.

        Ordered by commit_ts, then by row, and read in parts of bounded size where the store can:
        a caller that stops early pays for what it has taken. A change that is written later at a
        timestamp already passed is missed: `percola.feed.settled` returns the timestamp up to
        which no more can arrive.

        The first item raises NoFeedError if the table keeps no feed, and SnapshotTooOldError if
        `after` is below the safe point, since entries may have been removed; so does any later one.
        """

    @abstractmethod
    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        """Whether the feed lists the cell as changed at `commit_ts`; False without a feed."""

    @abstractmethod
    def forget_changes(
        self, table: str, upto: int, limit: int = 4096, *, start: bytes = b"", end: bytes = b""
    ) -> int:
        """Remove feed entries of rows in [start, end) at or below `upto`; no `end`: no bound.

        The safe point has reached `upto`. Removes at most about `limit` entries, one per changed
        cell, and returns how many were removed: 0 once none are left, or if there is no feed.
        """

    @abstractmethod
    def tablets(self, table: str) -> list[Tablet]:
        """The table's tablets in order: at least one, together covering every row."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Later calls raise RepositoryClosedError."""

    def statistics(self) -> dict[str, int]:
        """Sizes and counters that are cheap to read, by name."""
        return {}


class OneStepStore(Store):
    """A store that can apply a whole transaction atomically, and owns the timestamps.

    Rule P11: the commit timestamp is drawn under the lock that makes the batch atomic, and a
    reader's start timestamp is the last one drawn in the same store snapshot. So a transaction
    whose start_ts is at or above a commit_ts sees that commit.
    """

    @abstractmethod
    def commit_one_step(
        self,
        start_ts: int,
        writes: Sequence[OneStepWrite],
        notifications: Sequence[Cell] = (),
        deletes: Sequence[tuple[Kind, Cell, int]] = (),
    ) -> int | OneStepConflict:
        """Commit a whole transaction; return its commit_ts, or the conflict that refused it.

        Refused if any cell written has a lock, or a write record above `start_ts`. Raises
        SnapshotTooOldError if `start_ts` is below the safe point: a conflicting record may
        have been removed.
        `notifications` are weak notifications, put at the commit timestamp; `deletes` are the
        notify and failed entries that the transaction handles, deleted with it.
        """

    @abstractmethod
    def draw(self, count: int = 1) -> int:
        """Draw `count` fresh timestamps from the store's counter; returns the highest."""

    @abstractmethod
    def last_drawn(self) -> int:
        """The last timestamp drawn, as of a store snapshot taken now. Costs a read only."""


def check_sizes(store: Store, batch: Sequence[RowMutation]) -> None:
    """Raise RowTooLongError or ValueTooLargeError if the batch exceeds the store's limits."""
    for mutation in batch:
        store.check_row(mutation.table, mutation.row)
        for change in mutation.changes:
            if (
                isinstance(change, Put)
                and len(change.value) > store.limits.value_bytes + _RECORD_ROOM
            ):
                raise ValueTooLargeError(
                    f"A value of {len(change.value)} bytes does not fit: the store takes up "
                    f"to {store.limits.value_bytes}."
                )


def is_wanted(column: bytes, columns: Sequence[tuple[bytes, bool]] | None) -> bool:
    """Whether a scan of `columns` reads `column`; None is all columns but Percola's own."""
    if columns is None:
        return not column.startswith(SYSTEM_MARK)
    return any(
        column.startswith(name) if is_prefix else column == name for name, is_prefix in columns
    )


def missing_data(cell: Cell, commit_ts: int, start_ts: int) -> DamagedRecordError:
    """The error for a put whose write record exists and whose long value is missing."""
    return DamagedRecordError(
        f"{cell} has a write record at {commit_ts} for data at {start_ts}, which is missing: the "
        "store is damaged. 'percola check' says where."
    )
