"""What recipes are declared of, and what a `Tree` takes as a contribution."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pytest
from stores import in_memory

from percola import DATE, SchemaError, Table, Worker, WrongTypeError
from percola.inspection import failures
from percola.recipes import COUNTER, MAX, MIN, Distinct, Index, Monoid, Sums, Tree, check, top


def halves(contribution: Any) -> list[Any]:
    if contribution == []:
        raise ValueError("nothing to halve")
    return [*contribution.copy(), 0][:2]  # Of a list, as which tuples come back.


HALVES = Monoid("halves", lambda left, right: left + right, halves)


def test_what_no_recipe_can_be_of_is_refused_where_it_is_declared() -> None:
    with pytest.raises(SchemaError, match="'by_key' is of 'days', whose rows are date"):
        Index("by_key", Table("days", rows=DATE))  # type: ignore[arg-type]
    no_table: Any = "orders"
    for of in (Sums, Distinct, Index, lambda name, source: Tree(name, source, MAX)):
        with pytest.raises(
            SchemaError, match=r"^The source of the recipe 'a.*' is 'orders', which"
        ):
            of("a", no_table)
    no_types: Any = ["euros"]
    with pytest.raises(SchemaError, match=r"are types by name, .* but these are \['euros'\]"):
        Sums("a", Table("source"), no_types)
    wrong: Any
    for wrong in (0, -1, "3"):
        with pytest.raises(SchemaError, match=f"at least one item, and not {wrong!r}"):
            top(wrong)
    with pytest.raises(SchemaError, match="of 'best' are of <built-in function max>, which is no"):
        Tree("best", Table("source"), max)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("nan", [Decimal("nan"), ["NaN", {"k": (Decimal("sNaN"), 1)}]])
def test_a_nan_is_refused_and_one_that_was_recorded_is_taken_back(nan: Any) -> None:
    source = Table("source")
    best: Tree[str] = Tree("best", source, MIN)
    t = in_memory([source, *best.tables]).transaction()
    with pytest.raises(WrongTypeError, match=r"source\.applied\.best .* a NaN cannot be"):
        best.contribute(t, "a", {"g": nan})
    t.set(best.applied.column, "a", {"g": nan})  # As an earlier version has recorded it.
    assert best.contribute(t, "a", {"g": ["NaN"]})


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
