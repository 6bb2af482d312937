"""What a `Tree` takes as a contribution."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pytest
from stores import in_memory

from percola import Table, Worker, WrongTypeError
from percola.inspection import failures
from percola.recipes import COUNTER, MIN, Monoid, Tree, check, top


def halves(contribution: Any) -> list[Any]:
    if contribution == []:
        raise ValueError("nothing to halve")
    return [*contribution.copy(), 0][:2]  # Of a list, as which tuples come back.


HALVES = Monoid("halves", lambda left, right: left + right, halves)


@pytest.mark.parametrize(
    ("monoid", "bad", "says", "good", "value"),
    [
        (HALVES, (), "nothing to halve", (1,), [1, 0]),
        (top(2), "abc", "top 2 a list of items.* but this is str 'abc'", ["abc"], ["abc"]),
        (top(2), 5, "a list of items, also if it is one, but this is int 5", (5, 7, 6), [7, 6]),
        (top(2), [1, "a"], "can be compared, but this is list", [[1, "a"]], [[1, "a"]]),
        (COUNTER, ["red"], "dictionary of numbers .* this is list", {"red": 1}, {"red": 1}),
        (COUNTER, {"red": "1"}, "dictionary of numbers", {"red": 0.5}, {"red": 0.5}),
        (COUNTER, {"red": None}, "dictionary", {"red": Decimal("1.0")}, {"red": Decimal("1.0")}),
    ],
)
def test_what_a_monoid_cannot_take_is_refused_where_it_is_contributed_and_not_in_a_worker(
    monoid: Monoid, bad: Any, says: str, good: Any, value: Any
) -> None:
    source = Table("source")
    tree: Tree[str] = Tree("tree", source, monoid)
    repo = in_memory([source, *tree.tables])
    with repo.transaction() as t, pytest.raises((WrongTypeError, ValueError), match=says):
        tree.contribute(t, "a", {"g": bad, "h": good})
    assert not repo.pending() and not any(repo.snapshot().scan(source))
    repo.run(lambda t: tree.contribute(t, "a", {"g": good}))
    Worker(repo, tree.observers, threads=1).run_until_idle()
    assert tree.get(repo.snapshot(), "g") == value
    assert check(repo, [tree]) == []


def test_a_counter_of_decimals_is_exact_in_any_order() -> None:
    numbers = [Decimal("1E+20"), Decimal("1E-20"), Decimal("-1E+20")]
    for order in itertools.permutations(numbers):
        assert COUNTER.aggregate([{"red": one} for one in order]) == {"red": Decimal("1E-20")}
    with pytest.raises(WrongTypeError, match="has more than 100 digits"):
        COUNTER.aggregate([{"red": Decimal("1E+100")}, {"red": Decimal("0.1")}])


@pytest.mark.parametrize(
    ("monoid", "good", "bad"),
    [(MIN, [1, "a"], [None, "b"]), (MIN, 1, {"b": 1}), (top(2), [[1, "a"]], [["x", "b"]])],
)
def test_the_dead_letter_of_a_group_says_which_contributions_cannot_be_combined(
    monoid: Monoid, good: Any, bad: Any
) -> None:
    source = Table("source")
    tree: Tree[str] = Tree("tree", source, monoid)
    repo = in_memory([source, *tree.tables])
    repo.run(lambda t: [tree.contribute(t, row, {"g": good}) for row in "acd"])
    repo.run(lambda t: tree.contribute(t, "b", {"g": bad}))
    worker = Worker(repo, tree.observers, threads=1, attempts=1)
    worker.run_until_idle()
    (letter,) = failures(repo)
    assert "WrongTypeError: Rows contribute " in letter.traceback
    assert all(str(one).strip("[]") in letter.traceback for one in (good, bad))
    repo.run(lambda t: tree.contribute(t, "b", {"g": good}))
    worker.run_until_idle()
    assert tree.get(repo.snapshot(), "g") is not None and check(repo, [tree]) == []
