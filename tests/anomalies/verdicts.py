"""What an anomaly's script says of itself, and what playing it shows.

A script is a function that plays an anomaly with two or three transactions and looks at what came
of it; it returns what it saw, not what it hoped for. `table.py` plays them all on every store and
writes `docs/anomalies.md` from what they returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from percola import Repository, Transaction
from percola.errors import ConflictError

Play = Callable[[Repository], "Verdict"]


class Verdict(Enum):
    """What came of the attempt to bring an anomaly about."""

    UNSEEN = "prevented: not seen"
    CONFLICT = "prevented: one conflicts"
    HAPPENED = "possible"


@dataclass(frozen=True)
class Script:
    """An anomaly that can be played.

    Attributes:
        code: the field's short name (Adya's, Berenson's or Hermitage's).
        name: its name in words.
        what: what it is, in a sentence.
        play: brings it about, if it can be.
        closed: the same with the cells named that close it; None if it is prevented anyway.
        closing: how it is closed, in words.
    """

    code: str
    name: str
    what: str
    play: Play
    closed: Play | None = None
    closing: str = "—"


def commits(transaction: Transaction) -> bool:
    """Commit; whether that went well or the transaction had to conflict."""
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
