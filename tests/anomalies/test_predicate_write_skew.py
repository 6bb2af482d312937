"""Anti-dependency cycle over a condition (G2): both add what the other did not find. Permitted.

    Ann    no booking overlaps mine: books 10–12
    Bob    no booking overlaps mine: books 11–13

Each of them wrote a row that the other's scan would have found. Snapshot isolation permits it:
there was no cell to conflict on. A cell that stands for the condition, here one a room, closes it
if everybody who books reads it with `get_for_update`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from percola import Repository, Table, Transaction
from tests.anomalies.verdicts import Script, Verdict, commits, judged

rooms = Table("rooms")
guard = rooms.column("guard", int)
bookings = Table("bookings")
end = bookings.column("end", int)
TABLES = [rooms, bookings]


def book(x: Transaction, start: int, until: int) -> None:
    """Book if nobody has booked a time that overlaps."""
    taken = [(int(row.key), row[end]) for row in x.scan(bookings, columns=[end])]
    if all(until <= other or other_end <= start for other, other_end in taken):
        x.set(end, f"{start:02}", until)


def book_guarded(x: Transaction, start: int, until: int) -> None:
    x.get_for_update(guard, "room")
    book(x, start, until)


def overlaps(repo: Repository) -> bool:
    times = [(int(row.key), row[end]) for row in repo.snapshot().scan(bookings)]
    return any(a_end > b for (_, a_end), (b, _) in itertools.pairwise(times))


def play(repo: Repository, book: Callable[[Transaction, int, int], None] = book) -> Verdict:
    ann, bob = repo.transaction(), repo.transaction()
    book(ann, 10, 12)
    book(bob, 11, 13)
    both = commits(ann) and commits(bob)
    return judged(happened=overlaps(repo), conflicted=not both)


def play_guarded(repo: Repository) -> Verdict:
    return play(repo, book_guarded)


SCRIPTS = [
    Script(
        "G2",
        "Write skew over a condition",
        "Each scans and then adds a row that the other's scan did not see.",
        play,
        play_guarded,
        "`get_for_update` of one cell that represents the predicate",
    )
]


def test_two_may_both_add_what_the_others_scan_did_not_find(repo: Repository) -> None:
    assert play(repo) is Verdict.HAPPENED


def test_a_cell_that_stands_for_the_condition_makes_them_conflict(repo: Repository) -> None:
    assert play_guarded(repo) is Verdict.CONFLICT
