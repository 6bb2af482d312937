"""Aborted read (G1a): seeing what is never committed. Forbidden.

    Ann    sets x to 1                 rolls back
    Bob                   reads x                   reads x again
    Carol                                           begins, reads x

What a commit leaves behind that fails half-way is looked for in `test_dirty_read.py`.
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
    ann.rollback()
    seen.append(bob.get(value, "x"))
    carol = repo.transaction()
    seen.append(carol.get(value, "x"))
    seen += [row[value] for row in carol.scan(t)]
    return judged(happened=1 in seen, conflicted=False)


SCRIPTS = [Script("G1a", "Aborted read", "Bob reads what Ann wrote, and Ann rolls back.", play)]


def test_what_is_rolled_back_is_not_seen(repo: Repository) -> None:
    assert play(repo) is Verdict.UNSEEN
