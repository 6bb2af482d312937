"""Derived tables compared with what their sources have contributed.

    orders['o17'] applied.spent = {"c001": {"euros": 90}}    ─▶ c001 should have 1 row, 90 euros
    spent['c001'] count = 3, euros = 190                     ─▶ c001 has 3 rows, 190 euros

Each row of the two tables claims something of a few keys: what they should have, or what they have.
The claims of all rows are brought together by key and judged. This process does so in a dictionary,
Spark by a shuffle. What is expected is added up by functions of its own, and not by those that keep
the derived table; of a tree, `Monoid.combine` and `prepare` are used by both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from percola.observers.observer import Observer
from percola.ranges import Runner, TableRange, whole
from percola.schema import Column, Family, Table
from percola.transactions.context import TransactionContext
from percola.transactions.row import Row
from percola.transactions.snapshot import Snapshot

MOST_DIFFERENCES: Final = 10_000
"""How many differences are returned, unless it is said."""

_Key = tuple[str, str]
_Value = tuple[str, Any, Any]


class Claim(NamedTuple):
    """What a row says of a key: what it should have, what it has, or both.

    Attributes:
        name: the key.
        expected: what it should have; None if this row says nothing of that.
        found: what it has; None likewise.
        kind: for recipes that compare keys of several kinds.
    """

    name: str
    expected: Any = None
    found: Any = None
    kind: str = ""


class Scan(NamedTuple):
    """The rows of a table, those columns of them, and what a row claims."""

    table: Table[Any]
    columns: Sequence[Column[Any, Any] | Family[Any, Any]]
    claims: Callable[[Row[Any]], Iterator[Claim]]


class Comparison(NamedTuple):
    """How a derived table is compared with its source. Is sent to Spark's executors.

    Attributes:
        name: of the derived table.
        scans: one for each table, the derived table first.
        combine: makes one of two claims' values; gets the kind of the key.
        judge: yields what is wrong with a key, in sentences: kind, name, expected, found.
    """

    name: str
    scans: Sequence[Scan]
    combine: Callable[[str, Any, Any], Any]
    judge: Callable[[str, str, Any, Any], Iterator[str]]


class Checkable(ABC):
    """What `percola.recipes.check` compares: recipes, and exports."""

    @abstractmethod
    def comparisons(self) -> Sequence[Comparison]:
        """How the derived tables are compared with the `applied` records."""


class Recipe(Checkable):
    """What Sums, Distinct, Tree and Index have in common.

    Attributes:
        tables: what the schema must contain besides the source.
        observers: what a worker must run.
    """

    tables: Sequence[Table[Any]]
    observers: Sequence[Observer[Any]]


def differences(
    context: TransactionContext, at: int, one: Comparison, runner: Runner, most: int
) -> tuple[int, list[str]]:
    """How many differences there are in the snapshot at that timestamp, and `most` of them."""
    ranges = runner.cut(context.store, whole(scan.table.name for scan in one.scans))
    return runner.grouped(
        context,
        ranges,
        _Claims(one, at),
        _Combine(one),
        _Judge(one),
        title=f"Comparing {one.name}",
        most=most,
    )


# Classes, so that they can be sent to other processes.


@dataclass(frozen=True, slots=True)
class _Claims:
    """The claims of a range's rows, by key."""

    comparison: Comparison
    at: int

    def __call__(
        self, context: TransactionContext, number: int, one: TableRange
    ) -> Generator[tuple[_Key, _Value]]:
        scan = next(scan for scan in self.comparison.scans if scan.table.name == one.table)
        with Snapshot(context, self.at) as now:
            columns = now._wanted(scan.table, scan.columns)
            for row in now._rows(scan.table, one.start, one.end, columns):
                for name, expected, found, kind in scan.claims(row):
                    yield (kind, name), (kind, expected, found)


@dataclass(frozen=True, slots=True)
class _Combine:
    comparison: Comparison

    def __call__(self, left: _Value, right: _Value) -> _Value:
        kind, *lefts = left
        expected, found = (
            a if b is None else b if a is None else self.comparison.combine(kind, a, b)
            for a, b in zip(lefts, right[1:], strict=True)
        )
        return kind, expected, found


@dataclass(frozen=True, slots=True)
class _Judge:
    comparison: Comparison

    def __call__(self, key: _Key, value: _Value) -> Iterator[str]:
        return self.comparison.judge(*key, *value[1:])
