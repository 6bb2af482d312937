"""§2.1, §2.5: mutations of rows as requests to HBase, those of a region together.

HBase's own conditional write has one condition. The coprocessor that comes with it,
`MultiRowMutationEndpoint`, takes any number of them, each with a column and a range of timestamps,
and changes any number of rows of one region, all or nothing. So

    a row                 one request: figure 6's prewrite or commit of a whole row
    rows of a region      tried as one request, with the conditions of all: if they all hold, as
                          they nearly always do, it is one write to the server's log. If not,
                          nothing has happened, and each row gets a request of its own
    regions               together, one call a server

What a lock was before is known from a mutation's own conditions wherever the protocol changes
one: it is the lock that the condition names, or there is none. Else it is looked at first, and
that it is still as it was becomes a condition. Conditions with nothing to change are looked at too.

No write is sent again unless it is certain that it was not applied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jpype

from percola.cells import SYSTEM_MARK, Kind
from percola.errors import OutcomeUnknownError, StoreError, UnknownTableError
from percola.store.base import Condition, Put, RowMutation
from percola.store.hbase_calls import Calls, Tries
from percola.store.hbase_failures import Failure, Meaning
from percola.store.hbase_wire import (
    CHANGES,
    FAMILIES,
    LOCK,
    LOCK_AT,
    MAX_STORED_TS,
    Ask,
    Change,
    Check,
    check,
    conditions,
    get,
    lock_check,
    lock_of,
    mutations,
    rows_of,
    stored,
    stored_lock,
)

_ROWS: Final = 64
_BYTES: Final = 1024 * 1024
_REQUESTS: Final = 64
_LISTED: Final = (b"P", b"D")
_ALL_VERSIONS: Final = 2**31 - 1


@dataclass(slots=True)
class Plan:
    """A row mutation as it will be sent.

    Attributes:
        request: its conditions and changes as fields of a request; empty if a look comes first.
        mutation: what to look at and decide about; None if that is not needed.
    """

    table: str
    row: bytes
    request: bytes
    mutation: RowMutation | None = None
    listing: bool = False


def plan(mutation: RowMutation, listing: bool) -> Plan:
    """Prepare a row mutation; `listing`: what it puts and deletes goes into the table's feed.

    Raises StoreError for a timestamp that does not fit.
    """
    known = _known_locks(mutation.conditions)
    unlocked = {
        one.column for one in mutation.changes if one.kind is Kind.LOCK and not isinstance(one, Put)
    }
    checks = _checks(mutation.conditions)
    changes = _changes(mutation, known, listing)
    is_known = checks is not None and unlocked <= known.keys()
    if is_known and (changes or not mutation.conditions):
        request = conditions(mutation.row, checks or ()) + mutations(mutation.row, changes)
        return Plan(mutation.table, mutation.row, request)
    return Plan(mutation.table, mutation.row, b"", mutation, listing)


def removal(table: str, row: bytes, entries: Sequence[tuple[bytes, bytes, int]]) -> Plan:
    """The plan to delete entries of a row: (family, column, timestamp)."""
    changes = [Change(family, column, ts, None) for family, column, ts in entries]
    return Plan(table, row, mutations(row, changes))


def _fits(ts: int) -> bool:
    """Whether HBase can hold the timestamp; StoreError if not."""
    if 0 <= ts <= MAX_STORED_TS:
        return True
    raise StoreError(
        f"The timestamp {ts} does not fit in HBase, which keeps those up to {MAX_STORED_TS}: the "
        "oracle of this repository must not hand out higher ones."
    )


def _known_locks(conditions: Sequence[Condition]) -> dict[bytes, int | None]:
    """The locks that columns have if the conditions hold, where those say it: None for none."""
    return {
        column: low if present else None
        for present, kind, column, low, high in conditions
        if kind is Kind.LOCK and (low == high if present else low <= 0 and high >= MAX_STORED_TS)
    }


def _checks(conditions: Sequence[Condition]) -> list[Check] | None:
    """The conditions as HBase can check them; None if there is one that it cannot."""
    checks = []
    for present, kind, column, low, high in conditions:
        if kind is not Kind.LOCK:
            checks.append(check(FAMILIES[kind], column, low, high, present=present))
        elif present and low == high and 0 <= low <= MAX_STORED_TS:
            checks.append(lock_check(column, low))
        elif not present and low <= 0 and high >= MAX_STORED_TS:
            checks.append(lock_check(column, None))
        else:
            return None
    return checks


def _changes(
    mutation: RowMutation, locks: Mapping[bytes, int | None], listing: bool
) -> list[Change]:
    """What is to be changed if columns have these locks."""
    changes = []
    for one in mutation.changes:
        family, column, ts = FAMILIES[one.kind], one.column, one.ts
        if isinstance(one, Put):
            _fits(ts)
            if one.kind is Kind.LOCK:
                changes.append(Change(LOCK, column, LOCK_AT, stored_lock(ts, one.value)))
                continue
            changes.append(Change(family, column, ts, stored(one.value)))
            if listing and one.kind is Kind.WRITE and _is_listed(one):
                changes.append(Change(CHANGES, column, ts, stored(b"")))
        elif one.kind is Kind.LOCK:
            if locks.get(column) == ts:
                changes.append(Change(LOCK, column, LOCK_AT, b""))
        elif 0 <= ts <= MAX_STORED_TS:
            changes.append(Change(family, column, ts, None))
    return changes


def _is_listed(record: Put) -> bool:
    """Whether a feed lists a write record: it puts or deletes, and not in a column of ours."""
    return record.value[:1] in _LISTED and not record.column.startswith(SYSTEM_MARK)


# --- Sending ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Request:
    """Rows of one region that are sent as one; `places` are those of a batch."""

    places: list[int]
    fields: list[bytes] = field(default_factory=list)
    size: int = 0


class Writing:
    """Sends prepared mutations and gathers what has become of them; one for a batch."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._failures: list[StoreError | UnknownTableError] = []

    def apply(self, plans: Sequence[Plan]) -> list[bool]:
        """Apply all; whether the conditions held. Raises what `Store.mutate` does."""
        self._plans = plans
        self._results = [True] * len(plans)
        for wave in _waves(plans):
            by_table: dict[str, list[int]] = {}
            for at in wave:
                if plans[at].mutation is not None:
                    self._results[at] = self._look_and_apply(plans[at])
                elif plans[at].request:
                    by_table.setdefault(plans[at].table, []).append(at)
            for table, places in by_table.items():
                self._send(table, places)
            if self._failures:
                # One whose outcome is unknown first: the caller has to look then.
                unknown = [one for one in self._failures if isinstance(one, OutcomeUnknownError)]
                raise (unknown or self._failures)[0]
        return self._results

    def _send(self, table: str, places: list[int]) -> None:
        """Send the mutations of a table until each has had an answer or failed."""
        what = f"changing the table {table!r}"
        tries = Tries(self._calls, what, table)
        waiting = list(_together(self._plans, places, self._calls.region_starts(table)))
        while waiting and not self._failures:
            again: list[int] = []
            alone: list[_Request] = []
            moved: Failure | None = None
            for at in range(0, len(waiting), _REQUESTS):
                part = waiting[at : at + _REQUESTS]
                for request, answer in zip(part, self._ask(table, part), strict=True):
                    if isinstance(answer, Failure):
                        if answer.meaning is Meaning.NOT_DONE:
                            again += request.places
                            moved = answer
                        else:
                            self._failures.append(self._failed(answer, table))
                    elif not answer and len(request.places) > 1:
                        alone += [
                            _Request([one], [self._plans[one].request]) for one in request.places
                        ]
                    else:
                        for one in request.places:
                            self._results[one] = answer
                if self._failures:
                    return
            waiting = alone
            if moved:
                try:
                    if not tries.wait():
                        raise self._calls.silence(moved, what)
                    starts = self._calls.region_starts(table, again=True)
                except StoreError as error:
                    # Other rows may have been changed.
                    if len(self._plans) > 1 and not isinstance(error, OutcomeUnknownError):
                        raise OutcomeUnknownError(
                            f"{error} Some rows of the batch may have been changed."
                        ) from error
                    raise
                waiting += _together(self._plans, again, starts)

    def _ask(self, table: str, requests: Sequence[_Request]) -> list[bool | Failure]:
        """Send requests together: for each whether it was applied, or what failed."""
        asked = [(self._plans[one.places[0]].row, b"".join(one.fields)) for one in requests]
        if len(asked) == 1:
            try:
                return [_applied(self._calls.change(table, *asked[0]))]
            except jpype.JException as error:
                return [Failure.of(error)]
        client = self._calls.client()
        calls = client.array_list(len(asked))
        for row, request in asked:
            message = client.rows_request.parseFrom(request)
            calls.add(client.call(b"", row, client.change_rows, message))
        return [_answer(one) for one in self._calls.batch(table, calls, len(asked), "mutate")]

    def _failed(self, failure: Failure, table: str) -> StoreError | UnknownTableError:
        what = f"changing the table {table!r}"
        self._calls.check_open()
        if failure.meaning is Meaning.REFUSED:
            return self._calls.refusal(failure, what, table)
        return self._calls.unknown(failure, what)

    # --- Looking first ------------------------------------------------------------------

    def _look_and_apply(self, one: Plan) -> bool:
        """Decide about a mutation by looking at the row, and apply it if that is still so."""
        mutation = one.mutation
        assert mutation is not None
        columns = {change.column for change in mutation.changes if change.kind is Kind.LOCK}
        columns |= {check.column for check in mutation.conditions if check.kind is Kind.LOCK}
        tries = Tries(self._calls, f"changing the table {one.table!r}", one.table)
        while True:
            row = self._look(mutation, columns)
            if not all(_holds(condition, row) for condition in mutation.conditions):
                return False
            locks = {column: next(iter(row.get((LOCK, column), ())), None) for column in columns}
            changes = _changes(mutation, locks, one.listing)
            if not changes:
                return True
            others = [one for one in mutation.conditions if one.kind is not Kind.LOCK]
            checks = [lock_check(column, ts) for column, ts in locks.items()]
            request = conditions(mutation.row, [*(_checks(others) or ()), *checks])
            request += mutations(mutation.row, changes)
            settled = Writing(self._calls)
            if settled.apply([Plan(one.table, one.row, request)])[0]:
                return True
            # Something has changed since the look, or never was as a condition says: look again.
            if not tries.wait():
                raise StoreError(
                    f"The row {one.row[:40]!r} of the table {one.table!r} is changed by others all "
                    f"the time: it was tried for {self._calls.patience_seconds:g} s."
                )

    def _look(
        self, mutation: RowMutation, locks: set[bytes]
    ) -> dict[tuple[bytes, bytes], list[int]]:
        """The timestamps of the entries that conditions speak of, as they were at one moment."""
        asked: dict[bytes, Ask] = {}
        for kind, family in FAMILIES.items():
            found = [one for one in mutation.conditions if one.kind is kind]
            if kind is Kind.LOCK:
                if locks:
                    asked[family] = Ask(family, sorted(locks))
            elif found:
                columns = sorted({one.column for one in found})
                low, high = min(one.low for one in found), max(one.high for one in found)
                asked[family] = Ask(family, columns, low, high)
        block = self._calls.get(mutation.table, [get(mutation.row, asked.values(), _ALL_VERSIONS)])
        row: dict[tuple[bytes, bytes], list[int]] = {}
        for _, entries in rows_of(block):
            for family, column, ts, value in entries:
                if family == LOCK:
                    lock = lock_of(value)
                    if lock is None:
                        continue
                    ts = lock[0]
                row.setdefault((family, column), []).append(ts)
        return row


def _holds(condition: Condition, row: Mapping[tuple[bytes, bytes], Sequence[int]]) -> bool:
    present, kind, column, low, high = condition
    found = row.get((FAMILIES[kind], column), ())
    return any(low <= ts <= high for ts in found) is present


def _answer(answer: Any) -> bool | Failure:
    """What has become of one of many requests."""
    if not hasattr(answer, "getValue"):
        return Failure.of(answer)
    return _applied(bytes(answer.getValue().getValue().toByteArray()))


def _applied(answer: bytes) -> bool:
    """What the endpoint says: whether the changes were made."""
    # One field, the number 1 for yes; an endpoint without conditions says nothing.
    return answer != b"\x08\x00"


def _together(
    plans: Sequence[Plan], places: Sequence[int], starts: Sequence[bytes]
) -> Iterator[_Request]:
    """Put the rows of each region together, in requests of bounded size."""
    open_: dict[int, _Request] = {}
    for at in sorted(places, key=lambda one: plans[one].row):
        region = bisect_right(starts, plans[at].row)
        request = open_.get(region)
        data = plans[at].request
        if request is not None and (
            len(request.places) >= _ROWS or request.size + len(data) > _BYTES
        ):
            yield open_.pop(region)
            request = None
        if request is None:
            request = open_[region] = _Request([])
        request.places.append(at)
        request.fields.append(data)
        request.size += len(data)
    yield from open_.values()


def _waves(plans: Sequence[Plan]) -> Iterator[list[int]]:
    """Cut a batch so that no row is in one part twice: its mutations come one after the other."""
    wave: list[int] = []
    rows: set[tuple[str, bytes]] = set()
    for at, one in enumerate(plans):
        address = (one.table, one.row)
        if address in rows:
            yield wave
            wave, rows = [], set()
        wave.append(at)
        rows.add(address)
    if wave:
        yield wave
