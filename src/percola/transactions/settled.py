"""§2.2: up to where a table is settled: nothing in it commits at or below a timestamp any more.

`percola.feed` says why the look for locks that this is misses none. Where a table's feed has an
index (`percola.store.remote.feed_index`), the locks that matter are in rows with pending entries,
and these are looked at instead of all locks:

    a lock is left         it is settled or lowers the timestamp, as any lock
    a write record, none   committed: the row gets a committed entry, and then loses the pending one
    neither                rolled back: the row loses the pending entry

A pending entry is put when the locks of its transaction are in place, and a lock is replaced by the
write record in one mutation. So in a row with neither, the transaction has ended there.

A transaction that drew its commit_ts before the feed or the index came into force may have none. So
the first look at a table looks at all locks. If it finds the table settled at a timestamp at which
both were in force, all that commits later has pending entries, and this is noted for good.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from percola.catalog import feed_since
from percola.cells import Cell, Kind
from percola.store.base import FeedIndex, PendingEntry, PendingRow
from percola.store.remote.batches import overlapped
from percola.store.remote.feed_index import PENDING, committed_puts, deletes
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext

_ROWS: Final = 500

Settle = Callable[[Cell, int, bytes, int], int]
"""Deals with a lock, its start_ts and its record, found when a table was settled up to a timestamp
at most; returns up to which it still is."""


def settled_up_to(context: TransactionContext, table: str, *, all_locks: bool = False) -> int:
    """The newest timestamp at which a table is settled; see `percola.feed.settled`."""
    ts, settle = context.oracle.read_timestamp(), context.resolver.settled_below
    return _look(context, table, ts, settle, all_locks=all_locks)


def settle_up_to(context: TransactionContext, table: str, upto: int) -> None:
    """Wait until a table is settled at a timestamp that was drawn; see `percola.feed.settle`."""

    def wait(cell: Cell, start_ts: int, raw: bytes, ts: int) -> int:
        if start_ts < ts:
            context.resolver.wait_below(cell, start_ts, raw, ts)
        return ts

    _look(context, table, upto, wait)


def list_pending(context: TransactionContext, table: str) -> Iterator[int]:
    """Put committed entries for what has committed, in place of the pending ones.

    Yields how many pending ones are gone, now and then. Two calls that are more than a moment apart
    raise the floor, however few they are: other processes may have removed any number.
    """
    index = context.store.feed_index
    if index is not None and index.of([table]):
        ts = context.oracle.read_timestamp()
        settle = context.resolver.settled_below
        for _, listed in _list(context, index, table, ts, settle, raises_floor=True):
            yield listed


def _look(
    context: TransactionContext, table: str, ts: int, settle: Settle, *, all_locks: bool = False
) -> int:
    store = context.store
    index = store.feed_index
    if index is not None and not index.of([table]):
        index = None
    is_walked = index is not None and index.is_walked(table)
    latest = ts
    if all_locks or not is_walked:
        older = (one for one in walk_kind(store, Kind.LOCK, table) if one[1] <= latest)
        for cell, start_ts, raw in context.resolver.undecided(older):
            if start_ts <= ts:
                ts = settle(cell, start_ts, raw, ts)
    if index is None:
        return ts
    *_, (ts, _) = _list(context, index, table, ts, settle)
    if not is_walked:
        both = feed_since(store, table), index.since()
        if all(since is not None and since <= ts for since in both):
            index.note_walked(table)
    return ts


def _list(
    context: TransactionContext,
    index: FeedIndex,
    table: str,
    ts: int,
    settle: Settle,
    *,
    raises_floor: bool = False,
) -> Iterator[tuple[int, int]]:
    """Deal with pending entries and the locks of their rows.

    Yields up to where the table is settled, and how many of the entries are gone, after each batch
    and at the end; only the last one counts.
    """

    def replaced(entries: Sequence[PendingEntry]) -> list[PendingRow]:
        """Replace the entries whose locks are gone; those that are left."""
        looked = index.look(table, entries)
        decided = [one for one in looked if not one.locks]
        committed = [(one.commit_ts, one.row) for one in decided if one.commit_ts is not None]
        gone = [(one.ts, one.row) for one in decided]
        # In this order: who reads the pending ones first finds one of the two at any moment.
        for batch in (committed_puts(table, committed), deletes(PENDING, table, gone)):
            if batch:
                context.store.mutate(batch)
        return [one for one in looked if one.locks]

    def dealt_with(entries: Sequence[PendingEntry]) -> tuple[int, list[PendingRow]]:
        return len(entries), replaced(entries)

    began, upto, gone = index.now(), ts, 0
    left: int | None = None
    pending = index.pending(table, upto)
    parts = iter(lambda: list(itertools.islice(pending, _ROWS)), [])
    for count, held in overlapped(dealt_with, parts):
        for one in held:
            for column, start_ts, raw in one.locks:
                if start_ts <= ts:
                    ts = settle(Cell(table, one.row, column), start_ts, raw, ts)
        if held:
            # Once more: the rows whose locks were settled have what came of them.
            held = replaced([(one.ts, one.row, one.started) for one in held])
        if held and left is None:
            left = held[0].ts  # They come in the order of timestamps.
        gone += count - len(held)
        yield ts, gone
    index.looked(table, upto, began, math.inf if raises_floor else gone, left)
    yield ts, gone
