"""§2.4: records of observers' runs: what each of them answered, wrote and notified.

    percola_runs[KEY].run   {"observer": "invert", "table": "pages", "runs": [{"row": …}, …], …}

While runs are recorded (`percola observers record on`, `percola.recording`), each transaction that
observers commit has a record in the table `percola.catalog.RUNS`. It is a cell of that very
transaction, so it is there exactly if the run committed, also if another process completes it. Its
row begins with the run's start_ts and is its own, so that no two runs conflict there; the table's
feed finds it by its commit_ts. What the acknowledgments do not say is here: which rows of other
tables a run has written, and which transactions have sent a weak notification.

In a batch, a cell belongs to the run that wrote it first. A record lists up to `LISTED` cells, and
fewer if their rows are long, and the newest `_ANSWERED` notifications of a cell. Garbage collection
forgets records up to the safe point.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from percola.catalog import RUN, RUNS
from percola.cells import SYSTEM_MARK, Cell, Kind, Op, decode_write
from percola.errors import DamagedRecordError, NoFeedError, SnapshotTooOldError, UnknownTableError
from percola.store.base import Store
from percola.transactions.transaction import Transaction

LISTED: Final = 2_000
"""The most cells that one record lists."""

_LISTED_BYTES: Final = 1 << 20
"""And about the most bytes of their rows and columns: a value of HBase has up to 8 MiB, and in JSON
a byte takes up to six."""

_ANSWERED: Final = 100
_SALTS: Final = 16
_HASH: Final = 8


class RecordedRun(NamedTuple):
    """A run for one row.

    Attributes:
        row: the row, encoded.
        answered: the timestamps of the notify entries that it answered, by column.
        wrote: the cells that it put or deleted.
        notified: the cells of weak columns that it notified.
    """

    row: bytes
    answered: Mapping[bytes, Sequence[int]]
    wrote: Sequence[Cell]
    notified: Sequence[Cell]


class RunRecord(NamedTuple):
    """The runs of one transaction.

    Attributes:
        observer: the name of their observer.
        table: the table of their rows.
        start_ts: the transaction's.
        process: the liveness token of the worker.
        at_ms: when they committed, by the worker's clock, in milliseconds since the epoch.
        runs: one for each row of the batch.
        unlisted: how many cells are missing, since there were too many.
    """

    observer: str
    table: str
    start_ts: int
    process: str
    at_ms: int
    runs: Sequence[RecordedRun]
    unlisted: int


class _Room:
    """How many cells a record still has room for."""

    def __init__(self) -> None:
        self._cells, self._bytes = LISTED, _LISTED_BYTES

    def take(self, cells: Sequence[Cell]) -> list[Cell]:
        """As many of the first cells as there is room for."""
        taken: list[Cell] = []
        row: tuple[str, bytes] | None = None
        for cell in cells:
            size = len(cell.column) + (0 if cell[:2] == row else len(cell.row))
            if not self._cells or size > self._bytes:
                break
            row = cell[:2]
            self._cells -= 1
            self._bytes -= size
            taken.append(cell)
        return taken


class Recorder:
    """Records the runs of one transaction."""

    __slots__ = ("_begun", "_observer", "_table", "_transaction")

    def __init__(self, transaction: Transaction, observer: str, table: str) -> None:
        self._transaction = transaction
        self._observer = observer
        self._table = table
        self._begun: list[tuple[bytes, Mapping[Cell, Sequence[int]], int, int]] = []

    def begins(self, row: bytes, notified: Mapping[Cell, Sequence[int]]) -> None:
        """The next run is for this row, and answers these notify entries."""
        wrote, sent = self._transaction._writes, self._transaction._notifications
        self._begun.append((row, notified, len(wrote), len(sent)))

    def write(self) -> None:
        """Add the record to the transaction, which is about to commit."""
        if not self._begun:
            return
        transaction = self._transaction
        context, start_ts = transaction._context, transaction.start_ts
        wrote, sent = list(transaction._writes), list(transaction._notifications)
        ends = [*self._begun[1:], (b"", {}, len(wrote), len(sent))]
        room = _Room()
        runs = []
        for (row, notified, w, n), (_, _, w_end, n_end) in zip(self._begun, ends, strict=True):
            cells = [one for one in wrote[w:w_end] if not one.column.startswith(SYSTEM_MARK)]
            cells = [one for one in cells if transaction._writes[one][0] != Op.LOCK]
            listed = room.take(cells)
            weak = room.take(sent[n:n_end]) if len(listed) == len(cells) else []
            answered = {
                _text(cell.column): sorted(ts for ts in timestamps if ts <= start_ts)[-_ANSWERED:]
                for cell, timestamps in notified.items()
            }
            runs.append(
                {
                    "row": _text(row),
                    "answered": answered,
                    "wrote": _tree(listed),
                    "notified": _tree(weak),
                    "unlisted": len(cells) + n_end - n - len(listed) - len(weak),
                }
            )
        document = {
            "observer": self._observer,
            "table": self._table,
            "process": context.coordination.token,
            "at_ms": context.clock.wall_ms(),
            "runs": runs,
        }
        # Two transactions with one start_ts and one first row conflict on its acknowledgment.
        first = b"\0".join((self._observer.encode(), self._table.encode(), self._begun[0][0]))
        key = _prefix(start_ts) + hashlib.blake2b(first, digest_size=_HASH).digest()
        value = json.dumps(document, separators=(",", ":")).encode()
        transaction._put(Cell(RUNS.name, key, RUN.key), value)


def find_record(store: Store, commit_ts: int, start_ts: int | None = None) -> RunRecord | None:
    """The record of the runs that committed at a timestamp; None if there is none.

    It takes a few reads on a store whose feeds are lists. Where feeds are in the changed rows, that
    is so only if `start_ts` is known; without it, the entries of the feed at this time are searched
    for among all records. Raises StoreError.
    """
    low = b"" if start_ts is None else _prefix(start_ts)
    high = b"" if start_ts is None else low + b"\xff" * (_HASH + 1)
    try:
        found = next(store.changes(RUNS.name, commit_ts - 1, commit_ts, start=low, end=high), None)
    except (NoFeedError, UnknownTableError, SnapshotTooOldError):
        return None
    if found is None:
        return None
    cell = Cell(RUNS.name, found.row, RUN.key)
    for _, raw in store.entries(cell, Kind.WRITE, commit_ts, commit_ts):
        record = decode_write(raw)
        value = record.value
        if value is None:
            long = store.entries(cell, Kind.DATA, record.start_ts, record.start_ts)
            value = long[0][1] if long else b""
        if value:
            return _decode(value, record.start_ts)
    return None  # It was forgotten in between.


def _decode(value: bytes, start_ts: int) -> RunRecord:
    try:
        document = json.loads(value)
        runs = [
            RecordedRun(
                _bytes(one["row"]),
                {_bytes(column): found for column, found in one["answered"].items()},
                list(_cells(one["wrote"])),
                list(_cells(one["notified"])),
            )
            for one in document["runs"]
        ]
        return RunRecord(
            document["observer"],
            document["table"],
            start_ts,
            document["process"],
            document["at_ms"],
            runs,
            sum(one["unlisted"] for one in document["runs"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedRecordError(
            f"The record {value[:40]!r} in {RUNS.name} is not one that Percola writes."
        ) from error


def _prefix(start_ts: int) -> bytes:
    """Where the records of a start_ts begin: with its last bits, so that no tablet is hot."""
    return bytes((start_ts % _SALTS,)) + start_ts.to_bytes(8, "big")


def _tree(cells: Iterable[Cell]) -> dict[str, Any]:
    """Cells as {table: {row: [columns]}}: those of one row are usually adjacent."""
    found: dict[str, dict[str, list[str]]] = {}
    for (table, row), group in itertools.groupby(cells, key=lambda cell: cell[:2]):
        columns = found.setdefault(table, {}).setdefault(_text(row), [])
        columns += [_text(cell.column) for cell in group]
    return found


def _cells(tree: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterable[Cell]:
    for table, rows in tree.items():
        for row, columns in rows.items():
            for column in columns:
                yield Cell(table, _bytes(row), _bytes(column))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
