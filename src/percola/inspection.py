"""§2.1, §2.2, §2.4: inspection of a repository's contents, for operators.

Transactions hide locks, versions and notify entries; these functions show them. They read the
store as it is at the moment: nothing waits for a lock, resolves one, or needs a worker to run.

    history         every version of one cell, as figure 4 draws it
    locks           the cells that a transaction is committing, or has left behind
    notifications   the dirty cells, whose observers have yet to run
    failures        dead-lettered changes (rule N5); `retry_failures` runs their observers again
    status          all of that in numbers, with the tables and the live processes
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from percola.catalog import stored_schema
from percola.cells import (
    ACKS,
    MAX_TS,
    Cell,
    Kind,
    LockRecord,
    Op,
    WriteRecord,
    acknowledged_column,
    acknowledging_observer,
    decode_dead_letter,
    decode_lock,
    decode_ts,
    decode_write,
    encode_retry,
    failed_column,
)
from percola.connect.local import FORMAT, folder_in_use
from percola.errors import PercolaError, UsageError
from percola.paused import NamedObserver, PausedObserver, name_of
from percola.repository import Repository
from percola.schema import Column, R, Schema, Table, WeakColumn
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.store.walks import walk_kind

_TOGETHER: Final = 256
"""The most changes that are retried in one call of the store."""


# --- One cell (figure 4) ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Version:
    """All entries at one timestamp of a cell: a line of figure 4.

    Attributes:
        ts: the timestamp.
        data: the value written by the transaction that started here, encoded; else None.
        lock: the lock that a transaction which started here holds; else None.
        write: the record of a commit at this timestamp, or of a rollback; else None.
        notify: whether a notify entry stands here: an observer has yet to look.
        acknowledged: the observers with a committed run that started here, and so has seen
            every version up to here.
    """

    ts: int
    data: bytes | None = None
    lock: LockRecord | None = None
    write: WriteRecord | None = None
    notify: bool = False
    acknowledged: tuple[str, ...] = ()


def history(
    repo: Repository,
    column: Column[R, Any] | WeakColumn[R],
    row: R,
    limit: int | None = None,
) -> list[Version]:
    """All stored entries of a cell, the highest timestamp first (§2.1, figure 4).

    With `limit` only the first so many, and not much more is read. Small values, which are inline
    in lock and write records, are shown at the timestamp of their data, as in the paper. A
    concurrent commit may appear in part.

    Raises WrongTypeError, RowTooLongError or UnknownTableError for a cell that cannot be.
    """
    store = repo.context.store
    _check_column(column)
    key = column.table.encode_row(row)
    store.check_row(column.table_name, key)
    cell = Cell(column.table_name, key, column.key)

    # Locks before writes: a commit in between then shows twice rather than not at all.
    locks = {ts: decode_lock(raw) for ts, raw in store.entries(cell, Kind.LOCK, 0, MAX_TS)}
    newest = store.entries(cell, Kind.WRITE, 0, MAX_TS, limit)
    writes = {ts: decode_write(raw) for ts, raw in newest}
    data = dict(store.entries(cell, Kind.DATA, 0, MAX_TS, limit))
    for ts, lock in locks.items():
        if lock.value is not None:
            data[ts] = lock.value
    for record in writes.values():
        if record.value is not None:
            data[record.start_ts] = record.value
    notified = {ts for ts, _ in store.entries(cell, Kind.NOTIFY, 0, MAX_TS, limit)}

    timestamps = sorted(locks.keys() | writes.keys() | data.keys() | notified, reverse=True)[:limit]
    # A run commits after its start_ts, where it is shown.
    lowest = timestamps[-1] if len(timestamps) == limit else 0
    acknowledged = _acknowledgments(repo, cell, lowest)
    return [
        Version(
            ts,
            data.get(ts),
            locks.get(ts),
            writes.get(ts),
            ts in notified,
            tuple(acknowledged.get(ts, ())),
        )
        for ts in sorted({*timestamps, *acknowledged}, reverse=True)[:limit]
    ]


def _acknowledgments(repo: Repository, cell: Cell, lowest: int) -> dict[int, list[str]]:
    """Runs on a cell that committed at `lowest` or later, by start_ts: c:ack_O of observers O."""
    store = repo.context.store
    found: dict[int, list[str]] = {}
    acks, _ = store.scan(
        cell.table, cell.row, cell.row + b"\0", MAX_TS, columns=[(ACKS, True)], limit=1
    )
    for ack, _ in acks:
        if acknowledged_column(ack.column) != cell.column:
            continue
        observer = acknowledging_observer(ack.column)
        for _, raw in store.entries(ack, Kind.WRITE, lowest, MAX_TS):
            record = decode_write(raw)
            if record.op is Op.PUT and record.value is not None:
                found.setdefault(decode_ts(record.value), []).append(observer)
    return found


# --- Locks (§2.2) -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock on a cell.

    Attributes:
        cell: the locked cell.
        start_ts: the start timestamp of the transaction that holds it.
        record: what the lock says: its primary, its owner, the operation.
        owner_alive: whether the owner's process still runs. If it does not, the next client
            that meets the lock finishes the transaction or undoes it. True of a lock of a job,
            which belongs to no single process: it may be undone once nobody refreshes it.
        age_seconds: since the owner last refreshed it, by its clock and this machine's: to be
            looked at, never to be decided by (rule P8).
    """

    cell: Cell
    start_ts: int
    record: LockRecord
    owner_alive: bool
    age_seconds: float

    @property
    def is_primary(self) -> bool:
        """Whether this cell is the transaction's primary."""
        return self.record.primary == self.cell


def locks(repo: Repository) -> Iterator[HeldLock]:
    """Every lock of the repository, in the order of tables and rows."""
    for entry in _entries(repo, Kind.LOCK):
        yield held_lock(repo, *entry)


def held_lock(repo: Repository, cell: Cell, start_ts: int, raw: bytes) -> HeldLock:
    """A lock, from its entry in the store."""
    context, record = repo.context, decode_lock(raw)
    return HeldLock(
        cell,
        start_ts,
        record,
        context.coordination.is_alive(record.owner),
        max(0, context.clock.wall_ms() - record.wall_ms) / 1000,
    )


def settle_the_dead(repo: Repository) -> int:
    """Resolve the locks of dead processes; return how many locks were removed.

    Any client that meets such a lock resolves it (§2.2); this also finds those that no client may
    ever meet. Snapshots do not change. Locks of live processes are left alone.
    """
    return repo.context.resolver.try_resolve_all(_entries(repo, Kind.LOCK))[0]


# --- Notifications and failures (§2.4) --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Notification:
    """A dirty cell: its observers have not run yet.

    Attributes:
        cell: the cell that changed, or was notified weakly.
        timestamps: the timestamps of its notify entries, in order; one run may answer them all.
    """

    cell: Cell
    timestamps: tuple[int, ...]


def notifications(repo: Repository, *, table: Table[Any] | None = None) -> Iterator[Notification]:
    """All dirty cells, or those of one table, in order; reads no clean cell."""
    entries = _entries(repo, Kind.NOTIFY, table)
    for cell, group in itertools.groupby(entries, key=lambda entry: entry[0]):
        yield Notification(cell, tuple(sorted(ts for _, ts, _ in group)))


def is_dirty(repo: Repository, column: Column[R, Any] | WeakColumn[R], row: R) -> bool:
    """Whether a cell is dirty: whether it has changed, or was notified, and was not answered."""
    _check_column(column)
    key = column.table.encode_row(row)
    entries = _entries(repo, Kind.NOTIFY, column.table, key, versions=1)
    return any(cell.column == column.name.encode() for cell, _, _ in entries)


@dataclass(frozen=True, slots=True)
class Failure:
    """A change that was dead-lettered for an observer that failed too often.

    Attributes:
        cell: the cell that changed.
        ts: the timestamp of the newest change that the observer had to handle.
        observer: its name.
        attempts: how often it was tried.
        at_ms: when it was dead-lettered, in milliseconds since the epoch.
        error: the exception that the last attempt raised, with the first line of its message.
        traceback: the whole traceback.
    """

    cell: Cell
    ts: int
    observer: str
    attempts: int
    at_ms: int
    error: str
    traceback: str


def failures(
    repo: Repository,
    *,
    observer: str | NamedObserver | None = None,
    table: Table[R] | None = None,
    row: R | None = None,
) -> Iterator[Failure]:
    """Dead-lettered changes, in the order of tables and rows.

    Only those of the given observer (itself or its name), table, or row of that table, if given.
    Raises UsageError for a row without its table, and for what is no observer.
    """
    return (one for one, _ in _letters(repo, observer, table, row))


def _letters(
    repo: Repository,
    observer: str | NamedObserver | None,
    table: Table[R] | None,
    row: R | None,
) -> Iterator[tuple[Failure, list[int]]]:
    """The failures, each with the timestamps of all its entries."""
    name = None if observer is None else name_of(observer)
    if row is not None and table is None:
        raise UsageError(f"Name the table of the row {row!r}: other tables may have such a row.")
    _check_table(table)
    key = table.encode_row(row) if table is not None and row is not None else None
    entries = _entries(repo, Kind.FAILED, table, key)
    for _, group in itertools.groupby(entries, key=lambda entry: entry[0]):
        found = list(group)
        one = failure(*found[-1])  # An older failure may have arrived late.
        if name in (None, one.observer):
            yield one, [ts for _, ts, _ in found]


def failure(cell: Cell, ts: int, raw: bytes) -> Failure:
    """A dead-lettered change, from its entry in the store."""
    letter = decode_dead_letter(raw)
    return Failure(
        Cell(cell.table, cell.row, letter.column.encode()),
        ts,
        letter.observer,
        letter.attempts,
        letter.at_ms,
        letter.error,
        letter.traceback,
    )


def retry_failures(
    repo: Repository,
    *,
    observer: str | NamedObserver | None = None,
    table: Table[R] | None = None,
    row: R | None = None,
    progress: Callable[[int], None] = lambda retried: None,
) -> int:
    """Run observers again for dead-lettered changes: all, or those that `failures` lists.

    Each cell becomes dirty again, in the same row mutation that removes the failure. Returns the
    number of changes, without those that another client has handled in the meantime. `progress` is
    called with the number so far after every few hundred; what it raises ends the retry.
    """
    retried = 0
    letters = _letters(repo, observer, table, row)
    while some := list(itertools.islice(letters, _TOGETHER)):
        retried += _make_dirty(repo, some)
        progress(retried)
    return retried


def retry_failure(repo: Repository, cell: Cell, observer: str) -> bool:
    """Run an observer again for one change of a cell, if it is dead-lettered for it.

    Returns whether it was, and no other client has handled it in the meantime.
    """
    entry = Cell(cell.table, cell.row, failed_column(observer, cell.column))
    found = repo.context.store.entries(entry, Kind.FAILED, 0, MAX_TS)
    if not found:
        return False
    return bool(_make_dirty(repo, [(failure(entry, *found[0]), [ts for ts, _ in found])]))


def _make_dirty(repo: Repository, letters: Iterable[tuple[Failure, list[int]]]) -> int:
    """Put notify entries in place of dead letters, and wake workers; how many still stood."""
    context = repo.context
    drawn: list[int] = []
    mutations: list[RowMutation] = []
    for (table, row), group in itertools.groupby(letters, key=lambda one: one[0].cell[:2]):
        # Those of one row at different timestamps: they may be of one cell.
        for number, (one, timestamps) in enumerate(group):
            if number == len(drawn):
                drawn.append(context.oracle.timestamp())
            retry = encode_retry(one.observer, one.ts)
            failed = failed_column(one.observer, one.cell.column)
            changes: list[Put | Delete] = [
                Put(Kind.NOTIFY, one.cell.column, drawn[number], retry),
                *(Delete(Kind.FAILED, failed, ts) for ts in timestamps),
            ]
            stands = Condition(True, Kind.FAILED, failed, one.ts, one.ts)
            mutations.append(RowMutation(table, row, [stands], changes))
    retried = sum(context.store.mutate(mutations))
    if retried:
        context.wake({one.table for one in mutations})
    return retried


# --- All of it --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """A live process that has written to the repository or observes it.

    Attributes:
        token: its liveness token, by which locks name it.
        pid: its process id.
        observers: the names of the observers that it runs, by column (`table.column`).
        since_ms: since when it uses the repository, by its wall clock, in milliseconds since the
            epoch; 0 if it is of an earlier release, which does not say.
        host: its machine; empty in a folder, where all are of one machine.
    """

    token: str
    pid: int
    observers: Mapping[str, list[str]]
    since_ms: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """A repository at a glance.

    Attributes:
        address: where it is.
        format: the version of its format.
        durability: the default that it was created with; None where a store has none.
        last_ts: the last timestamp handed out.
        safe_point: the oldest timestamp that can be read; 0 before any garbage collection.
        statistics: what the store says of itself: entries by kind, and `bytes` on disk; empty on a
            network store, which counts neither.
        tables: its tables, with their columns.
        processes: those that live now.
        locks: how many cells are locked.
        dead_locks: how many of them by processes that have ended.
        notifications: how many cells are dirty, by column (`table.column`).
        failures: how many changes are dead-lettered.
        paused: the observers that are paused.
    """

    address: str
    format: int
    durability: str | None
    last_ts: int
    safe_point: int
    statistics: Mapping[str, int]
    tables: tuple[Table[Any], ...]
    processes: tuple[Process, ...]
    locks: int
    dead_locks: int
    notifications: Mapping[str, int]
    failures: int
    paused: tuple[PausedObserver, ...]


def processes(repo: Repository) -> list[Process]:
    """The live processes that have written to the repository or observe it."""
    found = []
    for one in repo.context.coordination.processes():
        announced = one.get("observers")
        observers = announced if isinstance(announced, dict) else {}
        since_ms, host = int(str(one.get("since_ms", 0))), str(one.get("host", ""))
        found.append(Process(str(one["token"]), int(str(one["pid"])), observers, since_ms, host))
    return found


def status(repo: Repository) -> Status:
    """Count what is there. Costs in proportion to locks, dirty cells and failures."""
    context = repo.context
    held = [lock.owner_alive for lock in locks(repo)]
    dirty = Counter(column_name(cell) for cell, *_ in _entries(repo, Kind.NOTIFY, versions=1))
    return Status(
        repo.address,
        FORMAT,
        durability(repo),
        context.oracle.read_timestamp(),
        context.store.safe_point(),
        # Those of a network store count what this process has asked of it.
        context.store.statistics() if context.calls is None else {},
        tuple(repo.schema),
        tuple(processes(repo)),
        len(held),
        held.count(False),
        dict(dirty),
        sum(1 for _ in failures(repo)),
        tuple(repo.paused_observers()),
    )


def durability(repo: Repository) -> str | None:
    """The durability that the repository was created with; None if its store has none."""
    try:
        folder = folder_in_use(repo.context.store) or Path(repo.address)
        description = json.loads((folder / "percola.json").read_text())
    except OSError:
        return None
    return str(description["durability"])


def decoded_row(schema: Schema, cell: Cell) -> Any:
    """The key of a cell's row; its bytes, if the schema cannot decode them."""
    try:
        return schema.table(cell.table).decode_row(cell.row)
    except (PercolaError, ValueError):
        return cell.row


def column_name(cell: Cell) -> str:
    """The cell's column as `table.column`."""
    return f"{cell.table}.{cell.column.decode('utf-8', 'backslashreplace')}"


def _entries(
    repo: Repository,
    kind: Kind,
    table: Table[Any] | None = None,
    row: bytes | None = None,
    versions: int | None = None,
) -> Iterator[tuple[Cell, int, bytes]]:
    """All entries of a kind, of the repository, a table or a row: see `walk_kind`."""
    _check_table(table)
    # Those of all tables that there are now: others may have made some since it was opened.
    schema = stored_schema(repo.context.store) if table is None else [table]
    names = sorted(one.name for one in schema)
    end = b"" if row is None else row + b"\0"
    for name in names:
        yield from walk_kind(repo.context.store, kind, name, row or b"", end, versions=versions)


def _check_table(table: object) -> None:
    """Raise UsageError for what is no table, such as the name of one."""
    if table is not None and not isinstance(table, Table):
        raise UsageError(
            f"{table!r} is not a Table: pass the one that your program declares, or that "
            "repo.table(NAME) returns."
        )


def _check_column(column: object) -> None:
    """Raise UsageError for what is no column, such as the name of one."""
    if not isinstance(column, Column | WeakColumn):
        raise UsageError(
            f"{column!r} is not a column: pass the one that your program declares, or that "
            "repo.table(NAME).resolve(COLUMN) returns."
        )
