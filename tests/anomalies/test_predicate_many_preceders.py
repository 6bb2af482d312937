"""Predicate-many-preceders (PMP): a condition is asked twice and answered differently. Forbidden.

    Ann    asks who has 30                                   asks who is divisible by 3
    Bob                      adds a row with 30, commits

The second one asks and writes: Ann deletes all rows with 20, while Bob makes 20 of 10 and 30 of
20. She must not delete by one state and keep by the other: she conflicts.
"""

from __future__ import annotations

from percola import Repository, Table, Transaction
from percola.transactions.snapshot import Snapshot
from tests.anomalies.verdicts import Script, Verdict, commits, judged

t = Table("t")
value = t.column("value", int)
TABLES = [t]


def fill(repo: Repository) -> None:
    with repo.transaction() as x:
        x.set(value, "1", 10)
        x.set(value, "2", 20)


def rows(view: Snapshot, divisor: int) -> list[str]:
    """The rows whose value is divisible by it."""
    return [row.key for row in view.scan(t, columns=[value]) if row[value] % divisor == 0]


def play_reads(repo: Repository) -> Verdict:
    fill(repo)
    ann = repo.transaction()
    first = rows(ann, 30)
    bob = repo.transaction()
    bob.set(value, "3", 30)
    conflicted = not commits(bob)
    second = rows(ann, 3)
    return judged(happened=first != second, conflicted=conflicted)


def play_writes(repo: Repository) -> Verdict:
    fill(repo)
    ann, bob = repo.transaction(), repo.transaction()

    def raise_all(x: Transaction) -> None:
        for row in rows(x, 10):
            x.set(value, row, (x.get(value, row) or 0) + 10)

    raise_all(bob)

    def delete_twenty(x: Transaction, prefix: str) -> None:
        for row in x.scan(t, prefix=prefix, columns=[value]):
            if row[value] == 20:
                x.delete(value, row.key)

    delete_twenty(ann, "1")
    committed = [commits(bob)]
    delete_twenty(ann, "2")
    committed.append(commits(ann))
    left = {row.key: row[value] for row in repo.snapshot().scan(t)}
    # Ann first: 2 is deleted, 1 becomes 20. Bob first: 1 becomes 20 and is deleted.
    in_some_order = left in ({"1": 20}, {"2": 30})
    return judged(happened=all(committed) and not in_some_order, conflicted=not all(committed))


SCRIPTS = [
    Script(
        "PMP",
        "Predicate-many-preceders",
        "Ann scans twice with one predicate, Bob adds a matching row, and the results differ.",
        play_reads,
    ),
    Script(
        "PMP, write",
        "Predicate-many-preceders of a write",
        "Ann deletes the rows that match a predicate while Bob changes which rows match.",
        play_writes,
    ),
]


def test_a_condition_asked_twice_is_answered_alike(repo: Repository) -> None:
    assert play_reads(repo) is Verdict.UNSEEN


def test_a_delete_by_a_condition_conflicts_with_who_changes_what_matches(repo: Repository) -> None:
    assert play_writes(repo) is Verdict.CONFLICT
