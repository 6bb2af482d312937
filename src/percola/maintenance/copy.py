"""Copies a repository to another store: from a folder to HBase or Bigtable, back, or to a folder.

The copy is the source as of one timestamp, `ts`, and as garbage collection at `ts` would leave it:
of each cell the newest put up to `ts`, with its timestamps, and of older versions nothing. What
observers have done and what they have yet to do is as it was:

    acknowledgments    are cells, and are copied as such
    dead letters       those of changes up to `ts`
    notify entries     those up to `ts`, and those that were answered between `ts` and the copy

With its history, a copy also has the older versions, as far back as the source can be read, at the
end of the copying, and the feeds list them. What it never has are the records of transactions that
changed nothing, or nothing for good: those of locks and rollbacks.

Other programs may read and write the source meanwhile. Four things make the copy that of `ts`:

* A retention hold keeps the safe point where it is; it is checked after each batch that was read.
* Before a range is read, every lock in it of a transaction that began up to `ts` is resolved. A
  transaction that locks a cell later draws its commit_ts later still (rule P2), and so above `ts`.
* Notify entries have no versions, and an observer may answer one before its row is read. Its run
  then has put an acknowledgment above `ts`, or a dead letter. So each range is read kind by kind,
  notify entries before dead letters before write records: a change has its entry, or what is above
  `ts` says that it had. It gets one in the copy, where the observer runs for it again. Retrying
  turns a dead letter into a newer notify entry, so these are read once more in between.
* Timestamps of the target are above `ts` before the first row is written, so that whatever commits
  there is newer than all of the copy.

Ranges of rows are copied by this process or by tasks of Spark (`percola.ranges`). If these run on
other machines than the one with the target's folder, they write files, which this process copies;
and the other way round from a folder to a network store (`percola.maintenance.parts`). How far each
range has come is stored in the target, so a copy that was killed is resumed, at the same `ts`. Rows
may be written twice, by a task that is run again for instance: they are the same.

While it is being copied, the target's schema is a note of the copy, and every `open` is refused;
the last step replaces the note by the schema. Before that, the walk is ended, and a process that
copies asks before each request to the target whether it is to go on. So of two copies into one
target one ends with an error, and a process that others have given up writes nothing into a
repository that is in use, but for a request that it had sent.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from percola.catalog import (
    copy_feed,
    copy_note,
    end_copy,
    stored_schema,
    write_copy_note,
)
from percola.cells import (
    MAX_TS,
    Cell,
    Kind,
    Op,
    ack_column,
    acknowledged_column,
    decode_ts,
    decode_write,
    encode_write,
    is_failed_column,
    unhandled_attempts,
)
from percola.clock import Clock
from percola.connect.address import is_memory, network_address, portable
from percola.connect.local import LocalConnection, folder_in_use, folder_of
from percola.errors import (
    ConflictingOptionsError,
    SnapshotTooOldError,
    UsageError,
    ValueTooLargeError,
)
from percola.gc.retention_holds import hold, release
from percola.gc.time_log import copy_log
from percola.maintenance.origin import Origin, name_of
from percola.maintenance.parts import PartFile, check_parts, end_runs, new_part, new_run, read_part
from percola.oracle.base import Oracle
from percola.oracle.embedded import EmbeddedOracle
from percola.paused import copy_paused
from percola.ranges import (
    HERE,
    Counts,
    Cursor,
    NoWalk,
    Runner,
    TableRange,
    Unfinished,
    Walk,
    whole,
)
from percola.recording import copy_recording
from percola.repository import Repository
from percola.schema import Schema
from percola.store.base import Limits, Put, RowMutation, Store, missing_data
from percola.store.walks import WriteRecords, scan_writes, walk_kind
from percola.transactions.context import TransactionContext

__all__ = ["HELD", "Copied", "check_target", "copy_repository", "copy_store"]

_RECORDS: Final = 1024
"""Write records that are read at once, about."""
_VERSIONS: Final = 1000
"""The most records of a cell that are read at once: it may have millions."""
_CHANGES: Final = 500
_BYTES: Final = 4 << 20
"""A request to the target has about as many changes, and bytes, at most."""
_SAVED_EVERY: Final = 1.0
HELD: Final = 6 * 3600.0
"""Seconds for which a copy that was killed can be resumed; it holds garbage collection back."""
_RENEWED_EVERY: Final = 600.0
_WALK: Final = b"copy"
"""The row of the target's system table with the positions."""

_CHANGED: Final = (Op.PUT, Op.DELETE)

Entries = dict[int, bytes]
"""The notify or failed entries of a cell, by timestamp."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy, finished or in progress.

    Attributes:
        ts: the timestamp as of which the source is copied.
        rows: how many rows were copied, also by earlier calls: those that `resumed` counts.
        cells: how many cells this call has copied.
        table: a table that is being copied; empty at the end.
    """

    ts: int
    rows: int = 0
    resumed: int = 0
    cells: int = 0
    table: str = ""


def copy_repository(
    source: Repository,
    target: str,
    *,
    at: int | datetime | None = None,
    durability: str | None = None,
    history: bool = False,
    progress: Callable[[Copied], object] = lambda copied: None,
    runner: Runner = HERE,
) -> Copied:
    """Copy a repository, as it is now or was at some time, to an empty place.

    Args:
        source: the repository to copy; it may be written meanwhile.
        target: the address of the copy: a folder, or a network store whose oracle is running.
        at: the timestamp or time to copy; None: now. A copy that is resumed keeps its timestamp.
        durability: of a folder: "full" (the default) or "relaxed".
        history: copy the older versions and the feeds, too.
        progress: called after each batch of rows.
        runner: who copies: this process, or the tasks of Spark (`percola.spark.OnSpark`), which
            must reach the target too.

    Raises what `copy_store` and `percola.open` raise.
    """
    if is_memory(target):
        raise ConflictingOptionsError(
            "A repository in memory ends with its process: name a folder or a network store."
        )
    if at is not None and network_address(target) is None and not folder_of(target).exists():
        source.snapshot(at).close()  # Else a folder would be made, of which nothing can be copied.
    with _opened(target, durability) as (store, oracle):
        of_task = None if runner is HERE else partial(_opened_store, portable(target))
        parts = None
        if not runner.on_this_machine and network_address(target) is None:
            parts, of_task = f"{target}.parts", None
        elif not runner.on_this_machine and network_address(source.address) is None:
            parts = f"{source.address}.parts"
        return copy_store(
            source,
            store,
            oracle,
            at=at,
            history=history,
            progress=progress,
            runner=runner,
            of_task=of_task,
            parts=None if parts is None else folder_of(parts).absolute(),
            place=target,
        )


def check_target(target: str) -> None:
    """Raise what `copy_repository` would at once: NotARepositoryError if the target has tables.

    Otherwise also what opening it raises. For what takes long before the copy begins.
    """
    with _opened(target, None) as (store, _):
        copy_note(store)


@contextmanager
def _opened(target: str, durability: str | None) -> Iterator[tuple[Store, Oracle]]:
    """The target's store and oracle; a folder is made if it does not exist."""
    if (network := network_address(target)) is not None:
        network.refuse_durability(durability)
        from percola.connect.cluster import NetworkConnection

        connection = NetworkConnection.open(network)
        try:
            yield connection.store, connection.oracle
        finally:
            connection.release()
        return
    local = LocalConnection.open(folder_of(target), durability, create=True)
    try:
        yield local.store, EmbeddedOracle(local.store)
    finally:
        local.release()


@contextmanager
def _opened_store(target: str) -> Iterator[Store]:
    """The target's store, in a task: it is there already, and the oracle is not needed."""
    if (network := network_address(target)) is None:
        # Not made: on a machine where the folder is not, that has to be an error.
        local = LocalConnection.open(folder_of(target), None, create=False)
        try:
            yield local.store
        finally:
            local.release()
        return
    from percola.connect.cluster import open_store

    with closing(open_store(network)) as store:
        yield store


def copy_store(
    source: Repository,
    store: Store,
    oracle: Oracle,
    *,
    at: int | datetime | None = None,
    history: bool = False,
    progress: Callable[[Copied], object] = lambda copied: None,
    runner: Runner = HERE,
    of_task: Callable[[], AbstractContextManager[Store]] | None = None,
    parts: Path | None = None,
    place: str = "the target",
) -> Copied:
    """Copy a repository to an empty store with its oracle; see `copy_repository`.

    `place` is what errors call the target.

    `of_task` opens the store in another process; None if the runner works in this one. `parts` is
    for a runner on other machines, which have either the source or the store, and is a folder that
    is made: with `of_task` this process writes files there, which the runner puts into the store;
    without, the runner writes them, and this process puts them there.

    Raises NotARepositoryError if the target has tables; UsageError if `parts` has other files, or
    if the target has an unfinished copy of another repository, one that is too old to be resumed,
    or one whose `history` differs, or if another process copies to it as well; SnapshotTooOldError
    if `at` is; LockTimeoutError if a live transaction that began before does not end;
    RowTooLongError or ValueTooLargeError for what the target cannot hold.
    """
    if parts is not None:
        check_parts(parts)
    note = _begin(source, store, at, history=history, place=place)
    context = source.context
    hold = _Hold(source, note, place)
    hold.renew()
    oracle.advance(note.ts)
    schema = Schema.from_json(note.schema)
    tables = sorted(table.name for table in schema)
    store.create_tables(tables)
    for table in tables if history else ():
        copy_feed(context.store, store, table, note.ts)
    walk = Walk(store, context.clock, _WALK, _SAVED_EVERY)
    found = walk.unfinished() or Unfinished({}, left=whole(tables))
    ranges = runner.cut(context.store, found.left)
    if not walk.begin({}, ranges, found.counts):
        raise _overtaken()
    to_store = of_task or (lambda: nullcontext(store))
    if parts is None:
        copy = _CopyRange(walk, note.ts, history, to_store)
        stages = [runner.run(context, ranges, copy, title="Copying", tick=hold.tick)]
    else:
        like = folder_in_use(context.store) or folder_in_use(store)
        folder = new_run(parts, note.hold, walk.run, alone=of_task is None, like=like)
        reader, loader = (HERE, runner) if of_task else (runner, HERE)
        write = _CopyToFile(folder, store.limits, note.ts, history)
        load = _LoadFile(folder, ranges, walk, context.clock, to_store)
        stages = [
            reader.run(context, ranges, write, title="Copying", tick=hold.tick),
            loader.each(len(ranges), load, title="Loading", tick=hold.tick),
        ]
    before = found.counts["rows"]
    copied = Copied(note.ts, before, before)
    for stage in stages:
        counted: dict[int, Counts] = {}
        for number, counts in stage:
            counted[number] = counts
            copied = replace(
                copied,
                rows=before + sum(one["rows"] for one in counted.values()),
                cells=sum(one["cells"] for one in counted.values()),
                table=ranges[number].table,
            )
            progress(copied)
    # From here on nobody copies rows any more, also nobody whose process was given up.
    if not walk.begin({}, [], Counts(rows=copied.rows)):
        raise _overtaken()
    copy_log(context.store, store, note.ts)
    copy_paused(context.store, store)
    copy_recording(context.store, store, note.ts)
    # What was there to be read when a range was copied can be read from here on at the latest.
    store.raise_safe_point(min(context.store.safe_point(), note.ts) if history else note.ts)
    Origin(note.source, note.begun_ms, context.clock.wall_ms()).write(store, note.ts)
    # The first `open` has the store keep the tables' feeds.
    if not end_copy(store, note.version, schema):
        raise _overtaken()
    walk.end()
    hold.release()
    if parts is not None:
        end_runs(parts, note.hold)
    return replace(copied, table="")


# --- The note in the target -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Note:
    """What the target says of the copy while it is unfinished.

    Attributes:
        version: the version of the target's schema that the note is; not part of its text.
        source: the name of the source (`name_of`).
        ts: the timestamp of the copy.
        hold: the name of the retention hold in the source.
        schema: the source's, as JSON.
        history: whether the older versions are copied, too.
        begun_ms: when the copy was begun, by the wall clock, in milliseconds since the epoch; 0 if
            an earlier release has begun it.
    """

    version: int
    source: str
    ts: int
    hold: str
    schema: str
    history: bool = False
    begun_ms: int = 0

    def written(self, store: Store) -> _Note:
        """The same, written to the target. Raises UsageError if another process was faster."""
        text = {name: value for name, value in asdict(self).items() if name != "version"}
        version = write_copy_note(store, self.version, json.dumps(text))
        if version is None:
            raise _overtaken()
        return replace(self, version=version)


def _overtaken() -> UsageError:
    return UsageError(
        "Another process copies to the same target, and has gone on from here: let it finish."
    )


def _begin(
    source: Repository, store: Store, at: int | datetime | None, *, history: bool, place: str
) -> _Note:
    """The note of a copy that is resumed, or of a new one, which is written."""
    version, text = copy_note(store)
    name = name_of(os.fspath(folder_in_use(source.context.store) or source.address))
    if text is not None:
        written = json.loads(text)
        named = {one.name: written[one.name] for one in fields(_Note) if one.name in written}
        note = _Note(version=version, **named)
        if note.source != name:
            raise UsageError(
                f"There is an unfinished copy of {note.source} in {place}, not of {name}: finish "
                f"that one, or delete {place}."
            )
        if note.history is not history:
            raise UsageError(
                f"There is an unfinished copy {'with' if note.history else 'without'} the history "
                f"in {place}: finish it as it was begun, or delete {place}."
            )
        return note
    with source.snapshot(at) as snapshot:
        ts = snapshot.start_ts
    schema = stored_schema(source.context.store)
    hold, begun_ms = f"copy/{secrets.token_hex(8)}", source.context.clock.wall_ms()
    note = _Note(version, name, ts, hold, schema.to_json(), history, begun_ms)
    return note.written(store)


# --- Copying ----------------------------------------------------------------------------


class _Hold:
    """Has the source keep what it has, until the copy is done."""

    def __init__(self, source: Repository, note: _Note, place: str) -> None:
        self._context = source.context
        self._note = note
        self._place = place
        self._renewed_at = 0.0

    def renew(self) -> None:
        """Raises UsageError if versions are gone already."""
        clock, store, note = self._context.clock, self._context.store, self._note
        self._renewed_at = clock.monotonic()
        while True:
            try:
                # Not `ts`: a delete could be removed once answered, before its row is read.
                hold(store, clock, note.hold, min(store.safe_point(), note.ts), HELD)
                return
            except SnapshotTooOldError as error:
                if error.safe_point > note.ts:  # Else a collector has raised it just now.
                    raise UsageError(
                        f"The copy is of timestamp {note.ts}, and garbage collection in "
                        f"{note.source} has gone beyond it. Delete {self._place} and begin again."
                    ) from error

    def tick(self) -> None:
        """Renew it if it is time."""
        if self._context.clock.monotonic() - self._renewed_at >= _RENEWED_EVERY:
            self.renew()

    def release(self) -> None:
        """End it."""
        release(self._context.store, self._note.hold)


@dataclass(frozen=True, slots=True)
class _CopyRange:
    """Copies a range, from the position that is stored of it."""

    walk: Walk
    ts: int
    history: bool
    target: Callable[[], AbstractContextManager[Store]]

    def __call__(
        self, context: TransactionContext, number: int, one: TableRange
    ) -> Generator[Counts]:
        with self.target() as store:
            walk = self.walk.on(store, context.clock)
            yield from _Copy(self, context, store, walk, one, number).run()


@dataclass(frozen=True, slots=True)
class _CopyToFile:
    """Copies a whole range to a file."""

    folder: Path
    limits: Limits
    ts: int
    history: bool

    def __call__(
        self, context: TransactionContext, number: int, one: TableRange
    ) -> Generator[Counts]:
        with new_part(self.folder, number, self.limits) as part:
            yield from _Copy(self, context, part, NoWalk(), one, number).run()


@dataclass(frozen=True, slots=True)
class _LoadFile:
    """Puts the file of a range into the store, from the position that is stored of it."""

    folder: Path
    ranges: Sequence[TableRange]
    walk: Walk
    clock: Clock
    target: Callable[[], AbstractContextManager[Store]]

    def __call__(self, number: int) -> Generator[Counts]:
        with self.target() as store:
            walk = self.walk.on(store, self.clock)
            cursor = Cursor(walk, number, self.ranges[number])
            if cursor.following is not None:
                yield from self._load(number, store, walk, cursor, cursor.following)
            yield cursor.counts

    def _load(
        self, number: int, store: Store, walk: Walk, cursor: Cursor, start: bytes
    ) -> Generator[Counts]:
        counts = cursor.counts
        batch: list[RowMutation] = []
        size, row = 0, b""
        columns: set[bytes] = set()  # What the row has, up to here: its changes may be several.
        for mutation in read_part(self.folder, number):
            if mutation.row < start:
                continue
            if mutation.row != row:
                counts.update(rows=bool(row), cells=len(columns))
                row, columns = mutation.row, set()
            if len(batch) >= _CHANGES or size >= _BYTES:
                self._write(store, walk, batch)
                if not cursor.move(row):
                    raise _overtaken()
                yield counts
                batch, size = [], 0
            batch.append(mutation)
            puts = [put for put in mutation.changes if isinstance(put, Put)]
            columns.update(put.column for put in puts if put.kind is Kind.WRITE)
            size += sum(len(put.value) for put in puts)
        counts.update(rows=bool(row), cells=len(columns))
        self._write(store, walk, batch)
        if not cursor.move(None):
            raise _overtaken()

    def _write(self, store: Store, walk: Walk, batch: Sequence[RowMutation]) -> None:
        if not walk.is_current():
            raise _overtaken()
        store.mutate(batch)


class _Ahead(NamedTuple):
    """Entries of rows that are to be copied, by row and column, and the row below which."""

    notified: dict[bytes, dict[bytes, Entries]]
    failed: dict[bytes, dict[bytes, Entries]]
    end: bytes


class _Copy:
    """The copy of one range."""

    def __init__(
        self,
        work: _CopyRange | _CopyToFile,
        context: TransactionContext,
        store: Store | PartFile,
        walk: Walk | NoWalk,
        one: TableRange,
        number: int,
    ) -> None:
        self._context = context
        self._source = context.store
        self._store = store
        self._walk = walk
        self._ts = work.ts
        self._history = work.history
        self._floor = work.ts
        self._table, _, self._end = one
        self._cursor = Cursor(walk, number, one)
        self._ahead: _Ahead | None = None
        self._batch: list[RowMutation] = []
        self._changes = self._bytes = 0

    def run(self) -> Generator[Counts]:
        """Copy what has not been copied; yields what was, after each batch that was read."""
        cursor = self._cursor
        if cursor.following is not None:
            self._resolve_locks(cursor.following)
        while cursor.following is not None:
            following = self._copy_batch(cursor.following)
            if following is None:
                self._flush()
            if not cursor.move(following, first=self._flush):
                raise _overtaken()
            yield cursor.counts
        yield cursor.counts

    def _resolve_locks(self, start: bytes) -> None:
        resolver = self._context.resolver
        locks = walk_kind(self._source, Kind.LOCK, self._table, start, self._end)
        for one in resolver.undecided(one for one in locks if one[1] <= self._ts):
            resolver.wait_below(*one, self._ts)

    def _copy_batch(self, start: bytes) -> bytes | None:
        """Copy some rows from `start` on; the row to go on from, or None at the end."""
        table = self._table
        if self._history:
            # Versions that only readers below it see may be removed at any moment.
            self._floor = min(self._source.safe_point(), self._ts)
        if self._ahead is None or start == self._ahead.end:
            self._ahead = self._look_ahead(start)
        notified, failed, end = self._ahead
        cells, after = scan_writes(self._source, table, start, end, _RECORDS, versions=_VERSIONS)
        self._source.check_safe_point(self._ts)
        upto = after or end
        rows: dict[bytes, list[tuple[Cell, list[tuple[int, bytes]]]]] = {}
        for one in cells:
            rows.setdefault(one[0].row, []).append(one)
        for row in sorted(rows.keys() | notified.keys() | failed.keys()):
            if not upto or row < upto:
                changes = self._changes_of(
                    row, rows.get(row, ()), notified.pop(row, {}), failed.pop(row, {})
                )
                self._cursor.counts["rows"] += self._put(table, row, changes)
        return None if upto == self._end else upto

    def _look_ahead(self, start: bytes) -> _Ahead:
        """The notify and failed entries of the rows that come next.

        A look may read all rows that are left, where a store keeps these entries among others. So
        it is for many batches: their write records are read later, and show what was answered.
        """
        # In this order: see the module's text. Each read ends the look where it ends itself.
        notified, end = self._entries(Kind.NOTIFY, start, self._end)
        failed, end = self._entries(Kind.FAILED, start, end)
        moved, end = self._entries(Kind.NOTIFY, start, end)
        for row, columns in moved.items():
            for column, entries in columns.items():
                notified.setdefault(row, {}).setdefault(column, {}).update(entries)
        if end:
            for rows in (notified, failed):
                for row in [one for one in rows if one >= end]:
                    del rows[row]  # The next look has them.
        return _Ahead(notified, failed, end)

    def _entries(
        self, kind: Kind, start: bytes, end: bytes
    ) -> tuple[dict[bytes, dict[bytes, Entries]], bytes]:
        """Entries from `start` on, by row and column; and the row below which these are all."""
        found, following = self._source.scan_kind(kind, self._table, start, end)
        rows: dict[bytes, dict[bytes, Entries]] = {}
        for cell, ts, raw in found:
            rows.setdefault(cell.row, {}).setdefault(cell.column, {})[ts] = raw
        return rows, following or end

    def _changes_of(
        self,
        row: bytes,
        known: Iterable[tuple[Cell, Sequence[tuple[int, bytes]]]],
        notified: Mapping[bytes, Entries],
        failed: Mapping[bytes, Entries],
    ) -> Iterator[Put]:
        """One row of the copy; nothing if it had none at `ts`."""
        ts = self._ts
        cells = {one[0].column: WriteRecords(self._source, *one, _VERSIONS) for one in known}
        seen = _seen_by_then(cells, failed, ts)
        dead = {name for name, letters in failed.items() if _upto(ts, letters)}
        for column in (notified.keys() | seen.keys()) - cells.keys():
            if self._context.columns.get((self._table, column)):
                # It was deleted, and the delete has been answered and removed since.
                cells[column] = WriteRecords(self._source, Cell(self._table, row, column), (), 1)
        for column, records in cells.items():
            change = _newest_change(records, ts)
            entries = notified.get(column, {})
            pending = _upto(ts, entries)
            if change is None and (pending or any(seen.get(column, ()))):
                # It was deleted, perhaps just before `ts`, and the delete has been removed since.
                change = ts, encode_write(Op.DELETE, ts - 1)
            if change is None:
                continue
            commit_ts, raw = change
            # An entry where nothing was written may be of what was a dead letter at `ts`.
            if max(pending, default=0) < commit_ts and (
                any(upto < commit_ts for upto in seen.get(column, ()))
                or any(records.newest_upto(at) != at for at in entries)
            ):
                pending[commit_ts] = b""
            older = self._older(column, records, commit_ts)
            # Without it, who retries its dead letter would find that nothing has changed.
            is_dead = any(is_failed_column(name, column) for name in dead)
            stays = pending or is_dead or commit_ts > self._floor
            if decode_write(raw).op is Op.DELETE and not stays:
                continue
            for at, version in itertools.chain([change], older):
                yield from self._version(Cell(self._table, row, column), at, version, records)
            yield from (_unhandled(column, dead, *one) for one in pending.items())
            self._cursor.counts["cells"] += 1
        for column in (notified.keys() | seen.keys()) - cells.keys():
            # A weak column, which has no versions. If it was answered or notified since `ts`, it
            # may have been notified, or dead-lettered, by then: one run too many does no harm.
            pending = _upto(ts, notified.get(column, {})) or {ts: b""}
            yield from (_unhandled(column, dead, *one) for one in pending.items())
        for column, letters in failed.items():
            yield from (Put(Kind.FAILED, column, *one) for one in _upto(ts, letters).items())

    def _older(
        self, column: bytes, records: WriteRecords, newest: int
    ) -> Iterator[tuple[int, bytes]]:
        """The puts and deletes before the newest one that readers from the floor on see."""
        if newest <= self._floor or acknowledged_column(column) is not None:
            return
        for at, raw in records.upto(newest - 1):
            op = decode_write(raw).op
            if op not in _CHANGED:
                continue
            # At the floor, a delete reads like an absent cell.
            if at > self._floor or op is Op.PUT:
                yield at, raw
            if at <= self._floor:
                return

    def _version(self, cell: Cell, commit_ts: int, raw: bytes, records: WriteRecords) -> list[Put]:
        """The record of a put or delete, with its long value, which the target must take."""
        record = decode_write(raw)
        written = Put(Kind.WRITE, cell.column, commit_ts, raw)
        if record.op is not Op.PUT or record.value is not None:
            return [written]
        start_ts = record.start_ts
        found = self._source.entries(cell, Kind.DATA, start_ts, start_ts)
        if not found:
            self._source.check_safe_point(self._ts)
            there = self._source.entries(cell, Kind.WRITE, commit_ts, commit_ts)
            upto = min(self._source.safe_point(), self._ts)
            if not there or records.newest_upto(upto) > commit_ts:
                return []  # It was removed meanwhile, as superseded there, or a run's old record.
            raise missing_data(cell, commit_ts, start_ts)
        value = found[0][1]
        if len(value) > self._store.limits.value_bytes:
            raise ValueTooLargeError(
                f"{cell} has a value of {len(value):,} bytes, and the target takes up to "
                f"{self._store.limits.value_bytes:,}. Write a shorter one or delete the cell; then "
                "delete the target and copy again, as a copy that is resumed has the value of its "
                "timestamp."
            )
        return [written, Put(Kind.DATA, cell.column, start_ts, value)]

    # --- Writing --------------------------------------------------------------------------

    def _put(self, table: str, row: bytes, changes: Iterable[Put]) -> bool:
        """Add a row to the batch, in parts if it is long; False if it has no changes."""
        part: list[Put] = []
        size = 0
        for change in changes:
            if part and (len(part) >= _CHANGES or size + len(change.value) > _BYTES):
                self._add(RowMutation(table, row, (), part), size)
                self._flush()  # Nobody reads the target yet.
                part, size = [], 0
            part.append(change)
            size += len(change.value)
        if part:
            self._add(RowMutation(table, row, (), part), size)
        return bool(part)

    def _add(self, mutation: RowMutation, size: int) -> None:
        if self._changes + len(mutation.changes) > _CHANGES or self._bytes + size > _BYTES:
            self._flush()
        self._batch.append(mutation)
        self._changes += len(mutation.changes)
        self._bytes += size

    def _flush(self) -> None:
        if self._batch:
            if not self._walk.is_current():
                raise _overtaken()
            self._store.mutate(self._batch)
        self._batch = []
        self._changes = self._bytes = 0


def _upto(ts: int, entries: Entries) -> Entries:
    return {at: raw for at, raw in entries.items() if at <= ts}


def _unhandled(column: bytes, dead: Set[bytes], ts: int, raw: bytes) -> Put:
    """A notify entry as it is copied: the runs that handled it may be above the copy's `ts`."""
    return Put(Kind.NOTIFY, column, ts, unhandled_attempts(raw, column, dead))


def _newest_change(records: WriteRecords, ts: int) -> tuple[int, bytes] | None:
    """The newest put or delete up to `ts`, which no record above it needs to repeat."""
    return next((one for one in records.upto(ts) if decode_write(one[1]).op in _CHANGED), None)


def _seen_by_then(
    cells: Mapping[bytes, WriteRecords], failed: Mapping[bytes, Entries], ts: int
) -> dict[bytes, list[int]]:
    """The columns of a row that observers have answered, or failed on for good, since `ts`.

    For each the timestamps up to which those observers had acknowledged it at `ts`; 0: never.
    """
    late = {
        name
        for name, records in cells.items()
        if acknowledged_column(name) is not None and records.newest_upto(MAX_TS) > ts
    }
    for name, letters in failed.items():
        if any(at > ts for at in letters):
            _, observer, column = name.split(b":", 2)
            late.add(ack_column(observer.decode(), column))
    found: dict[bytes, list[int]] = {}
    for name in late:
        before = _newest_change(cells[name], ts) if name in cells else None
        record = decode_write(before[1]) if before is not None else None
        upto = decode_ts(record.value) if record is not None and record.value else 0
        about = acknowledged_column(name)
        assert about is not None
        found.setdefault(about, []).append(upto)
    return found
