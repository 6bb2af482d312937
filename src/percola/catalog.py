"""The schema stored in the repository: the tables of all programs, in the system table.

A program declares the tables that it uses; the store has those of all programs. Versions of the
schema are numbered, and each is written on the condition that it is the next.

Where the feeds are in the rows of tables, on HBase and Bigtable, they have an index, which every
client that commits has to keep (`percola.store.remote.feed_index`). The stored schema then begins
with a note that releases before 0.2 take for a damaged one, so that they cannot open it. A
repository that they may open has no index, and `index_feeds` begins one.

While a repository is being copied into a store, a note of the copy takes the schema's place
(`percola.maintenance.copy`): what is there is no repository yet, and is not opened as one.
"""

from __future__ import annotations

from typing import Final

from percola.cells import MAX_TS, Cell, Kind
from percola.errors import (
    DamagedRecordError,
    NotARepositoryError,
    StoreError,
    UnknownTableError,
)
from percola.oracle.base import Oracle
from percola.schema import Column, Family, Schema, Table, WeakColumn
from percola.store.base import SYSTEM_TABLE, Condition, Delete, Put, RowMutation, Store

RUNS: Final = Table("percola_runs", rows=bytes, feed=True)
"""Records of the runs of observers, while they are recorded (`percola.recording`): what each one
answered and wrote (`percola.observers.run_records`). Garbage collection forgets them up
to the safe point."""

RUN: Final = RUNS.column("run", bytes)

_SCHEMA_CELL: Final = Cell(SYSTEM_TABLE, b"schema", b"@json")
_FEED_ROW: Final = b"feed"
_COPY_NOTE: Final = '{"unfinished_copy": '
_INDEXED: Final = '{"needs": "Percola 0.2 or later: upgrade it here", "schema": '
"""Begins the schema of a repository whose feeds have an index. Releases before 0.2 quote it."""


def stored_schema(store: Store) -> Schema:
    """Every table of the repository, as it is now; user-defined codecs are known by name only."""
    return _newest(store)[1]


def newest_version(store: Store, cell: Cell) -> tuple[int, bytes]:
    """The newest version of a cell of the system table; (0, b"") if there is none."""
    versions = store.entries(cell, Kind.DATA, 0, MAX_TS, 1)
    return versions[0] if versions else (0, b"")


def write_version(store: Store, cell: Cell, version: int, text: str) -> bool:
    """Write the version after `version`, in its place; False if another process has written it.

    The last one stays, since the next is above it.
    """
    absent = Condition(False, Kind.DATA, cell.column, version + 1, MAX_TS)
    changes: list[Put | Delete] = [Put(Kind.DATA, cell.column, version + 1, text.encode())]
    if version:
        changes.append(Delete(Kind.DATA, cell.column, version))
    return store.mutate([RowMutation(SYSTEM_TABLE, cell.row, [absent], changes)])[0]


def _newest(store: Store) -> tuple[int, Schema]:
    version, text = _newest_text(store)
    if text.startswith(_COPY_NOTE):
        raise NotARepositoryError(
            "There is an unfinished copy of a repository, which cannot be opened. Finish it with "
            "the 'percola copy' that began it, or delete it and begin again."
        )
    if text.startswith(_INDEXED):
        text = text[len(_INDEXED) : -1]
    return version, Schema.from_json(text or '{"tables": []}')


def _newest_text(store: Store) -> tuple[int, str]:
    """The newest version of the schema's text; (0, "") if there is none."""
    version, raw = newest_version(store, _SCHEMA_CELL)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    if version and not text:
        raise DamagedRecordError(
            f"The stored schema cannot be read: {raw[:60]!r}. Restore a backup."
        )
    return version, text


def _keeps_index(store: Store) -> bool:
    """Whether the repository's feeds have an index, or will if it gets one."""
    _, text = _newest_text(store)
    return text.startswith(_INDEXED) or (not text and store.feed_index is not None)


def _text(schema: Schema, *, indexed: bool) -> str:
    return f"{_INDEXED}{schema.to_json()}}}" if indexed else schema.to_json()


def _replace(store: Store, version: int, text: str) -> bool:
    return write_version(store, _SCHEMA_CELL, version, text)


# --- Copies -----------------------------------------------------------------------------


def copy_note(store: Store) -> tuple[int, str | None]:
    """The schema's version, and the note of an unfinished copy, or None if there is none.

    Raises NotARepositoryError if there are tables: they would be mixed with the copy's.
    """
    store.create_tables([SYSTEM_TABLE])
    version, text = _newest_text(store)
    if text.startswith(_COPY_NOTE):
        return version, text[len(_COPY_NOTE) : -1]
    tables = [table.name for table in _newest(store)[1]]
    if tables:
        raise NotARepositoryError(
            f"The target has a repository with the table {tables[0]!r}: name an empty or a new "
            "place for the copy."
        )
    return version, None


def write_copy_note(store: Store, version: int, note: str) -> int | None:
    """Write the note of a copy, a JSON document, in place of version `version`.

    Returns the new version; None if another process has written one.
    """
    return version + 1 if _replace(store, version, f"{_COPY_NOTE}{note}}}") else None


def end_copy(store: Store, version: int, schema: Schema) -> bool:
    """Replace the note of a copy by its schema; False if another process has changed it."""
    return _replace(store, version, _text(schema, indexed=store.feed_index is not None))


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
    text = _text(Schema(()), indexed=store.feed_index is not None)
    put = Put(Kind.DATA, _SCHEMA_CELL.column, 1, text.encode())
    store.mutate([RowMutation(SYSTEM_TABLE, _SCHEMA_CELL.row, [absent], [put])])


def reconcile(store: Store, declared: Schema) -> Schema:
    """Merge the declared schema into the stored one; safe with concurrent callers.

    Raises SchemaMismatchError if they contradict each other.
    """
    store.create_tables([SYSTEM_TABLE])
    while True:
        version, stored = _newest(store)
        merged = declared.merged_into(stored)
        if merged.plain() == stored.plain():
            return merged.with_codecs_of(declared)
        # Before the schema names them: a table that it names and that is missing has been deleted.
        store.create_tables({table.name for table in merged} - {table.name for table in stored})
        _replace(store, version, _text(merged, indexed=_keeps_index(store)))


def check_tables(store: Store, schema: Schema) -> None:
    """Raise StoreError if a table of the schema is not in the store any more.

    It is not created again: as an empty one it would look as if nothing were wrong.
    """
    try:
        store.check_tables(table.name for table in schema)
    except UnknownTableError as error:
        raise StoreError(
            f"A table of this repository has been deleted. {error} Restore it there, from a "
            "snapshot of the store, or the repository from a backup."
        ) from error


def keep_feeds(store: Store, oracle: Oracle, schema: Schema) -> None:
    """Have the store keep the feed of every table that is declared with one.

    The start of the feed is noted once: the newest timestamp drawn by the time all writers knew of
    the feed. A commit_ts above it is drawn later, and its records are written later still.
    """
    for table in schema:
        if table.feed and feed_since(store, table.name) is None:
            if store.feed_index is not None and _keeps_index(store):
                store.feed_index.begin(oracle.read_timestamp)
            store.keep_feed(table.name)
            column = _since_column(table.name)
            note = Put(Kind.DATA, column, oracle.read_timestamp(), b"")
            absent = Condition(False, Kind.DATA, column, 0, MAX_TS)
            store.mutate([RowMutation(SYSTEM_TABLE, _FEED_ROW, [absent], [note])])


def index_feeds(store: Store, oracle: Oracle) -> bool:
    """Begin the index of the repository's feeds; False if it has one, or the store needs none.

    From now on no release before 0.2 can open the repository. Those of its processes that have it
    open must have ended before: what they write has no index entries, and followers miss it.
    """
    if store.feed_index is None:
        return False
    while not _keeps_index(store):
        version, schema = _newest(store)
        _replace(store, version, _text(schema, indexed=True))
    return store.feed_index.begin(oracle.read_timestamp)


def feed_since(store: Store, table: str) -> int | None:
    """The timestamp above which the table's feed lists every change; None if it keeps none."""
    found = store.entries(
        Cell(SYSTEM_TABLE, _FEED_ROW, _since_column(table)), Kind.DATA, 0, MAX_TS, 1
    )
    return found[0][0] if found else None


def copy_feed(source: Store, target: Store, table: str, upto: int) -> None:
    """Have the target list from now on what the source's feed of the table lists, from its start.

    If the feed began by `upto`; otherwise the target begins a feed of its own when it is opened.
    """
    since = feed_since(source, table)
    if since is not None and since <= upto:
        if target.feed_index is not None:
            target.feed_index.begin(lambda: upto)
        target.keep_feed(table)
        note = Put(Kind.DATA, _since_column(table), since, b"")
        target.mutate([RowMutation(SYSTEM_TABLE, _FEED_ROW, (), [note])])


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
