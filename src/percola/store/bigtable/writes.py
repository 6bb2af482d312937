"""§2.1, §2.5: sends row mutations to Bigtable, many requests in flight at once.

    with conditions        one conditional mutation per row: figure 6's prewrite or commit of a
                           whole row is one call
    without conditions     rows of a table together in one request, each applied independently
    conditions, no change  a read; the conditions are evaluated here

A mutation of a row and of its notify entries, which are stored in another table, is sent in steps
(`percola.store.remote.notify_table`). No write is sent twice, with one exception: of rows without
conditions that were sent together, those that Bigtable calls unavailable, as while their tablet
moves or splits, are sent again, as Google's clients do. If a request fails, no more are sent, those
in flight are waited for, and an error is raised: OutcomeUnknownError if one of them was not
answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc
from google.cloud.bigtable_v2 import types

from percola.cells import Kind
from percola.errors import (
    OutcomeUnknownError,
    StoreError,
    TransactionTooLargeError,
    UnknownTableError,
)
from percola.store.base import Condition, Put, RowMutation
from percola.store.bigtable.client import (
    Calls,
    CheckAndMutateRowRequest,
    CheckAndMutateRowResponse,
    MutateRowsRequest,
    MutateRowsResponse,
)
from percola.store.bigtable.filters import (
    CHANGES,
    FAMILIES,
    MAX_STORED_TS,
    SCALE,
    conditions_filter,
    predicate,
    stored,
    table_of,
)
from percola.store.bigtable.row_stream import RowStream
from percola.store.chunking import cut
from percola.store.remote.batches import waves
from percola.store.remote.client import Retries
from percola.store.remote.feed_index import is_listed
from percola.store.remote.notify_table import Steps, steps_of

AT_ONCE: Final = 64
"""Requests of a batch that are in flight at the same time."""

_ROWS: Final = 500
_BYTES: Final = 4 * 1024 * 1024
_CHANGES: Final = 90_000
"""Bigtable accepts up to 100,000 changes per request, over all rows."""
_AGAIN: Final = frozenset(
    code.value[0]
    for code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
)
"""What is said of a row, among others, that is to be sent again."""
_KIND_OF: Final = {name: kind for kind, name in FAMILIES.items()}

_Mutation = types.Mutation.pb()
_Set = _Mutation.SetCell
_Delete = _Mutation.DeleteFromColumn
_Range = types.TimestampRange.pb()


class Plan(NamedTuple):
    """A row mutation as it will be sent: at most one of conditional, entry and look is set."""

    table: str
    row: bytes
    conditional: Any = None
    holds_if_any: bool = False
    entry: Any = None
    look: Sequence[Condition] = ()


def plan(calls: Calls, mutation: RowMutation, listing: bool) -> Plan:
    """Prepare a row mutation; `listing`: list its puts and deletes in the table's feed.

    Raises TransactionTooLargeError, or StoreError for a timestamp that does not fit.
    """
    table, row, conditions = mutation.table, mutation.row, mutation.conditions
    try:
        made = predicate(conditions) if conditions else None
    except TransactionTooLargeError as error:
        raise TransactionTooLargeError(
            f"The row {row[:60]!r} of the table {table!r} cannot be changed: {error}"
        ) from error
    changes = []
    for change in mutation.changes:
        family, column, ts = FAMILIES[change.kind], change.column, change.ts
        if isinstance(change, Put):
            changes.append(_put(family, column, ts, change.value))
            if listing and change.kind is Kind.WRITE and is_listed(change):
                changes.append(_put(CHANGES, column, ts, b""))
        elif 0 <= ts <= MAX_STORED_TS:
            changes.append(delete(family, column, ts))
    if made is None:
        if not changes:
            return Plan(table, row)
        return Plan(table, row, entry=MutateRowsRequest.Entry(row_key=row, mutations=changes))
    if not changes:
        return Plan(table, row, look=conditions)
    request = CheckAndMutateRowRequest(
        table_name=calls.path(table),
        app_profile_id=calls.place.app_profile,
        row_key=row,
        predicate_filter=made.filter,
    )
    (request.true_mutations if made.holds_if_any else request.false_mutations).extend(changes)
    return Plan(table, row, request, made.holds_if_any)


def _put(family: str, column: bytes, ts: int, value: bytes) -> Any:
    return _Mutation(
        set_cell=_Set(
            family_name=family, column_qualifier=column, timestamp_micros=stored(ts), value=value
        )
    )


def delete(family: str, column: bytes, ts: int) -> Any:
    """The mutation that deletes the entry at exactly this timestamp."""
    at = ts * SCALE
    # The end is exclusive and must be a multiple of a thousand as well; 0 means no end.
    end = at + SCALE if ts < MAX_STORED_TS else 0
    span = _Range(start_timestamp_micros=at, end_timestamp_micros=end)
    return _Mutation(
        delete_from_column=_Delete(family_name=family, column_qualifier=column, time_range=span)
    )


def steps(calls: Calls, mutation: RowMutation, listing: bool) -> list[Plan | None]:
    """Prepare the steps of a row mutation (see `notify_table`); None for a step with no work."""
    return [
        None if step is None else plan(calls, _placed(step), listing) for step in steps_of(mutation)
    ]


def _placed(step: RowMutation) -> RowMutation:
    """A step, with the name of the Bigtable table that it changes."""
    if any(part.kind is Kind.NOTIFY for part in (*step.conditions, *step.changes)):
        table = table_of(step.table, Kind.NOTIFY)
        return RowMutation(table, step.row, step.conditions, step.changes)
    return step


def apply(calls: Calls, batch: Sequence[RowMutation], feeds: Collection[str]) -> list[bool]:
    """Apply a batch step by step; the tables in `feeds` keep a feed. Raises as `Store.mutate`."""
    prepared = [steps(calls, one, one.table in feeds) for one in batch]
    results = [True] * len(prepared)

    def apply_step(number: int, chosen: Sequence[int]) -> None:
        plans = {at: one for at in chosen if results[at] and (one := prepared[at][number])}
        if plans:
            for at, held in zip(plans, Writing(calls).apply(list(plans.values())), strict=True):
                results[at] = held

    touched = ([(one.table, one.row) for one in mutation if one] for mutation in prepared)
    for wave in waves(touched):
        *first, last = range(len(Steps._fields))
        for number in first:
            apply_step(number, wave)
        try:
            apply_step(last, wave)
        except (StoreError, UnknownTableError) as error:
            # The rows have been changed, so the caller must not take this for a refusal.
            raise OutcomeUnknownError(
                "What was to be changed in rows was, but notify entries that were to go with that "
                f"may still be there: {error}"
            ) from error
    return results


def remove_changes(
    calls: Calls, table: str, entries: Mapping[bytes, Sequence[tuple[bytes, int]]]
) -> None:
    """Delete entries of a table's feed: row → (column, timestamp) of each."""
    plans = []
    for row, gone in entries.items():
        deletes = [delete(CHANGES, column, ts) for column, ts in gone]
        entry = MutateRowsRequest.Entry(row_key=row, mutations=deletes)
        plans.append(Plan(table, row, entry=entry))
    Writing(calls).apply(plans)


class Writing:
    """Sends the prepared mutations of one batch and collects their outcomes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._pending: deque[tuple[list[int], Any, str]] = deque()
        self._unavailable: dict[int, StoreError | UnknownTableError] = {}
        self._failures: list[StoreError | UnknownTableError] = []

    def apply(self, plans: Sequence[Plan]) -> list[bool]:
        """Apply all; return for each whether its conditions held. Raises as `Store.mutate`."""
        self._results = [True] * len(plans)
        self._plans = plans
        if len(plans) == 1 and plans[0].conditional is not None:
            return [self._send_one(plans[0])]
        try:
            for wave in waves([(one.table, one.row)] for one in plans):
                if not self._failures:
                    self._apply_wave(wave)
        finally:
            for _, call, _ in self._pending:
                call.cancel()
        if self._failures:
            # An unknown outcome takes precedence: the caller must check the rows then.
            unknown = [one for one in self._failures if isinstance(one, OutcomeUnknownError)]
            raise (unknown or self._failures)[0]
        return self._results

    def _apply_wave(self, wave: Sequence[int]) -> None:
        """Send mutations until each has been answered or has failed."""
        tries = Retries(self._calls.timeout_seconds)
        while wave:
            self._unavailable = {}
            self._send(wave)
            while self._pending:
                self._finish()
            if len(self._unavailable) < len(wave):
                tries.progressed()
            wave = list(self._unavailable)
            if wave and (self._failures or not tries.wait()):
                self._failures += self._unavailable.values()
                return

    def _send_one(self, one: Plan) -> bool:
        """Send a single conditional mutation, such as the primary's."""
        try:
            answer = self._calls.send(
                "CheckAndMutateRow",
                one.conditional,
                CheckAndMutateRowResponse,
                one.table,
                alone=True,
            )
        except grpc.RpcError as error:
            raise self._failure(error, one.table) from error
        return bool(answer.predicate_matched) is one.holds_if_any

    def _failure(self, error: Any, table: str) -> StoreError | UnknownTableError:
        return self._calls.write_failure(error, f"changing the table {table!r}", table)

    def _send(self, wave: Sequence[int]) -> None:
        together: dict[str, list[int]] = {}
        looks: list[int] = []
        for at in wave:
            if self._failures:
                return
            one = self._plans[at]
            if one.conditional is not None:
                call = self._calls.send(
                    "CheckAndMutateRow", one.conditional, CheckAndMutateRowResponse, one.table
                )
                self._track([at], call, one.table)
            elif one.entry is not None:
                together.setdefault(one.table, []).append(at)
            elif one.look:
                looks.append(at)
        for table, places in together.items():
            for part in in_requests(self._plans, places):
                if self._failures:
                    return
                request = MutateRowsRequest(
                    table_name=self._calls.path(table),
                    app_profile_id=self._calls.place.app_profile,
                    entries=[self._plans[at].entry for at in part],
                )
                call = self._calls.send_many("MutateRows", request, MutateRowsResponse, table)
                self._track(part, call, table)
        for at in looks:
            self._results[at] = self._look(self._plans[at])

    def _track(self, places: list[int], call: Any, table: str) -> None:
        self._pending.append((places, call, table))
        if len(self._pending) >= AT_ONCE:
            self._finish()

    def _finish(self) -> None:
        """Wait for the oldest request in flight."""
        places, call, table = self._pending[0]
        one = self._plans[places[0]]
        try:
            if one.conditional is not None:
                matched = self._calls.answer_of(call).predicate_matched
                self._results[places[0]] = matched is one.holds_if_any
            else:
                self._gather(places, call, table)
        except grpc.RpcError as error:
            failure = self._failure(error, table)
            failure.__cause__ = error
            self._failures.append(failure)
        except TimeoutError as error:
            unanswered = OutcomeUnknownError(
                f"{self._calls.place} did not answer while changing the table {table!r}: it may or "
                "may not have been applied (gRPC has lost the call)."
            )
            unanswered.__cause__ = error
            self._failures.append(unanswered)
        except grpc.FutureCancelledError as error:
            unknown = OutcomeUnknownError(
                f"The store was closed while changing the table {table!r}: what was under way may "
                "or may not have been applied."
            )
            unknown.__cause__ = error
            self._failures.append(unknown)
        self._pending.popleft()

    def _gather(self, places: list[int], call: Any, table: str) -> None:
        """Collect the statuses of rows that were sent together."""
        answered = 0
        for answer in call:
            for entry in answer.entries:
                answered += 1
                if not entry.status.code:
                    continue
                failure = self._failure(RowFailure(entry.status), table)
                if entry.status.code in _AGAIN:
                    self._unavailable[places[entry.index]] = failure
                else:
                    self._failures.append(failure)
        if answered < len(places):
            self._failures.append(
                OutcomeUnknownError(
                    f"{self._calls.place} answered for {answered} of {len(places)} rows of the "
                    f"table {table!r} only: the others may or may not have been changed."
                )
            )

    def _look(self, one: Plan) -> bool:
        """Whether the conditions of a mutation without changes hold."""
        found: set[tuple[Kind, bytes, int]] = set()
        stream = RowStream(self._calls, one.table, conditions_filter(one.look), keys=[one.row])
        for _, row in stream:
            for (family, column), entries in row.items():
                found |= {(_KIND_OF[family], column, ts) for ts, _ in entries}
        return all(
            any(
                kind is condition.kind
                and column == condition.column
                and condition.low <= ts <= condition.high
                for kind, column, ts in found
            )
            is condition.present
            for condition in one.look
        )


def in_requests(plans: Sequence[Plan], places: Iterable[int]) -> Iterator[list[int]]:
    """Split a table's rows without conditions into requests of bounded rows, bytes and changes."""

    def size(at: int) -> int:
        return int(plans[at].entry.ByteSize())

    def changes(at: int) -> int:
        return len(plans[at].entry.mutations)

    for part in cut(places, size, _ROWS, _BYTES):
        yield from cut(part, changes, _ROWS, _CHANGES)


class RowFailure(grpc.RpcError):  # type: ignore[misc]
    """The failure of one row of a request, as the error of a call."""

    def __init__(self, status: Any) -> None:
        super().__init__(status.message)
        self._status = status

    def code(self) -> Any:
        """The status code."""
        return next(
            (code for code in grpc.StatusCode if code.value[0] == self._status.code),
            grpc.StatusCode.UNKNOWN,
        )

    def details(self) -> str:
        """The server's message."""
        return str(self._status.message)
