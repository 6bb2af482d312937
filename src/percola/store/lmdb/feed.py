"""§2.1: the feeds of tables in LMDB: their puts and deletes, in the order of commit_ts.

    changes   table (2 bytes) ‖ commit_ts (8) ‖ row, NUL escaped ‖ 00 01 ‖ column ‖ 00   →  nothing
    (root)    "feed:" ‖ table                 which tables keep one

There is one entry per changed cell, put by the LMDB transaction that puts the cell's write record.
It is appended to the table's entries, mostly in a page that is being written already.

A number in shared memory (`percola.store.lmdb.safe_point`) notifies all processes that the list of
tables with a feed has changed. The write transaction that adds a table increments it, and every
writer checks it within its own transaction, so all later writers know. If that transaction was
rolled back or its process killed, the list is merely read once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from percola.cells import SYSTEM_MARK, Cell, Kind, Op
from percola.errors import NoFeedError
from percola.store.base import ChangedRow, OneStepWrite, Put, RowMutation
from percola.store.lmdb.driver import Txn
from percola.store.lmdb.environment import Environment
from percola.store.lmdb.keys import Keys
from percola.store.lmdb.safe_point import SharedSafePoint

_FEED: Final = b"feed:"
_LISTED: Final = (int(Op.PUT), int(Op.DELETE))
_ROW: Final = 10
"""Where the row begins in the key of an entry."""

_FIRST_PART: Final = 64
_PART: Final = 1024
"""Changed rows that are read in one transaction."""


class Feeds:
    """The feeds of an environment: which tables keep one, and their entries.

    Args:
        database: the number of the database `changes` in the environment.

    Attributes:
        as_of: the number of the list of feeds as of which `known` was read; -1: it was not read.
        known: the prefixes of the tables that keep one.
    """

    def __init__(
        self, environment: Environment, database: int, keys: Keys, shared: SharedSafePoint
    ) -> None:
        self._environment = environment
        self._database = database
        self._keys = keys
        self._shared = shared
        self._view = shared.view
        self.known: frozenset[bytes] = frozenset()
        self.as_of = -1

    # --- Writing ------------------------------------------------------------------------

    def keep(self, table: str) -> None:
        """Keep a feed of a table, beginning with the next write transaction of any process."""
        name = _FEED + self._keys.prefix(table)

        def add(txn: Txn) -> None:
            if txn.get(name) is None:
                txn.put(name, b"")
                self._view[1] += 1

        self._environment.write(add)

    def current(self, txn: Txn) -> frozenset[bytes]:
        """The prefixes of the tables that keep one; for a write transaction."""
        if self._view[1] != self.as_of:
            cursor = txn.cursor()
            found = set()
            if cursor.set_range(_FEED):
                for key, _ in cursor:
                    if not key.startswith(_FEED):
                        break
                    found.add(key[len(_FEED) :])
            # In this order: who reads the number first never has it with an older list.
            self.known = frozenset(found)
            self.as_of = self._view[1]
        return self.known

    def list_commit(
        self,
        txn: Txn,
        feeds: frozenset[bytes],
        writes: Sequence[OneStepWrite],
        keys: Sequence[bytes],
        commit_ts: bytes,
    ) -> None:
        """List the puts and deletes of a transaction; `keys` are those of its cells."""
        database = self._environment.databases[self._database]
        for (cell, op, _, _), key in zip(writes, keys, strict=True):
            if key[:2] in feeds and op in _LISTED and not cell.column.startswith(SYSTEM_MARK):
                txn.put(key[:2] + commit_ts + key[2:], b"", db=database)

    def list_mutation(self, txn: Txn, mutation: RowMutation) -> None:
        """List the write records that a mutation has put."""
        for change in mutation.changes:
            if (
                change.kind is Kind.WRITE
                and isinstance(change, Put)
                and change.value[0] in _LISTED
                and not change.column.startswith(SYSTEM_MARK)
            ):
                key = self._keys.key(mutation.table, mutation.row, change.column)
                self._put(txn, key, change.ts)

    def _put(self, txn: Txn, key: bytes, commit_ts: int) -> None:
        txn.put(_entry(key, commit_ts), b"", db=self._environment.databases[self._database])

    def forget(self, table: str, upto: int, limit: int, start: bytes, end: bytes) -> int:
        """Remove up to `limit` entries of a range of rows at or below a timestamp; return how many.

        For a part of the rows, it reads past the entries of the others.
        """
        prefix = self._keys.prefix(table)
        last = _bound(prefix, upto)

        def remove(txn: Txn) -> int:
            gone = self._first(txn, prefix, last, limit, start, end)
            for key in gone:
                txn.delete(key, db=self._environment.databases[self._database])
            return len(gone)

        # Read first: there is usually nothing to remove, and a write waits for its turn.
        with self._environment.reading() as txn:
            if not self._first(txn, prefix, last, 1, start, end):
                return 0
        return self._environment.write(remove)

    def _first(
        self, txn: Txn, prefix: bytes, last: bytes, limit: int, start: bytes, end: bytes
    ) -> list[bytes]:
        found: list[bytes] = []
        cursor = txn.cursor(self._environment.databases[self._database])
        if cursor.set_range(prefix):
            for key, _ in cursor:
                if key >= last or len(found) >= limit:
                    break
                if not (start or end) or _is_within(key, start, end):
                    found.append(key)
        return found

    # --- Reading ------------------------------------------------------------------------

    def changes(
        self, table: str, after: int, upto: int, start: bytes, end: bytes
    ) -> Iterator[ChangedRow]:
        """See `Store.changes`: each part is read in a transaction of its own."""
        position: tuple[int, bytes] | None = (after + 1, start)
        limit = _FIRST_PART
        while position is not None:
            found, position = self._part(table, position, upto, limit)
            limit = _PART
            for one in found:
                if start <= one.row and (not end or one.row < end):
                    yield one

    def _part(
        self, table: str, position: tuple[int, bytes], upto: int, limit: int
    ) -> tuple[list[ChangedRow], tuple[int, bytes] | None]:
        """Up to `limit` changed rows from a position (commit_ts, row) on, and the next position."""
        prefix = self._keys.prefix(table)
        first = prefix + position[0].to_bytes(8, "big") + position[1].replace(b"\0", b"\0\xff")
        found: list[ChangedRow] = []
        with self._environment.reading() as txn:
            if txn.get(_FEED + prefix) is None:
                raise NoFeedError(f"The table {table!r} keeps no feed of its changes.")
            self._shared.check(position[0] - 1)
            part = b""
            columns: list[bytes] = []
            for key in self._keys_between(txn, first, _bound(prefix, upto)):
                if part and key.startswith(part):
                    columns.append(key[len(part) : -1])
                    continue
                if part:
                    found.append(_changed(part, columns))
                part = key[: key.index(b"\0\1", _ROW) + 2]
                columns = [key[len(part) : -1]]
                if len(found) >= limit:
                    return found, _changed(part, columns)[:2]
            if part:
                found.append(_changed(part, columns))
        return found, None

    def _keys_between(self, txn: Txn, start: bytes, end: bytes) -> Any:
        cursor = txn.cursor(self._environment.databases[self._database])
        if cursor.set_range(start):
            for key, _ in cursor:
                if key >= end:
                    return
                yield key

    def lists_change(self, cell: Cell, commit_ts: int) -> bool:
        """Whether there is an entry for the cell at that timestamp."""
        entry = _entry(self._keys.key(*cell), commit_ts)
        with self._environment.reading() as txn:
            return txn.get(entry, db=self._environment.databases[self._database]) is not None


def _entry(key: bytes, commit_ts: int) -> bytes:
    """The key of the entry for the cell with the key `key`."""
    return key[:2] + commit_ts.to_bytes(8, "big") + key[2:]


def _bound(prefix: bytes, ts: int) -> bytes:
    """The upper bound of entries up to a timestamp: no later entry sorts before it."""
    return prefix + (ts + 1).to_bytes(8, "big")


def _is_within(key: bytes, start: bytes, end: bytes) -> bool:
    row = _changed(key[: key.index(b"\0\1", _ROW) + 2], []).row
    return start <= row and (not end or row < end)


def _changed(part: bytes, columns: list[bytes]) -> ChangedRow:
    """A changed row, from its columns and the part of their keys before the column."""
    row = part[_ROW:-2]
    if b"\0" in row:
        row = row.replace(b"\0\xff", b"\0")
    return ChangedRow(int.from_bytes(part[2:_ROW], "big"), row, tuple(columns))
