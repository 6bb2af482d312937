"""Which tables a wake-up is about, as it is sent and joined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from percola.coordination.wake_ups import EVERY_TABLE, joined, mark_of, marks_of, read_marks

names = st.lists(st.text(), min_size=1)
orders = st.randoms(use_true_random=False)


@given(names, names, orders)
def test_a_wake_up_for_two_names_what_either_names(
    some: list[str], others: list[str], order: object
) -> None:
    both = joined(marks_of(some), marks_of(others))
    assert both == marks_of(some + others) == joined(joined(None, marks_of(others)), marks_of(some))
    assert set(both) == {mark_of(table) for table in some + others}
    sent = list(marks_of(some) + marks_of(others))
    order.shuffle(sent)  # type: ignore[attr-defined]
    assert read_marks(bytes(sent)) == both, "as they are read from a FIFO"


@given(names)
def test_one_for_all_tables_stays_one(tables: list[str]) -> None:
    marks = marks_of(tables)
    assert marks != EVERY_TABLE == marks_of(None) == marks_of([])
    assert joined(marks, EVERY_TABLE) == joined(EVERY_TABLE, marks) == EVERY_TABLE
    assert joined(None, EVERY_TABLE) == EVERY_TABLE == read_marks(b"")
    assert read_marks(b"!" + marks) == read_marks(marks + b"!") == EVERY_TABLE


def test_a_hundred_tables_have_many_marks() -> None:
    """Those that share one are scanned in vain."""
    assert len({mark_of(f"table {number}") for number in range(100)}) > 50
