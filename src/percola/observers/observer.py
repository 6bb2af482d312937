"""§2.4 Observers: code that runs in a transaction of its own after a column has changed.

    @observer(contents)
    def index(t, url): ...

An observer is a plain value, built explicitly into a `Worker` in the program's main(): nothing
is registered by importing. One run, for a dirty cell `c` of a row, is one transaction:

    strong   read c's newest write and c:ack_O; run only if c was written after the last
             acknowledgment; set c:ack_O to start_ts; commit. Two runs for one change meet at
             c:ack_O, and one of them conflicts: at most one commits (rule N3). Many changes
             may be answered by one run: that is the paper's message collapsing.
    weak     the column cannot be written, only notified; run whenever it was. Nothing is
             acknowledged, so several runs may commit for one notification.

After the commit, and only then, the notify entries at or below start_ts are removed (rule N2;
on a store with one-step commit, in the same step). A notify entry is a hint: if one is left
over, the acknowledgment says that nothing is to be done.

An observer may answer several dirty rows of its column in one transaction:

    @observer(inlinks_changed, batch=32)

Where runs are small, most of what they cost is their beginning and their commit, and a batch has
one of each. It takes what is dirty now and waits for nothing; `percola.runs` says what becomes
of a batch that fails.

An observer that many changes lead to, and whose result nobody waits for, may step back:

    @observer(inlinks_changed, batch=32, defer=10.0)

While a worker finds other work, it looks at such a column only every so many seconds: a hundred
changes of one row are then answered once, not dozens of times. When there has been nothing else
to do for a moment, it looks.

Behind a network, what past runs read of their own rows comes for all rows of a batch at once
(`percola.prefetch`). Which other rows a run will read, only the program can know. It may say so:

    @observer(refresh, batch=32, ahead=read_ahead)

`read_ahead(t, rows)` is called where calls are dear, before the runs, with the rows of a batch, and
reads for all of them in a few calls what the function then reads for each: it finds it in the
transaction's cache.

An observer that waits for something outside, such as a search index, would have the others wait
with it. It may run apart:

    @observer(outbox_ready, apart=True)

One worker of the repository runs it, on a thread that does nothing else; the others stand by.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic

from percola.cells import Cell, Kind, ack_column, decode_ts, encode_ts, failed_column
from percola.errors import ObserverError, ObserverTimeoutError
from percola.schema import Column, R, WeakColumn, check_name
from percola.snapshot import Services, Snapshot
from percola.transaction import Transaction

ObserverFunction = Callable[[Transaction, R], object]
AheadFunction = Callable[[Snapshot, Sequence[R]], object]

_BATCH_SECONDS: Final = 0.05
_BATCH_CELLS: Final = 1000
_BATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Observer(Generic[R]):
    """A function bound to the column that it observes.

    Attributes:
        column: an observed column, or a weak column.
        function: called with the transaction and the row; it must not commit.
        name: what its acknowledgments stand under in the repository: keep it when the
            function is renamed, change it to have every later change seen anew.
        batch: how many rows it may answer in one transaction at most; see `observer`.
        defer: seconds for which it may be put off while there is other work; see `observer`.
        share: of a worker's time, how much it may take while there is other work, up to 1.
        apart: whether one worker runs it, on a thread of its own; see `observer`.
        ahead: reads together what runs for several rows will read; see `observer`.
    """

    column: Column[R, Any] | WeakColumn[R]
    function: ObserverFunction[R]
    name: str
    batch: int = 1
    defer: float = 0.0
    share: float = 1.0
    apart: bool = False
    ahead: AheadFunction[R] | None = None

    def __post_init__(self) -> None:
        check_name("an observer", self.name)
        if isinstance(self.column, Column):
            if not self.column.observed:
                raise ObserverError(
                    f"The observer {self.name!r} is for {self.column!r}, which is not observed: "
                    "declare the column with observed=True."
                )
        elif not isinstance(self.column, WeakColumn):
            raise ObserverError(f"{self.column!r} is not a column that can be observed.")
        if not callable(self.function):
            raise ObserverError(f"The observer {self.name!r} needs a function to call.")
        if not isinstance(self.batch, int) or self.batch < 1:
            raise ObserverError(
                f"The observer {self.name!r} cannot have a batch of {self.batch!r}: it is a number "
                "of rows, from 1."
            )
        if not isinstance(self.defer, int | float) or not 0 <= self.defer < math.inf:
            raise ObserverError(
                f"The observer {self.name!r} cannot be deferred by {self.defer!r}: it is a number "
                "of seconds, from 0."
            )
        if not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise ObserverError(
                f"The observer {self.name!r} cannot have a share of {self.share!r}: it is a part "
                "of a worker's time, above 0 and up to 1."
            )
        if self.ahead is not None and not callable(self.ahead):
            raise ObserverError(
                f"The observer {self.name!r} cannot read ahead with {self.ahead!r}: it is a "
                "function of a snapshot and rows."
            )
        if self.apart and self.defer:
            raise ObserverError(
                f"The observer {self.name!r} cannot both run apart and be deferred: on a thread of "
                "its own it is in nobody's way. Leave out one of the two."
            )

    def __call__(self, transaction: Transaction, row: R) -> object:
        return self.function(transaction, row)

    @property
    def is_weak(self) -> bool:
        """Whether it answers weak notifications."""
        return isinstance(self.column, WeakColumn)

    def run(
        self,
        services: Services,
        row: bytes,
        notified: Sequence[int],
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Run once for a dirty row, if it has to; whether it ran.

        `notified` are the timestamps of the notify entries that this run answers. Raises what
        the function raises, ConflictError if another transaction won, and
        ObserverTimeoutError if by the end of the function nobody waits for it any more.
        """
        table, column = self.column.table, self.column
        transaction = Transaction(services)
        transaction.expect((row,))
        cell = Cell(table.name, row, column.key)
        key = table.decode_row(row)
        runs = True
        if isinstance(column, Column):
            runs = self._acknowledge(transaction, cell)
        if runs:
            if self.ahead is not None and services.prefetch is not None:
                self.ahead(transaction, [key])
            self.function(transaction, key)
        if is_abandoned():
            transaction.rollback()
            raise ObserverTimeoutError(f"{self.name} took too long; nothing was committed.")
        for ts in notified:
            if ts <= transaction.start_ts:
                transaction.answer(Kind.NOTIFY, cell, ts)
        if runs:
            self._answer_failures(transaction, services, [row])
        transaction.commit()
        return runs

    def run_batch(
        self,
        services: Services,
        rows: Iterable[tuple[bytes, Sequence[int]]],
        most: int,
        is_abandoned: Callable[[], bool] = lambda: False,
        ahead: Collection[bytes] = (),
    ) -> list[bytes]:
        """Run for dirty rows of its column, one after the other, in one transaction.

        `rows` hands out each row, and the timestamps of its notify entries, when it is its turn.
        None is asked for after `most` of them, nor once the transaction is large or has gone on
        for 50 ms: whoever waits for its rows, or writes what it writes, shall not wait long.
        `ahead` are rows that will probably be handed out, more and more of them: what is read of
        one may be read of all. Returns the rows that the commit has answered; raises as `run` does.
        """
        column = self.column
        clock = services.clock
        until = clock.monotonic() + _BATCH_SECONDS
        transaction = _Batch(services)
        transaction.expect(ahead)
        start_ts = transaction.start_ts
        answered: list[bytes] = []
        read_ahead = self.ahead if services.prefetch is not None else None
        begun: set[bytes] = set()
        for row, notified in rows:
            seen = [ts for ts in notified if ts <= start_ts]
            if seen:  # Else it was notified since this began: a run would answer nothing.
                cell = Cell(column.table.name, row, column.key)
                if self.is_weak or self._acknowledge(transaction, cell):
                    if read_ahead is not None and row not in begun:
                        fresh = [one for one in dict.fromkeys((row, *ahead)) if one not in begun]
                        read_ahead(transaction, [column.table.decode_row(one) for one in fresh])
                        begun.update(fresh)
                    self.function(transaction, column.table.decode_row(row))
                for ts in seen:
                    transaction.answer(Kind.NOTIFY, cell, ts)
                answered.append(row)
            if len(answered) >= most or transaction.is_large or clock.monotonic() >= until:
                break
        if is_abandoned():
            transaction.rollback()
            raise ObserverTimeoutError(f"{self.name} took too long; nothing was committed.")
        if answered:
            self._answer_failures(transaction, services, answered)
        transaction.commit()
        return answered

    def _answer_failures(
        self, transaction: Transaction, services: Services, rows: Sequence[bytes]
    ) -> None:
        """Have the commit remove what says that it was set aside on these rows."""
        store, table = services.store, self.column.table.name
        name = failed_column(self.name, self.column.key)
        # Not those of changes that this run has not seen.
        start_ts = transaction.start_ts
        if len(rows) > 1:
            # Few rows are set aside: one look is enough to see that these are not.
            first, last = min(rows), max(rows)
            found, more = store.scan_kind(Kind.FAILED, table, first, last + b"\0", limit=16)
            if more is None:
                known = set(rows)
                for cell, ts, _ in found:
                    if cell.row in known and cell.column == name and ts <= start_ts:
                        transaction.answer(Kind.FAILED, cell, ts)
                return
        for row in rows:
            failed = Cell(table, row, name)
            for ts, _ in store.entries(failed, Kind.FAILED, 0, start_ts):
                transaction.answer(Kind.FAILED, failed, ts)

    def _acknowledge(self, transaction: Transaction, cell: Cell) -> bool:
        """Whether the cell has changed since the last run; if so, this run acknowledges it."""
        ack = Cell(cell.table, cell.row, ack_column(self.name, cell.column))
        changed, acknowledged = transaction.observe(cell, ack)
        if acknowledged is not None and changed <= decode_ts(acknowledged):
            return False
        if not changed:
            return False
        transaction.put(ack, encode_ts(transaction.start_ts))
        return True


class _Batch(Transaction):
    """The transaction of a batch."""

    __slots__ = ()

    @property
    def is_large(self) -> bool:
        """Whether it writes enough for one commit."""
        cells = len(self._writes) + len(self._notifications)
        return cells >= _BATCH_CELLS or self._bytes >= _BATCH_BYTES


def observer(
    column: Column[R, Any] | WeakColumn[R],
    *,
    name: str | None = None,
    batch: int = 1,
    defer: float = 0.0,
    share: float = 1.0,
    apart: bool = False,
    ahead: AheadFunction[R] | None = None,
) -> Callable[[ObserverFunction[R]], Observer[R]]:
    """Make an `Observer` of a function: `@observer(column)`; its name is the function's.

    Args:
        batch: how many dirty rows of the column one transaction may answer. The function is
            called for one row after the other, with the same transaction: each sees the same
            snapshot, and what the rows before it have written. They commit together. If that
            fails, whatever the reason, each runs again in a transaction of its own, so the
            function may be called more often than it commits, as it may be anyhow. Worth it where
            runs are small and many; in a batch of large ones, each waits for all others.
        defer: seconds for which a worker may leave its column's changes alone while it finds
            other work. Where several observers share a column, the shortest counts.
        share: how much of a worker's time it may take while the worker finds other work. After a
            run of a second with a share of 0.2, its column is left alone for four, and what
            changes meanwhile is answered together. Worth it where a run costs much however
            little it does. Where several observers share a column, the largest counts.
        apart: run it on a thread of its own, and in one worker at a time: the others stand by,
            and one of them takes over when that worker ends, however it ends. Worth it for what
            waits for something outside, or keeps something open there. It is no lock: now and
            then two may run, as is so of any two runs. Where several observers share a column,
            all run apart if one does. Its share is of that thread's time, while others are busy.
        ahead: called on a store behind a network with the transaction and some rows, before the
            function is called for them: reads with `get_many` and `get_rows` what the function
            will read, so that it finds it in the transaction's cache. Some of the rows may not
            get their turn in this transaction. It changes nothing but the number of calls: it
            must not write, and the function must not rely on it. What it raises, the run has
            raised. Worth it where a run reads other rows than its own.

    Raises ObserverError for a column that is not observed, and for a batch that is none or not
    possible; SchemaError for an unusable name.
    """

    def bind(function: ObserverFunction[R]) -> Observer[R]:
        own = str(getattr(function, "__name__", ""))
        return Observer(column, function, name or own, batch, defer, share, apart, ahead)

    return bind


class Observers:
    """The observers of one worker, by the column that they observe."""

    def __init__(self, observers: Iterable[Observer[Any]]) -> None:
        self._by_column: dict[tuple[str, bytes], list[Observer[Any]]] = {}
        names: set[str] = set()
        for one in observers:
            if not isinstance(one, Observer):
                raise ObserverError(
                    f"{one!r} is not an observer: decorate the function with @observer(column)."
                )
            if one.name in names:
                raise ObserverError(f"Two observers are named {one.name!r}; each needs its own.")
            names.add(one.name)
            group = self._by_column.setdefault(one.column.address, [])
            if group and one.is_weak:
                raise ObserverError(
                    f"The weak column {one.column!r} has two observers, {group[0].name!r} and "
                    f"{one.name!r}: it can have one, for it has no acknowledgments."
                )
            group.append(one)
        if not names:
            raise ObserverError("A worker needs at least one observer.")

    def __iter__(self) -> Iterator[Observer[Any]]:
        return (one for group in self._by_column.values() for one in group)

    def of(self, cell: Cell) -> Sequence[Observer[Any]]:
        """The observers of a cell's column."""
        return self._by_column.get((cell.table, cell.column), ())

    @functools.cached_property
    def tables(self) -> list[str]:
        """The tables that have an observed column, in order."""
        return sorted({table for table, _ in self._by_column})

    @functools.cached_property
    def deferred(self) -> Mapping[tuple[str, bytes], float]:
        """The columns, as (table, column), that may be put off, and for how many seconds."""
        longest = {
            address: min(one.defer for one in group) for address, group in self._by_column.items()
        }
        return {
            address: seconds
            for address, seconds in longest.items()
            if seconds and address not in self.apart
        }

    @functools.cached_property
    def sharing(self) -> Mapping[tuple[str, bytes], float]:
        """The columns that may take only a part of a worker's time, and which part."""
        largest = {
            address: max(one.share for one in group) for address, group in self._by_column.items()
        }
        return {address: share for address, share in largest.items() if share < 1}

    @functools.cached_property
    def apart(self) -> frozenset[tuple[str, bytes]]:
        """The columns that one worker looks after, on a thread of its own."""
        return frozenset(
            address for address, group in self._by_column.items() if any(one.apart for one in group)
        )

    @functools.cached_property
    def prompt(self) -> frozenset[tuple[str, bytes]]:
        """The columns that the worker's common threads look after, and may not put off."""
        return frozenset(self._by_column.keys() - self.deferred.keys() - self.apart)

    @property
    def announcement(self) -> dict[str, list[str]]:
        """Which observers run on which column, as other workers are told."""
        return {
            f"{table}.{column.decode()}": [one.name for one in group]
            for (table, column), group in self._by_column.items()
        }
