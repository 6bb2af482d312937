"""§2.1: the store on LMDB: a folder, many processes, no server.

Each locality group is a B-tree, with one exception: locks and write records share a tree, because
a read that checks for a lock always needs the newest write next, and one seek finds both.

    cells    key ‖ start_ts         lock record          (a lock sorts before the writes)
             key ‖ 2⁶⁴-1-commit_ts  write record         (the newest write comes first)
    data     key ‖ 2⁶⁴-1-start_ts   a value too long for its write record
    notify   key ‖ commit_ts        nothing
    failed   key ‖ commit_ts        why a change was dead-lettered for an observer
    locks    key                    nothing: which cells have locks, to list them quickly
    changes  (`percola.store.lmdb.feed`)   the puts and deletes of tables with a feed
    (root)   "ts", "table:NAME"     the last timestamp drawn; the tables' numbers
             "safe"                 the safe point of garbage collection

The last entries are in LMDB's root tree, which every commit rewrites anyway: storing the timestamp
costs a commit no additional page.

`percola.store.lmdb.keys` defines the keys.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lmdb

from percola.cells import (
    CHANGE_RECORD,
    INLINE,
    INLINE_BYTES,
    LAST_CHANGE,
    MAX_TS,
    NO_CHANGE,
    WRITE_HEADER,
    Cell,
    Kind,
    LastChange,
    Op,
    encode_write,
    newest_change,
    repeated_change,
)
from percola.errors import RowTooLongError
from percola.store.base import (
    BLOCKED,
    NOTHING,
    Blocked,
    CellScan,
    CellState,
    ChangedRow,
    ColumnScan,
    Delete,
    Limits,
    OneStepConflict,
    OneStepStore,
    OneStepWrite,
    Reader,
    RowMutation,
    Tablet,
    check_sizes,
    is_wanted,
)
from percola.store.capabilities import Codecs
from percola.store.lmdb.driver import LONG_BYTES, Cursor, Txn, translate
from percola.store.lmdb.environment import FIRST_MAP_BYTES, Environment
from percola.store.lmdb.feed import Feeds
from percola.store.lmdb.keys import NEWEST_FIRST, TOP, Keys, keys_between, suffix, timestamp
from percola.store.lmdb.safe_point import SharedSafePoint

if TYPE_CHECKING:
    import percola._native as _native

_DATABASES: Final = (b"cells", b"data", b"notify", b"failed", b"locks", b"changes")
_CELLS, _DATA, _NOTIFY, _FAILED, _LOCKS, _CHANGES = range(6)
_OF_KIND: Final = {
    Kind.DATA: _DATA,
    Kind.LOCK: _CELLS,
    Kind.WRITE: _CELLS,
    Kind.NOTIFY: _NOTIFY,
    Kind.FAILED: _FAILED,
}
_AFTER: Final = b"\xff" * 9
_STEPS: Final = 24  # Cells that a scan skips one by one before it seeks the next wanted column.
_new_cell: Final = functools.partial(tuple.__new__, Cell)
_PUT, _DELETE, _LOCK = int(Op.PUT), int(Op.DELETE), int(Op.LOCK)


class LmdbStore(OneStepStore):
    """A store in a folder of the local file system (not a network file system).

    Args:
        folder: must exist; `data.mdb` and `lock.mdb` are created in it.
        durability: see `Environment`.
        map_bytes: initial address space; it grows automatically.
    """

    limits = Limits(row_bytes=384, value_bytes=256 * 1024 * 1024)

    def __init__(
        self, folder: Path, *, durability: str = "full", map_bytes: int = FIRST_MAP_BYTES
    ) -> None:
        self._environment = Environment(
            folder, _DATABASES, durability=durability, map_bytes=map_bytes
        )
        self._keys = Keys(self._environment)
        self._key = self._keys.key
        try:
            self._safe_point = SharedSafePoint(folder)
            # With another one it would not see the others' safe point, nor which tables keep feeds.
            self._environment.watch("safe-point")
            self._feeds = Feeds(self._environment, _CHANGES, self._keys, self._safe_point)
            self._safe_point.agree_with(self._environment)
            self._commits: _native.Commits | None = None
            self._drawn: _native.LastDrawn | None = None
            if (native := self._environment.native) is not None:
                reads = self._environment.reads
                assert reads is not None
                trees = _CELLS, _DATA, _NOTIFY, _CHANGES
                view, prefixes = self._safe_point.view, self._keys.prefixes
                self._commits = native.Commits(reads, trees, view, prefixes)
                self._drawn = reads.last_drawn(self._last_drawn)
        except BaseException:
            self._environment.close()
            raise

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self._environment.folder

    def create_tables(self, names: Iterable[str]) -> None:
        self._keys.create_tables(names)

    def check_row(self, table: str, row: bytes) -> None:
        size = len(row) + row.count(b"\0")
        if size > self.limits.row_bytes:
            raise RowTooLongError(
                f"A row of {size} bytes in the table {table!r} does not fit: the LMDB store takes "
                f"rows of up to {self.limits.row_bytes} bytes (a NUL counts twice). Use a hash of "
                f"the row's end and keep the whole in a column. It begins with {row[:60]!r}."
            )

    # --- Writing ------------------------------------------------------------------------

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        for mutation in batch:
            self._keys.prefix(mutation.table)
        check_sizes(self, batch)

        def apply(txn: Txn) -> list[bool]:
            applied = [self._apply(txn, row) for row in batch]
            if feeds := self._feeds.current(txn):
                for mutation, done in zip(batch, applied, strict=True):
                    if done and self._keys.prefix(mutation.table) in feeds:
                        self._feeds.list_mutation(txn, mutation)
            return applied

        return self._environment.write(apply)

    def _apply(self, txn: Txn, mutation: RowMutation) -> bool:
        table, row = mutation.table, mutation.row
        for present, kind, column, low, high in mutation.conditions:
            key = self._key(table, row, column)
            if _any_entry(txn, self._database(kind), kind, key, low, high) is not present:
                return False
        for change in mutation.changes:
            key = self._key(table, row, change.column)
            if isinstance(change, Delete):
                self._delete(txn, change.kind, key, change.ts)
            else:
                self._put(txn, change.kind, key, change.ts, change.value)
        return True

    def _database(self, kind: Kind) -> Any:
        return self._environment.databases[_OF_KIND[kind]]

    def _put(self, txn: Txn, kind: Kind, key: bytes, ts: int, value: bytes) -> None:
        txn.put(key + suffix(kind, ts), value, db=self._database(kind))
        if kind is Kind.LOCK:
            txn.put(key, b"", db=self._environment.databases[_LOCKS])

    def _delete(self, txn: Txn, kind: Kind, key: bytes, ts: int) -> None:
        deleted = txn.delete(key + suffix(kind, ts), db=self._database(kind))
        if kind is Kind.LOCK and deleted:
            txn.delete(key, db=self._environment.databases[_LOCKS])

    def commit_one_step(
        self,
        start_ts: int,
        writes: Sequence[OneStepWrite],
        notifications: Sequence[Cell] = (),
        deletes: Sequence[tuple[Kind, Cell, int]] = (),
    ) -> int | OneStepConflict:
        prefixes = self._keys.prefixes
        for write in writes:
            if write[0][0] not in prefixes:
                self._keys.prefix(write[0][0])  # Raises UnknownTableError, or knows it from now on.
        commits = self._commits
        as_of = self._feeds.as_of  # Before the list: see `Feeds.current`.
        feeds = self._feeds.known
        plain = not deletes or all(kind is Kind.NOTIFY for kind, _, _ in deletes)
        if commits is not None and as_of >= 0 and plain:
            noted = [self._key(*cell) for cell in notifications]
            removed = [self._key(*cell) + suffix(kind, ts) for kind, cell, ts in deletes]
            found = self._environment.write_at_once(
                commits.commit, start_ts, writes, noted, removed, as_of, feeds
            )
            if found is not None:
                return found if found.__class__ is int else self._conflict(writes, found)
        native = self._environment.native
        commit_cells = self._commit_cells if native is None else self._commit_cells_natively

        def commit(txn: Txn) -> int | OneStepConflict:
            self._safe_point.check(start_ts)
            outcome = commit_cells(txn, start_ts, writes)
            if isinstance(outcome, OneStepConflict):
                return outcome
            if notifications or deletes:
                commit_ts = outcome.to_bytes(8, "big")
                notify = self._environment.databases[_NOTIFY]
                for cell in notifications:
                    txn.put(self._key(*cell) + commit_ts, b"", db=notify)
                for kind, cell, ts in deletes:
                    self._delete(txn, kind, self._key(*cell), ts)
            return outcome

        return self._environment.write(commit)

    def _commit_cells_natively(
        self, txn: Any, start_ts: int, writes: Sequence[OneStepWrite]
    ) -> int | OneStepConflict:
        """See `_commit_cells`."""
        native, databases = self._environment.native, self._environment.databases
        assert native is not None
        trees = databases[_CELLS], databases[_DATA], databases[_NOTIFY], databases[_CHANGES]
        feeds = self._feeds.current(txn)
        found = native.commit_cells(txn, trees, start_ts, writes, self._keys.prefixes, feeds)
        if found.__class__ is int:
            return found
        if found is None:
            return self._commit_cells(txn, start_ts, writes)
        return self._conflict(writes, found)

    def _conflict(self, writes: Sequence[OneStepWrite], found: Any) -> OneStepConflict:
        at, lock, commit_ts = found
        return OneStepConflict(writes[at][0], lock, commit_ts)

    def _commit_cells(
        self, txn: Txn, start_ts: int, writes: Sequence[OneStepWrite]
    ) -> int | OneStepConflict:
        """Check the cells, draw a commit_ts, and put records, long values and other entries."""
        keys = [self._key(table, row, column) for (table, row, column), _, _, _ in writes]
        databases = self._environment.databases
        cells = databases[_CELLS]
        cursor = txn.cursor(cells)
        last_changes: dict[bytes, LastChange] = {}
        for key, (cell, op, _, _) in zip(keys, writes, strict=True):
            going = cursor.set_range(key)
            if going:
                found = cursor.key()
                if found.startswith(key):
                    ts = int.from_bytes(found[-8:], "big")
                    if ts <= MAX_TS:
                        return OneStepConflict(cell, (ts, cursor.value()), 0)
                    if TOP - ts > start_ts:
                        return OneStepConflict(cell, None, TOP - ts)
            if op == _LOCK:
                records = _records(cursor, key, going)
                last_changes[key] = newest_change(records, complete=True) or NO_CHANGE
        commit_ts = int.from_bytes(txn.get(b"ts") or b"", "big") + 1
        plain = commit_ts.to_bytes(8, "big")
        txn.put(b"ts", plain)
        inverted = (TOP - commit_ts).to_bytes(8, "big")
        for (_, op, value, observed), key in zip(writes, keys, strict=True):
            if op == _LOCK:
                record = encode_write(op, start_ts, last_change=last_changes[key])
            elif value is None or len(value) <= INLINE_BYTES:
                record = encode_write(op, start_ts, value, silent=observed is None)
            else:
                record = encode_write(op, start_ts, silent=observed is None)
                data = key + (TOP - start_ts).to_bytes(8, "big")
                txn.put(data, value, db=databases[_DATA])
            txn.put(key + inverted, record, db=cells)
            if observed:
                txn.put(key + plain, b"", db=databases[_NOTIFY])
        if feeds := self._feeds.current(txn):
            self._feeds.list_commit(txn, feeds, writes, keys, plain)
        return commit_ts

    def _advance(self, txn: Txn, count: int) -> int:
        drawn = int.from_bytes(txn.get(b"ts") or b"", "big") + count
        txn.put(b"ts", drawn.to_bytes(8, "big"))
        return drawn

    def draw(self, count: int = 1) -> int:
        return self._environment.write(lambda txn: self._advance(txn, count))

    def raise_safe_point(self, ts: int) -> None:
        def put(txn: Txn) -> None:
            # Readers see it before it is durable, which is harmless.
            self._safe_point.raise_to(ts)
            txn.put(b"safe", self.safe_point().to_bytes(8, "big"))

        self._environment.write(put)

    # --- Reading ------------------------------------------------------------------------

    def safe_point(self) -> int:
        return int(self._safe_point.view[0])

    def last_drawn(self) -> int:
        drawn = self._drawn
        return self._last_drawn() if drawn is None else drawn()

    def _last_drawn(self) -> int:
        environment = self._environment
        txn = environment.begin_read()
        try:
            found = txn.get(b"ts")
        except lmdb.Error as error:
            raise translate(error, environment.folder) from error
        finally:
            environment.end_read(txn)
        return int.from_bytes(found or b"", "big")

    def native_calls(
        self,
        columns: Mapping[tuple[str, bytes], bool | None],
        class_: type,
        codecs: Codecs,
        leases: _native.ActiveSnapshots,
    ) -> _native.Calls | None:
        drawn = self._drawn
        if drawn is None or type(self) is not LmdbStore:
            return None  # A derived class may read or commit in another way.
        reads = self._environment.reads
        native = self._environment.native
        assert native is not None and reads is not None
        calls: _native.Calls = native.Calls(
            reads,
            drawn,
            (_CELLS, _DATA),
            self._safe_point.view,
            self._keys.prefixes,
            dict(columns),
            class_,
            codecs,
            self._commits,
            self._feeds,
            leases,
        )
        return calls

    def reader(self, table: str, column: bytes) -> Reader:
        read = self._reader(table, column)
        if (reads := self._environment.reads) is None:
            return read
        keys = self._keys.prefix(table), b"\0\1" + column + b"\0"
        view = self._safe_point.view
        return reads.reader(*keys, _CELLS, _DATA, view, BLOCKED, read).read

    def _reader(self, table: str, column: bytes) -> Reader:
        # Fast path for most reads: there is no lock, and the newest write is visible and contains
        # its value. Timestamps are compared as their bytes in the key: those of a lock and of
        # a later write sort before the bound.
        environment = self._environment
        prefix, tail = self._keys.prefix(table), b"\0\1" + column + b"\0"
        safe_point, too_old = self._safe_point.view, self._safe_point.check
        last = (-1, b"")

        def read(row: bytes, ts: int) -> bytes | Blocked | None:
            nonlocal last
            if b"\0" in row:
                row = row.replace(b"\0", b"\0\xff")
            key = prefix + row + tail
            bound_ts, bound = last
            if bound_ts != ts:
                bound = (TOP - ts).to_bytes(8, "big")
                last = ts, bound
            txn = environment.begin_read()
            try:
                if safe_point[0] > ts:
                    too_old(ts)
                cursor = txn.cursor(environment.databases[_CELLS])
                if cursor.set_range(key):
                    found, record = cursor.item()
                    if found.startswith(key):
                        if found[-8:] >= bound:
                            if record[1] & LAST_CHANGE and len(record) >= CHANGE_RECORD:
                                record = record[CHANGE_RECORD:]
                                if not record:
                                    return None
                            if record[1] == INLINE:
                                return record[WRITE_HEADER:]
                        lock, _, value = self._state(txn, cursor, key, ts)
                        return value if lock is None else BLOCKED
                return None
            except lmdb.Error as error:
                raise translate(error, environment.folder) from error
            finally:
                environment.end_read(txn)

        return read

    def read(self, cells: Sequence[Cell], ts: int) -> list[CellState]:
        environment = self._environment
        keys = [self._key(table, row, column) for table, row, column in cells]
        txn = environment.begin_read()
        try:
            self._safe_point.check(ts)
            trees = environment.databases[_CELLS], environment.databases[_DATA]
            if (native := environment.native) is not None:
                states: list[CellState] | None = native.states(txn, keys, ts, *trees)
                if states is not None:
                    return states
            cursor = txn.cursor(trees[0])
            return [
                self._state(txn, cursor, key, ts) if cursor.set_range(key) else NOTHING
                for key in keys
            ]
        except lmdb.Error as error:
            raise translate(error, environment.folder) from error
        finally:
            environment.end_read(txn)

    def _state(self, txn: Txn, cursor: Cursor, key: bytes, ts: int) -> CellState:
        """The cell at `key` as a reader at `ts` sees it; the cursor is at or after it."""
        found = cursor.key()
        while found.startswith(key):
            at = int.from_bytes(found[-8:], "big")
            if at <= MAX_TS:
                if at <= ts:
                    return (at, cursor.value()), 0, None
            else:
                commit_ts = TOP - at
                if commit_ts > ts:
                    if not cursor.set_range(key + (TOP - ts).to_bytes(8, "big")):
                        return NOTHING
                    found = cursor.key()
                    continue
                record = cursor.value()
                if record[1] > INLINE and (change := repeated_change(record)):
                    commit_ts, record = change
                    if not record:
                        return NOTHING
                    found = key + (TOP - commit_ts).to_bytes(8, "big")
                op = record[0]
                if op == _PUT:
                    if record[1]:
                        return None, commit_ts, record[WRITE_HEADER:]
                    data = self._environment.databases[_DATA]
                    return None, commit_ts, self._keys.long_value(txn, data, found, record)
                if op == _DELETE:
                    return None, commit_ts, None
            if not cursor.next():
                return NOTHING
            found = cursor.key()
        return NOTHING

    def entries(
        self, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> list[tuple[int, bytes]]:
        environment = self._environment
        key = self._key(*cell)
        found: list[tuple[int, bytes]] = []
        with environment.reading() as txn:
            cursor = txn.cursor(self._database(kind))
            for ts, value in _newest_first(cursor, key, kind, high):
                if not low <= ts <= high:
                    break
                found.append((ts, value))
                if limit is not None and len(found) >= limit:
                    break
        return found

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
        environment = self._environment
        first, last = self._keys.row_key(table, start), self._keys.end_key(table, end)
        found: list[tuple[Cell, CellState]] = []
        with environment.reading() as txn:
            self._safe_point.check(ts)
            if (native := environment.native) is not None:
                trees = environment.databases[_CELLS], environment.databases[_DATA]
                result: tuple[list[tuple[Cell, CellState]], bytes | None] | None = native.scan(
                    txn, trees, ts, first, last, columns, limit, table, _new_cell
                )
                if result is not None:
                    return result
            cursor = txn.cursor(environment.databases[_CELLS])
            going = cursor.set_range(first)
            row_part = b""
            row = b""
            names = sorted(name for name, _ in columns or ())
            idle = 0  # Consecutive cells of this row that are not wanted.
            long = 0
            while going:
                entry = cursor.key()
                if entry >= last:
                    break
                if not row_part or not entry.startswith(row_part):
                    at = entry.index(b"\0\1", 2)
                    row_part = entry[: at + 2]
                    row = entry[2:at].replace(b"\0\xff", b"\0")
                    idle = 0
                    if len(found) >= limit or long >= LONG_BYTES:
                        return found, row
                key = entry[:-8]
                column = key[len(row_part) : -1]
                if is_wanted(column, columns):
                    idle = 0
                    state = self._state(txn, cursor, key, ts)
                    if state[0] is not None or state[2] is not None:
                        found.append((Cell(table, row, column), state))
                        if (value := state[2]) is not None and len(value) > INLINE_BYTES:
                            long += len(value)
                elif names and (idle := idle + 1) > _STEPS:
                    idle = 0
                    after = bisect_left(names, column)
                    going = cursor.set_range(
                        row_part + names[after] if after < len(names) else row_part[:-1] + b"\2"
                    )
                    continue
                # Usually the next entry is the next cell; if not, seek past this one.
                going = cursor.next() if cursor.key().startswith(key) else bool(cursor.key())
                if going and cursor.key().startswith(key):
                    going = cursor.set_range(key + _AFTER)
        return found, None

    def scan_columns(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        columns: Sequence[bytes],
        limit: int = 8192,
    ) -> ColumnScan:
        from percola.store.lmdb.scan import ColumnReader, column_scan  # It needs pyarrow.

        environment = self._environment
        first, last = self._keys.row_key(table, start), self._keys.end_key(table, end)
        with environment.reading() as txn:
            self._safe_point.check(ts)
            trees = environment.databases[_CELLS], environment.databases[_DATA]
            if (native := environment.native) is not None:
                result = native.scan_columns(txn, trees, ts, first, last, columns, limit)
                if result is not None:
                    return column_scan(*result)
            return ColumnReader(txn, self._keys, *trees, ts, columns).read(first, last, limit)

    def scan_cells(
        self,
        table: str,
        start: bytes,
        end: bytes,
        ts: int,
        columns: Sequence[tuple[bytes, bool]] | None,
        limit: int = 8192,
    ) -> CellScan | None:
        environment = self._environment
        if (native := environment.native) is None:
            return None
        from percola.store.lmdb.scan import cell_scan  # It needs pyarrow.

        first, last = self._keys.row_key(table, start), self._keys.end_key(table, end)
        with environment.reading() as txn:
            self._safe_point.check(ts)
            trees = environment.databases[_CELLS], environment.databases[_DATA]
            result = native.scan_cells(txn, trees, ts, first, last, columns, limit)
        return None if result is None else cell_scan(*result)

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
        first, last = self._keys.row_key(table, start), self._keys.end_key(table, end)
        with self._environment.reading() as txn:
            if kind is Kind.WRITE:
                return self._scan_writes(txn, first, last, limit, versions)
            return self._scan_others(txn, kind, first, last, limit, versions)

    def _scan_writes(
        self, txn: Txn, first: bytes, last: bytes, limit: int, versions: int | None
    ) -> tuple[list[tuple[Cell, int, bytes]], bytes | None]:
        """The write records with keys in [first, last), which are among locks."""
        found: list[tuple[Cell, int, bytes]] = []
        cursor = txn.cursor(self._environment.databases[_CELLS])
        key, cell = b"", Cell("", b"", b"")
        left = versions
        going = cursor.set_range(first)
        while going:
            entry, record = cursor.item()
            if entry >= last:
                break
            at = int.from_bytes(entry[-8:], "big")
            if at > MAX_TS:  # Else it is a lock.
                if entry[:-8] != key:
                    key = entry[:-8]
                    cell = self._keys.cell(key)
                    if len(found) >= limit and cell.row != found[-1][0].row:
                        return found, cell.row
                    left = versions
                found.append((cell, TOP - at, record))
                if left is not None:
                    left -= 1
                    if not left:
                        going = _behind(cursor, key)
                        continue
            going = cursor.next()
        return found, None

    def _scan_others(
        self,
        txn: Txn,
        kind: Kind,
        first: bytes,
        last: bytes,
        limit: int,
        versions: int | None,
    ) -> tuple[list[tuple[Cell, int, bytes]], bytes | None]:
        """The entries of another kind with keys in [first, last), from its own tree."""
        databases = self._environment.databases
        found: list[tuple[Cell, int, bytes]] = []
        locks = kind is Kind.LOCK
        long, key, left = 0, b"", versions
        cells = txn.cursor(databases[_CELLS])
        cursor = txn.cursor(databases[_LOCKS] if locks else self._database(kind))
        going = cursor.set_range(first)
        while going:
            entry = cursor.key()
            if entry >= last:
                break
            cell = self._keys.cell(entry if locks else entry[:-8])
            if (len(found) >= limit or long >= LONG_BYTES) and cell.row != found[-1][0].row:
                return found, cell.row
            if not locks:
                if entry[:-8] != key:
                    key, left = entry[:-8], versions
                if left == 0:
                    if kind not in NEWEST_FIRST:  # They are the oldest.
                        newest = _newest_first(cursor, key, kind, MAX_TS)
                        kept = [(cell, *one) for one in itertools.islice(newest, versions)]
                        found[-len(kept) :] = kept[::-1]
                    going = _behind(cursor, key)
                    continue
                value = cursor.value()
                long += len(value)
                found.append((cell, timestamp(entry, kind), value))
                if left is not None:
                    left -= 1
            elif cells.set_range(entry) and cells.key().startswith(entry):
                found.append((cell, timestamp(cells.key(), kind), cells.value()))
            going = cursor.next()
        return found, None

    # --- The feed of a table's changes --------------------------------------------------

    def keep_feed(self, table: str) -> None:
        self._feeds.keep(table)

    def changes(
        self, table: str, after: int, upto: int, *, start: bytes = b"", end: bytes = b""
    ) -> Iterator[ChangedRow]:
        return self._feeds.changes(table, after, upto, start, end)

    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        return self._feeds.lists_change(cell, commit_ts)

    def forget_changes(
        self, table: str, upto: int, limit: int = 4096, *, start: bytes = b"", end: bytes = b""
    ) -> int:
        return self._feeds.forget(table, upto, limit, start, end)

    def tablets(self, table: str) -> list[Tablet]:
        """Ranges split at keys spread evenly between the first and the last row."""
        environment = self._environment
        first, last = self._keys.prefix(table), self._keys.end_key(table, b"")
        cuts: list[bytes] = []
        with environment.reading() as txn:
            cursor = txn.cursor(environment.databases[_CELLS])
            if cursor.set_range(first) and cursor.key() < last:
                low = cursor.key()
                at_end = not cursor.set_range(last)
                if cursor.last() if at_end else cursor.prev():
                    for middle in keys_between(low, cursor.key(), 15):
                        if cursor.set_range(middle) and cursor.key() < last:
                            cuts.append(self._keys.cell(cursor.key()[:-8]).row)
        bounds = sorted(set(cuts))
        return [Tablet(a, b) for a, b in zip([b"", *bounds], [*bounds, b""], strict=True)]

    def statistics(self) -> dict[str, int]:
        environment = self._environment
        with environment.reading() as txn:
            counts = {
                name.decode(): txn.stat(environment.databases[index])["entries"]
                for index, name in enumerate(_DATABASES)
            }
        counts["bytes"] = (environment.folder / "data.mdb").stat().st_blocks * 512
        return counts

    def close(self) -> None:
        # They refer to this store, and would keep its mapped file until Python collects garbage.
        self._commits = self._drawn = None
        self._environment.close()


def _behind(cursor: Cursor, key: bytes) -> bool:
    """Move a cursor behind the entries of a cell; returns whether there are any."""
    going = cursor.set_range(key + b"\xff" * 8)
    while going and cursor.key()[:-8] == key:
        going = cursor.next()
    return going


def _newest_first(cursor: Cursor, key: bytes, kind: Kind, high: int) -> Iterator[tuple[int, bytes]]:
    """A cell's entries of a kind up to the timestamp `high`, newest first."""
    first = key + suffix(kind, high)
    if kind in NEWEST_FIRST:
        going, older = cursor.set_range(first), cursor.next
    else:  # From the last one up to it.
        going, older = cursor.set_range(first + b"\0"), cursor.prev
        going = cursor.prev() if going else cursor.last()
    while going and (at := cursor.key()).startswith(key):
        yield timestamp(at, kind), cursor.value()
        going = older()


def _records(cursor: Cursor, key: bytes, going: bool) -> Iterator[tuple[int, bytes]]:
    """A cell's write records, newest first, from the cursor's position."""
    while going:
        found, record = cursor.item()
        if not found.startswith(key):
            return
        yield TOP - int.from_bytes(found[-8:], "big"), record
        going = cursor.next()


def _any_entry(txn: Txn, database: Any, kind: Kind, key: bytes, low: int, high: int) -> bool:
    cursor = txn.cursor(database)
    if not cursor.set_range(key + suffix(kind, high if kind in NEWEST_FIRST else low)):
        return False
    found = cursor.key()
    return found.startswith(key) and low <= timestamp(found, kind) <= high
