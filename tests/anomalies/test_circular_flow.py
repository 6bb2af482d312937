"""Circular information flow (G1c): two that see each other's writes. Forbidden.

Ann    sets x to 1              reads y              commits
Bob                sets y to 2           reads x              commits
"""

from __future__ import annotations

from percola import Repository, Table
from tests.anomalies.verdicts import Script, Verdict, commits, judged

t = Table("t")
value = t.column("value", int)
TABLES = [t]


def play(repo: Repository) -> Verdict:
    ann, bob = repo.transaction(), repo.transaction()
    ann.set(value, "x", 1)
    bob.set(value, "y", 2)
    ann_saw_bob = ann.get(value, "y") == 2
    bob_saw_ann = bob.get(value, "x") == 1
    both = commits(ann) and commits(bob)
    return judged(happened=ann_saw_bob and bob_saw_ann, conflicted=not both)


SCRIPTS = [
    Script(
        "G1c",
        "Circular information flow",
        "Ann reads what Bob wrote, and Bob what Ann wrote.",
        play,
    )
]


def test_two_transactions_do_not_see_each_other(repo: Repository) -> None:
    assert play(repo) is Verdict.UNSEEN
