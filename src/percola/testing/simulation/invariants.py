"""Invariants of every single row mutation that takes effect, whatever the final outcome.

    P3   a secondary is locked only while its primary is locked or decided, or once its lock was
         lost with a server
    P4   a primary's lock is removed only with a write record or a rollback record in its place
    P5   a lock is removed only on the condition that it is that very lock
    N1   a cell that is observed is committed with its notify entry, at commit_ts; where these
         have a table of their own, those of all its cells are there at its commit point
         a secondary is committed only where its primary has been, at the same commit_ts

A violated rule causes wrong data only rarely; these checks find it at once.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from percola.cells import MAX_TS, Cell, Kind, LockRecord, Op, decode_lock, decode_write
from percola.store.base import Condition, Delete, Put, RowMutation, Store
from percola.store.walks import walk_kind

Broken = tuple[str, tuple[Cell, ...]]
"""A claim that does not hold, in a sentence, and the cells that show it."""


def broken_step(
    store: Store,
    mutation: RowMutation,
    separate: Sequence[str] = (),
    lost: Container[tuple[Cell, int]] = (),
) -> Broken | None:
    """The invariant that the mutation would violate if it were applied now; None if none.

    `separate` are all tables, if notify entries are in a separate table; `lost` are (cell,
    start_ts) of locks that were lost with a server of the store.
    """
    if separate and (broken := _commits_unnoticed(store, mutation, separate)) is not None:
        return broken
    for change in mutation.changes:
        if change.kind is not Kind.LOCK:
            continue
        cell = Cell(mutation.table, mutation.row, change.column)
        if isinstance(change, Put):
            lock = decode_lock(change.value)
            broken = _locks(store, cell, change.ts, lock, mutation, lost)
        else:
            broken = _unlocks(store, cell, change, mutation, separate=bool(separate))
        if broken is not None:
            return broken
    return None


def _locks(
    store: Store,
    cell: Cell,
    start_ts: int,
    lock: LockRecord,
    mutation: RowMutation,
    lost: Container[tuple[Cell, int]],
) -> Broken | None:
    primary = lock.primary
    if primary[:2] == (mutation.table, mutation.row):
        return None  # Locked by this mutation, or before.
    if store.entries(primary, Kind.LOCK, start_ts, start_ts) or _record(store, primary, start_ts):
        return None
    if start_ts < store.safe_point() or (primary, start_ts) in lost:
        return None  # What was decided may have been removed; or it can only abort.
    claim = (
        f"{cell} is locked by the transaction of {start_ts}, whose primary {primary} is neither "
        "locked nor decided (P3)."
    )
    return claim, (primary, cell)


def _commits_unnoticed(store: Store, mutation: RowMutation, tables: Sequence[str]) -> Broken | None:
    """Commits a transaction before all its observed cells have their notify entries (N1)."""
    committed: dict[tuple[Cell, int], int] = {}
    for put in mutation.changes:
        if isinstance(put, Put) and put.kind is Kind.WRITE:
            record = decode_write(put.value)
            if record.op is not Op.ROLLBACK:
                cell = Cell(mutation.table, mutation.row, put.column)
                committed[cell, record.start_ts] = put.ts
    if not committed:
        return None
    for table in tables:
        for cell, start_ts, raw in walk_kind(store, Kind.LOCK, table):
            lock = decode_lock(raw)
            commit_ts = committed.get((lock.primary, start_ts))
            if lock.observed and commit_ts is not None:
                stands = store.entries(cell, Kind.NOTIFY, commit_ts, commit_ts)
                if not stands and store.entries(lock.primary, Kind.LOCK, start_ts, start_ts):
                    claim = (
                        f"The transaction of {start_ts} is committed at {commit_ts} before {cell}, "
                        "which is observed, has its notify entry (N1)."
                    )
                    return claim, (lock.primary, cell)
    return None


def _unlocks(
    store: Store, cell: Cell, change: Delete, mutation: RowMutation, *, separate: bool
) -> Broken | None:
    start_ts = change.ts
    held = store.entries(cell, Kind.LOCK, start_ts, start_ts)
    if not held:
        return None
    lock = decode_lock(held[0][1])
    primary = lock.primary
    # The condition may be on another cell of the row: the primary's, which alone decides.
    columns = {change.column for change in mutation.changes}
    held_still = [Condition(True, Kind.LOCK, one, start_ts, start_ts) for one in columns]
    if not any(one in mutation.conditions for one in held_still):
        return f"The lock of {start_ts} on {cell} is removed without a condition (P5).", (cell,)
    commit_ts: int | None = None
    rolls_back = False
    for put in mutation.changes:
        if isinstance(put, Put) and put.kind is Kind.WRITE and put.column == cell.column:
            if decode_write(put.value).op is Op.ROLLBACK:
                rolls_back = True
            else:
                commit_ts = put.ts
    if commit_ts is None:
        if primary == cell and not rolls_back and _record(store, cell, start_ts) is None:
            claim = (
                f"The primary {cell} of the transaction of {start_ts} is unlocked, and no record "
                "says that it was rolled back (P4)."
            )
            return claim, (cell,)
        return None
    if (
        lock.observed
        and not separate
        and not any(
            isinstance(put, Put)
            and (put.kind, put.column, put.ts) == (Kind.NOTIFY, cell.column, commit_ts)
            for put in mutation.changes
        )
    ):
        return f"{cell} is observed, and committed at {commit_ts} without notifying (N1).", (cell,)
    if primary[:2] != (mutation.table, mutation.row):
        decided = _record(store, primary, start_ts)
        if decided != commit_ts and not (decided is None and start_ts < store.safe_point()):
            return (
                f"{cell} is committed at {commit_ts}, and its primary {primary} is not.",
                (primary, cell),
            )
    return None


def _record(store: Store, primary: Cell, start_ts: int) -> int | None:
    """The timestamp of a transaction's record on its primary; a rollback's is at `start_ts`."""
    for ts, raw in store.entries(primary, Kind.WRITE, start_ts, MAX_TS):
        if decode_write(raw).start_ts == start_ts:
            return ts
    return None
