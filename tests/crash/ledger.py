"""A small application whose every cell can be told in advance: accounts, orders and their sums.

    bank     balance   the balances of three accounts: their sum never changes; with a feed
             note      a value too long to stand in a write record
    orders   amount    observed; written once, never changed; with a feed
             booked    how many runs of the observer `book` have committed: exactly one
    sums     total     what all orders of a customer come to
             changed   weak, on the row `all`: some total has changed
             grand     on the row `all`: the sum of the totals

`book` must run exactly once for every order; `add_up` as often as it likes, and after the last
change. So whoever was killed, and wherever: once a worker has nothing left to do, `booked` is 1
in every order, and `total` and `grand` are exact.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final

from percola import Repository, Table, Transaction, Worker, WorkerOptions, inspection, observer
from percola.cells import MAX_TS, SYSTEM_MARK, Cell, Kind, Op, ack_column, decode_ts, decode_write
from percola.maintenance.check import Severity, check
from percola.store.walks import scan_writes, walk_kind

bank: Final = Table("bank", feed=True)
balance: Final = bank.column("balance", int)
note: Final = bank.column("note", bytes)
orders: Final = Table("orders", feed=True)
amount: Final = orders.column("amount", int, observed=True)
booked: Final = orders.column("booked", int)
sums: Final = Table("sums")
total: Final = sums.column("total", int)
grand: Final = sums.column("grand", int)
changed: Final = sums.weak_column("changed")
SCHEMA: Final[list[Table[Any]]] = [bank, orders, sums]

ACCOUNTS: Final = ("ada", "ben", "cyd")
OPENING: Final = 100
ALL: Final = "all"
LONG: Final = bytes(range(256)) * 8
POISON: Final = 666
"""An amount on which `book_unless_poisoned` fails."""


@observer(amount)
def book(t: Transaction, row: str) -> None:
    """Add an order to its customer's total."""
    customer = row.partition("/")[0]
    t.set(booked, row, (t.get(booked, row) or 0) + 1)
    t.set(total, customer, (t.get(total, customer) or 0) + (t.get(amount, row) or 0))
    t.notify(changed, ALL)


@observer(amount, name="book")
def book_unless_poisoned(t: Transaction, row: str) -> None:
    """The same, with a bug."""
    if t.get(amount, row) == POISON:
        raise ValueError("this amount is poison")
    book.function(t, row)


@observer(changed)
def add_up(t: Transaction, row: str) -> None:
    """Bring the grand total to what the totals come to."""
    now = sum(one[total] for one in t.scan(sums, columns=[total]))
    if t.get(grand, row) != now:
        t.set(grand, row, now)


def open_accounts(repo: Repository) -> None:
    """The beginning: one transaction."""
    with repo.transaction() as t:
        for name in ACCOUNTS:
            t.set(balance, name, OPENING)
        t.set(note, "old", LONG)


def transfer(repo: Repository, *, two_phase: bool) -> None:
    """A transaction of eight rows in three tables: puts, a delete, long values, both sorts of
    notification. The primary's row has two cells."""
    with repo.transaction(two_phase=two_phase) as t:
        t.set(balance, "ada", (t.get(balance, "ada") or 0) - 30)
        t.set(balance, "ben", (t.get(balance, "ben") or 0) + 10)
        t.set(balance, "cyd", (t.get(balance, "cyd") or 0) + 20)
        t.set(note, "ada", LONG[::-1])
        t.delete(note, "old")
        t.set(amount, "eve/1", 7)
        t.set(amount, "eve/2", 5)
        t.set(amount, "fay/1", 11)
        t.notify(changed, ALL)


def work(repo: Repository, *, poisoned: bool = False, threads: int = 1) -> None:
    """Run the observers until nothing is left to do."""
    first = book_unless_poisoned if poisoned else book
    options = WorkerOptions(threads=threads, attempts=2, first_wait=0.001, rescan=0.05)
    if poisoned:  # What is wanted here need not be warned of.
        logging.getLogger("percola.worker").setLevel(logging.CRITICAL)
    Worker(repo, [first, add_up], options).run_until_idle()


# --- What must hold ---------------------------------------------------------------------


def balances(repo: Repository) -> dict[str, int]:
    """Every account's balance, in one snapshot."""
    return {row.key: row[balance] for row in repo.snapshot().scan(bank, columns=[balance])}


def check_transfer(repo: Repository, *, committed: bool) -> None:
    """The transaction of `transfer` is there whole, or not at all."""
    now = repo.snapshot()
    moved = (70, 110, 120) if committed else (OPENING,) * 3
    assert balances(repo) == dict(zip(ACCOUNTS, moved, strict=True))
    assert now.get(note, "ada") == (LONG[::-1] if committed else None)
    assert now.get(note, "old") == (None if committed else LONG)
    placed = {"eve/1": 7, "eve/2": 5, "fay/1": 11} if committed else {}
    assert {row.key: row[amount] for row in now.scan(orders, columns=[amount])} == placed


def check_no_locks(repo: Repository, *, but_acknowledgments: bool = False) -> None:
    """Nobody is at work, and everything has been read: no lock is left.

    Acknowledgments are read by observers only: those of the rows of a batch that died stay locked
    until the rows, which are dirty, are looked at.
    """
    for table in SCHEMA:
        for _ in repo.snapshot().scan(table):
            pass
    left = list(inspection.locks(repo))
    if but_acknowledgments:
        dirty = {(one.cell.table, one.cell.row) for one in inspection.notifications(repo)}
        left = [
            lock
            for lock in left
            if not lock.cell.column.startswith(SYSTEM_MARK + b"ack:")
            or (lock.cell.table, lock.cell.row) not in dirty
        ]
    assert not left, left


def check_one_version(repo: Repository) -> None:
    """Of every account's cell the collector has left one version, and of a deleted one none."""
    found, _ = scan_writes(repo.context.store, bank.name)
    many = [(str(cell), len(records)) for cell, records in found if len(records) != 1]
    assert not many, many
    kept = {cell.row for cell, records in found if decode_write(records[0][1]).op is Op.PUT}
    assert kept == {cell.row for cell, _ in found}
    data = {
        (cell.row, cell.column) for cell, _, _ in walk_kind(repo.context.store, Kind.DATA, "bank")
    }
    assert data == {(one.row, one.column) for one, _ in found if one.column == note.key}


def check_cells(repo: Repository) -> None:
    """Whatever is dirty, locked or half collected: no cell is as the protocol never leaves it."""
    findings = broken_cells(repo)
    assert not findings, "\n".join(findings)


def broken_cells(repo: Repository) -> list[str]:
    """What `percola check` finds broken, in sentences; what only costs a look is not."""
    return [str(one) for one in check(repo) if one.severity is not Severity.NOTE]


def check_notified(repo: Repository) -> None:
    """Every committed change of an observed cell has its notify entry or its acknowledgement,
    or its change was dead-lettered (rule N1)."""
    store = repo.context.store
    failed = {failure.cell for failure in inspection.failures(repo)}
    for row in repo.snapshot().scan(orders, columns=[amount]):
        cell = Cell(orders.name, row.key.encode(), amount.key)
        ack = Cell(orders.name, row.key.encode(), ack_column("book", amount.key))
        notified = {ts for ts, _ in store.entries(cell, Kind.NOTIFY, 0, MAX_TS)}
        state = store.read((ack,), MAX_TS)[0]
        seen = decode_ts(state[2]) if state[2] is not None else 0
        for commit_ts, raw in store.entries(cell, Kind.WRITE, 0, MAX_TS):
            if decode_write(raw).op in (Op.PUT, Op.DELETE):
                answered = commit_ts <= seen or cell in failed
                assert answered or commit_ts in notified, (str(cell), commit_ts, seen, notified)


def check_at_rest(repo: Repository, *, dead_lettered: int = 0) -> None:
    """After a worker has nothing left to do: every derived cell is exact, nothing is left over."""
    check_cells(repo)
    assert repo.pending() == {}
    assert repo.dead_lettered() == dead_lettered
    check_no_locks(repo)
    now = repo.snapshot()
    expected: Counter[str] = Counter()
    for row in now.scan(orders, columns=[amount, booked]):
        poisoned = bool(dead_lettered) and row[amount] == POISON
        assert row.get(booked) == (None if poisoned else 1), row.key
        if not poisoned:
            expected[row.key.partition("/")[0]] += row[amount]
    found = {row.key: row[total] for row in now.scan(sums, columns=[total])}
    assert found == dict(expected)
    # A weak notification brings the observer also where there is nothing to add up yet.
    assert (now.get(grand, ALL) or 0) == sum(expected.values())
