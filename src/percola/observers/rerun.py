"""§2.4: run an observer, new or changed, over rows that are there.

A new observer sees only the changes since it has been there, and one whose function was changed
has acknowledged the cells that its old function has handled. A rerun marks the rows of a range
dirty, a batch in each transaction, and the workers run the observer as after any change:

    c:ack_O     deleted, if there is one: the observer has acknowledged nothing
    c:notify    put at the commit_ts, as for a weak notification (rule N4)

The transaction deletes the acknowledgment that a run writes, so of a run and a rerun of one cell
that overlap, one conflicts (rule N3): either the run comes first, and its acknowledgment is
deleted, or it is repeated and sees that there is none. The other observers of the column find their
acknowledgments and do nothing. Rows that are written meanwhile notify the observer themselves.

The position is stored after each batch, so that a rerun whose process was killed goes on where it
was; the batch that was being marked may be marked twice.

    @percola["rerun/NAME"].@cursor   version → {"columns", "prefixes", "next", "rows"}

Each update is a new version, written on the condition that it is the next one: a second process
that runs the same rerun ends at its first update.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from percola.catalog import SYSTEM_TABLE
from percola.cells import MAX_TS, Cell, Kind, ack_column
from percola.clock import backoff
from percola.errors import ConflictingOptionsError, TransientError, UsageError
from percola.observers.observer import ObservedColumn, Observer
from percola.platform import fork_safety as forks
from percola.repository import Repository
from percola.schema import R, Table, WeakColumn
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.transactions.snapshot import after_prefix
from percola.transactions.transaction import Transaction

_BATCH: Final = 256
"""The most rows that a transaction marks."""

_COLUMN: Final = b"@cursor"
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Rerun:
    """How far a rerun has come.

    Attributes:
        observer: the observer's name.
        rows: how many rows it has marked dirty, including those before it was interrupted.
        resumed: how many of them were marked before it was interrupted; 0 if it never was.
        position: the row, encoded, from which it continues; empty at the end.
    """

    observer: str
    rows: int = 0
    resumed: int = 0
    position: bytes = b""


def rerun(
    repo: Repository,
    observer: Observer[R],
    *,
    prefixes: Iterable[R] = (),
    rate: float | None = None,
    restart: bool = False,
    progress: Callable[[Rerun], object] = lambda so_far: None,
) -> Rerun:
    """Mark rows dirty so that workers run an observer on them, even if it has run there before.

    Marked are the rows that have a value in one of its columns; if all its columns are weak, all
    rows of the table. Run workers with the observer as it is now, and with no older version of it,
    before or meanwhile. If an earlier call for this observer was interrupted, this one goes on
    where it was.

    Args:
        prefixes: only rows that begin with one of these; all rows if there are none.
        rate: rows per second at most; None: no limit.
        restart: begin at the first row even if an earlier call was interrupted.
        progress: called after every batch.

    Raises UsageError if another process is running the same rerun, or an interrupted one has other
    columns or prefixes; ConflictingOptionsError for a rate that is not above 0; the errors of a
    schema without its columns; TransientError after 20 conflicts of one row, StoreError.
    """
    return rerun_named(
        repo,
        observer.name,
        observer.columns,
        prefixes=prefixes,
        rate=rate,
        restart=restart,
        progress=progress,
    )


def rerun_named(
    repo: Repository,
    name: str,
    columns: Sequence[ObservedColumn[Any]],
    *,
    prefixes: Iterable[Any] = (),
    rate: float | None = None,
    restart: bool = False,
    progress: Callable[[Rerun], object] = lambda so_far: None,
) -> Rerun:
    """`rerun` for an observer that is known by its name and columns."""
    if rate is not None and not 0 < rate < math.inf:
        raise ConflictingOptionsError(f"A rate of {rate} is not a number of rows above 0.")
    table = columns[0].table
    for column in columns:
        repo.table(table.name).resolve(column.name)
    marker = _Marker(repo, name, columns, [table.encode_prefix(one) for one in prefixes])
    return marker.run(rate, progress, restart=restart)


class _Marker:
    """One run of a rerun."""

    def __init__(
        self,
        repo: Repository,
        name: str,
        columns: Sequence[ObservedColumn[Any]],
        prefixes: Iterable[bytes],
    ) -> None:
        self._repo = repo
        self._context = repo.context
        self._name = name
        self._table: Table[Any] = columns[0].table
        self._weak = [one.key for one in columns if isinstance(one, WeakColumn)]
        # The acknowledgment of each column that has values.
        self._acks = {
            one.key: ack_column(name, one.key) for one in columns if not isinstance(one, WeakColumn)
        }
        self._prefixes = _shortest(prefixes)
        self._cursor = _Cursor(repo, name, [one.name for one in columns], self._prefixes)
        self._rng = forks.new_random()

    def run(
        self, rate: float | None, progress: Callable[[Rerun], object], *, restart: bool
    ) -> Rerun:
        clock = self._context.clock
        start, before = self._cursor.begin(restart=restart)
        state = Rerun(self._name, before, before, start)
        began = clock.monotonic()
        most = _BATCH if rate is None else max(1, min(_BATCH, math.ceil(rate)))
        size, position = most, start
        following: bytes | None = start
        while following is not None:
            size, following, marked = self._mark(position, min(most, 2 * size))
            position = following or b""
            state = replace(state, rows=state.rows + marked, position=position)
            if following is not None:
                self._cursor.move(following, state.rows)
            progress(state)
            if rate is not None:
                early = began + (state.rows - before) / rate - clock.monotonic()
                if early > 0:
                    clock.sleep(early)
        self._cursor.end()
        return state

    def _ranges(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The ranges of rows from `start` on, as [low, high); an empty high is no bound."""
        for low in self._prefixes or [b""]:
            high = after_prefix(low)
            if not high or start < high:
                yield max(low, start), high

    def _mark(self, start: bytes, size: int) -> tuple[int, bytes | None, int]:
        """Mark up to `size` rows; return the size used, where to go on, and how many were marked.

        A batch that conflicts with runs of the observer is tried again with half the rows.
        """
        for attempt in itertools.count(1):
            try:
                with self._repo.transaction() as t:
                    following, marked = self._mark_rows(t, start, size)
            except TransientError:
                if attempt >= _ATTEMPTS:
                    raise
                size = max(1, size // 2)
                wait = backoff(self._rng, attempt, first=0.001, most=0.5)
                self._context.clock.sleep(wait)
                continue
            return size, following, marked
        raise AssertionError("unreachable")

    def _mark_rows(self, t: Transaction, start: bytes, size: int) -> tuple[bytes | None, int]:
        name, acks = self._table.name, self._acks
        wanted = [(one, False) for one in (*acks, *acks.values())] if acks else None
        marked = 0
        for low, high in self._ranges(start):
            for row, values in t._scan(name, low, high, wanted):
                columns = [column for column in acks if column in values] if acks else self._weak
                for column in columns:
                    t._mark_dirty(Cell(name, row, column))
                    if column in acks and acks[column] in values:
                        t._forget(Cell(name, row, acks[column]))
                marked += bool(columns)
                size -= 1
                if not size:
                    return row + b"\0", marked
        return None, marked


class _Cursor:
    """The stored position of a rerun."""

    def __init__(
        self, repo: Repository, name: str, columns: Sequence[str], prefixes: Sequence[bytes]
    ) -> None:
        self._store = repo.context.store
        self._name = name
        self._cell = Cell(SYSTEM_TABLE, b"rerun/" + name.encode(), _COLUMN)
        self._what = {"columns": sorted(columns), "prefixes": _digest(prefixes)}
        self._version = 0

    def begin(self, *, restart: bool) -> tuple[bytes, int]:
        """Where to begin, and how many rows were marked before that."""
        found = self._store.entries(self._cell, Kind.DATA, 0, MAX_TS, 1)
        if found:
            self._version = found[0][0]
            state = json.loads(found[0][1])
            if not restart:
                if any(state[key] != self._what[key] for key in self._what):
                    raise UsageError(
                        f"A rerun of {self._name!r} was interrupted after {state['rows']:,} rows, "
                        "and it had other prefixes or columns. Finish it as it was begun, or begin "
                        "this one with --restart (restart=True)."
                    )
                return bytes.fromhex(state["next"]), state["rows"]
        self.move(b"", 0)
        return b"", 0

    def move(self, following: bytes, rows: int) -> None:
        """Store the position; UsageError if another process has moved it."""
        state = {**self._what, "next": following.hex(), "rows": rows}
        self._write(Put(Kind.DATA, _COLUMN, self._version + 1, json.dumps(state).encode()))
        self._version += 1

    def end(self) -> None:
        """Remove it."""
        self._write(None)

    def _write(self, put: Put | None) -> None:
        changes: list[Put | Delete] = [put] if put is not None else []
        conditions = [Condition(False, Kind.DATA, _COLUMN, self._version + 1, MAX_TS)]
        if self._version:
            changes.append(Delete(Kind.DATA, _COLUMN, self._version))
            conditions.append(Condition(True, Kind.DATA, _COLUMN, self._version, self._version))
        table, row, _ = self._cell
        if not self._store.mutate([RowMutation(table, row, conditions, changes)])[0]:
            raise UsageError(
                f"Another process runs a rerun of {self._name!r} at the same time: let it finish."
            )


def _digest(prefixes: Sequence[bytes]) -> str:
    """The prefixes in a few bytes: there may be thousands."""
    return blake2b(b"".join(b"%d:%b" % (len(one), one) for one in prefixes)).hexdigest()[:32]


def _shortest(prefixes: Iterable[bytes]) -> list[bytes]:
    """The prefixes in order, without those that begin with another one."""
    kept: list[bytes] = []
    for one in sorted(set(prefixes)):
        if not kept or not one.startswith(kept[-1]):
            kept.append(one)
    return kept
