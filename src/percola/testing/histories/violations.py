"""Violations of a history: the standard name of the anomaly and a description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from percola.testing.histories.records import Outcome, Recorded

# Adya's and Berenson's names, where there is one.
DIRTY_WRITE: Final = "dirty write (G0)"
DIRTY_READ: Final = "dirty read (G1a)"
INTERMEDIATE_READ: Final = "intermediate read (G1b)"
CIRCULAR_FLOW: Final = "circular information flow (G1c)"
LOST_UPDATE: Final = "lost update (P4)"
NON_REPEATABLE_READ: Final = "non-repeatable read (P2)"
PHANTOM: Final = "phantom (P3)"
READ_SKEW: Final = "read skew (G-single)"
LONG_FORK: Final = "long fork"
STALE_READ: Final = "stale read"
FUTURE_READ: Final = "future read"
TORN: Final = "torn transaction"
OVERLAPPING_WRITERS: Final = "overlapping writers (G-SIa)"
OWN_WRITE_UNSEEN: Final = "own write not seen"
FROM_NOWHERE: Final = "value from nowhere"
INCOMPATIBLE_ORDERS: Final = "incompatible orders"
TIMESTAMPS_DISORDERED: Final = "timestamps out of order"
TIMESTAMP_TWICE: Final = "timestamp used twice"


@dataclass(frozen=True, slots=True)
class Violation:
    """One anomaly of a history.

    Attributes:
        anomaly: its name, one of this module's constants.
        story: a description that names transactions, keys, values and timestamps.
        transactions: the ids of those that took part.
        key: the key that it was first seen at; None if it is about timestamps alone.
    """

    anomaly: str
    story: str
    transactions: tuple[int, ...] = ()
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.anomaly}: {self.story}"


def explain(violations: Sequence[Violation], transactions: int | None = None) -> str:
    """The violations as one text to print: counts by anomaly first, then the stories."""
    checked = "" if transactions is None else f" in {transactions:,} transactions"
    if not violations:
        return f"No anomaly{checked}."
    counts = Counter(one.anomaly for one in violations).most_common()
    summary = ", ".join(f"{count} × {name}" for name, count in counts)
    stories = "\n".join(f"{number:3}. {one}" for number, one in enumerate(violations, start=1))
    return f"Found{checked}: {summary}.\n{stories}"


def name(record: Recorded) -> str:
    """A transaction as stories introduce it: T3 (teller 1, 40→45)."""
    if record.outcome is Outcome.COMMITTED:
        end = f"{record.start_ts}→{record.commit_ts}" if record.commit_ts else str(record.start_ts)
    else:
        end = f"{record.start_ts}, {record.outcome.value}"
    return f"T{record.id} ({record.process}, {end})"


def show(value: object) -> str:
    """A value as stories print it, shortened."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:38]}…{text[-38:]}"
