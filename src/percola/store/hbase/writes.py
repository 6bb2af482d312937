"""§2.1, §2.5: sends row mutations to HBase, grouped by region.

HBase's own conditional write has one condition. The coprocessor that comes with it,
`MultiRowMutationEndpoint`, takes any number of them, each with a column and a range of timestamps,
and changes any number of rows of one region, all or nothing. So

    a row                 one request: figure 6's prewrite or commit of a whole row
    rows of a region      tried as one request, with the conditions of all: if they all hold, as
                          they nearly always do, it is one write to the server's log. If not,
                          nothing is applied, and each row is sent as a separate request
    regions               sent together, one call per server

A mutation that needs its row read first (`mutations`) is sent separately, on the condition that
the locks have not changed since.

A write is sent again only if it is certain that it was not applied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import jpype

from percola.errors import OutcomeUnknownError, StoreError, UnknownTableError
from percola.store.base import RowMutation
from percola.store.hbase.client import Calls, Tries
from percola.store.hbase.errors import Failure, Meaning
from percola.store.hbase.mutations import (
    Plan,
    all_hold,
    asked_of,
    changes_of,
    locks_of,
    looked_checks,
    plan,
    seen,
)
from percola.store.hbase.wire import ALL_VERSIONS, CHANGES, Change, get, rows_of
from percola.store.remote.batches import waves

_ROWS: Final = 64
_BYTES: Final = 1024 * 1024
_REQUESTS: Final = 64


@dataclass(slots=True)
class _Request:
    """Rows of one region that are sent together; `places` are their indexes in the batch."""

    places: list[int]
    fields: list[bytes] = field(default_factory=list)
    size: int = 0


def apply(calls: Calls, batch: Sequence[RowMutation], feeds: Collection[str]) -> list[bool]:
    """Apply a batch, of which the tables in `feeds` keep a feed. Raises as `Store.mutate`."""
    return Writing(calls).apply([plan(one, one.table in feeds) for one in batch])


def remove_changes(
    calls: Calls, table: str, entries: Mapping[bytes, Sequence[tuple[bytes, int]]]
) -> None:
    """Delete entries of a table's feed: row → (column, timestamp) of each."""
    plans = [
        Plan(table, row, [Change(CHANGES, column, ts, None) for column, ts in gone])
        for row, gone in entries.items()
    ]
    Writing(calls).apply(plans)


class Writing:
    """Sends the prepared mutations of one batch and collects their outcomes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._failures: list[StoreError | UnknownTableError] = []

    def apply(self, plans: Sequence[Plan]) -> list[bool]:
        """Apply all; return for each whether its conditions held. Raises as `Store.mutate`."""
        self._plans = plans
        self._results = [True] * len(plans)
        for wave in waves([(one.table, one.row)] for one in plans):
            by_table: dict[str, list[int]] = {}
            for at in wave:
                by_table.setdefault(plans[at].table, []).append(at)
            for table, places in by_table.items():
                if self._failures:
                    break
                self._ask_endpoint(table, places)
            if self._failures:
                # An unknown outcome takes precedence: the caller must check the rows then.
                unknown = [one for one in self._failures if isinstance(one, OutcomeUnknownError)]
                raise (unknown or self._failures)[0]
        return self._results

    def _ended(self, error: StoreError) -> NoReturn:
        """Raise the error that ends a batch, of which other rows may have been changed."""
        if len(self._plans) == 1 or isinstance(error, OutcomeUnknownError):
            raise error
        raise OutcomeUnknownError(
            f"{error} Some rows of the batch may have been changed."
        ) from error

    def _ask_endpoint(self, table: str, places: list[int]) -> None:
        for at in places:
            if self._plans[at].looks:
                self._results[at] = self._look_and_apply(self._plans[at])
        rest = [at for at in places if self._plans[at].changes or self._plans[at].checks]
        if rest:
            self._send(table, rest)

    def _send(self, table: str, places: list[int]) -> None:
        """Send the mutations of a table until each has been answered or has failed."""
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
                        tries.progressed()
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
                    self._ended(error)
                waiting += _together(self._plans, again, starts)

    def _ask(self, table: str, requests: Sequence[_Request]) -> list[bool | Failure]:
        """Send requests together; return for each whether it was applied, or its failure."""
        asked = [(self._plans[one.places[0]].row, b"".join(one.fields)) for one in requests]
        if len(asked) == 1:
            try:
                return [_applied(self._calls.change(table, *asked[0]))]
            except jpype.JException as error:
                return [Failure.of(error)]
        client = self._calls.client()
        try:
            calls = client.array_list(len(asked))
            for row, request in asked:
                message = client.rows_request.parseFrom(request)
                calls.add(client.call(b"", row, client.change_rows, message))
            return [_answer(one) for one in self._calls.batch(table, calls, len(asked), "mutate")]
        except jpype.JException as error:
            # Java's heap was too small for the requests, or for what came.
            return [Failure.of(error)] * len(asked)

    def _failed(self, failure: Failure, table: str) -> StoreError | UnknownTableError:
        what = f"changing the table {table!r}"
        self._calls.check_open()
        if failure.meaning is Meaning.REFUSED:
            return self._calls.refusal(failure, what, table)
        return self._calls.unknown(failure, what)

    def _look_and_apply(self, one: Plan) -> bool:
        """Read the row, decide the mutation, and apply it if the locks are unchanged since."""
        mutation = one.mutation
        assert mutation is not None
        tries = Tries(self._calls, f"changing the table {one.table!r}", one.table)
        request = get(one.row, asked_of(mutation), ALL_VERSIONS)
        while True:
            block = self._calls.get(one.table, [request])
            row = seen(entry for _, entries in rows_of(block) for entry in entries)
            if not all_hold(mutation.conditions, row):
                return False
            locks = locks_of(mutation, row)
            changes = changes_of(mutation, locks, one.listing)
            if not changes:
                return True
            checks = looked_checks(mutation, locks)
            settled = Writing(self._calls)
            if settled.apply([Plan(one.table, one.row, changes, checks)])[0]:
                return True
            # The row has changed since it was read, or a condition does not hold: read it again.
            if not tries.wait():
                raise self._calls.contested(one.table, one.row)


def _answer(answer: Any) -> bool | Failure:
    """The outcome of one of many requests."""
    if not hasattr(answer, "getValue"):
        return Failure.of(answer)
    return _applied(bytes(answer.getValue().getValue().toByteArray()))


def _applied(answer: bytes) -> bool:
    """Whether the changes were made, from the endpoint's response."""
    # One field, the number 1 for yes; without conditions the response is empty.
    return answer != b"\x08\x00"


def _together(
    plans: Sequence[Plan], places: Sequence[int], starts: Sequence[bytes]
) -> Iterator[_Request]:
    """Group rows by region, into requests of bounded size."""
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
