"""§2.4 Observers: functions that run in their own transaction after a column has changed.

    @observer(contents)
    def index(t, url): ...

An observer is a plain value, built explicitly into a `Worker` in the program's main(): nothing
is registered by importing. One run, for a dirty cell `c` of a row, is one transaction:

    strong   read c's newest write and c:ack_O; run only if c was written after the last
             acknowledgment; set c:ack_O to start_ts; commit. Two runs for one change conflict
             on c:ack_O: at most one commits (rule N3). One run may answer many changes: the
             paper's message collapsing.
    weak     the column cannot be written, only notified; run for every notification, and set
             c:ack_O, so that of two runs for a row that overlap, one conflicts. Several runs may
             commit for one notification, one after the other.

Why weak runs acknowledge. A row's advisory lock usually keeps two runs apart, but it can be lost:
to a paused process, or with a session of ZooKeeper. A run that finds everything as it should be
writes nothing, so it would not conflict with an older one that is about to commit what it
computed before the change, and nobody would ever look again (write skew).

An observer may observe several columns of a table:

    @observer(price, category)

One run for a row then answers all changes of these columns up to its start_ts. It acknowledges
each column that has changed, in the one transaction, so rule N3 holds for each change separately:
two runs that both saw a change of `price` conflict on its acknowledgment, whatever else they saw.

After the commit, and only then, the notify entries at or below start_ts are removed (rule N2;
on a store with one-step commit, in the same step). A notify entry is a hint: if one is left
over, the acknowledgment shows that there is nothing to do.

If several rows of its column are dirty, an observer answers some of them in one transaction. Small
runs spend most of their time on begin and commit, and a batch has one of each. A batch takes the
rows that are dirty now and never waits for more; `percola.observers.runner` describes how batches
grow, and how a failed one is handled. An observer may have smaller ones, or none:

    @observer(inlinks_changed, batch=1)

An observer that is triggered by many changes, and whose result is not urgent, may be debounced:

    @observer(inlinks_changed, defer=10.0)

While a worker finds other work, it scans such a column only every so many seconds, so that a
hundred changes of one row are answered by one run. When it has been idle for a moment, it scans it.

On a store behind a network, what past runs read of their own rows is prefetched for all rows of a
batch at once (`percola.transactions.prefetch`). Only the program knows which other rows a run will
read: on such a store, `@observer(refresh, ahead=read_ahead)` calls `read_ahead(t, rows)`
before the runs.

An observer that waits for an external system, such as a search index, may run on a dedicated
thread, with `@observer(outbox_ready, dedicated=True)`: one worker of the repository runs it, on a
thread that does nothing else, and the others stand by. Where more of them are faster, a number says
in how many workers at a time it runs, each for other rows: `dedicated=4`.

Dirty rows have no order. Where runs are long and thousands of rows wait, some may matter more than
others: `@observer(render_due, order=most_linked, rate=2.0)` asks `most_linked(t, rows)` which of
the rows that wait run first, and begins at most two runs a second in each worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeAlias

from percola.cells import Cell, Kind, Op, ack_column, decode_ts, encode_ts, failed_column
from percola.coordination.wake_ups import pool_of
from percola.errors import CommitUnknownError, ObserverError, ObserverTimeoutError, StoreError
from percola.observers.run_records import Recorder
from percola.schema import Column, Family, R, Table, WeakColumn, check_name
from percola.transactions.context import TransactionContext
from percola.transactions.retry import is_undone, not_callable_with, works_later
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction

ObserverFunction = Callable[[Transaction, R], object]
AheadFunction = Callable[[Snapshot, Sequence[R]], object]
OrderFunction = Callable[[Snapshot, Sequence[R]], Sequence[R]]

BATCH: Final = 64
"""How many rows a batch has at most unless the observer says otherwise."""

_BATCH_SECONDS: Final = 0.05
_BATCH_CELLS: Final = 1000
_BATCH_BYTES: Final = 1 << 20


ObservedColumn: TypeAlias = Column[R, Any] | WeakColumn[R]

Notified: TypeAlias = Mapping[Cell, Sequence[int]]
"""Dirty cells of a row, each with the timestamps of the notify entries that a run answers."""


class Watch:
    """Hooks for enforcing a time limit on a run; this base class sets no limit."""

    def begun(self, transaction: ObserverTransaction) -> None:
        """The run has begun, in this transaction."""

    def is_given_up(self) -> bool:
        """Whether the run was given up. If not, it can no longer be given up, and commits."""
        return False


NOBODY: Final = Watch()


@dataclass(frozen=True, slots=True)
class Observer(Generic[R]):
    """A function bound to the columns that it observes.

    Attributes:
        column: an observed column, or a weak column.
        function: called with the transaction and the row; it must not commit.
        name: the key of its acknowledgments in the repository: keep it when the function is
            renamed; with a new name it has acknowledged nothing yet.
        batch: how many rows it may answer in one transaction at most; see `observer`.
        defer: seconds for which it is debounced while there is other work; see `observer`.
        share: cap on its part of a worker's time while there is other work, up to 1.
        dedicated: in how many workers at a time it runs, on a dedicated thread of each; see
            `observer`. False or 0: with the other observers, in every worker.
        ahead: reads in one call what runs for several rows will read; see `observer`.
        others: further columns that it observes, of the same table.
        order: gives dirty rows in the order in which they are to run; see `observer`.
        rate: how many runs a worker begins a second at most; see `observer`.
    """

    column: ObservedColumn[R]
    function: ObserverFunction[R]
    name: str
    batch: int = BATCH
    defer: float = 0.0
    share: float = 1.0
    dedicated: int = 0
    ahead: AheadFunction[R] | None = None
    others: tuple[ObservedColumn[R], ...] = ()
    order: OrderFunction[R] | None = None
    rate: float = math.inf

    def __post_init__(self) -> None:
        if isinstance(self.function, Observer):
            raise ObserverError(
                f"{self.function.name!r} is an observer already. To observe several columns, name "
                "them in one decorator: @observer(price, category)."
            )
        check_name("an observer", self.name)
        self._check_columns()
        if not callable(self.function):
            raise ObserverError(f"The observer {self.name!r} needs a function to call.")
        if works_later(self.function):
            raise ObserverError(
                f"The function of the observer {self.name!r} is a coroutine or a generator, which "
                "does its work after the run has committed: nothing would be done, and the change "
                "would count as answered. Make it a plain function."
            )
        if (why := not_callable_with(self.function, 2)) is not None:
            raise ObserverError(
                f"The function of the observer {self.name!r} cannot be called with a transaction "
                f"and a row ({why}): write def {self.name}(t, row)."
            )
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
        if self.order is not None and not callable(self.order):
            raise ObserverError(
                f"The observer {self.name!r} cannot order rows with {self.order!r}: it is a "
                "function of a snapshot and rows."
            )
        if not isinstance(self.rate, int | float) or not self.rate > 0:
            raise ObserverError(
                f"The observer {self.name!r} cannot have a rate of {self.rate!r}: it is a number "
                "of runs a second, above 0."
            )
        if not isinstance(self.dedicated, int) or self.dedicated < 0:
            raise ObserverError(
                f"The observer {self.name!r} cannot have dedicated={self.dedicated!r}: it is True, "
                "False or a number of workers."
            )
        if self.dedicated and self.defer:
            raise ObserverError(
                f"The observer {self.name!r} cannot both run on a dedicated thread "
                "and be deferred: on a thread of its own it holds up no other observer. Leave out "
                "one of the two."
            )

    def _check_columns(self) -> None:
        for column in self.columns:
            if isinstance(column, Family) or (isinstance(column, Column) and ":" in column.name):
                raise ObserverError(
                    f"{column!r} cannot be observed, as families cannot: have what writes it "
                    "notify a weak column of the row, or write an observed column beside it."
                )
            if not isinstance(column, Column | WeakColumn):
                raise ObserverError(f"{column!r} is not a column that can be observed.")
            if isinstance(column, Column) and not column.observed:
                raise ObserverError(
                    f"The observer {self.name!r} is for {column!r}, which is not observed: "
                    "declare the column with observed=True."
                )
        if len({column.address for column in self.columns}) < len(self.columns):
            raise ObserverError(f"The observer {self.name!r} names a column twice.")
        if len(tables := sorted({column.table_name for column in self.columns})) > 1:
            raise ObserverError(
                f"The observer {self.name!r} is for columns of the tables {', '.join(tables)}: it "
                "runs for a row of one table. Make an observer for each."
            )

    def __call__(self, transaction: Transaction, row: R) -> object:
        return self.function(transaction, row)

    @property
    def columns(self) -> tuple[ObservedColumn[R], ...]:
        """All columns that it observes."""
        first: tuple[ObservedColumn[R], ...] = (self.column,)
        return first + self.others

    @property
    def table(self) -> Table[R]:
        """The table of its columns."""
        return self.column.table

    @property
    def label(self) -> str:
        """Its name, with its columns if it has several; workers compare it (`Observers`)."""
        if not self.others:
            return self.name
        return f"{self.name}({', '.join(sorted(column.name for column in self.columns))})"

    def cells(self, row: bytes) -> list[Cell]:
        """The cells that it observes in a row."""
        return [Cell(column.table_name, row, column.key) for column in self.columns]

    def run(
        self, context: TransactionContext, row: bytes, notified: Notified, watch: Watch = NOBODY
    ) -> bool:
        """Run once for a dirty row unless its changes are acknowledged; return whether it ran.

        `notified` has the row's dirty cells, with the timestamps of the notify entries that this
        run answers. Raises what the function raises, ConflictError if another transaction won,
        and ObserverTimeoutError if the run was given up before the function returned.
        """
        transaction = ObserverTransaction.run_of(self.name, context)
        watch.begun(transaction)
        transaction._expect((row,))
        key = self.table.decode_row(row)
        runs = self._has_to_run(transaction, row, notified)
        recorder = self._recorder(transaction)
        if runs:
            if recorder is not None:
                recorder.begins(row, notified)
            if self.ahead is not None and context.prefetch is not None:
                self.ahead(transaction, [key])
            self._work(transaction, key)
        self._check_wanted(transaction, watch)
        for cell, timestamps in notified.items():
            for ts in timestamps:
                if ts <= transaction.start_ts:
                    transaction._answer(Kind.NOTIFY, cell, ts)
        if runs:
            self._answer_failures(transaction, context, [row])
        _commit(transaction, recorder)
        return runs

    def run_batch(
        self,
        context: TransactionContext,
        rows: Iterable[tuple[bytes, Notified]],
        most: int,
        watch: Watch = NOBODY,
        ahead: Collection[bytes] = (),
    ) -> tuple[list[bytes], int]:
        """Run for dirty rows of its table, one after the other, in one transaction.

        `rows` yields each row, with its dirty cells as for `run`, when its turn comes. The batch
        ends after `most` rows, or once the transaction is large or has run for 50 ms, to keep the
        delay of readers and conflicting writers short. `ahead` has the rows that will probably be
        yielded, and grows: what is read of one may be read of all of them in one call. Returns the
        rows that the commit has answered, and how often the function ran: not for rows whose
        changes are acknowledged. Raises as `run` does.
        """
        table, clock = self.table, context.clock
        until = clock.monotonic() + _BATCH_SECONDS
        transaction = ObserverTransaction.run_of(self.name, context)
        watch.begun(transaction)
        transaction._expect(ahead)
        start_ts = transaction.start_ts
        answered: list[bytes] = []
        runs = 0
        read_ahead = self.ahead if context.prefetch is not None else None
        begun: set[bytes] = set()
        recorder = self._recorder(transaction)
        for row, notified in rows:
            seen = {
                cell: [ts for ts in timestamps if ts <= start_ts]
                for cell, timestamps in notified.items()
            }
            if any(seen.values()):  # Else it was notified since this began: nothing to answer.
                if self._has_to_run(transaction, row, seen):
                    if read_ahead is not None and row not in begun:
                        fresh = [one for one in dict.fromkeys((row, *ahead)) if one not in begun]
                        read_ahead(transaction, [table.decode_row(one) for one in fresh])
                        begun.update(fresh)
                    if recorder is not None:
                        recorder.begins(row, seen)
                    self._work(transaction, table.decode_row(row))
                    runs += 1
                for cell, timestamps in seen.items():
                    for ts in timestamps:
                        transaction._answer(Kind.NOTIFY, cell, ts)
                answered.append(row)
            if len(answered) >= most or transaction.is_large or clock.monotonic() >= until:
                break
        self._check_wanted(transaction, watch)
        if answered:
            self._answer_failures(transaction, context, answered)
        _commit(transaction, recorder)
        return answered, runs

    def _work(self, transaction: ObserverTransaction, row: R) -> None:
        """Call the function; ObserverError if it has returned what has yet to be run."""
        result = self.function(transaction, row)
        if result is not None and is_undone(result):
            raise ObserverError(
                f"The function of the observer {self.name!r} has returned a "
                f"{type(result).__name__}, which does its work after the run has committed: "
                "nothing would be done, and the change would count as answered. Perhaps a "
                "decorator hides what the function is. Make it a plain function."
            )

    def _recorder(self, transaction: Transaction) -> Recorder | None:
        """Records the runs of a transaction, if runs are recorded."""
        context = transaction._context
        _ = transaction.start_ts  # Before the switch is read: see `percola.recording`.
        if not context.recording.is_on(context.store, context.clock):
            return None
        return Recorder(transaction, self.name, self.table.name)

    def _check_wanted(self, transaction: Transaction, watch: Watch) -> None:
        """Raise ObserverTimeoutError if the run was given up; else it can no longer be."""
        if watch.is_given_up():
            transaction.rollback()
            raise ObserverTimeoutError(f"{self.name} took too long; nothing was committed.")

    def _answer_failures(
        self, transaction: Transaction, context: TransactionContext, rows: Sequence[bytes]
    ) -> None:
        """Have the commit remove these rows' dead letters at or below its start_ts."""
        store, table, start_ts = context.store, self.table.name, transaction.start_ts
        names = [failed_column(self.name, self.column.key)]
        names += [failed_column(self.name, column.key) for column in self.others]
        if len(rows) > 1:
            # Few rows have dead letters: one scan usually shows that these have none.
            first, last = min(rows), max(rows)
            found, more = store.scan_kind(Kind.FAILED, table, first, last + b"\0", limit=16)
            if more is None:
                known = set(rows)
                for cell, ts, _ in found:
                    if cell.row in known and cell.column in names and ts <= start_ts:
                        transaction._answer(Kind.FAILED, cell, ts)
                return
        for failed in [Cell(table, row, name) for row in rows for name in names]:
            for ts, _ in store.entries(failed, Kind.FAILED, 0, start_ts):
                transaction._answer(Kind.FAILED, failed, ts)

    def _has_to_run(self, transaction: ObserverTransaction, row: bytes, notified: Notified) -> bool:
        """Whether one of the row's cells has changed since the last run, or was notified weakly.

        If so, this run acknowledges each such cell.
        """
        if not self.others:  # The common case.
            column = self.column
            cell = Cell(column.table_name, row, column.key)
            if isinstance(column, WeakColumn):
                self._set_acknowledgment(transaction, cell)
                return True
            return self._acknowledge(transaction, cell)
        runs = False
        for column, cell in zip(self.columns, self.cells(row), strict=True):
            if not isinstance(column, WeakColumn):
                runs |= self._acknowledge(transaction, cell)
            elif cell in notified:
                self._set_acknowledgment(transaction, cell)
                runs = True
        return runs

    def _acknowledge(self, transaction: ObserverTransaction, cell: Cell) -> bool:
        """Whether the cell has changed since the last run; if so, this run acknowledges it."""
        ack = Cell(cell.table, cell.row, ack_column(self.name, cell.column))
        changed, acknowledged = transaction._observe(cell, ack)
        if acknowledged is not None and changed <= decode_ts(acknowledged):
            return False
        if not changed:
            return False
        transaction._put(ack, encode_ts(transaction.start_ts))
        if transaction._context.spans is not None:
            transaction._causes.append(changed)
        return True

    def _set_acknowledgment(self, transaction: Transaction, cell: Cell) -> None:
        """Acknowledge a weak notification: this conflicts with every run that overlaps."""
        ack = Cell(cell.table, cell.row, ack_column(self.name, cell.column))
        transaction._put(ack, encode_ts(transaction.start_ts))


def _commit(transaction: Transaction, recorder: Recorder | None) -> None:
    """Commit a run; StoreError if it has committed, but its notify entries may still be there.

    The cell is found dirty again at once. Without the error, the worker would retry without a
    pause for as long as the store refuses. It is also a StoreError if the outcome is unknown: the
    next run finds the acknowledgment or not, and no attempt of the observer's has failed.
    """
    if recorder is not None:
        recorder.write()
    try:
        transaction.commit()
    except CommitUnknownError as error:
        raise StoreError(str(error)) from error
    if transaction.unfinished is not None:
        raise transaction.unfinished


class _GivenUp(str):
    """The reason why a transaction was given up, stored as its `_used_up`."""


class ObserverTransaction(Transaction):
    """The transaction of a run or a batch of runs; another thread can give it up.

    It keeps the observed cells of the row that it is run for: their values are read to find out
    whether they have changed, and most observers read them again.
    """

    __slots__ = ("_row", "_seen", "_span_name")

    _row: bytes | None
    _seen: dict[Cell, bytes | None]

    @classmethod
    def run_of(cls, observer: str, context: TransactionContext) -> Self:
        """Begin one for a run of the observer of this name."""
        begun = cls(context)
        begun._span_name = observer
        begun._row = None
        begun._seen = {}
        return begun

    def _observe(self, cell: Cell, ack: Cell) -> tuple[int, bytes | None]:
        state, (_, _, acknowledged) = self._states((cell, ack))
        if cell.row != self._row:
            self._row = cell.row
            self._seen.clear()
        self._seen[cell] = state[2]
        return state[1], acknowledged

    def _visible(self, cell: Cell) -> bytes | None:
        if cell in self._seen:
            own = self._writes.get(cell)
            return self._seen[cell] if own is None or own[0] == Op.LOCK else own[1]
        return Transaction._visible(self, cell)

    def _needs_read(self, cell: Cell) -> bool:
        return cell not in self._seen and Transaction._needs_read(self, cell)

    def give_up(self, why: str) -> None:
        """Prevent further reads and the commit, and no longer hold back garbage collection.

        Called by the thread that enforces the time limit, since the observer's thread cannot be
        stopped: the observer's next read or commit raises ObserverTimeoutError with `why`.
        """
        self._used_up = _GivenUp(why)
        self._unregister()

    def _check_usable(self) -> None:
        if isinstance(self._used_up, _GivenUp):
            raise ObserverTimeoutError(self._used_up)
        Transaction._check_usable(self)

    @property
    def is_large(self) -> bool:
        """Whether it writes enough for one commit."""
        cells = len(self._writes) + len(self._notifications)
        return cells >= _BATCH_CELLS or self._bytes >= _BATCH_BYTES


def observer(
    column: ObservedColumn[R],
    *others: ObservedColumn[R],
    name: str | None = None,
    batch: int = BATCH,
    defer: float = 0.0,
    share: float = 1.0,
    dedicated: bool | int = False,
    ahead: AheadFunction[R] | None = None,
    order: OrderFunction[R] | None = None,
    rate: float = math.inf,
) -> Callable[[ObserverFunction[R]], Observer[R]]:
    """Turn a function into an `Observer`: `@observer(column)`; its name is the function's.

    Args:
        column: an observed or a weak column.
        others: further columns of the same table: one run answers the changes of all of them in
            a row.
        batch: how many dirty rows one transaction may answer at most. A row that is dirty alone
            runs alone; while rows wait, batches grow from 8 rows to this number, and a batch ends
            after 50 ms or about 1 MiB of writes. The function is called for one row after the
            other, with the same transaction: each call sees the same snapshot and the writes of the
            calls before it. They commit together. If the batch fails, for any reason, each row runs
            again in its own transaction, so the function may be called more often than it commits,
            as is the case without batches. 1: each row has a transaction, and so a `start_ts`, of
            its own. Use it where a run has effects outside of the repository that should not be
            repeated because another row failed, or is so long that no other row should wait for it.
            Rows of a column that several observers share run one by one.
        defer: seconds for which a worker may leave its column's changes unhandled while it finds
            other work (a debounce). Where several observers share a column, the shortest counts.
        share: cap on its part of a worker's time while the worker finds other work. After a run of
            one second with a share of 0.2, its column is skipped for four seconds, and the changes
            that arrive meanwhile are answered together. Use it where a run has a high fixed cost.
            Where several observers share a column, the largest counts.
        dedicated: run it on a dedicated thread, and in one worker at a time, or in as many as this
            number: the others stand by, and one of them takes over when such a worker ends, even
            by a crash. Each worker runs it for other rows. Use it for one that
            waits for an external system or keeps a resource open there. It is not a lock: two
            runs may occasionally overlap, like any two runs. Where several observers share a
            column, all run on the dedicated thread if one does. `share` then caps that thread's
            time while other threads are busy.
        ahead: on a store behind a network, called with the transaction and some rows before the
            function is called for them. It reads with `get_many` and `get_rows` what the function
            will read, so that the function finds it in the transaction's cache. Some of the rows
            may not get their turn in this transaction. It affects only the number of calls: it
            must not write, and the function must not rely on it. An exception that it raises fails
            the run. Use it where a run reads other rows than its own.
        order: called with a snapshot and dirty rows, of which it returns those that run first, in
            order. It sees all that wait, or 10,000 of them from a random place on, and is called
            again every two seconds, so it must be fast. It affects only when a row runs: it must
            not write, rows that it leaves out run last, and if it raises, rows run in any order.
        rate: how many runs each worker begins a second, at most, a batch being one. Rows wait
            meanwhile, and what changes while its row waits is answered by one run. Where several
            observers share a column, the largest counts.

    Raises ObserverError for a column that is not observed, for columns of several tables, for a
    function that is a coroutine or a generator, and for an invalid batch, defer, share, ahead,
    order or rate; SchemaError for an unusable name.
    """

    def bind(function: ObserverFunction[R]) -> Observer[R]:
        own = str(getattr(function, "__name__", ""))
        return Observer(
            column,
            function,
            name or own,
            batch,
            defer,
            share,
            int(dedicated) if isinstance(dedicated, bool) else dedicated,
            ahead,
            others,
            order,
            rate,
        )

    return bind


def what_to_list(one: object) -> str:
    """What belongs into a list of observers in place of something that is none."""
    if hasattr(one, "observers"):  # A recipe.
        return "list its `observers`"
    return "decorate the function with @observer(column)"


class Observers:
    """The observers of one worker, by the columns that they observe.

    Columns are named as (table, column).

    Attributes:
        tables: the tables that have an observed column, in order.
        together: the columns of the observers of each column.
        dedicated: the columns that some workers handle, on a dedicated thread, and how many.
        apart: these, those together that have an observer in common, by the first of them.
        deferred: the columns that are debounced, and for how many seconds.
        sharing: the columns with a cap on their part of a worker's time, and the cap.
        ordered: the columns whose dirty rows have an order, and the observer that knows it.
        limited: the columns with a limit for how many runs begin a second, and the limit.
        prompt: the columns that the shared threads handle without debouncing.
    """

    def __init__(self, observers: Iterable[Observer[Any]]) -> None:
        self._by_column: dict[tuple[str, bytes], list[Observer[Any]]] = {}
        self._by_name: dict[str, Observer[Any]] = {}
        if isinstance(observers, Observer):
            raise ObserverError(
                f"A worker takes a list of observers, but this is {observers.name!r} alone: write "
                f"[{observers.name}]."
            )
        for one in observers:
            if not isinstance(one, Observer):
                raise ObserverError(f"{one!r} is not an observer: {what_to_list(one)}.")
            if one.name in self._by_name:
                raise ObserverError(f"Two observers are named {one.name!r}; each needs its own.")
            self._by_name[one.name] = one
            for column in one.columns:
                group = self._by_column.setdefault(column.address, [])
                if group and isinstance(column, WeakColumn):
                    raise ObserverError(
                        f"The weak column {column!r} has two observers, {group[0].name!r} and "
                        f"{one.name!r}: it can have one, for it has no acknowledgments."
                    )
                group.append(one)
        if not self._by_name:
            raise ObserverError("A worker needs at least one observer.")
        groups = self._by_column
        self.tables: Final = sorted({table for table, _ in groups})
        self.together: Final[Mapping[tuple[str, bytes], Set[tuple[str, bytes]]]] = {
            address: {column.address for one in group for column in one.columns}
            for address, group in groups.items()
        }
        self.dedicated: Final[Mapping[tuple[str, bytes], int]] = {
            address: workers
            for address, group in groups.items()
            if (workers := max(one.dedicated for one in group))
        }
        self.apart: Final[Mapping[tuple[str, bytes], Set[tuple[str, bytes]]]] = self._apart()
        longest = {address: min(one.defer for one in group) for address, group in groups.items()}
        self.deferred: Final[Mapping[tuple[str, bytes], float]] = {
            address: seconds
            for address, seconds in longest.items()
            if seconds and address not in self.dedicated
        }
        largest = {address: max(one.share for one in group) for address, group in groups.items()}
        self.sharing: Final[Mapping[tuple[str, bytes], float]] = {
            address: share for address, share in largest.items() if share < 1
        }
        self.ordered: Final[Mapping[tuple[str, bytes], Observer[Any]]] = {
            address: one for address, group in groups.items() for one in group if one.order
        }
        highest = {address: max(one.rate for one in group) for address, group in groups.items()}
        self.limited: Final[Mapping[tuple[str, bytes], float]] = {
            address: rate for address, rate in highest.items() if rate < math.inf
        }
        self.prompt: Final = frozenset(groups.keys() - self.deferred.keys() - self.dedicated.keys())

    def _apart(self) -> dict[tuple[str, bytes], Set[tuple[str, bytes]]]:
        found: list[set[tuple[str, bytes]]] = []
        for address in self.dedicated:
            mine = self.together[address] & self.dedicated.keys()
            joined = [mine, *(one for one in found if one & mine)]
            found = [one for one in found if not one & mine] + [set().union(*joined)]
        return {min(one): one for one in found}

    def __iter__(self) -> Iterator[Observer[Any]]:
        return iter(self._by_name.values())

    @property
    def pool(self) -> bytes:
        """The pool of workers that run these observers; see `Coordination.idle`.

        Where a worker may be idle and yet not run an observer at once, all are told of rows: of a
        column on a dedicated thread, which others have claimed, and of one with a limit of runs.
        """
        apart = {table for table, _ in (*self.dedicated, *self.limited)}
        names = [f"{column} {name}" for column, of in self.announcement.items() for name in of]
        return pool_of(names, self.tables, apart)

    def of(self, cell: Cell) -> Sequence[Observer[Any]]:
        """The observers of a cell's column."""
        return self._by_column.get((cell.table, cell.column), ())

    def all_among(self, names: frozenset[str]) -> frozenset[tuple[str, bytes]]:
        """The columns all of whose observers have one of these names."""
        return frozenset(
            address
            for address, group in self._by_column.items()
            if all(one.name in names for one in group)
        )

    @property
    def addresses(self) -> Set[tuple[str, bytes]]:
        """The columns that they observe, as (table, column)."""
        return self._by_column.keys()

    @property
    def announcement(self) -> dict[str, list[str]]:
        """Which observers run on which column, as announced to other workers."""
        return {
            f"{table}.{column.decode()}": [one.label for one in group]
            for (table, column), group in self._by_column.items()
        }
