"""§2.2, §2.4: tables, columns, and which columns are observed.

A repository is a small number of tables; each has typed columns, and families whose columns
are named as they are written (one column a link, say). Declaring a schema builds plain
values: nothing is registered anywhere, and the same declaration may be passed to any number
of repositories.

    docs = Table("docs")
    contents = docs.column("contents", observed=True)      # bytes; writing it notifies
    title = docs.column("title", str)
    members = docs.family("member", int)                    # members["anything"]
    days = Table("days", rows=DATE)                         # rows in the order of days
    events = Table("events", feed=True)                     # its changes can be followed
    recluster = docs.weak_column("recluster")               # can only be notified (§2.4)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)

from percola.cells import Cell
from percola.codecs import Codec, OrderedCodec, UnfitValueError, V, codec_named, codec_of
from percola.errors import (
    DamagedRecordError,
    SchemaError,
    SchemaMismatchError,
    UnknownColumnError,
    UnknownTableError,
    UsageError,
    WrongTypeError,
    listed,
)

R = TypeVar("R")
P = ParamSpec("P")
Read = TypeVar("Read", covariant=True)

MAX_NAME: Final = 48
"""The longest name of a table, column, family or observer, in characters."""

MAX_COLUMN_BYTES: Final = 112
"""The longest column, family and qualifier together, in bytes."""

RECORD: Final = "applied."
"""Begins the name of a column in which a recipe records what a row has contributed."""

RECORD_KEY: Final = RECORD.encode()
"""The same, of the name as it is stored."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,47}")


def check_name(what: str, name: object) -> str:
    """Return `name` if it may name a table, column, family or observer; else SchemaError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SchemaError(
            f"{name!r} cannot name {what}: use 1 to {MAX_NAME} letters, digits, '_', '-' or '.', "
            "beginning with a letter or '_'."
        )
    return name


def check_deletable(cells: Iterable[Cell], shown: Callable[[Cell], str]) -> None:
    """Check that a row may be deleted with all of its cells; UsageError if a recipe needs one."""
    for cell in cells:
        if cell.column.startswith(RECORD_KEY):
            name = cell.column.decode().removeprefix(RECORD)
            raise UsageError(
                f"{shown(cell)} records what the row has contributed to {name!r}. Deleted with the "
                "row, that could never be taken back: set the row's other columns to NULL instead, "
                "as docs/recipes.md, Deleting rows of the source, describes."
            )


class Writable(Protocol[P]):
    """A column, by the arguments that a write of it takes: a row and a value. For type checkers."""

    def _takes(self, *args: P.args, **kwargs: P.kwargs) -> None: ...


class Readable(Generic[R, Read]):
    """A column, by what is read of it: one of int is one of object, too. For type checkers.

    Of `bool(t.get(…))` mypy asks that the value is what `bool` takes: an object. A column that is
    read and written has values of one type only, and none of int would do.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        table: Table[R]
        table_name: str
        key: bytes
        address: tuple[str, bytes]
        row_key: Callable[[R], bytes]

        def decode_value(self, raw: bytes) -> Read: ...


class Column(Readable[R, V]):
    """A column of a table: the name of one typed, versioned cell in every row.

    Attributes:
        table: the table it belongs to.
        name: its name; for a column of a family, `family:qualifier`.
        observed: whether a committed write puts a notify entry (§2.4).
    """

    __slots__ = (
        "address",
        "codec",
        "decode",
        "encode",
        "key",
        "name",
        "observed",
        "row_key",
        "table",
        "table_name",
    )

    def __init__(
        self, table: Table[R], name: str, codec: Codec[V], *, observed: bool = False
    ) -> None:
        self.table: Table[R] = table
        self.table_name = table.name
        self.name = name
        self.key = name.encode()
        self.address = (table.name, self.key)
        self.codec = codec
        self.encode = codec.encode
        # The key of a row, without a call of Python's for text. For an unusable row it is empty, or
        # a TypeError or ValueError; `table.encode_row` raises the error that says why.
        self.row_key: Callable[[R], bytes] = (
            cast("Callable[[R], bytes]", str.encode) if table.rows is str else table.encode_row
        )
        self.decode = codec.decode
        self.observed = observed

    if TYPE_CHECKING:  # What makes it a `Writable`; nothing calls it.

        def _takes(self, row: R, value: V) -> None: ...

    def __repr__(self) -> str:
        return f"{self.table_name}.{self.name}"

    def __getstate__(self) -> dict[str, Any]:
        # The codec's functions may be closures, which cannot be pickled; the codec can.
        kept = (name for name in self.__slots__ if name not in ("encode", "decode"))
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.encode, self.decode = self.codec.encode, self.codec.decode

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Column) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    def encode_value(self, value: V) -> bytes:
        """Encode `value`; raises WrongTypeError if it has a wrong type."""
        try:
            raw: object = self.encode(value)
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise WrongTypeError(
                f"The column {self!r} holds {self.codec.name}, but was given "
                f"{_given(value, error)}."
            ) from error
        if type(raw) is bytes:
            return raw
        if isinstance(raw, bytes | bytearray | memoryview):
            return bytes(raw)  # It may change before it is committed.
        raise WrongTypeError(
            f"The codec {self.codec.name!r} of the column {self!r} has encoded a value as "
            f"{type(raw).__name__}: its function `encode` has to return bytes."
        )

    def decode_value(self, raw: bytes) -> V:
        """Decode what the store holds; WrongTypeError if it is not of the column's type."""
        try:
            return self.decode(raw)
        except UnfitValueError as error:
            raise WrongTypeError(
                f"The column {self!r} holds {raw[:40]!r}, which cannot be read as "
                f"{self.codec.name}: {error}."
            ) from error
        except (ValueError, RecursionError) as error:
            raise WrongTypeError(
                f"The column {self!r} should hold {self.codec.name}, but the stored bytes "
                f"{raw[:40]!r} are not: it was written with another type."
            ) from error


class Family(Generic[R, V]):
    """Columns of one type whose names are chosen as they are written: `family[qualifier]`."""

    __slots__ = ("codec", "name", "prefix", "read", "table")

    def __init__(self, table: Table[R], name: str, codec: Codec[V], start: str = "") -> None:
        self.table: Table[R] = table
        self.name = name
        self.codec = codec
        self.prefix = name.encode() + b":"
        self.read = self.prefix + start.encode()
        """The prefix of the columns that a read of the family returns."""

    def __repr__(self) -> str:
        return f"{self.table.name}.{self.name}:*"

    def __getitem__(self, qualifier: str) -> Column[R, V]:
        """The column `family:qualifier`; raises SchemaError for an unusable qualifier."""
        if not isinstance(qualifier, str) or not qualifier or "\0" in qualifier:
            raise SchemaError(
                f"{qualifier!r} cannot name a column of the family {self!r}: use a string of at "
                "least one character and without NUL."
            )
        try:
            column = Column(self.table, f"{self.name}:{qualifier}", self.codec)
        except UnicodeEncodeError as error:
            raise SchemaError(
                f"{qualifier!r} cannot name a column of the family {self!r}: it is not valid "
                "Unicode text."
            ) from error
        if len(column.key) > MAX_COLUMN_BYTES:
            raise SchemaError(
                f"The column {column!r} has {len(column.key)} bytes; at most {MAX_COLUMN_BYTES} "
                "are allowed. Use a hash of the name and keep the name in the value."
            )
        return column

    def starting(self, start: str) -> Family[R, V]:
        """The family for reads of only those columns whose qualifiers begin with `start`.

        Raises SchemaError for what is no string, or not valid Unicode text.
        """
        try:
            return Family(self.table, self.name, self.codec, start)
        except (AttributeError, UnicodeEncodeError) as error:
            raise SchemaError(
                f"No column of the family {self!r} begins with {start!r}: qualifiers are strings "
                "of valid Unicode text."
            ) from error

    def qualifier(self, column: Column[Any, Any]) -> str:
        """The qualifier of one of this family's columns."""
        return column.name[len(self.name) + 1 :]


class WeakColumn(Generic[R]):
    """A column that cannot be written, only notified: §2.4's weak notification."""

    __slots__ = ("address", "key", "name", "table", "table_name")

    def __init__(self, table: Table[R], name: str) -> None:
        self.table: Table[R] = table
        self.table_name = table.name
        self.name = name
        self.key = name.encode()
        self.address = (table.name, self.key)

    def __repr__(self) -> str:
        return f"{self.table_name}.{self.name}"


class Table(Generic[R]):
    """A table: rows of one key type with declared columns.

    Rows are str or bytes, in byte order, or an ordered type in the order of its values: INT16,
    INT32, INT64, DATE, TIMESTAMP, TIMESTAMP_NTZ, decimal_of(precision, scale).

    With `feed` the repository keeps a feed of its changes (`percola.feed`), permanently and for all
    writers, from the time when a program first declares it.
    """

    __slots__ = ("_members", "_row_codec", "decode_row", "feed", "name", "rows", "rows_name")

    @overload
    def __init__(self: Table[str], name: str, *, feed: bool = ...) -> None: ...
    @overload
    def __init__(self, name: str, *, rows: type[R] | Codec[R], feed: bool = ...) -> None: ...
    def __init__(self, name: str, *, rows: Any = str, feed: bool = False) -> None:
        if rows is not str and rows is not bytes and not isinstance(rows, OrderedCodec):
            kind = rows.name if isinstance(rows, Codec) else repr(rows)
            raise SchemaError(
                f"Rows of the table {name!r} cannot be {kind}: use rows=str, rows=bytes or a type "
                "whose values have an order on disk: INT16, INT32, INT64, DATE, TIMESTAMP, "
                "TIMESTAMP_NTZ or decimal_of(precision, scale)."
            )
        self.name = check_name("a table", name)
        if not isinstance(feed, bool):
            raise SchemaError(f"feed={feed!r} of the table {name!r} is neither True nor False.")
        self.feed = feed
        self.rows = cast("type[R] | Codec[R]", rows)
        self._row_codec: OrderedCodec[R] | None = None
        if isinstance(rows, OrderedCodec):
            self._row_codec = rows
            self.rows_name: str = rows.name
            self.decode_row: Callable[[bytes], R] = self._decode_row
        else:
            self.rows_name = rows.__name__
            decode = bytes.decode if rows is str else bytes
            self.decode_row = cast("Callable[[bytes], R]", decode)
        self._members: dict[str, Column[R, Any] | Family[R, Any] | WeakColumn[R]] = {}

    def __repr__(self) -> str:
        return f"Table({self.name!r})"

    @overload
    def column(self, name: str, *, observed: bool = ...) -> Column[R, bytes]: ...
    @overload
    def column(
        self, name: str, type: type[V] | Codec[V], *, observed: bool = ...
    ) -> Column[R, V]: ...
    def column(
        self, name: str, type: type[Any] | Codec[Any] = bytes, *, observed: bool = False
    ) -> Column[R, Any]:
        """Declare a column of `type`: bytes, str, int, float, bool, or a Codec such as JSON.

        Names that begin with `applied.` are those of recipes, which record there what a row has
        contributed (`percola.recipes`).
        """
        column: Column[R, Any] = Column(
            self, check_name("a column", name), codec_of(type), observed=observed
        )
        self._add(name, column)
        return column

    @overload
    def family(self, name: str) -> Family[R, bytes]: ...
    @overload
    def family(self, name: str, type: type[V] | Codec[V]) -> Family[R, V]: ...
    def family(self, name: str, type: type[Any] | Codec[Any] = bytes) -> Family[R, Any]:
        """Declare a family, whose columns are named as they are written: `family[name]`."""
        family: Family[R, Any] = Family(self, check_name("a family", name), codec_of(type))
        self._add(name, family)
        return family

    def weak_column(self, name: str) -> WeakColumn[R]:
        """Declare a column that can only be notified, never written or read (§2.4)."""
        column = WeakColumn(self, check_name("a weak column", name))
        self._add(name, column)
        return column

    def _with_feed(self) -> Table[R]:
        """This table with a feed: the same columns and codecs."""
        table: Table[R] = Table(self.name, rows=self.rows, feed=True)
        table._members = self._members
        return table

    def _add(self, name: str, member: Column[R, Any] | Family[R, Any] | WeakColumn[R]) -> None:
        if name in self._members:
            raise SchemaError(f"The table {self.name!r} has two columns named {name!r}.")
        self._members[name] = member

    @property
    def members(self) -> Iterable[Column[R, Any] | Family[R, Any] | WeakColumn[R]]:
        """Columns, families and weak columns, in the order of their declaration."""
        return self._members.values()

    def resolve(self, name: str) -> Column[R, Any] | WeakColumn[R]:
        """The column named `column` or `family:qualifier`; UnknownColumnError if there is none."""
        member = self._members.get(name)
        if isinstance(member, Column | WeakColumn):
            return member
        family, colon, qualifier = name.partition(":")
        member = self._members.get(family)
        if colon and isinstance(member, Family):
            return member[qualifier]
        known = [f"{n}:…" if isinstance(m, Family) else n for n, m in self._members.items()]
        raise UnknownColumnError(
            f"The table {self.name!r} has no column {name!r}. It has: "
            f"{listed(known, name) or 'none'}."
        )

    def encode_row(self, row: R) -> bytes:
        """The row's key; WrongTypeError if it has a wrong type or is empty."""
        if row.__class__ is str and row and self.rows is str:
            try:
                return row.encode()  # type: ignore[attr-defined, no-any-return]
            except UnicodeEncodeError:
                pass
        if self._row_codec is not None:
            try:
                return self._row_codec.encode(row)
            except (TypeError, ValueError, AttributeError) as error:
                raise WrongTypeError(
                    f"Rows of the table {self.name!r} are {self.rows_name}, but this is "
                    f"{_given(row, error)}."
                ) from error
        if row and isinstance(row, str if self.rows is str else bytes):
            try:
                return row.encode() if isinstance(row, str) else bytes(row)
            except UnicodeEncodeError as error:
                raise WrongTypeError(
                    f"Rows of the table {self.name!r} are str, but this is {_given(row)}, which is "
                    "not valid Unicode text."
                ) from error
        raise WrongTypeError(
            f"Rows of the table {self.name!r} are {self.rows_name} and not empty, but this is "
            f"{_given(row)}."
        )

    def encode_bound(self, row: R | None) -> bytes:
        """The key of a bound of a range of rows; empty if it is None, "" or b"": no bound."""
        if row is None or (self._row_codec is None and not row):
            return b""
        return self.encode_row(row)

    def encode_prefix(self, prefix: R) -> bytes:
        """The key that others begin with; UsageError if the rows have no beginnings."""
        if self._row_codec is not None:
            raise UsageError(
                f"Rows of the table {self.name!r} are {self.rows_name}, of which none begins "
                "another: a scan chooses some by a start and an end, and nothing by a prefix."
            )
        return self.encode_row(prefix)

    def shown_row(self, key: bytes) -> str:
        """An encoded row as messages name it: text and bytes as literals, other types as text."""
        try:
            row = self.decode_row(key)
        except WrongTypeError:
            return repr(key)
        return str(row) if self._row_codec is not None else repr(row)

    def shown(self, cell: Cell) -> str:
        """One of its cells as messages name it: where rows have a type, by the row's value."""
        if self._row_codec is None:
            return str(cell)
        column = cell.column.decode("utf-8", "backslashreplace")
        return f"{cell.table}[{self.shown_row(cell.row)}].{column}"

    def _decode_row(self, key: bytes) -> R:
        assert self._row_codec is not None
        try:
            return self._row_codec.decode(key)
        except ValueError as error:
            raise WrongTypeError(
                f"The row {key[:60]!r} of the table {self.name!r} should be {self.rows_name}, but "
                "it is not: it was written with another type."
            ) from error


def _given(value: Any, error: Exception | None = None) -> str:
    """A value that was refused, and why."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # Very many digits, or a very deep value.
        return f"{type(value).__name__} that is too large"
    if len(shown) > 60:
        shown = shown[:60] + "…"
    reason = f": {error}" if isinstance(error, UnfitValueError) else ""
    return f"{type(value).__name__} {shown}{reason}"


class Schema:
    """The tables of a repository. It can be stored, and compared with the stored schema."""

    __slots__ = ("_tables",)

    def __init__(self, tables: Iterable[Table[Any]]) -> None:
        self._tables: dict[str, Table[Any]] = {}
        for table in tables:
            if not isinstance(table, Table):
                hint = "; list its `tables`" if hasattr(table, "tables") else ""
                raise SchemaError(f"A schema is a list of Tables, but it holds {table!r}{hint}.")
            if table.name in self._tables:
                raise SchemaError(f"The schema has two tables named {table.name!r}.")
            self._tables[table.name] = table

    def __iter__(self) -> Iterator[Table[Any]]:
        return iter(self._tables.values())

    def __contains__(self, name: str) -> bool:
        return name in self._tables

    def table(self, name: str) -> Table[Any]:
        """The table of that name; UnknownTableError if there is none."""
        try:
            return self._tables[name]
        except KeyError:
            known = listed(sorted(self._tables), name) or "none"
            raise UnknownTableError(
                f"The repository has no table {name!r}. It has: {known}."
            ) from None

    def shown(self, cell: Cell) -> str:
        """A cell as messages name it: where rows have a type, by the row's value."""
        table = self._tables.get(cell.table)
        return str(cell) if table is None else table.shown(cell)

    def to_json(self) -> str:
        """The schema as the repository stores it."""
        return json.dumps(self.plain(), indent=1)

    def plain(self) -> dict[str, Any]:
        """The same as dictionaries and lists, which are quicker to make and to compare."""
        tables = []
        for table in self._tables.values():
            members: list[dict[str, Any]] = []
            for member in table.members:
                if isinstance(member, WeakColumn):
                    members.append({"weak": member.name})
                elif isinstance(member, Family):
                    members.append({"family": member.name, "type": member.codec.name})
                else:
                    members.append(
                        {
                            "column": member.name,
                            "type": member.codec.name,
                            "observed": member.observed,
                        }
                    )
            stored: dict[str, Any] = {"name": table.name, "rows": table.rows_name}
            if table.feed:
                stored["feed"] = True
            tables.append({**stored, "columns": members})
        return {"tables": tables}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`; codecs that are not built in read bytes. DamagedRecordError."""
        try:
            return cls(_stored_table(stored) for stored in json.loads(text)["tables"])
        except (ValueError, TypeError, KeyError, RecursionError, SchemaError) as error:
            raise DamagedRecordError(
                f"The stored schema cannot be read: {text[:60]!r}. Restore a backup."
            ) from error

    def with_codecs_of(self, declared: Schema) -> Schema:
        """This schema, with tables replaced by the equal ones of `declared`.

        The stored schema has only the names of codecs; the program's tables have the codecs.
        """
        tables = dict(self._tables)
        for table in declared:
            if _described(table) == _described(tables[table.name]):
                kept = tables[table.name].feed and not table.feed
                tables[table.name] = table._with_feed() if kept else table
        return Schema(tables.values())

    def merged_into(self, stored: Schema) -> Schema:
        """The schema to store when a program declares `self` and the repository has `stored`.

        New tables and columns are added; those that the program does not name are kept, and so is a
        feed. A column that was not observed may become observed. Raises SchemaMismatchError if
        the two declare something else differently.
        """
        merged = stored.plain()
        by_name = {table["name"]: table for table in merged["tables"]}
        for table in self.plain()["tables"]:
            old = by_name.get(table["name"])
            if old is None:
                merged["tables"].append(table)
                continue
            if old["rows"] != table["rows"]:
                raise SchemaMismatchError(
                    f"The table {table['name']!r} is declared with rows of {table['rows']}, but "
                    f"the repository has it with rows of {old['rows']}. Use another name for the "
                    "new table, or declare it as it was."
                )
            if table.get("feed"):
                old["feed"] = True
            columns = {_member_name(member): member for member in old["columns"]}
            for member in table["columns"]:
                name = _member_name(member)
                before = columns.get(name)
                if before is None:
                    old["columns"].append(member)
                elif before == {**member, "observed": False} and member["observed"]:
                    before["observed"] = True
                elif before == {**member, "observed": True} != member:
                    raise SchemaMismatchError(
                        f"The column {table['name']}.{name} is declared without observed=True, but "
                        "in the repository it is observed, and stays so: declare it with "
                        "observed=True. docs/guide.md, Changing tables and columns, says what to "
                        "do if no observer is left for it."
                    )
                elif before != member:
                    raise SchemaMismatchError(
                        f"The column {table['name']}.{name} is declared as {_show(member)}, but "
                        f"the repository has it as {_show(before)}. Use another name for the new "
                        "column, or declare it as it was."
                    )
        return Schema(map(_stored_table, merged["tables"]))


def _described(table: Table[Any]) -> set[tuple[str, bool]]:
    """The members of a table, and whether they are observed, which may change."""
    return {(one.name, isinstance(one, Column) and one.observed) for one in table.members}


def _stored_table(stored: Mapping[str, Any]) -> Table[Any]:
    rows = {"str": str, "bytes": bytes}.get(stored["rows"]) or codec_named(stored["rows"])
    table: Table[Any] = Table(stored["name"], rows=rows, feed=stored.get("feed", False))
    for member in stored["columns"]:
        if "weak" in member:
            table.weak_column(member["weak"])
            continue
        name = member["type"]
        if not isinstance(name, str):
            raise TypeError
        codec = codec_named(name)
        if "family" in member:
            table.family(member["family"], codec)
        elif isinstance(member["observed"], bool):
            table.column(member["column"], codec, observed=member["observed"])
        else:
            raise TypeError
    return table


def _member_name(member: Mapping[str, Any]) -> str:
    name: str = member.get("column") or member.get("family") or member["weak"]
    return name


def _show(member: Mapping[str, Any]) -> str:
    if "weak" in member:
        return "a weak column"
    kind = "a family" if "family" in member else "a column"
    seen = ", observed" if member.get("observed") else ""
    return f"{kind} of {member['type']}{seen}"
