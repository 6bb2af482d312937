"""The feed of a table's changes: every put and delete, in commit order, none missed.

A table that is declared with `feed=True` keeps one: the store lists the cells that a commit has
written, in the very mutation that writes them. A follower goes from one timestamp to the next:

    after = feed.settled(repo, docs)
    while following:
        upto = max(after, feed.settled(repo, docs))
        for change in feed.changes(repo, docs, after, upto):
            ...                    # change.row, change.commit_ts, change.changed, change.image
        after = upto               # stored with the results, it is the position to resume from

`max` because `settled` may return less than before: a position that goes back reads changes twice.

Why none is missed, with commits in flight at every moment (§2.2, rule P2):

* `settled` draws its timestamp T first, and scans for locks after that. A transaction whose
  commit_ts is at most T had drawn it by then, after taking all its locks: so each of its cells is
  either committed and listed, or still locked and found.
* A lock that is found is rolled forward or back if its transaction is decided or its owner dead.
  Otherwise its transaction commits above its start_ts, if at all: T is lowered below that. The
  locks of a joint transaction, which a Spark job may hold for hours, lower T only once it begins to
  commit (`percola.transactions.lock_resolver`).
* A lock taken later belongs to a transaction that commits above T. A settled timestamp stays
  settled, and reads up to it can ignore locks.
* A commit in one step draws its commit_ts in the store transaction that writes and lists it.

A feed reaches back to the safe point of garbage collection, or to the timestamp at which it was
turned on. Reads below that fail; changes are never omitted silently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple

from percola.catalog import feed_since
from percola.cells import Cell
from percola.errors import NoFeedError, UsageError
from percola.gc.time_log import CommitTimes
from percola.repository import Repository
from percola.schema import Column, Family, R, Table, WeakColumn
from percola.store.base import CellState, ChangedRow, Store
from percola.store.walks import state_beneath
from percola.transactions.row import Row, Wanted
from percola.transactions.settled import settle_up_to, settled_up_to
from percola.transactions.snapshot import Snapshot

__all__ = [
    "Change",
    "RowImage",
    "changes",
    "raw_changes",
    "raw_rows",
    "read_changes",
    "read_rows",
    "settle",
    "settled",
    "since",
]

_CHUNK: Final = 1024
"""Rows, and about as many cells, that are read at once."""

_CHANGES: Final = 128
"""Changed rows of several commits that are read at once: all of them may be large."""

_CHANGES_BYTES: Final = 4 * 1024 * 1024
"""Where the last ones were large, about as many bytes of them."""


@dataclass(frozen=True, slots=True)
class Change(Generic[R]):
    """What one transaction did to one row.

    Attributes:
        row: the row's key.
        commit_ts: the transaction's commit timestamp.
        changed: the names of the columns that it put or deleted.
        image: the row as it was at `commit_ts`, with all requested columns.
        before: the row as it was just before, if that was requested; empty if there was none.
        committed_by: the time from which the commit counts, in UTC, by the log of times as it was
            at the first change; None if it is newer than the log (`Repository.commit_times`).
    """

    row: R
    commit_ts: int
    changed: tuple[str, ...]
    image: Row[R]
    committed_by: datetime | None = None
    before: Row[R] | None = None


class RowImage(NamedTuple):
    """A row at a timestamp as the store has it: encoded columns and values.

    `changed` has the columns that were put or deleted at `commit_ts`; in an initial read, all
    columns that exist. `before` has the values at `commit_ts` - 1, if they were requested.
    """

    row: bytes
    commit_ts: int
    changed: tuple[bytes, ...]
    values: dict[bytes, bytes]
    before: dict[bytes, bytes] | None = None

    @property
    def size(self) -> int:
        """The bytes of the key and of all values."""
        values = itertools.chain(self.values.values(), (self.before or {}).values())
        return len(self.row) + sum(map(len, values))


# --- Up to where ------------------------------------------------------------------------


def settled(repo: Repository, table: Table[Any] | str, *, all_locks: bool = False) -> int:
    """The newest timestamp at or below which nothing in the table can commit any more.

    It may be lower than in an earlier call, although it need not be: a transaction that began long
    ago and takes its locks only now lowers it, though it will commit above. A settled timestamp
    stays settled. With `all_locks` it is also below the locks of transactions that will commit
    above it, so that reads at it never wait.

    Locks of ended transactions and of dead processes are resolved on the way; live ones are not
    waited for. The cost depends on the number of locks; of a table with a feed on HBase and
    Bigtable, on how many rows have changed since the last call of anybody
    (`percola.transactions.settled`). With `all_locks` these stores read the entries of all cells
    that were ever locked, Bigtable the table. Raises UnknownTableError, StoreError.
    """
    name = _named_of(repo, table)
    return settled_up_to(repo.context, name, all_locks=all_locks)


def settle(repo: Repository, table: Table[Any] | str, upto: int) -> int:
    """Wait until nothing in the table can commit at or below `upto` any more; returns `upto`.

    Raises UsageError if there is no such timestamp yet; LockTimeoutError if a live transaction
    takes too long; UnknownTableError, StoreError.
    """
    name = _named_of(repo, table)
    context = repo.context
    latest = context.oracle.read_timestamp()
    if not isinstance(upto, int) or isinstance(upto, bool) or not 0 <= upto <= latest:
        raise UsageError(f"There is no timestamp {upto!r} yet: the last one is {latest}.")
    settle_up_to(context, name, upto)
    return upto


def since(repo: Repository, table: Table[Any] | str) -> int:
    """The oldest timestamp from which the table can be followed.

    The timestamp at which the feed was turned on, or the safe point if that is later.
    Raises NoFeedError if the table keeps no feed.
    """
    store = repo.context.store
    name = _named_of(repo, table)
    return max(_begun(store, name), store.safe_point())


def _named_of(repo: Repository, table: object) -> str:
    """The name of a table that is given itself or by its name; UsageError for anything else."""
    if not isinstance(table, str | Table):
        raise UsageError(f"{table!r} is neither a Table nor the name of one.")
    return repo.table(table if isinstance(table, str) else table.name).name


def _begun(store: Store, table: str) -> int:
    begun = feed_since(store, table)
    if begun is None:
        raise NoFeedError(
            f"The table {table!r} keeps no feed of its changes. Declare it as Table({table!r}, "
            "feed=True) and open the repository with that: its changes can be followed from then "
            "on."
        )
    return begun


def check_start(repo: Repository, table: str, after: int) -> None:
    """Check that the table can be followed from `after` on.

    Raises NoFeedError if it keeps no feed, or only since later; UsageError for a timestamp in the
    future; SnapshotTooOldError for one below the safe point.
    """
    context = repo.context
    begun = _begun(context.store, table)
    if not isinstance(after, int) or isinstance(after, bool) or after < 0:
        raise UsageError(f"{after!r} is not a timestamp: these are integers from 0 up.")
    if after < begun:
        raise NoFeedError(
            f"The table {table!r} has kept a feed of its changes since timestamp {begun}: it "
            f"cannot be followed from {after} on. Read it whole at {begun} or later, and follow "
            "it from there."
        )
    latest = context.oracle.read_timestamp()
    if after > latest:
        raise UsageError(
            f"There is no timestamp {after} yet: the last one is {latest}. If a follower stood "
            "there, it followed another repository, or this one before it was restored from a "
            "backup: read the table whole, and follow it from there."
        )
    context.store.check_safe_point(after)


# --- The changes ------------------------------------------------------------------------


def changes(
    repo: Repository,
    table: Table[R],
    after: int,
    upto: int | None = None,
    *,
    columns: Iterable[Column[R, Any] | Family[R, Any]] | None = None,
    before: bool = False,
) -> Iterator[Change[R]]:
    """Every change of a table at `after` < commit_ts ≤ `upto`, in the order of commit_ts.

    Changes of one commit_ts come in the order of rows, one a row. While they are read, garbage
    collection keeps what they need.

    Args:
        after: what has been seen already: a timestamp that `settled` has returned, or `since`.
        upto: another one that `settled` has returned, at any time, and not below `after`; by
            default what it returns now. Transactions that may still commit at or below it are
            waited for.
        columns: the columns and families of the images; None: all of the table's. Changes of
            other columns are reported all the same.
        before: whether to read the rows as they were before each change, too, which costs a second
            read for each.

    Raises:
        NoFeedError: the table keeps no feed, or has only since after `after`.
        SnapshotTooOldError: garbage collection has removed what came after `after`.
        UsageError: one of the timestamps has not come yet, or `upto` is below `after`.
        LockTimeoutError: a live transaction that `upto` has to wait for takes too long.
    """
    wanted, images = _read_changes(repo, table, after, upto, columns, before=before)
    return _decoded(repo, table, images, None if columns is None else wanted)


def raw_changes(
    repo: Repository,
    table: Table[R],
    after: int,
    upto: int | None = None,
    columns: Iterable[Column[R, Any] | Family[R, Any]] | None = None,
    *,
    before: bool = False,
) -> Iterator[RowImage]:
    """The same changes as the store has them; arguments and errors are those of `changes`."""
    return _read_changes(repo, table, after, upto, columns, before=before)[1]


def _read_changes(
    repo: Repository,
    table: Table[R],
    after: int,
    upto: int | None,
    columns: Iterable[Column[R, Any] | Family[R, Any]] | None,
    *,
    before: bool,
) -> tuple[Wanted, Iterator[RowImage]]:
    """The columns that are read, and the changes."""
    name = _name_of(repo, table)
    check_start(repo, name, after)
    snapshot = repo.snapshot(at=after)
    try:
        wanted = _named(table, snapshot, columns)
        if upto is None:
            upto = max(after, settled(repo, name))
        elif isinstance(upto, int) and upto < after:
            raise UsageError(
                f"There are no changes after {after} up to {upto}, which comes before it. What "
                "`settled` returns may be lower than earlier, and a position must not go back: "
                "follow the table up to max(after, feed.settled(repo, table))."
            )
        elif upto is True or upto != after:  # What is settled stays so: not to be waited for again.
            settle(repo, name, upto)
    except BaseException:
        snapshot.close()
        raise
    images = read_changes(repo.context.store, name, after, upto, wanted=wanted, before=before)
    return wanted, _held(snapshot, images)


def raw_rows(
    repo: Repository,
    table: Table[R],
    at: int,
    columns: Iterable[Column[R, Any] | Family[R, Any]] | None = None,
) -> Iterator[RowImage]:
    """The rows as they are at a timestamp, as the store has them; see `read_rows`.

    Transactions that may still commit at or below it are waited for: changes that are read from it
    on have none of theirs. While the rows are read, garbage collection keeps them.

    Raises SnapshotTooOldError, and what `settle` does.
    """
    name = _name_of(repo, table)
    snapshot = repo.snapshot(at=at)
    try:
        wanted = _named(table, snapshot, columns)
        settle(repo, name, at)
    except BaseException:
        snapshot.close()
        raise
    return _held(snapshot, read_rows(repo.context.store, name, at, wanted=wanted))


def _name_of(repo: Repository, table: object) -> str:
    """The name of a table whose rows are read, which takes its codecs."""
    if not isinstance(table, Table):
        raise UsageError(
            f"{table!r} is not a Table: pass the one that your program declares, or that "
            "`repo.table` returns."
        )
    return repo.table(table.name).name


def _held(snapshot: Snapshot, images: Iterator[RowImage]) -> Iterator[RowImage]:
    with snapshot:
        yield from images


def _named(
    table: Table[R],
    snapshot: Snapshot,
    columns: Iterable[Column[R, Any] | Family[R, Any]] | None,
) -> Wanted:
    return _all_named(table) if columns is None else snapshot._wanted(table, columns)


def _all_named(table: Table[Any]) -> Wanted:
    """All columns of a table, by name where that is possible: then they are read faster."""
    members = [one for one in table.members if not isinstance(one, WeakColumn)]
    named = [(one.key, False) for one in members if isinstance(one, Column)]
    return named if len(named) == len(members) else None


def _decoded(
    repo: Repository, table: Table[R], images: Iterator[RowImage], read: Wanted
) -> Iterator[Change[R]]:
    times: CommitTimes | None = None
    for one in images:
        key = table.decode_row(one.row)
        names = tuple(name.decode() for name in one.changed)
        times = times or repo.commit_times()
        _, by = times.of(one.commit_ts)
        image = Row(table, key, one.values, read)
        was = None if one.before is None else Row(table, key, one.before, read)
        yield Change(key, one.commit_ts, names, image, by, was)


def read_changes(
    store: Store,
    table: str,
    after: int,
    upto: int,
    *,
    start: bytes = b"",
    end: bytes = b"",
    wanted: Wanted = None,
    before: bool = False,
) -> Iterator[RowImage]:
    """The changes of a range of rows as the store has them; never waits.

    `upto` must be settled. With `before`, also the values that the rows had before. Raises
    SnapshotTooOldError, NoFeedError.
    """
    listed = store.changes(table, after, upto, start=start, end=end)
    ahead = list(itertools.islice(listed, 2))
    most, last = 1, after
    while ahead:
        count = _count_together(ahead, most, last)
        some, ahead = ahead[:count], ahead[count:]
        rows, last = [one.row for one in some], some[-1].commit_ts
        images = _images(store, table, rows, last, wanted)
        past: Iterable[dict[bytes, bytes] | None] = itertools.repeat(None, count)
        if before:
            # Not below the safe point: `after` is not.
            past = _images(store, table, rows, some[0].commit_ts - 1, wanted)
        size = 1
        for (commit_ts, row, columns), values, was in zip(some, images, past, strict=True):
            image = RowImage(row, commit_ts, columns, values, was)
            size += image.size
            yield image
        most = max(1, min(2 * most, _CHANGES, count * _CHANGES_BYTES // size))
        ahead += itertools.islice(listed, max(0, most + 1 - len(ahead)))


def _count_together(ahead: Sequence[ChangedRow], most: int, last: int) -> int:
    """How many of the first changes can be read at one timestamp: up to `most`.

    They are whole commits in which no row changes twice: as the feed lists all changes, none of
    these rows changed between the first commit and its own, and none changes again up to the last
    one. Or they are of one commit. `last` is the commit of the change before these.
    """
    first, rows = ahead[0].commit_ts, set[bytes]()
    whole = 0
    for at, one in enumerate(ahead):
        if at and one.commit_ts != ahead[at - 1].commit_ts:
            whole = at
        if at == most or one.row in rows:
            break
        rows.add(one.row)
    if whole and first != last:
        return whole
    return sum(1 for one in ahead[:most] if one.commit_ts == first)


def _images(
    store: Store, table: str, rows: list[bytes], ts: int, wanted: Wanted
) -> Iterator[dict[bytes, bytes]]:
    """The values of rows at a settled timestamp."""
    if wanted is None or any(is_prefix for _, is_prefix in wanted):
        read: dict[bytes, list[tuple[Cell, CellState]]] = {}
        for at, row in enumerate(rows):
            if row not in read:
                read = store.scan_rows(table, rows[at:], ts, columns=wanted, limit=_CHUNK)
            yield {name: raw for name, _, raw in _visible(store, read[row], ts)}
        return
    # Where all columns are known by name, many rows are read at once.
    names = sorted(name for name, _ in wanted)
    addresses = [Cell(table, row, name) for row in rows for name in names]
    states = iter(store.read(addresses, ts) if addresses else ())
    for row in rows:
        values = {}
        for name in names:
            lock, _, raw = next(states)
            if lock is not None:
                raw = state_beneath(store, Cell(table, row, name), ts)[2]
            if raw is not None:
                values[name] = raw
        yield values


def read_rows(
    store: Store, table: str, ts: int, *, start: bytes = b"", end: bytes = b"", wanted: Wanted
) -> Iterator[RowImage]:
    """The rows of a range as they are at a settled timestamp, each with its newest commit_ts.

    Never waits. Raises SnapshotTooOldError.
    """
    position: bytes | None = start
    while position is not None:
        cells, position = store.scan(table, position, end, ts, columns=wanted, limit=_CHUNK)
        for row, group in itertools.groupby(cells, key=lambda one: one[0].row):
            found = list(_visible(store, group, ts))
            if found:
                values = {name: raw for name, _, raw in found}
                newest = max(commit_ts for _, commit_ts, _ in found)
                yield RowImage(row, newest, tuple(values), values)


def _visible(
    store: Store, cells: Iterable[tuple[Cell, CellState]], ts: int
) -> Iterator[tuple[bytes, int, bytes]]:
    """The existing values of cells at a settled timestamp: (column, commit_ts, value)."""
    for cell, (lock, commit_ts, raw) in cells:
        if lock is not None:
            _, commit_ts, raw = state_beneath(store, cell, ts)
        if raw is not None:
            yield cell.column, commit_ts, raw
