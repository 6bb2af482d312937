"""§2.1: mutations of rows where coprocessors are forbidden: each row has a state.

HBase's own conditional write checks one cell of the row that it changes. So every row has one cell
more, its *state*: some random bytes, which each change of the row replaces in the same atomic
write. A mutation with conditions is then

    look        one read: the row's state, and the columns of which the conditions speak
    decide      here: do the conditions hold?
    write       the changes and a new state, if the state still is what was read
    again       from the beginning if it is not; nothing was changed then

A row is read from one view of it, and no state comes twice. So if the state is still what it was,
nothing of the row has changed since the look, and the conditions hold at the moment of the write.
This is true only if everything that writes to the table keeps to it, which is why it is a property
of the table (`hbase_ways`). What has no conditions is written at once, with a new state.

A state is never removed, for then a row without one could be another than it was.

A server writes the rows of a call one after the other, each with a sync of its log. So rows go in
many small calls, which are under way at the same time and share syncs. No row knows of another
here, so their order is nobody's; but all calls have ended before anything is decided or said.

A mutation that finds its own state in the row has been applied. It looks for that only when it
looks at all: after a write that had no effect for certain, or so it was said. If nobody knows
whether a write had its effect, the caller is told, and nothing is sent again.

Why not one of HBase's filters as the condition: a filter cannot say "no entry between these two
timestamps" of one column and something else of another, it only sees a column's newest entry, it
says "no" of a row in which nothing is left to see, and it reads the whole row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from percola.store.chunking import cut
from percola.store.hbase.client import Calls, Tries
from percola.store.hbase.errors import Failure, Meaning
from percola.store.hbase.jvm import JavaObject
from percola.store.hbase.mutations import (
    ALL_VERSIONS,
    Plan,
    Seen,
    all_hold,
    asked_of,
    changes_of,
    locks_of,
    seen,
)
from percola.store.hbase.wire import STATE, STATE_AT, Ask, Change, get, messages, rows_of

_STATE_BYTES: Final = 16
_LOOKS: Final = 500
# What is under way at the same time, in how many calls at most, and from how many rows on.
_ROWS: Final = 256
_BYTES: Final = 8 * 1024 * 1024
_CALLS: Final = 16
_ROWS_OF_A_CALL: Final = 4


class _Row(NamedTuple):
    """A row as a look found it; `state` is None where nothing was ever written."""

    state: bytes | None
    entries: Seen


_NEVER_WRITTEN: Final = _Row(None, {})


class _Write(NamedTuple):
    """The changes of one row; `found`: the row that they were decided by, None for no condition."""

    place: int
    changes: Sequence[Change]
    found: _Row | None


class CheckedRows:
    """Applies prepared mutations of one table, each of another row.

    Attributes:
        failures: what failed otherwise than for a moment; the results mean nothing then.
    """

    def __init__(self, calls: Calls, table: str, plans: Sequence[Plan]) -> None:
        self.failures: list[Failure] = []
        self._calls = calls
        self._table = table
        self._plans = plans
        # Each row gets a state that no row had before.
        self._state = os.urandom(_STATE_BYTES)

    def apply(self) -> list[bool]:
        """Apply all, as long as nothing fails; whether the conditions held.

        Raises StoreError if a row could not be looked at, or is changed by others all the time.
        """
        results = [True] * len(self._plans)
        waiting = list(range(len(self._plans)))
        what = f"changing the table {self._table!r}"
        tries = Tries(self._calls, what, self._table)
        first = True
        while waiting:
            # In order, as a call of rows that stand together is one of a single server.
            writes = sorted(self._decide(waiting, results), key=lambda one: self._row(one.place))
            waiting = []
            away: Failure | None = None
            for write, answer in zip(writes, self._send(writes), strict=False):
                if isinstance(answer, Failure):
                    if answer.meaning is Meaning.NOT_DONE:
                        waiting.append(write.place)
                        away = answer
                    else:
                        self.failures.append(answer)
                elif not answer:
                    waiting.append(write.place)
            if self.failures:
                break
            # Whoever was faster has made his change: the second try comes at once.
            if waiting and (away or not first) and not tries.wait():
                if away:
                    raise self._calls.silence(away, what)
                raise self._calls.contested(self._table, self._plans[waiting[0]].row)
            first = False
        return results

    def _decide(self, places: Sequence[int], results: list[bool]) -> Iterator[_Write]:
        """What is to be written of these mutations; the results of those that are settled."""
        looked = [at for at in places if self._plans[at].looks or self._plans[at].checks]
        rows = self._look(looked)
        for at in places:
            one = self._plans[at]
            if not (one.looks or one.checks):
                if one.changes:
                    yield _Write(at, one.changes, None)
                continue
            mutation, row = one.mutation, rows.get(one.row, _NEVER_WRITTEN)
            assert mutation is not None
            if row.state == self._state:
                continue
            if not all_hold(mutation.conditions, row.entries):
                results[at] = False
                continue
            changes = changes_of(mutation, locks_of(mutation, row.entries), one.listing)
            if changes:
                yield _Write(at, changes, row)

    def _look(self, places: Sequence[int]) -> dict[bytes, _Row]:
        """The rows that hold something of what mutations speak of, by their keys."""
        found = {}
        for begin in range(0, len(places), _LOOKS):
            gets = []
            for at in places[begin : begin + _LOOKS]:
                mutation = self._plans[at].mutation
                assert mutation is not None
                asked = [Ask(STATE, None), *asked_of(mutation)]
                gets.append(get(mutation.row, asked, ALL_VERSIONS))
            for key, entries in rows_of(self._calls.get(self._table, gets)):
                state = [entry.value for entry in entries if entry.family == STATE]
                found[key] = _Row(state[0] if state else None, seen(entries))
        return found

    # --- Writing ------------------------------------------------------------------------

    def _send(self, writes: Sequence[_Write]) -> Iterator[bool | Failure]:
        """Write rows, in calls that are under way together: of each whether its state was as it
        was found, or the failure.

        No calls follow those of which something failed for good.
        """
        for part in cut(writes, _size, _ROWS, _BYTES):
            calls = [partial(self._write, rows) for rows in _shared_out(part)]
            found = [one for answers in self._calls.threads.at_once(calls) for one in answers]
            yield from found
            if any(
                isinstance(one, Failure) and one.meaning is not Meaning.NOT_DONE for one in found
            ):
                return

    def _write(self, writes: Sequence[_Write]) -> list[bool | Failure]:
        """Write rows in one call a server."""
        requests = self._calls.client().array_list(len(writes))
        for write in writes:
            requests.add(self._request(write))
        answers = self._calls.batch(self._table, requests, len(writes), "mutate")
        return [_answer(one) for one in answers]

    def _row(self, place: int) -> bytes:
        return self._plans[place].row

    def _request(self, write: _Write) -> JavaObject:
        """Changes of a row with its new state, under the condition that it has the old one."""
        client, row = self._calls.client(), self._row(write.place)
        changes = [*write.changes, Change(STATE, STATE, STATE_AT, self._state)]
        parts = client.array_list(2)
        for puts, message in messages(row, changes):
            part = client.mutation.parseFrom(message)
            parts.add(client.protobuf.toPut(part) if puts else client.protobuf.toDelete(part))
        request = client.row_mutations.of(parts)
        if write.found is None:
            return request
        check = client.check_and_mutate.newBuilder(row)
        if write.found.state is None:
            return check.ifNotExists(STATE, STATE).build(request)
        return check.ifEquals(STATE, STATE, write.found.state).build(request)


def _size(write: _Write) -> int:
    return sum(len(one.value or b"") + len(one.column) for one in write.changes)


def _shared_out(writes: Sequence[_Write]) -> Iterator[Sequence[_Write]]:
    """Rows in order as the calls that are made at the same time: of about as many rows each."""
    count = min(_CALLS, -(-len(writes) // _ROWS_OF_A_CALL))
    for call in range(count):
        yield writes[call * len(writes) // count : (call + 1) * len(writes) // count]


def _answer(answer: Any) -> bool | Failure:
    """What has become of one write."""
    if hasattr(answer, "isSuccess"):
        return bool(answer.isSuccess())
    # Of a write without a condition there is a result without cells.
    return True if hasattr(answer, "rawCells") else Failure.of(answer)
