"""Intermediate read (G1b): seeing what its writer wrote over before it committed. Forbidden.

Ann    sets x to 1                 sets x to 2, commits
Bob                   reads x                             reads x again
Carol                                                     begins, reads x
"""

from __future__ import annotations

from percola import Repository, Table
from tests.anomalies.verdicts import Script, Verdict, judged

t = Table("t")
value = t.column("value", int)
TABLES = [t]


def play(repo: Repository) -> Verdict:
    ann, bob = repo.transaction(), repo.transaction()
    ann.set(value, "x", 1)
    seen = [bob.get(value, "x")]
    ann.set(value, "x", 2)
    ann.commit()
    seen.append(bob.get(value, "x"))
    carol = repo.transaction()
    seen.append(carol.get(value, "x"))
    assert seen[-1] == 2, "whoever comes later sees the last value"
    return judged(happened=1 in seen, conflicted=False)


SCRIPTS = [
    Script(
        "G1b",
        "Intermediate read",
        "Bob reads a value that Ann overwrote before she committed.",
        play,
    )
]


def test_an_intermediate_value_is_not_seen(repo: Repository) -> None:
    assert play(repo) is Verdict.UNSEEN
