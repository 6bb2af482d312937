"""A secondary index: which rows have a key; and the way to join rows with what they refer to.

    by_product['p7/o17']   owner   "o17"     order o17 refers to product p7
    by_product['p7']       tell              weak: the owners of p7 have to be told
    by_product['p7/o17']   tell              weak: the owners after o17 have to be told

A join of facts with a dimension is right under snapshot isolation if a fact's run first registers
what it refers to and *later*, in another transaction, reads it. A run that registers notifies the
owner's weak column `due`, and the run of `due` reads the dimension and contributes. A dimension's
run notifies `due` of all registered owners. If both change at a time, then either the dimension's
run finds the registration, or the registration committed after it, and so the later read sees the
dimension's change. No transaction locks a row that others write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from percola.errors import SchemaError
from percola.observers.observer import observer
from percola.recipes.applied import Applied, check_source
from percola.recipes.comparing import Claim, Comparison, Recipe, Scan
from percola.recipes.keys import below, join, keys_in, part
from percola.schema import Column, Table, WeakColumn
from percola.transactions.row import Row
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction

OWNERS_AT_A_TIME: Final = 256
"""Owners that one transaction notifies: a key with a million owners holds nobody up."""


class Index(Recipe):
    """Which rows of a table have which keys.

    Args:
        name: of the index's table.
        source: the table whose rows are indexed, of which this declares the column `applied.NAME`.
            Its rows are texts.
        due: a weak column of the source: notified for a row when its keys change, and for all
            owners of a key by `notify_owners`. None for an index that is only read.

    Attributes:
        tables: what the schema must contain besides the source.
        observers: what a worker must run; none without `due`.
    """

    def __init__(
        self,
        name: str,
        source: Table[str],
        *,
        due: WeakColumn[str] | None = None,
    ) -> None:
        check_source(name, source)
        if source.rows is not str:
            raise SchemaError(
                f"The index {name!r} is of {source.name!r}, whose rows are {source.rows_name}: an "
                "index has the rows of its source in its own, and so these must be str."
            )
        if due is not None and due.table_name != source.name:
            raise SchemaError(
                f"The index {name!r} notifies rows of {source.name!r}: `due` is a weak column of "
                f"that table, and not {due!r}."
            )
        self.table: Final[Table[str]] = Table(name)
        self.due: Final = due
        self._owner: Column[str, str] = self.table.column("owner", str)
        self._tell: WeakColumn[str] = self.table.weak_column("tell")
        self.applied: Final[Applied[str]] = Applied(source, name)
        self.tables = (self.table,)
        self.observers = (
            () if due is None else (observer(self._tell, name=f"{name}.tell")(self._tell_owners),)
        )

    def register(self, t: Transaction, row: str, keys: Iterable[str]) -> bool:
        """Let a row have these keys, instead of those that it had; return whether that changed.

        Notifies `due` for the row, whether or not its keys changed. Read what the keys refer to
        in the run of `due`, and not in this transaction.
        """
        changes = self.applied.diff(t, row, dict.fromkeys(keys_in(keys), True))
        for key, before, _ in changes:
            entry = join(key, row)
            if before is None:
                t.set(self._owner, entry, row)
            else:
                t.delete(self._owner, entry)
        if self.due is not None:
            t.notify(self.due, row)
        return bool(changes)

    def keys(self, now: Snapshot, row: str) -> list[str]:
        """The keys with which a row is registered, in order."""
        return sorted(now.get(self.applied.column, row) or ())

    def owners(self, now: Snapshot, key: str) -> Iterator[str]:
        """The rows that have a key, in the order of the index."""
        for row in now.scan(self.table, prefix=below(key), columns=[self._owner]):
            yield row[self._owner]

    def notify_owners(self, t: Transaction, key: str) -> None:
        """Have `due` notified for every row that has the key, after this transaction commits.

        Costs one notification here; a worker notifies `OWNERS_AT_A_TIME` owners a transaction.
        Raises SchemaError for an index without `due`.
        """
        if self.due is None:
            raise SchemaError(
                f"The index {self.table.name!r} has no weak column to notify owners of: declare it "
                "with due=…."
            )
        t.notify(self._tell, part(key))

    def _tell_owners(self, t: Transaction, after: str) -> None:
        """Notify the next owners of a key; `after` is the key's part, or an entry of it."""
        assert self.due is not None
        key = after.partition("/")[0]
        start, end = (f"{key}/" if key == after else after + "\0"), f"{key}0"  # "0" follows "/".
        owners = t.scan(self.table, start=start, end=end, columns=[self._owner])
        for number, row in enumerate(owners, 1):
            t.notify(self.due, row[self._owner])
            if number == OWNERS_AT_A_TIME:
                t.notify(self._tell, row.key)
                return

    def comparisons(self) -> Sequence[Comparison]:
        """How the index is rebuilt from the `applied` records; see `percola.recipes.check`."""
        scans = [Scan(self.table, [self._owner], self._found), self.applied.scan(self._registered)]
        return [Comparison(self.table.name, scans, self._combined, self._judge)]

    def _found(self, row: Row[str]) -> Iterator[Claim]:
        yield Claim(row.key, found=row[self._owner])

    @staticmethod
    def _registered(row: str, key: str, value: object) -> Iterator[Claim]:
        yield Claim(join(key, row), row)

    @staticmethod
    def _combined(kind: str, left: str, right: str) -> str:
        return left  # An entry is of one key of one row.

    def _judge(self, kind: str, key: str, expected: str | None, found: str | None) -> Iterator[str]:
        name = f"{self.table.name}[{key!r}]"
        if found is None:
            yield f"{name} is missing, an entry of the row {expected!r}."
        elif expected is None:
            yield f"{name} is an entry of no row."
        elif found != expected:
            yield f"{name} belongs to {found!r}; it should belong to {expected!r}."
