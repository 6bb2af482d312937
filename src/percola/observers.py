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
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from percola.cells import Cell, Kind, ack_column, decode_ts, encode_ts, failed_column
from percola.errors import ObserverError, ObserverTimeoutError
from percola.schema import Column, R, WeakColumn, check_name
from percola.snapshot import Services
from percola.transaction import Transaction

ObserverFunction = Callable[[Transaction, R], object]


@dataclass(frozen=True, slots=True)
class Observer(Generic[R]):
    """A function bound to the column that it observes.

    Attributes:
        column: an observed column, or a weak column.
        function: called with the transaction and the row; it must not commit.
        name: what its acknowledgments stand under in the repository: keep it when the
            function is renamed, change it to have every later change seen anew.
    """

    column: Column[R, Any] | WeakColumn[R]
    function: ObserverFunction[R]
    name: str

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
        cell = Cell(table.name, row, column.key)
        key = table.decode_row(row)
        runs = True
        if isinstance(column, Column):
            runs = self._acknowledge(transaction, cell)
        if runs:
            self.function(transaction, key)
        if is_abandoned():
            transaction.rollback()
            raise ObserverTimeoutError(f"{self.name} took too long; nothing was committed.")
        for ts in notified:
            if ts <= transaction.start_ts:
                transaction.answer(Kind.NOTIFY, cell, ts)
        if runs:
            failed = Cell(table.name, row, failed_column(self.name, column.key))
            # Not those of changes that this run has not seen.
            for ts, _ in services.store.entries(failed, Kind.FAILED, 0, transaction.start_ts):
                transaction.answer(Kind.FAILED, failed, ts)
        transaction.commit()
        return runs

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


def observer(
    column: Column[R, Any] | WeakColumn[R], *, name: str | None = None
) -> Callable[[ObserverFunction[R]], Observer[R]]:
    """Make an `Observer` of a function: `@observer(column)`; its name is the function's.

    Raises ObserverError for a column that is not observed, SchemaError for an unusable name.
    """

    def bind(function: ObserverFunction[R]) -> Observer[R]:
        return Observer(column, function, name or str(getattr(function, "__name__", "")))

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

    @property
    def announcement(self) -> dict[str, list[str]]:
        """Which observers run on which column, as other workers are told."""
        return {
            f"{table}.{column.decode()}": [one.name for one in group]
            for (table, column), group in self._by_column.items()
        }
