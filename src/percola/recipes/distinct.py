"""How many different values the rows of a group have.

    buyers.values['shoes/c001']  refs    3       rows that contribute this value to this group
                                 value   "c001"
    buyers['shoes']              count   17      different values

A value is counted in its group when its first row contributes it, and no longer when its last row
takes it back. Both are transitions of `refs`, so most contributions do not touch the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic

from percola.recipes.applied import Applied, check_contribution
from percola.recipes.comparing import Claim, Comparison, Recipe, Scan
from percola.recipes.keys import below, join, keys_in
from percola.recipes.sums import Sums
from percola.schema import Column, R, Table
from percola.transactions.row import Row
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction


class Distinct(Recipe, Generic[R]):
    """The different values of each group, and their number.

    All rows that contribute one value to one group write one cell, so it conflicts where many
    transactions add the same value at a time.

    Args:
        name: of the derived table; `NAME.values` has a row for each group and value.
        source: the table whose rows contribute, of which this declares the column
            `applied.NAME.values`.
        feed: whether changes of the derived table can be followed.
        observed: whether `counts.count` is an observed column: an observer of it may read a group
            with `get`, and contribute for it to another recipe, whose source is `counts.table`.

    Attributes:
        counts: the number of different values of each group, as a `Sums` without measures.
        tables: what the schema must contain besides the source.
        observers: what a worker must run.
    """

    def __init__(
        self, name: str, source: Table[R], *, feed: bool = False, observed: bool = False
    ) -> None:
        self.applied: Final[Applied[R]] = Applied(source, f"{name}.values")
        self.values_table: Final[Table[str]] = Table(f"{name}.values")
        self._refs: Column[str, int] = self.values_table.column("refs", int)
        self._value: Column[str, str] = self.values_table.column("value", str)
        self.counts: Final[Sums[str]] = Sums(name, self.values_table, feed=feed, observed=observed)
        self.tables = (self.values_table, *self.counts.tables)
        self.observers = self.counts.observers

    def contribute(self, t: Transaction, row: R, now: Mapping[str, Iterable[str]]) -> bool:
        """Let a row contribute these values, by group, instead of those that it contributed.

        Returns whether anything changed. Raises WrongTypeError for a value that is not a text.
        """
        check_contribution(now)
        wanted = {group: keys_in(values) for group, values in now.items()}
        now = {group: values for group, values in wanted.items() if values}
        changes = self.applied.changes(t, row, now)
        for group, _, _ in changes:
            # Before anything is written: a program may catch the error of a long one, and commit.
            t._cell(self.counts.count, group)
        self.applied.record(t, row, now, changes)
        for group, before, after in changes:
            old, new = set(before or ()), set(after or ())
            for value in sorted(old ^ new):
                self._count(t, group, value, 1 if value in new else -1)
        return bool(changes)

    def _count(self, t: Transaction, group: str, value: str, change: int) -> None:
        key = join(group, value)
        before = t.get(self._refs, key) or 0
        if before + change:
            t.set(self._refs, key, before + change)
        else:
            t.delete(self._refs, key)
            t.delete(self._value, key)
            self.counts.contribute(t, key, {})
        if not before:
            t.set(self._value, key, value)
            self.counts.contribute(t, key, {group: {}})

    def get(self, now: Snapshot, group: str) -> int:
        """How many different values the rows of a group have as of the snapshot."""
        return self.counts.get(now, group).count

    def get_many(self, now: Snapshot, groups: Iterable[str]) -> list[int]:
        """How many different values many groups have, in one store call (§2.5)."""
        return [found.count for found in self.counts.get_many(now, groups)]

    def values(self, now: Snapshot, group: str) -> Iterator[str]:
        """The different values of a group, in the order of their keys."""
        columns = [self._value]
        for row in now.scan(self.values_table, prefix=below(group), columns=columns):
            yield row[self._value]

    def comparisons(self) -> Sequence[Comparison]:
        """How the values are recounted from the `applied` records; see `percola.recipes.check`."""
        scans = [
            Scan(self.values_table, [self._refs], self._found),
            self.applied.scan(self._contributed),
        ]
        own = Comparison(self.values_table.name, scans, self._combined, self._judge)
        return [own, *self.counts.comparisons()]

    def _found(self, row: Row[str]) -> Iterator[Claim]:
        yield Claim(row.key, found=row[self._refs])

    @staticmethod
    def _contributed(row: R, group: str, values: Iterable[str]) -> Iterator[Claim]:
        for value in values:
            yield Claim(join(group, value), 1)

    @staticmethod
    def _combined(kind: str, left: int, right: int) -> int:
        return left + right

    def _judge(self, kind: str, key: str, expected: int | None, found: int | None) -> Iterator[str]:
        name = f"{self.values_table.name}[{key!r}]"
        if found is None:
            yield f"{name} is missing; {expected} rows contribute it."
        elif found != (expected or 0):
            yield f"{name} is contributed by {found} rows; it should be {expected or 0}."
