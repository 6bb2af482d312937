"""§2.2: a row of a table as a snapshot sees it, and the selection of columns to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NoReturn, TypeVar, overload

from percola.codecs import V
from percola.errors import UnknownColumnError, UsageError
from percola.schema import RECORD_KEY, Column, Family, R, Readable, Table

D = TypeVar("D")

Columns = Iterable[Column[R, Any] | Family[R, Any]] | None
"""The columns and families of a row that are read; None: all."""

Wanted = Sequence[tuple[bytes, bool]] | None
"""The same as the store takes them: (name, is_prefix) pairs."""


class Row(Generic[R]):
    """One row of a table as a snapshot sees it: those of the requested columns that exist.

    To ask for a column that was not requested is a UsageError: the row may have it or not.
    """

    __slots__ = ("_read", "_table", "_values", "key")

    def __init__(
        self, table: Table[R], key: R, values: dict[bytes, bytes], read: Wanted = None
    ) -> None:
        self._table: Table[R] = table
        self._values = values
        self._read = read
        self.key: R = key

    def __repr__(self) -> str:
        names = ", ".join(name.decode("utf-8", "replace") for name in self._values)
        return f"Row({self.key!r}: {names})"

    def __bool__(self) -> bool:
        return bool(self._values)

    def __contains__(self, column: Column[R, Any]) -> bool:
        return self._raw(column) is not None

    def _raw(self, column: Readable[R, Any]) -> bytes | None:
        """The column's value as it is stored; UsageError for anything but a column of the table."""
        try:
            if column.table_name != self._table.name:
                self._refuse(column)
            raw = self._values.get(column.key)
        except AttributeError:
            raise UsageError(
                f"{column!r} is not a Column: name a column of the table {self._table.name!r} as "
                "your program has declared it, or as its `resolve` finds it by name."
            ) from None
        if raw is None and self._read is not None and (column.key, False) not in self._read:
            self._check_read(column, column.key)
        return raw

    def _check_read(self, member: Readable[Any, Any] | Family[Any, Any], name: bytes) -> None:
        """Check that a column, or something of a family, was read: else nothing is known of it."""
        if any(
            (is_prefix and name.startswith(one))
            or (isinstance(member, Family) and one.startswith(name))
            for one, is_prefix in self._read or ()
        ):
            return
        raise UsageError(
            f"{member!r} of the row {self.key!r} was not read: name it among the columns that are "
            "read, or read all of them."
        )

    def _refuse(self, member: Readable[Any, Any] | Family[Any, Any]) -> NoReturn:
        """Refuse a column of another table; this one may have one of its name."""
        raise UsageError(
            f"{member!r} is of another table than {self._table.name!r}, of which this is the row "
            f"{self.key!r}."
        )

    def __getitem__(self, column: Readable[R, V]) -> V:
        """The column's value; KeyError if the row has none."""
        raw = self._raw(column)
        if raw is None:
            raise KeyError(f"The row {self.key!r} has no {column!r}.")
        return column.decode_value(raw)

    @overload
    def get(self, column: Readable[R, V]) -> V | None: ...
    @overload
    def get(self, column: Readable[R, V], default: D) -> V | D: ...
    def get(self, column: Readable[R, V], default: D | None = None) -> V | D | None:
        """The column's value, or `default` if the row has none."""
        raw = self._raw(column)
        return default if raw is None else column.decode_value(raw)

    def family(self, family: Family[R, V]) -> dict[str, V]:
        """The values of a family's columns by qualifier."""
        if not isinstance(family, Family):
            raise UsageError(f"{family!r} is not a Family.")
        if family.table.name != self._table.name:
            self._refuse(family)
        if self._read is not None:
            self._check_read(family, family.read)
        skip = len(family.prefix)
        found = {
            name[skip:].decode(): raw
            for name, raw in self._values.items()
            if name.startswith(family.read)
        }
        try:
            return {name: family.codec.decode(raw) for name, raw in found.items()}
        except ValueError:  # The column says which it is.
            return {name: family[name].decode_value(raw) for name, raw in found.items()}

    def items(self) -> Iterator[tuple[Column[R, Any], Any]]:
        """Every column and its value, in the order of the columns' names.

        But for those in which recipes record what the row has contributed: deleted or copied with
        the others, they would leave derived tables wrong. `row[recipe.applied.column]` has one.
        """
        return self._items(name for name in self._values if not name.startswith(RECORD_KEY))

    def _all_items(self) -> Iterator[tuple[Column[R, Any], Any]]:
        """Every column and its value, to be shown: also those of recipes."""
        return self._items(self._values)

    def _items(self, names: Iterable[bytes]) -> Iterator[tuple[Column[R, Any], Any]]:
        for name in names:
            try:
                column = self._table.resolve(name.decode())
            except UnknownColumnError as error:
                raise UnknownColumnError(
                    f"The table {self._table.name!r} has a column {name.decode()!r} that was "
                    "declared by another program, or an earlier version of this one, and not by "
                    "this one: declare it, or name the columns that you read. Or open the "
                    "repository again, and read "
                    f"`repo.table({self._table.name!r})`, which has all columns."
                ) from error
            if isinstance(column, Column):
                yield column, column.decode_value(self._values[name])
