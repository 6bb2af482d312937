"""§2.1, §2.5: commits whose phases are each one call into Java (`Store.prepare_commit`).

Of what a commit of a few small cells costs its client, most is Python: mutations, conditions, plans
and messages of both phases, and four calls into Java. Here the cells are packed once, and the
classes in `java/` build the requests of a phase and send them:

    prewrite   the primary's row; once it is locked, the others, table by table
    commit     the same, with the commit_ts, which the protocol has drawn in between

They are the requests that `mutations`, `wire` and `writes` make of the same transaction, byte for
byte, in the same order; of a primary's row of several cells those that are made once it was read.
Java sends nothing after a request that was not applied, and never sends one again: what each came
to is returned, and `percola.transactions.two_phase` goes on from there by `mutate`.

The jar with the classes is part of wheels, and made by `make setup`. It needs no class of HBase's
at compile time: `method_handles` passes it the methods that send. Without it every commit goes by
`mutate`, as do those that are left to it here: more than a request for each region, long keys, a
table with a feed.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

import jpype

from percola.cells import INLINE, OBSERVED, LockRecord, encode_lock
from percola.clock import elapsed
from percola.errors import StoreError
from percola.store.base import CommitRow
from percola.store.hbase.client import Calls
from percola.store.hbase.errors import Failure, Meaning
from percola.store.hbase.jvm import JavaObject
from percola.store.hbase.wire import FAMILIES, MAX_STORED_TS, Change, mutations
from percola.store.remote.shared_row import SharedRow

CELLS: Final = 256
"""The most cells, and the most removals of answered entries, of a commit that is sent from here."""

_ROWS: Final = 64
_KEY_BYTES: Final = 512
"""With these limits the rows of a region are always one request, as `writes` makes them."""

# As the constructors in Commit.java read them.
_HEAD: Final = struct.Struct(">HB")  # The length of what locks have in common, requests.
_REQUEST: Final = struct.Struct(">BB")  # Its step, rows.
_ROW: Final = struct.Struct(">HHI")  # The key's length, cells, the length of the removals.
_CELL: Final = struct.Struct(">BBHH")  # Operation, flags, the lengths of column and value.

# States of a request in Commit.java; one that was not sent is 0, one that was refused 2.
_APPLIED: Final = 1
_FAILED: Final = 3


class _Request(NamedTuple):
    """Rows of one region of a table, by their indexes; those of a step are sent together."""

    step: int
    table: str
    places: list[int]


def prepare(
    calls: Calls, shared: SharedRow, start_ts: int, lock: LockRecord, rows: Sequence[CommitRow]
) -> JavaCommit | None:
    """See `Store.prepare_commit`; the tables are known to exist."""
    client = calls.client()
    if client.sender is None or start_ts > MAX_STORED_TS or len(rows) > _ROWS:
        return None
    removals = 0
    for _, row, cells, answered in rows:
        removals += len(answered)
        longest = max(len(column) for column, _, _, _ in cells)
        if len(row) + longest > _KEY_BYTES or removals > CELLS:
            return None
    return JavaCommit(calls, shared, start_ts, lock, rows)


class JavaCommit:
    """A commit that Java sends; both phases are called by the thread that prepared it."""

    def __init__(
        self,
        calls: Calls,
        shared: SharedRow,
        start_ts: int,
        lock: LockRecord,
        rows: Sequence[CommitRow],
    ) -> None:
        self._calls = calls
        self._shared = shared
        self._start_ts = start_ts
        self._rows = len(rows)
        self._requests = _requests(calls, rows)
        # The table of each step.
        steps = {one.step: one.table for one in self._requests}
        self._tables = [*steps.values()]
        self._packed = _packed(lock, rows, self._requests)
        self._commit: JavaObject | None = None

    def prewrite(self, seconds: float) -> Sequence[bool | None]:
        """See `PreparedCommit.prewrite`."""
        calls = self._calls
        calls.check_open()
        client, nanos = calls.client(), int(seconds * 1e9)
        try:
            made = self._commit = client.commit(
                client.sender, calls.tables(self._tables), self._start_ts, self._packed, nanos
            )
            return self._outcomes(made, bool(made.isLocked))
        except jpype.JException:
            # Failures to send are among the outcomes: this is none, and something may be sent.
            return [None] * self._rows

    def commit(self, commit_ts: int) -> Sequence[bool | None] | None:
        """See `PreparedCommit.commit`."""
        moment = elapsed()
        self._calls.check_open()
        try:
            feeds = self._shared.view(moment).feeds
        except StoreError:
            return None  # A commit by `mutate` meets it as well.
        commit = self._commit
        if commit is None or commit_ts > MAX_STORED_TS or not feeds.isdisjoint(self._tables):
            return None
        try:
            return self._outcomes(commit, bool(commit.commit(commit_ts)))
        except jpype.JException:
            return [None] * self._rows

    def _outcomes(self, commit: JavaObject, all_applied: bool) -> Sequence[bool | None]:
        """What came of each row in the last call."""
        made = self._calls.made
        if all_applied:
            made["mutate"] += len(self._tables)
            return [True] * self._rows
        states = bytes(commit.states())
        found: list[bool | None] = [False] * self._rows
        steps = set()
        for number, (request, state) in enumerate(zip(self._requests, states, strict=True)):
            if state:
                steps.add(request.step)
            outcome: bool | None = state == _APPLIED
            if state == _FAILED:
                failure = Failure.of(commit.failure(number))
                outcome = None if failure.meaning is Meaning.UNKNOWN else False
            for at in request.places:
                found[at] = outcome
        made["mutate"] += len(steps)
        return found


def _requests(calls: Calls, rows: Sequence[CommitRow]) -> list[_Request]:
    """The primary's row, and the others as `writes` groups them: by table, and then by region."""
    found = [_Request(0, rows[0].table, [0])]
    by_table: dict[str, list[int]] = {}
    for at in range(1, len(rows)):
        by_table.setdefault(rows[at].table, []).append(at)
    for step, (table, places) in enumerate(by_table.items(), start=1):
        starts = calls.region_starts(table)
        places.sort(key=lambda at: rows[at].row)
        regions = groupby(places, key=lambda at: bisect_right(starts, rows[at].row))
        found += [_Request(step, table, list(together)) for _, together in regions]
    return found


def _packed(lock: LockRecord, rows: Sequence[CommitRow], requests: Sequence[_Request]) -> bytes:
    """The cells of each request. What all locks have in common is encoded once."""
    # All of a record but its operation and flags, which come first, and its value, which is last.
    common = encode_lock(lock._replace(value=None))[2:]
    parts = [_HEAD.pack(len(common), len(requests)), common]
    for step, _, places in requests:
        parts.append(_REQUEST.pack(step, len(places)))
        for at in places:
            _, row, cells, answered = rows[at]
            removals = b""
            if answered:
                gone = [Change(FAMILIES[one.kind], one.column, one.ts, None) for one in answered]
                removals = mutations(row, gone)
            parts += (_ROW.pack(len(row), len(cells), len(removals)), row, removals)
            for column, op, value, observed in cells:
                flags = (OBSERVED if observed else 0) | (0 if value is None else INLINE)
                value = value or b""
                parts += (_CELL.pack(op, flags, len(column), len(value)), column, value)
    return b"".join(parts)
