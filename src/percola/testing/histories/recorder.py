"""Records histories, the reads and writes of transactions, for a checker.

A `Recorder` wraps the transactions of a workload, whose code looks as usual:

    recorder = Recorder("teller 1", path=folder / "teller-1.jsonl")
    with recorder.transaction(repo) as t:
        t.set(balance, "ann", (t.get(balance, "ann") or 0) + 10)
    recorder.run(repo, transfer)

    violations = percola.testing.histories.timestamps.check(recorder.history)

Each attempt is a separate `Recorded`. A cell's key in the history is `table.column/row`.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from percola.cells import Cell
from percola.codecs import JSON, V
from percola.codecs.base import SIMPLE
from percola.errors import (
    CommitUnknownError,
    ConflictError,
    OutcomeUnknownError,
    PercolaError,
    StoreError,
)
from percola.repository import Repository
from percola.schema import Column, Family, R, Table, WeakColumn
from percola.testing.histories.records import (
    DamagedHistoryError,
    Outcome,
    Recorded,
    encode,
    encode_end,
    merge,
    read_folder,
    read_histories,
    read_history,
    write_history,
)
from percola.transactions import retry
from percola.transactions.row import Columns, Row
from percola.transactions.transaction import Transaction

__all__ = [
    "DamagedHistoryError",
    "Outcome",
    "Recorded",
    "RecordedTransaction",
    "Recorder",
    "key_of",
    "merge",
    "read_folder",
    "read_histories",
    "read_history",
    "write_history",
]

T = TypeVar("T")

_MISSING: Final = object()


class Recorder:
    """Records the transactions of one client. Safe to use from several threads.

    Args:
        process: the client's name in the history.
        clock: a clock or counter that all clients of the history share. The default is the
            system's monotonic clock, which is the same for all processes of a machine.
        path: a file to record in besides `history`, line by line; created if it is missing.

    Attributes:
        history: the records, in the order in which commits were tried. While a commit is in
            progress, its outcome is unknown.
        cells: the cells that were read and written, by their keys in the history.
    """

    def __init__(
        self,
        process: str,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.process = process
        self.history: list[Recorded] = []
        self.cells: dict[str, Cell] = {}
        self.clock = clock
        self._ids = itertools.count(1)
        self._file: int | None = None
        self._guard = threading.Lock()
        if path is not None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(self, repo: Repository, *, two_phase: bool = False) -> RecordedTransaction:
        """Begin a recorded transaction: see `Repository.transaction`."""
        began = self.clock()
        transaction = repo.transaction(two_phase=two_phase)
        return self.wrap(transaction, began, two_phase=two_phase or repo.context.one_step is None)

    def wrap(
        self, transaction: Transaction, began: int = 0, *, two_phase: bool = False
    ) -> RecordedTransaction:
        """Record a transaction that has begun, an observer's for example.

        `began` must be a time before it did; 0 claims nothing about the order in time. Nor is
        anything claimed about whose `start_ts` it is, unless it is known to be `two_phase`.
        """
        record = Recorded(
            id=next(self._ids),
            process=self.process,
            start_ts=transaction.start_ts,
            commit_ts=None,
            outcome=Outcome.UNKNOWN,
            reads=[],
            writes=[],
            began=began,
            ended=None,
            two_phase=two_phase,
        )
        return RecordedTransaction(self, transaction, record)

    def run(
        self,
        repo: Repository,
        function: Callable[[RecordedTransaction], T],
        *,
        attempts: int = retry.ATTEMPTS,
        two_phase: bool = False,
    ) -> T:
        """Run `function` in a recorded transaction, again if it conflicts: `Repository.run`."""
        # It needs of a transaction only that it can be left as a `with` block.
        return retry.run(
            cast("Callable[[Transaction], T]", function),
            cast("Callable[[], Transaction]", lambda: self.transaction(repo, two_phase=two_phase)),
            repo.context.clock,
            random.Random(),
            attempts,
        )

    def close(self) -> None:
        """Close the file; nothing is lost if a process ends without it."""
        with self._guard:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def note_attempt(self, record: Recorded) -> None:
        """Take a record whose commit is about to be tried, or which is complete."""
        self.history.append(record)
        self._write(encode(record) if self._file is not None else "")

    def note_end(self, record: Recorded) -> None:
        """Take the outcome of a record that is noted already."""
        self._write(encode_end(record) if self._file is not None else "")

    def _write(self, line: str) -> None:
        with self._guard:
            if self._file is not None and line:
                data = line.encode("ascii") + b"\n"
                while data:
                    data = data[os.write(self._file, data) :]


class RecordedTransaction:
    """A transaction and its record; the methods are those of `Transaction`.

    Recipes and functions that are `percola.transactional` take it for one.

    `get_row` and `scan` record that something is *not* there only for columns that are named
    one by one in `columns`.

    Attributes:
        record: what is recorded of it.
    """

    __slots__ = ("_noted", "_recorder", "_transaction", "_written", "record")

    def __init__(self, recorder: Recorder, transaction: Transaction, record: Recorded) -> None:
        self._recorder = recorder
        self._transaction = transaction
        self._written: dict[str, object] = {}
        self._noted = False
        self.record = record

    @property
    def start_ts(self) -> int:
        """The timestamp of its snapshot."""
        return self._transaction.start_ts

    @property
    def commit_ts(self) -> int | None:
        """The timestamp of its writes, once it has committed."""
        return self._transaction.commit_ts

    @property
    def unfinished(self) -> StoreError | None:
        """`Transaction.unfinished`."""
        return self._transaction.unfinished

    def __enter__(self) -> Self:
        self._transaction.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.rollback()
        elif not self._noted:
            self.commit()

    # --- Reading ------------------------------------------------------------------------

    def expect(self, rows: Collection[bytes]) -> None:
        """Declare the rows, encoded, that this will read (§2.5); there is nothing to record."""
        self._transaction._expect(rows)

    def get(self, column: Column[R, V], row: R) -> V | None:
        """`Transaction.get`, recorded."""
        value = self._transaction.get(column, row)
        self._saw(column, row, value)
        return value

    def get_for_update(self, column: Column[R, V], row: R) -> V | None:
        """`Transaction.get_for_update`, recorded as a read and a lock."""
        value = self._transaction.get_for_update(column, row)
        self._saw(column, row, value)
        key = self._key(column, row)
        if key not in self._written and key not in self.record.locked:
            self.record.locked.append(key)
        return value

    def get_many(self, cells: Iterable[tuple[Column[R, V], R]]) -> list[V | None]:
        """`Transaction.get_many`, recorded."""
        wanted = list(cells)
        values = self._transaction.get_many(wanted)
        for (column, row), value in zip(wanted, values, strict=True):
            self._saw(column, row, value)
        return values

    def get_row(self, table: Table[R], row: R, columns: Columns[R] = None) -> Row[R]:
        """`Transaction.get_row`, recorded."""
        wanted = None if columns is None else list(columns)
        found = self._transaction.get_row(table, row, wanted)
        self._saw_row(found, _single(wanted))
        return found

    def get_rows(
        self, table: Table[R], rows: Iterable[R], columns: Columns[R] = None
    ) -> list[Row[R]]:
        """`Transaction.get_rows`, recorded."""
        wanted = None if columns is None else list(columns)
        found = self._transaction.get_rows(table, rows, wanted)
        for row in found:
            self._saw_row(row, _single(wanted))
        return found

    def version(self, column: Column[R, Any], row: R) -> int:
        """`Transaction.version`; a history has no versions."""
        return self._transaction.version(column, row)

    def scan(
        self,
        table: Table[R],
        *,
        prefix: R | None = None,
        start: R | None = None,
        end: R | None = None,
        columns: Columns[R] = None,
    ) -> Iterator[Row[R]]:
        """`Transaction.scan`, recorded as far as it is followed."""
        wanted = None if columns is None else list(columns)
        singles = _single(wanted)
        rows = self._transaction.scan(table, prefix=prefix, start=start, end=end, columns=wanted)
        low = _text(table, start if prefix is None else prefix)
        high = low + chr(sys.maxunicode) if prefix else _text(table, end) or None
        return self._follow(table, rows, singles, low, high)

    def _follow(
        self,
        table: Table[R],
        rows: Iterator[Row[R]],
        singles: list[Column[R, Any]],
        low: str,
        high: str | None,
    ) -> Iterator[Row[R]]:
        found: dict[str, list[str]] = {address(column): [] for column in singles}
        upto: str | None = low
        try:
            for row in rows:
                # A reader that stops here has scanned no further than just after this row.
                upto = _text(table, row.key) + "\0"
                for column, _ in row._all_items():
                    found.get(address(column), []).append(self._key(column, row.key))
                self._saw_row(row, [])
                yield row
            upto = high
        finally:
            for name, keys in found.items():
                start = f"{name}/{low}"
                end = f"{name}0" if upto is None else f"{name}/{upto}"  # "0" follows "/"
                # Its own writes say nothing about the snapshot.
                self._check_own(start, end, keys)
                keys = [key for key in keys if key not in self._written]
                self.record.ranges.append((start, end, keys))

    def _check_own(self, start: str, end: str, keys: list[str]) -> None:
        for key, value in self._written.items():
            if start <= key < end and value is not None and key not in keys:
                self.record.own_reads.append((key, None, value))

    def _saw_row(self, row: Row[R], singles: list[Column[R, Any]]) -> None:
        for column, value in row._all_items():
            self._saw(column, row.key, value)
        for column in singles:
            if column not in row:
                self._saw(column, row.key, None)

    def _saw(self, column: Column[R, Any], row: R, read: object) -> None:
        key, value = self._key(column, row), _plain(column, read)
        written = self._written.get(key, _MISSING)
        if written is _MISSING:
            self.record.reads.append((key, value))
        else:
            self.record.own_reads.append((key, value, written))

    def _key(self, column: Column[R, Any], row: R) -> str:
        """The key of a cell in the history, which is noted."""
        key, cells = key_of(column, row), self._recorder.cells
        if key not in cells:
            cells[key] = Cell(column.table_name, column.table.encode_row(row), column.key)
        return key

    # --- Writing ------------------------------------------------------------------------

    def set(self, column: Column[R, V], row: R, value: V) -> None:
        """`Transaction.set`, recorded."""
        self._transaction.set(column, row, value)
        self._wrote(self._key(column, row), _plain(column, value))

    def delete(self, column: Column[R, Any], row: R) -> None:
        """`Transaction.delete`, recorded."""
        self._transaction.delete(column, row)
        self._wrote(self._key(column, row), None)

    def notify(self, column: WeakColumn[R], row: R) -> None:
        """`Transaction.notify`; it writes nothing that could be read."""
        self._transaction.notify(column, row)

    def on_conflict(self, callback: Callable[[ConflictError], object]) -> None:
        """`Transaction.on_conflict`."""
        self._transaction.on_conflict(callback)

    def _cell(self, column: Column[R, Any], row: R) -> Cell:
        return self._transaction._cell(column, row)

    def _wrote(self, key: str, value: object) -> None:
        before = self._written.get(key, _MISSING)
        if before is not _MISSING and before != value:
            self.record.overwritten.append((key, before))
        self._written[key] = value
        if key in self.record.locked:
            self.record.locked.remove(key)

    # --- The end ------------------------------------------------------------------------

    def close(self) -> None:
        """`Transaction.close`: what was written is rolled back, and recorded so."""
        self.rollback()
        self._transaction.close()

    def rollback(self) -> None:
        """`Transaction.rollback`, recorded."""
        self._transaction.rollback()
        if not self._noted:
            self._noted = True
            record = self.record
            record.writes = list(self._written.items())
            record.outcome, record.ended = Outcome.ABORTED, self._recorder.clock()
            self._recorder.note_attempt(record)

    def commit(self) -> int:
        """`Transaction.commit`, recorded: as unknown first, and then as it came out."""
        if self._noted:
            return self._transaction.commit()  # Which says that it is used up.
        self._noted = True
        record, recorder = self.record, self._recorder
        record.writes = list(self._written.items())
        recorder.note_attempt(record)
        try:
            commit_ts = self._transaction.commit()
        except CommitUnknownError as error:
            record.commit_ts = error.commit_ts
            recorder.note_end(record)
            raise
        except OutcomeUnknownError:
            raise
        except PercolaError:
            record.outcome, record.ended = Outcome.ABORTED, recorder.clock()
            recorder.note_end(record)
            raise
        # Any other error ends this client, so the outcome stays unknown.
        record.outcome, record.ended = Outcome.COMMITTED, recorder.clock()
        if record.writes or record.locked:
            record.commit_ts = commit_ts
        recorder.note_end(record)
        return commit_ts


# --- Keys and values --------------------------------------------------------------------


def key_of(column: Column[R, Any], row: R) -> str:
    """A cell's key in a history. Keys of one column stand in the order of its rows."""
    return f"{address(column)}/{_text(column.table, row)}"


def address(column: Column[Any, Any]) -> str:
    """The part of a key that names the column; '/' in the name of a family's column is escaped."""
    name = column.name
    if "/" in name or "%" in name:
        name = name.replace("%", "%25").replace("/", "%2F")
    return f"{column.table_name}.{name}"


def _text(table: Table[R], row: R | None) -> str:
    if isinstance(row, str) or row is None:
        return row or ""
    # Latin-1 keeps the order of the bytes.
    return table.encode_bound(row).decode("latin-1")


def _single(columns: list[Any] | None) -> list[Column[Any, Any]]:
    return [one for one in columns or () if not isinstance(one, Family)]


def _plain(column: Column[Any, Any], value: object) -> object:
    """A value as JSON can carry it, and as it is now: the workload may go on to change it.

    What is written is made the same as what is read of it: of a JSON value, tuples are lists.
    """
    codec = column.codec
    if value is None:
        return None
    if codec is JSON:
        return codec.decode(codec.encode(value))
    if SIMPLE.get(codec.name) is not codec:
        return codec.encode(value).hex()
    return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else value
