"""§2.1: translates a row mutation into the checks and changes of HBase.

To change a lock, its previous state must be known. Wherever the protocol changes one, the
mutation's own conditions give it: the lock that the condition names, or no lock. Otherwise the row
is read first and the mutation is decided from that; the same applies to conditions without changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from percola.cells import Kind
from percola.errors import StoreError
from percola.store.base import Condition, Put, RowMutation
from percola.store.hbase.wire import (
    CHANGES,
    FAMILIES,
    LOCK,
    LOCK_AT,
    MAX_STORED_TS,
    Ask,
    Change,
    Check,
    Entry,
    check,
    conditions,
    lock_check,
    lock_of,
    mutations,
    stored,
    stored_lock,
)
from percola.store.remote.feed_index import is_listed

Seen: TypeAlias = Mapping[tuple[bytes, bytes], Sequence[int]]
"""A row as read: (family, column) → the timestamps of its entries, newest first."""

Locks: TypeAlias = Mapping[bytes, int | None]
"""The start_ts of the lock that each column has: None for no lock."""


@dataclass(slots=True)
class Plan:
    """A row mutation as it will be sent.

    Attributes:
        changes: the changes to apply if the checks hold.
        checks: the conditions for the changes.
        mutation: the original mutation; None where it adds nothing to the changes.
        listing: whether its puts and deletes are listed in the table's feed.
        looks: whether the row is read first; changes and checks are empty until then.
        durable: whether the changes are written to the server's log.
    """

    table: str
    row: bytes
    changes: Sequence[Change]
    checks: Sequence[Check] = ()
    mutation: RowMutation | None = None
    listing: bool = False
    looks: bool = False
    durable: bool = True

    @property
    def request(self) -> bytes:
        """Checks and changes as the fields of a request to the coprocessor."""
        changes = mutations(self.row, self.changes, durable=self.durable)
        return conditions(self.row, self.checks) + changes


def plan(mutation: RowMutation, listing: bool) -> Plan:
    """Prepare a row mutation; `listing`: list its puts and deletes in the table's feed.

    Raises StoreError for a timestamp that does not fit.
    """
    table, row = mutation.table, mutation.row
    known = _known_locks(mutation.conditions)
    unlocked = {
        one.column for one in mutation.changes if one.kind is Kind.LOCK and not isinstance(one, Put)
    }
    checks = _checks(mutation.conditions)
    changes = changes_of(mutation, known, listing)
    is_known = checks is not None and unlocked <= known.keys()
    if is_known and (changes or not mutation.conditions):
        # Each family has files of its own: of several, some could be lost and others not.
        durable = mutation.durable or any(one.family != LOCK for one in changes)
        return Plan(table, row, changes, checks or (), mutation, listing, durable=durable)
    return Plan(table, row, (), (), mutation, listing, looks=True)


def _fits(ts: int) -> bool:
    """True if HBase can store the timestamp; raises StoreError if not."""
    if 0 <= ts <= MAX_STORED_TS:
        return True
    raise StoreError(
        f"The timestamp {ts} does not fit in HBase, which keeps those up to {MAX_STORED_TS}: the "
        "oracle of this repository must not hand out higher ones."
    )


def _known_locks(conditions: Sequence[Condition]) -> dict[bytes, int | None]:
    """The locks of columns if the conditions hold, as far as the conditions determine them."""
    return {
        column: low if present else None
        for present, kind, column, low, high in conditions
        if kind is Kind.LOCK and (low == high if present else low <= 0 and high >= MAX_STORED_TS)
    }


def _checks(conditions: Sequence[Condition]) -> list[Check] | None:
    """The conditions as checks of the coprocessor; None if it cannot check one of them."""
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


def changes_of(mutation: RowMutation, locks: Locks, listing: bool) -> list[Change]:
    """The changes to make, given the current locks of the columns."""
    changes = []
    for one in mutation.changes:
        family, column, ts = FAMILIES[one.kind], one.column, one.ts
        if isinstance(one, Put):
            _fits(ts)
            if one.kind is Kind.LOCK:
                changes.append(Change(LOCK, column, LOCK_AT, stored_lock(ts, one.value)))
                continue
            changes.append(Change(family, column, ts, stored(one.value)))
            if listing and one.kind is Kind.WRITE and is_listed(one):
                changes.append(Change(CHANGES, column, ts, stored(b"")))
        elif one.kind is Kind.LOCK:
            if locks.get(column) == ts:
                changes.append(Change(LOCK, column, LOCK_AT, b""))
        elif 0 <= ts <= MAX_STORED_TS:
            changes.append(Change(family, column, ts, None))
    return changes


# --- Reading the row first --------------------------------------------------------------


def asked_of(mutation: RowMutation) -> list[Ask]:
    """The parts of the row that must be read to decide a mutation."""
    asked = []
    locks = _lock_columns(mutation)
    if locks:
        asked.append(Ask(LOCK, sorted(locks)))
    for kind, family in FAMILIES.items():
        found = [one for one in mutation.conditions if one.kind is kind]
        if found and kind is not Kind.LOCK:
            columns = sorted({one.column for one in found})
            low, high = min(one.low for one in found), max(one.high for one in found)
            asked.append(Ask(family, columns, low, high))
    return asked


def seen(entries: Iterable[Entry]) -> Seen:
    """The timestamps of a row's entries; a released lock is left out."""
    row: dict[tuple[bytes, bytes], list[int]] = {}
    for family, column, ts, value in entries:
        if family == LOCK:
            lock = lock_of(value)
            if lock is None:
                continue
            ts = lock[0]
        row.setdefault((family, column), []).append(ts)
    return row


def all_hold(conditions: Iterable[Condition], row: Seen) -> bool:
    """Whether a mutation's conditions hold in the row as read."""
    return all(
        any(low <= ts <= high for ts in row.get((FAMILIES[kind], column), ())) is present
        for present, kind, column, low, high in conditions
    )


def locks_of(mutation: RowMutation, row: Seen) -> Locks:
    """The locks of the columns whose lock a mutation changes or checks."""
    return {
        column: next(iter(row.get((LOCK, column), ())), None) for column in _lock_columns(mutation)
    }


def looked_checks(mutation: RowMutation, locks: Locks) -> list[Check]:
    """The checks of a mutation decided by reading the row: its locks must be unchanged."""
    others = [one for one in mutation.conditions if one.kind is not Kind.LOCK]
    return [*(_checks(others) or ()), *(lock_check(column, ts) for column, ts in locks.items())]


def _lock_columns(mutation: RowMutation) -> Sequence[bytes]:
    """In the order of the changes."""
    named = (*mutation.changes, *mutation.conditions)
    return list(dict.fromkeys(one.column for one in named if one.kind is Kind.LOCK))
