"""What a worker's scanners remember about clean tables, beside the truth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percola.coordination.wake_ups import EVERY_TABLE, ROW_BYTES, Place, marks_of, wake_up_of
from percola.observers.clean_tables import CleanTables, Look

COLUMNS = frozenset({("docs", b"body")})
MINE = COLUMNS, "docs"
LONG = b"a long beginning that many rows have in common: "


class Truth:
    """A table with dirty rows, of which scanners learn by wake-ups alone."""

    def __init__(self, rng: random.Random) -> None:
        self.clean = CleanTables(1.0, lambda: None)
        self.dirty: set[bytes] = set()
        self.looks: dict[str, tuple[Look, set[bytes]]] = {}
        self._rng = rng

    def commit(self, most: int) -> None:
        """Make some rows dirty, and wake."""
        numbers = [self._rng.randrange(200) for _ in range(self._rng.randint(1, most))]
        rows = [self._rng.choice((b"", LONG)) + b"%d" % number for number in numbers]
        places: list[Place] = [("docs", row) for row in rows]
        self.dirty.update(rows)
        self.clean.note_wake_up(
            self._rng.choices(
                (wake_up_of(places), marks_of(places), EVERY_TABLE), weights=(8, 1, 1)
            )[0]
        )

    def begin(self, scanner: str) -> None:
        """A scanner looks, if that is due and no other does."""
        if not self.clean.is_due(*MINE):
            assert not self.dirty, "nobody would look"
            return
        if (look := self.clean.begin(*MINE, scanner)) is None:
            return
        mine = {row for row in self.dirty if look.rows is None or row[:ROW_BYTES] in look.rows}
        assert mine == self.dirty, "these would be passed over"
        self.looks[scanner] = look, mine

    def end(self, scanner: str, *, cut: bool) -> None:
        """It has answered some of what was dirty when it began, and leaves the others."""
        look, mine = self.looks.pop(scanner)
        self.dirty -= {row for row in mine if self._rng.random() < 0.8}
        left = frozenset(row[:ROW_BYTES] for row in mine & self.dirty)
        self.clean.end(*MINE, scanner, look, None if cut else left)


@given(st.randoms(use_true_random=True), st.sampled_from((1, 3, 40)))
def test_whatever_is_dirty_is_scanned(rng: random.Random, most: int) -> None:
    truth = Truth(rng)
    for _ in range(200):
        scanner = rng.choice(("one", "another", "a third"))
        if rng.random() < 0.3:
            truth.commit(most)
        elif scanner in truth.looks:
            truth.end(scanner, cut=rng.random() < 0.2)
        else:
            truth.begin(scanner)
        assert not truth.dirty or truth.clean.is_due(*MINE)


def rows_after(*wake_ups: bytes, left: frozenset[bytes] = frozenset()) -> object:
    """What is to be scanned after these wake-ups of a table that was clean but for some rows."""
    clean = CleanTables(1.0, lambda: None)
    look = clean.begin(*MINE, "one")
    assert look is not None and look.rows is None
    clean.end(*MINE, "one", look, left)
    for one in wake_ups:
        clean.note_wake_up(one)
    look = clean.begin(*MINE, "one")
    assert look is not None
    return look.rows


def test_only_the_rows_that_were_named_or_left_are_scanned() -> None:
    a, b = wake_up_of([("docs", b"a")]), wake_up_of([("docs", b"b")])
    assert rows_after(a, b, a) == {b"a", b"b"}
    assert rows_after(a, left=frozenset({b"c"})) == {b"a", b"c"}
    assert rows_after(left=frozenset({b"c"})) == {b"c"}
    assert rows_after(a, wake_up_of([("links", b"d")])) == {b"a"}


@pytest.mark.parametrize("whole", [EVERY_TABLE, marks_of(["docs"])], ids=["all", "this"])
def test_a_wake_up_about_the_whole_table_is_not_forgotten_for_one_about_a_row(whole: bytes) -> None:
    a = wake_up_of([("docs", b"a")])
    assert rows_after(a, whole) is rows_after(whole, a) is rows_after(a, whole, a) is None


def test_many_rows_are_not_kept() -> None:
    named = [wake_up_of([("docs", b"%d" % number)]) for number in range(33)]
    assert rows_after(*named[:32]) == {b"%d" % number for number in range(32)}
    assert rows_after(*named) is None
    assert rows_after(*[wake_up_of([("docs", b"a")])] * 32) == {b"a"}
    assert rows_after(left=frozenset(b"%d" % number for number in range(65))) is None
