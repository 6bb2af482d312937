"""Sums, counts and means by group, kept under any number of concurrent contributors.

    spent['c001'] count          31      how many rows contribute
                  euros        1290      the sum of a measure over them
                  shards          4      how many cells take new contributions now; absent: none
                  part:2          {"count": 1, "euros": 12}    not in `count` and `euros` yet
                  fold                   weak: there are parts

A contribution changes `count` and the measures of its group directly: a read and a write for each.
Where many transactions do so at a time they conflict, and the group is given shards: each
transaction adds to one of a few parts, and an observer folds the parts into the sums, at most about
once a second. A group is given twice the shards when transactions still conflict there, half of
them when a fold finds most unused, and none once nothing contributes to it. At every timestamp a
group's sum is its sums and parts together.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from typing import Any, Final, Generic

from percola.codecs import TYPE_NAMES, Codec
from percola.errors import ConflictError, SchemaError, WrongTypeError
from percola.observers.observer import observer
from percola.recipes.applied import VALUES, Applied, check_contribution
from percola.recipes.comparing import Claim, Comparison, Recipe, Scan
from percola.recipes.keys import listed
from percola.schema import Column, Family, R, Table, WeakColumn
from percola.transactions.row import Row
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction

Number = int | float | Decimal
_Writes = list[tuple[Column[str, Any], str, Any]]

MOST_SHARDS: Final = 64
FOLD_SECONDS: Final = 1.0
"""For how long parts may wait to be folded while a worker finds other work."""

_EXACT: Final = Context(prec=100, traps=[Inexact])
"""Decimals are added in this context: a program's own would round sums to 28 digits."""
_NOT_SUMMED: Final = frozenset(TYPE_NAMES) - {"int", "int16", "int32", "int64", "float"}

_COUNT: Final = "count"
_REMEMBERED: Final = 4096
"""Groups of which a process remembers that they need more shards, until it has written so."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The sums of one group at one timestamp.

    Attributes:
        count: how many rows contribute.
        sums: the sum of each measure.
    """

    count: int
    sums: Mapping[str, Any]

    def __getitem__(self, measure: str) -> Any:
        """The sum of a measure; KeyError if there is no such measure."""
        return self.sums[measure]

    def __bool__(self) -> bool:
        return self.count != 0

    def mean(self, measure: str) -> Any:
        """The sum of a measure divided by `count`; None for a group without contributions."""
        return self.sums[measure] / self.count if self.count else None


class Sums(Recipe, Generic[R]):
    """Sums of measures, and the number of contributing rows, by group.

    Args:
        name: of the derived table, which this declares. Its rows are the groups.
        source: the table whose rows contribute, of which this declares the column `applied.NAME`.
        measures: the type of each measure: int, INT16 to INT64, decimal_of(…) or float. Sums of
            integers and decimals are exact; the sum of floats depends on the order of additions in
            its last digits.
        feed: whether changes of the derived table can be followed.
        observed: whether `count` and the measures are observed columns: an observer of them may
            read a group with `get`, and contribute for it to another recipe, whose source is
            `table`. It runs again once parts have been folded.

    Attributes:
        table: the derived table.
        count: the column with the number of contributing rows.
        measures: the columns with the sums, by name.
        tables: what the schema must contain besides the source.
        observers: what a worker must run.
    """

    def __init__(
        self,
        name: str,
        source: Table[R],
        measures: Mapping[str, type[Number] | Codec[Any]] | None = None,
        *,
        feed: bool = False,
        observed: bool = False,
    ) -> None:
        if not isinstance(measures, Mapping | None):
            raise SchemaError(
                f"The measures of the sums {name!r} are types by name, as in {{'euros': int}}, but "
                f"these are {measures!r}."
            )
        self.table: Final[Table[str]] = Table(name, feed=feed)
        self.count: Final[Column[str, int]] = self.table.column(_COUNT, int, observed=observed)
        self.measures: Final[Mapping[str, Column[str, Any]]] = {
            measure: self.table.column(measure, type_, observed=observed)
            for measure, type_ in (measures or {}).items()
        }
        if reserved := self.measures.keys() & {"shards", "part", "fold"}:
            raise SchemaError(
                f"A measure of the sums {name!r} cannot be named {min(reserved)!r}: the table has "
                "a column of that name for its own use."
            )
        for measure, column in self.measures.items():
            if column.codec.name in _NOT_SUMMED:
                raise SchemaError(
                    f"The measure {measure!r} of the sums {name!r} is {column.codec.name}, of "
                    "which sums would not be right: use int, float or percola.decimal_of(…)."
                )
        # As a column gives them, so that a group without rows has Decimal("0.00"), too.
        self._zeros: Final[Mapping[str, Any]] = {
            measure: column.decode_value(column.encode_value(_zero(column)))
            for measure, column in self.measures.items()
        }
        self._shards: Column[str, int] = self.table.column("shards", int)
        self._part: Family[str, Any] = self.table.family("part", VALUES)
        self._fold: WeakColumn[str] = self.table.weak_column("fold")
        self.applied: Final[Applied[R]] = Applied(source, name)
        self.tables = (self.table,)
        self.observers = (
            observer(self._fold, name=f"{name}.fold", defer=FOLD_SECONDS)(self._fold_group),
        )
        # Groups, encoded, in which a transaction of this process has conflicted.
        self._contended: set[bytes] = set()

    # --- Contributing -------------------------------------------------------------------

    def contribute(self, t: Transaction, row: R, now: Mapping[str, Mapping[str, Any]]) -> bool:
        """Let a row of the source contribute `now`, instead of what it contributed before.

        Args:
            row: the owner of the contribution.
            now: the measures by group: `{"c001": {"euros": 90}}`. A measure that is None or
                missing adds nothing; a group without measures is counted. Empty: the row
                contributes nothing any more.

        Returns whether anything changed. Raises WrongTypeError for a value of a wrong type or if a
        sum does not fit its column, and SchemaError for an unknown measure, also one to which the
        row has contributed before.
        """
        check_contribution(now)
        for measures in now.values():
            self._check(measures)
        changes = self.applied.changes(t, row, now)
        writes: _Writes = []
        for group, before, after in changes:
            self._check_known(group, before or {})
            deltas = {
                measure: _difference((before or {}).get(measure), (after or {}).get(measure))
                for measure in self.measures
            }
            count = (after is not None) - (before is not None)
            deltas = {measure: delta for measure, delta in deltas.items() if delta}
            self._add(t, group, count, deltas, writes)
            if after is not None:
                known = (before or {}).keys() | deltas.keys()
                self._begin(t, group, [one for one in self.measures if one not in known], writes)
        # All or nothing: a program may catch the error of one row, and commit the others.
        self.applied.record(t, row, now, changes)
        for column, group, value in writes:
            t.set(column, group, value)
        return bool(changes)

    def _check(self, measures: Mapping[str, Any]) -> None:
        if not isinstance(measures, Mapping):
            raise WrongTypeError(
                f"A row contributes a dictionary of measures to a group of the sums "
                f"{self.table.name!r}, but this is {type(measures).__name__} {measures!r}."
            )
        for measure, value in measures.items():
            column = self.measures.get(measure)
            if column is None:
                known = ", ".join(self.measures) or "none"
                raise SchemaError(
                    f"The sums {self.table.name!r} have no measure {measure!r}. They have: {known}."
                )
            if value is None:
                continue
            if isinstance(value, float) and not math.isfinite(value):
                raise WrongTypeError(f"{value!r} cannot be added to {column!r}.")
            column.encode_value(value)

    def _check_known(self, group: str, before: Mapping[str, Any]) -> None:
        """Refuse to replace or to fold contributions to measures that these sums lack.

        They would stay in a sum for ever, or be lost: perhaps those of a newer program.
        """
        for measure, value in before.items():
            if value and measure not in self.measures:
                raise SchemaError(
                    f"A row has contributed {value!r} to the measure {measure!r} of the sums "
                    f"{self.table.name!r} in the group {group!r}, and these have none of that "
                    "name: declare it, as the program did that wrote this. To do without it, give "
                    "the sums another name."
                )

    def _add(
        self,
        t: Transaction,
        group: str,
        count: int,
        deltas: Mapping[str, Any],
        writes: _Writes,
    ) -> None:
        """Add to the sums of a group, or to one of its parts: to `writes`, what has to be set."""
        if not count and not deltas:
            return
        shards = t.get(self._shards, group) or 0
        if self._contended and (key := group.encode()) in self._contended:
            self._contended.discard(key)
            if shards < MOST_SHARDS:
                shards = max(2, 2 * shards)
                t.set(self._shards, group, shards)
        t.on_conflict(self._note_conflict)
        if shards:
            part = self._part[str(shard_of(t.start_ts, shards))]
            self._add_to_part(t, part, group, count, deltas, writes)
        else:
            self._add_to_sums(t, group, count, deltas, writes)

    def _add_to_part(
        self,
        t: Transaction,
        part: Column[str, Any],
        group: str,
        count: int,
        deltas: Mapping[str, Any],
        writes: _Writes,
    ) -> None:
        found = dict(t.get(part, group) or {})
        found[_COUNT] = found.get(_COUNT, 0) + count
        for measure, delta in deltas.items():
            found[measure] = plus(found.get(measure, 0), delta)
        writes.append((part, group, found))
        t.notify(self._fold, group)

    def _add_to_sums(
        self,
        t: Transaction,
        group: str,
        count: int,
        deltas: Mapping[str, Any],
        writes: _Writes,
    ) -> None:
        total = (t.get(self.count, group) or 0) + count
        if count:
            writes.append((self.count, group, total))
        for measure, delta in deltas.items():
            column = self.measures[measure]
            value = plus(t.get(column, group) or 0, delta)
            column.encode_value(value)  # Raises WrongTypeError if it does not fit.
            writes.append((column, group, value))
        if not total:
            # Perhaps nothing contributes any more. There may be parts, so only a fold can tell.
            t.notify(self._fold, group)

    def _begin(self, t: Transaction, group: str, measures: Sequence[str], writes: _Writes) -> None:
        """Have a group whose sums are 0 so far say so: a missing cell is NULL in SQL."""
        for measure in measures:
            if t.get(self.measures[measure], group) is None:
                writes.append((self.measures[measure], group, self._zeros[measure]))

    def _note_conflict(self, error: ConflictError) -> None:
        """Have the next transaction of this process give the group more shards."""
        cell = error.cell
        if cell.table != self.table.name or cell.column == self._shards.key:
            return  # Or another process has just changed their number.
        if len(self._contended) >= _REMEMBERED:
            self._contended.clear()
        self._contended.add(cell.row)

    # --- Folding ------------------------------------------------------------------------

    def _fold_group(self, t: Transaction, group: str) -> None:
        """Add a group's parts to its sums; the run of the weak column `fold`."""
        row: Row[str] = t.get_row(self.table, group)
        now: Aggregate = self._aggregate(row)
        parts = row.family(self._part)
        for shard, part in parts.items():
            self._check_known(group, {name: part[name] for name in part if name != _COUNT})
            t.delete(self._part[shard], group)
        # No row contributes: what is left of a sum of floats is rounding.
        for column, value in (
            (self.count, now.count),
            *((column, now.sums[measure]) for measure, column in self.measures.items()),
        ):
            # Parts that cancel out change no sum, but an observer may have read some of them.
            tell = column.observed and bool(parts)
            if now.count:
                if tell or row.get(column) != value:
                    t.set(column, group, value)
            elif tell or column in row:
                t.delete(column, group)
        shards = row.get(self._shards) or 0
        if shards and (not now.count or len(parts) <= max(1, shards // 4)):
            if now.count and shards > 2:
                t.set(self._shards, group, shards // 2)
            else:
                t.delete(self._shards, group)

    # --- Reading ------------------------------------------------------------------------

    def get(self, now: Snapshot, group: str) -> Aggregate:
        """The sums of a group as of the snapshot, parts included; falsy if there are none."""
        return self._aggregate(now.get_row(self.table, group))

    def get_many(self, now: Snapshot, groups: Iterable[str]) -> list[Aggregate]:
        """The sums of many groups, each as `get` finds it, in one store call (§2.5)."""
        return [self._aggregate(row) for row in now.get_rows(self.table, listed(groups))]

    def groups(
        self, now: Snapshot, *, prefix: str | None = None
    ) -> Iterator[tuple[str, Aggregate]]:
        """All groups to which rows contribute, in order, with their sums."""
        for row in now.scan(self.table, prefix=prefix):
            if found := self._aggregate(row):
                yield row.key, found

    def _aggregate(self, row: Row[str]) -> Aggregate:
        count = row.get(self.count) or 0
        sums = {m: row.get(column) or self._zeros[m] for m, column in self.measures.items()}
        for part in row.family(self._part).values():
            count += part.get(_COUNT, 0)
            for measure in sums:
                sums[measure] = plus(sums[measure], part.get(measure, 0))
        return Aggregate(count, sums)

    # --- Checking -----------------------------------------------------------------------

    def comparisons(self) -> Sequence[Comparison]:
        """How every group is recomputed from the `applied` records; see `percola.recipes.check`."""
        scans = [
            Scan(self.table, (self.count, *self.measures.values(), self._part), self._found),
            self.applied.scan(self._contributed),
        ]
        return [Comparison(self.table.name, scans, self._combined, self._judge)]

    def _found(self, row: Row[str]) -> Iterator[Claim]:
        found = self._aggregate(row)
        if found:
            yield Claim(row.key, found=(found.count, found.sums))

    @staticmethod
    def _contributed(row: R, group: str, values: Mapping[str, Any]) -> Iterator[Claim]:
        yield Claim(group, (1, {m: value for m, value in values.items() if value is not None}))

    @staticmethod
    def _combined(kind: str, left: Any, right: Any) -> Any:
        sums = dict(left[1])
        for measure, value in right[1].items():
            sums[measure] = plus(sums[measure], value) if measure in sums else value
        return left[0] + right[0], sums

    def _judge(self, kind: str, group: str, expected: Any, found: Any) -> Iterator[str]:
        wanted, sums = expected or (0, {})
        if found is None:
            yield f"{self.table.name}[{group!r}] is missing; it should count {wanted} rows."
            return
        if found[0] != wanted:
            yield (
                f"{self.table.name}[{group!r}] counts {found[0]} rows; it should count {wanted}."
            )
        for measure, value in found[1].items():
            if not _equal(value, sums.get(measure, 0)):
                yield (
                    f"{self.table.name}[{group!r}] has {measure} = {value}; it should be "
                    f"{sums.get(measure, 0)}."
                )


def shard_of(start_ts: int, shards: int) -> int:
    """The part that a transaction adds to: few transactions that run at a time share one.

    Args:
        start_ts: the transaction's.
        shards: how many parts there are; the result is less.
    """
    return (start_ts * 2_654_435_761 + _salt()) % 2**32 * shards >> 32


def _salt() -> int:
    """Differs between threads and processes, which may begin at one timestamp."""
    return hash((os.getpid(), threading.get_ident()))


def plus(left: Any, right: Any) -> Any:
    """The sum of two numbers: exact, but of floats. WrongTypeError beyond what it is held in."""
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        try:
            return _EXACT.add(left, right)
        except Inexact:
            raise WrongTypeError(
                f"The sum of {left!r} and {right!r} has more than {_EXACT.prec} digits."
            ) from None
    total = left + right
    if isinstance(total, float) and not math.isfinite(total):
        raise WrongTypeError(f"The sum of {left!r} and {right!r} is beyond the range of floats.")
    return total


def _difference(before: Any, now: Any) -> Any:
    if before is None:
        return now or 0
    return plus(now or 0, before.copy_negate() if isinstance(before, Decimal) else -before)


def _zero(column: Column[str, Any]) -> Any:
    return 0.0 if column.codec.name == "float" else 0


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
    return bool(left == right)
