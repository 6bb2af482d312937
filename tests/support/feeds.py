"""What the tests of feeds share: a table with one, one without, and what is asked of them."""

from __future__ import annotations

from typing import Any

from percola import Repository, Table, feed
from percola.maintenance.check import check

bank = Table("bank", feed=True)
bal = bank.column("bal", int)
note = bank.column("note", str, observed=True)
tags = bank.family("tag", str)
other = Table("other")
other_bal = other.column("bal", int)
TABLES = [bank, other]
PLACES = [
    (where, row, after)
    for where, rows in (("prewrite", "ab"), ("commit", "ab"))
    for row in rows
    for after in (False, True)
]
"""Where a commit is stopped: before or after which mutation of it."""


def put(repo: Repository, *rows: str, value: int = 1, two_phase: bool = False) -> int:
    with repo.transaction(two_phase=two_phase) as t:
        for row in rows:
            t.set(bal, row, value)
    assert t.commit_ts is not None
    return t.commit_ts


def values(change: feed.Change[str]) -> dict[str, Any]:
    return {column.name: value for column, value in change.image.items()}


def sound(repo: Repository) -> None:
    assert [finding.message for finding in check(repo)] == []
