"""Scripts of anomalies, and their verdicts.

A script is a function that attempts an anomaly with two or three transactions and returns the
verdict. `table.py` runs all scripts on every store and writes `docs/anomalies.md` from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from percola import Repository, Transaction
from percola.errors import ConflictError

Play = Callable[[Repository], "Verdict"]


class Verdict(Enum):
    """The outcome of an attempt to cause an anomaly."""

    UNSEEN = "prevented: not seen"
    CONFLICT = "prevented: one conflicts"
    HAPPENED = "possible"


@dataclass(frozen=True)
class Script:
    """An anomaly that can be attempted.

    Attributes:
        code: the field's short name (Adya's, Berenson's or Hermitage's).
        name: its full name.
        what: one sentence that describes it.
        play: attempts it.
        closed: the same with `get_for_update`; None if it is prevented without.
        closing: how to prevent it.
    """

    code: str
    name: str
    what: str
    play: Play
    closed: Play | None = None
    closing: str = "—"


def commits(transaction: Transaction) -> bool:
    """Commit; False if the transaction conflicts."""
    try:
        transaction.commit()
    except ConflictError:
        return False
    return True


def judged(*, happened: bool, conflicted: bool) -> Verdict:
    """The anomaly happened, or one of the transactions had to conflict, or it was not seen."""
    if happened:
        return Verdict.HAPPENED
    return Verdict.CONFLICT if conflicted else Verdict.UNSEEN
