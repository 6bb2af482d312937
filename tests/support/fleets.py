"""A program whose observers run on Spark, and what must hold of its repository at any time.

Each order adds its amount to its customer's total, once: what was added is noted at the order, in
the same transaction. So at every timestamp all totals together are what all orders have noted, and
at rest that is the sum of all amounts, whatever was killed meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from pathlib import Path
from typing import Any

import percola
from percola import Repository, Table, Transaction, observer
from percola.maintenance.check import check

CUSTOMERS = 40

orders = Table("orders")
amount = orders.column("amount", int, observed=True)
noted = orders.column("noted", int)
totals = Table("totals")
total = totals.column("total", int)
gates = Table("gates")
opened = gates.column("opened", observed=True)
writing = gates.column("writing", observed=True)
passed = gates.column("passed", bool)


@observer(amount, batch=1)  # A transaction an order: tests count them.
def add_up(t: Transaction, order: str) -> None:
    customer = f"c{int(order) % CUSTOMERS}"
    now, before = t.get(amount, order) or 0, t.get(noted, order) or 0
    t.set(noted, order, now)
    t.set(total, customer, (t.get(total, customer) or 0) + now - before)


@observer(opened)
def pass_gate(t: Transaction, folder: str) -> None:
    """Says in a folder that it has begun, and waits there until it may go on."""
    (Path(folder) / "begun").touch()
    pause = threading.Event()
    while not (Path(folder) / "go").exists():
        pause.wait(0.01)
    t.set(passed, folder, True)


@observer(writing)
def write_long(t: Transaction, lock: str) -> None:
    """Has the turn of a folder's writers, says so beside the lock, and waits to be killed.

    Only the first time: the next attempt finds that it was said.
    """
    said = Path(f"{lock}-taken")
    if said.exists():
        t.set(passed, lock, True)
        return
    with open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said.touch()
        threading.Event().wait()


OBSERVERS = [add_up, pass_gate, write_long]
SCHEMA: list[Table[Any]] = [orders, totals, gates]


def die() -> list[Any]:
    """Observers that a process does not live to see."""
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def fail_elsewhere() -> list[Any]:
    """Observers that cannot be had."""
    raise RuntimeError("no settings found")


class Unforeseen(list[Any]):
    """A list that cannot be gone through."""

    def __iter__(self) -> Any:
        raise KeyError("out of luck")


def break_unforeseen() -> list[Any]:
    """Observers that break whoever uses them."""
    return Unforeseen()


def open_shop(folder: Path) -> Repository:
    """The repository; a killed process loses nothing without waiting for the disk."""
    return percola.open(folder, schema=SCHEMA, durability="relaxed")


def place(repo: Repository, numbers: range, *, times: int = 1) -> None:
    """Place orders, or change them: the amount is the number, so many times."""
    for first in numbers[::20]:
        with repo.transaction() as t:
            for number in range(first, min(first + 20, numbers.stop)):
                t.set(amount, str(number), number * times)


def added(repo: Repository) -> int:
    """What all totals come to; AssertionError if that is not what the orders have noted."""
    with repo.snapshot() as s:
        sums = sum(row[total] for row in s.scan(totals))
        assert sums == sum(row[noted] for row in s.scan(orders, columns=[noted]))
    return sums


def check_shop(repo: Repository, expected: int) -> None:
    """At rest: nothing is lost, doubled or half done, no rule is broken, nothing stays behind."""
    assert added(repo) == expected
    assert repo.pending() == {} and repo.dead_lettered() == 0
    with repo.snapshot() as s:
        assert all(row.get(passed) for row in s.scan(gates)), "an observer waited in vain"
    assert list(check(repo)) == []


def parent_of(pid: int) -> int:
    """The process that started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def executor_of(pid: int) -> int:
    """The JVM whose task a Python worker runs: the parent of the daemon that forked it."""
    return parent_of(parent_of(pid))
