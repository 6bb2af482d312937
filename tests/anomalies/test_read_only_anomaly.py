"""Fekete's read-only anomaly: a report that fits no order of the others. Permitted.

    Ann    sees 0 and 0, withdraws 10 from checking              is fined 1: overdrawn, she thinks
    Bob                  deposits 20 to savings, commits
    Carol                                          reports 0 and 20

Without Carol, Ann came before Bob. Carol saw Bob and not Ann: Ann came after Bob, who made her
rich enough. The two accounts end at −11 and 20 all the same. Reading with `get_for_update` what
the decision rests on makes Ann or Bob conflict.
"""

from __future__ import annotations

from percola import Repository, Table, Transaction
from tests.anomalies.verdicts import Script, Verdict, commits, judged

t = Table("t")
balance = t.column("balance", int)
TABLES = [t]
ACCOUNTS = [(balance, "checking"), (balance, "savings")]


def withdraw(x: Transaction, *, for_update: bool) -> None:
    """Take 10 from checking, and 11 if the two accounts together do not cover it."""
    read = x.get_for_update if for_update else x.get
    together = (x.get(balance, "checking") or 0) + (read(balance, "savings") or 0)
    fine = 1 if together < 10 else 0
    x.set(balance, "checking", (x.get(balance, "checking") or 0) - 10 - fine)


def play(repo: Repository, *, for_update: bool = False) -> Verdict:
    with repo.transaction() as x:
        for column, row in ACCOUNTS:
            x.set(column, row, 0)
    ann, bob = repo.transaction(), repo.transaction()
    withdraw(ann, for_update=for_update)
    bob.set(balance, "savings", 20)
    both = commits(bob)
    report = repo.transaction().get_many(ACCOUNTS)
    both = commits(ann) and both
    final = repo.snapshot().get_many(ACCOUNTS)
    # The report says: Bob before Ann. The fine says: Ann before Bob.
    return judged(happened=report == [0, 20] and final == [-11, 20], conflicted=not both)


def play_closed(repo: Repository) -> Verdict:
    return play(repo, for_update=True)


SCRIPTS = [
    Script(
        "Fekete",
        "Read-only anomaly",
        "A reader sees a state that no serial order of the two writers produces.",
        play,
        play_closed,
        "`get_for_update` of the cells that a writer's decision depends on",
    )
]


def test_a_report_may_fit_no_order_of_the_writers(repo: Repository) -> None:
    assert play(repo) is Verdict.HAPPENED


def test_get_for_update_makes_one_of_the_writers_conflict(repo: Repository) -> None:
    assert play_closed(repo) is Verdict.CONFLICT
