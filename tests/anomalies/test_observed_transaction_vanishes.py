"""Observed transaction vanishes (OTV): a commit that was seen is gone from a later read. Forbidden.

    Ann    sets x and y to 1, commits
    Bob                               sets x and y to 2                   commits
    Carol                                                begins, reads x           reads y, x

Carol began when Ann's commit was the last: she sees all of it, and goes on seeing it.
"""

from __future__ import annotations

from percola import Repository, Table
from tests.anomalies.verdicts import Script, Verdict, commits, judged

t = Table("t")
value = t.column("value", int)
TABLES = [t]


def play(repo: Repository) -> Verdict:
    ann = repo.transaction()
    ann.set(value, "x", 1)
    ann.set(value, "y", 1)
    ann.commit()
    bob = repo.transaction()
    bob.set(value, "x", 2)
    bob.set(value, "y", 2)
    carol = repo.transaction()
    seen = [carol.get(value, "x")]
    committed = commits(bob)
    seen += [carol.get(value, "y"), carol.get(value, "x")]
    return judged(happened=seen != [1, 1, 1], conflicted=not committed)


SCRIPTS = [
    Script(
        "OTV",
        "Observed transaction vanishes",
        "Carol reads Ann's write in one cell, and an older value in the next.",
        play,
    )
]


def test_what_was_seen_of_a_commit_stays(repo: Repository) -> None:
    assert play(repo) is Verdict.UNSEEN
