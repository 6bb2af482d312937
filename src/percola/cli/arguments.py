"""Parses command-line arguments into tables, columns, rows and values.

A cell is addressed as `ROW COLUMN`. If only one table has the column, the table follows from it;
otherwise it is named with `--table docs` or as `docs.title`. MODULE:NAME is resolved by
`percola.observers.loading`.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shlex
from collections.abc import Iterable
from typing import Any, Final

from percola.catalog import RUNS
from percola.codecs import TYPE_NAMES, Codec, UnfitValueError, has_text, parse_text, parse_type
from percola.errors import SchemaError, UnknownColumnError, UsageError, WrongTypeError, listed
from percola.repository import Repository
from percola.schema import Column, Family, Table, WeakColumn

BASE64: Final = "base64:"
"""The prefix of rows and values of type bytes that are given in base64."""

_KINDS: Final = ("observed", "family")
# TABLE.COLUMN, then a type, which may have colons in it, then one of the kinds.
_DECLARED: Final = re.compile(r"([^.:]*)\.([^:]*)(?::(.*?))??(?::(observed|family))?", re.DOTALL)
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str, or_: str = "or 0") -> float:
    """Seconds: a number with a unit (`90s`, `15m`, `24h`, `7d`), or 0; else UsageError.

    `or_` is what the message says may be given instead of a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is not None:
        return float(match[1]) * _UNITS[match[2]]
    if text.strip() == "0":
        return 0.0
    raise UsageError(f"{text!r} is not a duration: write 90s, 15m, 24h, 7d, {or_}.")


# --- Tables, columns, rows --------------------------------------------------------------


def find_table(repo: Repository, name: str | None) -> Table[Any]:
    """The table of that name, or the only one; UsageError if there are several."""
    if name is not None:
        return repo.table(name)
    # Records of runs (`percola observers record on`) are looked at only if they are named.
    tables = [one for one in repo.schema if one.name != RUNS.name]
    if not tables:
        raise UsageError(
            f"The repository {repo.address} has no tables yet. Declare some with "
            f"'percola --repo {shlex.quote(repo.address)} init --column docs.title:str' (or "
            "--schema), or from a program."
        )
    if len(tables) > 1:
        names = listed(sorted(table.name for table in tables))
        raise UsageError(
            f"The repository has several tables ({names}): say which with --table NAME."
        )
    return tables[0]


def find_column(
    repo: Repository, table: str | None, name: str
) -> Column[Any, Any] | WeakColumn[Any]:
    """The column of that name: of `table`, of the only table that has it, or `table.column`."""
    if table is None:
        # Records of runs (`percola observers record on`) are looked at only if they are named.
        tables = [one for one in repo.schema if one.name != RUNS.name]
        having = [(one, name) for one in tables if _member(one, name) is not None]
        known = {one.name for one, _ in having}
        for one in repo.schema:
            rest = name.removeprefix(one.name + ".")
            if rest != name and one.name not in known and _member(one, rest) is not None:
                having.append((one, rest))
        if len(having) > 1:
            # Names of tables and columns may have dots: then TABLE.COLUMN may be of several, too.
            is_short = all(rest == name for _, rest in having)
            ways = [f"{a.name}.{b}" if is_short else f"{b} --table {a.name}" for a, b in having]
            raise UsageError(f"Several tables have a column {name!r}: write {' or '.join(ways)}.")
        if having:
            one, rest = having[0]
            return one.resolve(rest)
        if len(tables) > 1:
            have = listed([f"{one.name} has {_names(one)}" for one in tables], between="; ")
            raise UnknownColumnError(f"No table has a column {name!r}: {have}.")
    else:
        name = name.removeprefix(table + ".")
    return find_table(repo, table).resolve(name)


def find_cell_column(repo: Repository, table: str | None, name: str) -> Column[Any, Any]:
    """As `find_column`, for reading and writing: a weak column is refused."""
    return _readable(find_column(repo, table, name))


def find_columns(
    table: Table[Any], names: Iterable[str]
) -> list[Column[Any, Any] | Family[Any, Any]]:
    """The columns and families of a table to scan; a family may be written `family:`."""
    found: list[Column[Any, Any] | Family[Any, Any]] = []
    for name in names:
        short = name.removeprefix(table.name + ".")
        member = _member(table, short.removesuffix(":"))
        if isinstance(member, Family) and ":" not in short.removesuffix(":"):
            found.append(member)
        else:
            found.append(_readable(table.resolve(short)))
    return found


def _member(table: Table[Any], name: str) -> object:
    """The column, weak column or family of a table that a name refers to; else None."""
    members = {member.name: member for member in table.members}
    family, colon, _ = name.partition(":")
    found = members.get(family)
    return found if not colon or isinstance(found, Family) else None


def _readable(column: Column[Any, Any] | WeakColumn[Any]) -> Column[Any, Any]:
    if isinstance(column, WeakColumn):
        raise UsageError(
            f"{column!r} is a weak column: it can be notified, but holds no value to read or write."
        )
    return column


def _names(table: Table[Any]) -> str:
    shown = [m.name + (":…" if isinstance(m, Family) else "") for m in table.members]
    return listed(shown) or "no columns"


def check_prefixes(prefixes: Iterable[str]) -> None:
    """Raise UsageError for an empty prefix, where too many rows would be changed by mistake."""
    if "" in prefixes:
        raise UsageError(
            "A prefix is empty, as of a variable that is not set, and every row begins so: leave "
            "--prefix out for all rows."
        )


def parse_row(table: Table[Any], text: str) -> Any:
    """A row key in the table's type; rows of bytes may be written `base64:…`."""
    if not isinstance(table.rows, Codec):
        return _as_bytes(text) if table.rows is bytes else text
    try:
        return parse_text(table.rows, text)
    except UnfitValueError as error:
        raise WrongTypeError(
            f"Rows of the table {table.name!r} are {table.rows_name}: {error}."
        ) from error


# --- Values -----------------------------------------------------------------------------


def parse_value(column: Column[Any, Any], given: str | bytes) -> Any:
    """A value of the column's type from an argument or a file's contents.

    Raises WrongTypeError if the text is not a value of that type.
    """
    codec = column.codec
    if not has_text(codec):
        return _as_bytes(given) if isinstance(given, str) else given
    try:
        try:
            text = given if isinstance(given, str) else given.decode()
        except UnicodeDecodeError:
            raise UnfitValueError(f"{given[:60]!r} is not text in UTF-8") from None
        return parse_text(codec, text)
    except UnfitValueError as error:
        raise WrongTypeError(f"The column {column!r} holds {codec.name}: {error}.") from error


def _as_bytes(text: str) -> bytes:
    if not text.startswith(BASE64):
        return os.fsencode(text)
    try:
        return base64.b64decode(text.removeprefix(BASE64), validate=True)
    except binascii.Error as error:
        raise WrongTypeError(f"{text!r} is not valid base64 ({error}).") from error


# --- Schemas ----------------------------------------------------------------------------


def declare_tables(columns: Iterable[str]) -> list[Table[Any]]:
    """Tables from `TABLE.COLUMN:TYPE[:observed]`, `…:TYPE:family` and `TABLE.COLUMN:weak`.

    Raises UsageError for any other form, SchemaError for an unusable name.
    """
    tables: dict[str, Table[Any]] = {}
    for text in columns:
        match = _DECLARED.fullmatch(text)
        if match is None:
            raise _bad_column(text)
        name, column, kind, also = match.groups()
        table = tables.setdefault(name, Table(name))
        if kind == "weak":
            if also is not None:
                raise _bad_column(text)
            table.weak_column(column)
            continue
        try:
            codec = parse_type(kind or "bytes")
        except SchemaError as error:
            named = "names no type" not in str(error)  # The types are listed in any case.
            raise _bad_column(text, str(error) if named else "") from error
        if also == "family":
            table.family(column, codec)
        else:
            table.column(column, codec, observed=also is not None)
    return list(tables.values())


def _bad_column(text: str, reason: str = "") -> UsageError:
    how = f"{reason} Write" if reason else "write"
    return UsageError(
        f"{text!r} declares no column: {how} TABLE.COLUMN:TYPE with a type of "
        f"{', '.join(TYPE_NAMES)}, and {' or '.join(_KINDS)} after it if it is (docs.title:str, "
        "docs.contents:bytes:observed, docs.member:int:family); TABLE.COLUMN:weak for a weak "
        "column."
    )
