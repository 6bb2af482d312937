"""What the tests of `check` share: tables, observers, and what they expect of findings."""

from __future__ import annotations

from typing import Any

from percola import Observer, Repository, Table, Transaction, Worker, observer
from percola.maintenance.check import Counts, Finding, check

docs = Table("docs")
contents = docs.column("contents", observed=True)
links = docs.column("links", observed=True)
title = docs.column("title", str)
size = docs.column("size", int)
member = docs.family("member", int)
recluster = docs.weak_column("recluster")
bank = Table("bank")
bal = bank.column("bal", int)
TABLES = [docs, bank]
LARGE = b"x" * 1000


def write(repo: Repository, column: Any, row: str, value: Any) -> tuple[int, int]:
    """Write a cell; (start_ts, commit_ts)."""
    with repo.transaction() as t:
        t.set(column, row, value)
    assert t.commit_ts is not None
    return t.start_ts, t.commit_ts


def sound(repo: Repository) -> Counts:
    """Assert that the check finds nothing at all; what it walked."""
    counts = Counts()
    assert list(check(repo, counts=counts)) == []
    assert counts.errors == counts.notes == counts.unsettled == 0
    return counts


def only(repo: Repository, rule: str) -> Finding:
    """The one finding that there is, which must be of this rule."""
    counts = Counts()
    found = list(check(repo, counts=counts))
    assert [one.rule for one in found] == [rule], found
    assert counts.errors + counts.notes == 1
    assert found[0].message.endswith(".") and str(found[0].cell.table) in found[0].message
    return found[0]


@observer(contents)
def measure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(contents, row) or b""))


@observer(contents, name="broken")
def broken(t: Transaction, row: str) -> None:
    raise ValueError("as ever")


def work(repo: Repository, *observers: Observer[Any]) -> None:
    Worker(repo, observers, threads=1, attempts=2, first_wait=0.001, rescan=0.01).run_until_idle()
