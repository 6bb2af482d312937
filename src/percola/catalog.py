"""The schema stored in the repository: the tables of all programs, in the system table.

A program declares the tables that it uses; the store has those of all programs. Versions of the
schema are numbered, and each is written on the condition that it is the next.
"""

from __future__ import annotations

from typing import Final

from percola.cells import MAX_TS, Cell, Kind
from percola.errors import UnknownTableError
from percola.oracle.base import Oracle
from percola.schema import Column, Family, Schema, WeakColumn
from percola.store.base import Condition, Put, RowMutation, Store

SYSTEM_TABLE: Final = "@percola"
"""The name of Percola's own table; no user table can have it."""

_SCHEMA_CELL: Final = Cell(SYSTEM_TABLE, b"schema", b"@json")
_FEED_ROW: Final = b"feed"


def stored_schema(store: Store) -> Schema:
    """Every table of the repository, as it is now; user-defined codecs are known by name only."""
    return _newest(store)[1]


def _newest(store: Store) -> tuple[int, Schema]:
    versions = store.entries(_SCHEMA_CELL, Kind.DATA, 0, MAX_TS, 1)
    version, text = versions[0] if versions else (0, b'{"tables": []}')
    return version, Schema.from_json(text.decode())


def has_schema(store: Store) -> bool:
    """Whether the store has a repository: a schema was written, even an empty one."""
    try:
        return bool(store.entries(_SCHEMA_CELL, Kind.DATA, 0, MAX_TS, 1))
    except UnknownTableError:
        return False


def create_schema(store: Store) -> None:
    """Write an empty schema if there is none."""
    store.create_tables([SYSTEM_TABLE])
    absent = Condition(False, Kind.DATA, _SCHEMA_CELL.column, 0, MAX_TS)
    put = Put(Kind.DATA, _SCHEMA_CELL.column, 1, Schema(()).to_json().encode())
    store.mutate([RowMutation(SYSTEM_TABLE, _SCHEMA_CELL.row, [absent], [put])])


def reconcile(store: Store, declared: Schema) -> Schema:
    """Merge the declared schema into the stored one; safe with concurrent callers.

    Raises SchemaMismatchError if they contradict each other.
    """
    store.create_tables([SYSTEM_TABLE])
    while True:
        version, stored = _newest(store)
        merged = declared.merged_into(stored)
        if merged.to_json() == stored.to_json():
            return merged.with_codecs_of(declared)
        put = RowMutation(
            SYSTEM_TABLE,
            _SCHEMA_CELL.row,
            [Condition(False, Kind.DATA, _SCHEMA_CELL.column, version + 1, MAX_TS)],
            [Put(Kind.DATA, _SCHEMA_CELL.column, version + 1, merged.to_json().encode())],
        )
        store.mutate([put])


def keep_feeds(store: Store, oracle: Oracle, schema: Schema) -> None:
    """Have the store keep the feed of every table that is declared with one.

    The start of the feed is noted once: the newest timestamp drawn by the time all writers knew of
    the feed. A commit_ts above it is drawn later, and its records are written later still.
    """
    for table in schema:
        if table.feed and feed_since(store, table.name) is None:
            store.keep_feed(table.name)
            column = _since_column(table.name)
            note = Put(Kind.DATA, column, oracle.read_timestamp(), b"")
            absent = Condition(False, Kind.DATA, column, 0, MAX_TS)
            store.mutate([RowMutation(SYSTEM_TABLE, _FEED_ROW, [absent], [note])])


def feed_since(store: Store, table: str) -> int | None:
    """The timestamp above which the table's feed lists every change; None if it keeps none."""
    found = store.entries(
        Cell(SYSTEM_TABLE, _FEED_ROW, _since_column(table)), Kind.DATA, 0, MAX_TS, 1
    )
    return found[0][0] if found else None


def _since_column(table: str) -> bytes:
    return b"@since:" + table.encode()


def columns_of(schema: Schema) -> dict[tuple[str, bytes], bool | None]:
    """Every column's address and whether it is observed, as `TransactionContext.columns` has it."""
    columns: dict[tuple[str, bytes], bool | None] = {}
    for table in schema:
        columns[table.name, b""] = None
        for member in table.members:
            if isinstance(member, WeakColumn):
                columns[member.address] = None
            elif isinstance(member, Family):
                columns[table.name, member.prefix] = False
            elif isinstance(member, Column):
                columns[member.address] = member.observed
    return columns
