"""What each row has contributed to a derived table so far, stored beside the row.

    orders['o17'] applied.spent = {"c001": {"euros": 90}}

A derived value stays right under snapshot isolation if every contribution has one owner, the row
that it comes from, and only a run for the owner changes it: the run reads what was contributed
before, and writes what it contributes now, in the transaction that changes the derived table. Two
runs for one owner write the same cell, so one of them fails and runs again. The difference is
applied once, whatever fails or runs twice.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Generic, NamedTuple

from percola.codecs import Codec
from percola.codecs.base import checked_json, decoded_json
from percola.errors import SchemaError, WrongTypeError
from percola.recipes.comparing import Claim, Scan
from percola.recipes.keys import check_key
from percola.schema import MAX_NAME, RECORD, Column, R, Table
from percola.transactions.row import Row
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction

_DECIMAL: Final = "decimal"
_ESCAPED: Final = ""


def _other(value: object) -> object:
    if isinstance(value, Decimal):
        return {_DECIMAL: str(value)}
    raise TypeError(f"{value!r} cannot be part of a contribution.")


def _decimals(found: dict[str, Any]) -> Any:
    if len(found) != 1 or _DECIMAL not in found:
        return found
    value = found[_DECIMAL]
    if _is_escape(value):
        return {_DECIMAL: value[_ESCAPED]}
    if isinstance(value, str):
        # Texts of earlier versions were not escaped.
        with contextlib.suppress(InvalidOperation):
            return Decimal(value)
    return found


def _is_escape(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {_ESCAPED}


def _escaped(value: Any) -> Any:
    """The same, but for dictionaries that would be read as decimals, or as such an escape."""
    if isinstance(value, list | tuple):
        return list(map(_escaped, value))
    if not isinstance(value, dict):
        return value
    if value.keys() == {_DECIMAL}:
        inner = value[_DECIMAL]
        if isinstance(inner, str) or _is_escape(inner):
            return {_DECIMAL: {_ESCAPED: _escaped(inner)}}
    return {key: _escaped(one) for key, one in value.items()}


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True, default=_other
)
_DECODER: Final = json.JSONDecoder(object_hook=_decimals)


def _encode(value: Any) -> bytes:
    text = _ENCODER.encode(value)
    if f'"{_DECIMAL}"' in text:
        text = _ENCODER.encode(_escaped(value))
    return checked_json(text.encode())


def _decode(raw: bytes) -> Any:
    return decoded_json(_DECODER, raw)


# Named functions, so that a schema can be sent to another process.
VALUES: Final[Codec[Any]] = Codec("json", _encode, _decode)
"""JSON, and decimals as {"decimal": "1.20"}: they are exact.

A dictionary that looks like that is escaped: {"decimal": {"": "1.20"}}.
"""


class Change(NamedTuple):
    """How the contribution to one key changes.

    Attributes:
        key: the group, or whatever else the recipe's keys are.
        before: what was contributed; None if nothing.
        now: what is contributed from now on; None if nothing.
    """

    key: str
    before: Any
    now: Any


class Applied(Generic[R]):
    """What the rows of a table have contributed to one derived table.

    Declares the column `applied.NAME` of the source table, of JSON: the contributions by key. It
    must be declared before the repository is opened with the table. If it is deleted by anything
    but the recipe, as with all other columns of its row, the contribution can never be taken back.

    Raises SchemaError for a name that is too long for such a column, and for what is no Table.

    Attributes:
        name: of the derived table.
        source: the table whose rows contribute.
        column: the column that has what a row contributes.
    """

    def __init__(self, source: Table[R], name: str) -> None:
        check_source(name, source)
        column = f"{RECORD}{name}"
        if len(column) > MAX_NAME:
            raise SchemaError(
                f"A recipe adds a column named after it to its source {source.name!r}, and "
                f"{column!r} has {len(column)} characters, of which {MAX_NAME} are allowed: give "
                "the recipe a shorter name."
            )
        self.name: Final = name
        self.source: Final[Table[R]] = source
        self.column: Final[Column[R, Any]] = source.column(column, VALUES)

    def diff(self, t: Transaction, row: R, now: Mapping[str, Any]) -> list[Change]:
        """What changes if the row contributes `now`, and record that it does.

        The caller applies all of the changes in the same transaction. A key whose value is None
        counts as missing. Returns the changes in the order of their keys; empty if there are none,
        and then nothing is written. Raises WrongTypeError for a key or a value that cannot be part
        of a contribution.
        """
        changes = self.changes(t, row, now)
        self.record(t, row, now, changes)
        return changes

    def changes(self, t: Transaction, row: R, now: Mapping[str, Any]) -> list[Change]:
        """What `diff` returns; nothing is written."""
        check_contribution(now)
        before: Mapping[str, Any] = t.get(self.column, row) or {}
        now = {key: value for key, value in now.items() if value is not None}
        encoded: dict[str, bytes] = {}
        for key, value in now.items():
            check_key(key)
            encoded[key] = self.column.encode_value(value)
            if b"NaN" in encoded[key] and _has_nan(value):
                raise WrongTypeError(
                    f"The column {self.column!r} holds what can be compared, but was given "
                    f"{value!r:.200}: a NaN cannot be."
                )
        # Compared as they are stored: 1, 1.0 and True differ, a tuple is a list.
        return [
            Change(key, before.get(key), now.get(key))
            for key in sorted(before.keys() | now.keys())
            if key not in before or VALUES.encode(before[key]) != encoded.get(key)
        ]

    def record(
        self, t: Transaction, row: R, now: Mapping[str, Any], changes: Sequence[Change]
    ) -> None:
        """Record what the row contributes now, if anything changes."""
        now = {key: value for key, value in now.items() if value is not None}
        if changes and now:
            t.set(self.column, row, now)
        elif changes:
            t.delete(self.column, row)

    def all(self, now: Snapshot) -> Iterator[tuple[R, str, Any]]:
        """Every contribution: the row, the key, and the value."""
        for row in now.scan(self.source, columns=[self.column]):
            for key, value in row[self.column].items():
                yield row.key, key, value

    def scan(self, claims: Callable[[R, str, Any], Iterator[Claim]]) -> Scan:
        """For comparisons: every contribution, and what it claims."""
        return Scan(self.source, [self.column], functools.partial(self._claims, claims))

    def _claims(
        self, claims: Callable[[R, str, Any], Iterator[Claim]], row: Row[R]
    ) -> Iterator[Claim]:
        for key, value in row[self.column].items():
            yield from claims(row.key, key, value)


def _has_nan(value: object) -> bool:
    """Whether there is a NaN among the Decimals of a value; JSON has no such floats."""
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    return isinstance(value, Decimal) and value.is_nan()


def check_source(name: str, source: object) -> None:
    """Check that something is a table whose rows may contribute; SchemaError if not."""
    if not isinstance(source, Table):
        raise SchemaError(
            f"The source of the recipe {name!r} is {source!r}, which is no Table: pass the one "
            "that your program declares."
        )


def check_contribution(now: object) -> None:
    """Check that something has a contribution by key; WrongTypeError if not."""
    if not isinstance(now, Mapping):
        raise WrongTypeError(
            "What a row contributes is a dictionary by group, and an empty one if it contributes "
            f"nothing, but this is {type(now).__name__} {now!r}."
        )
