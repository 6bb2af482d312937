"""What a `Tree` takes as a contribution."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from stores import in_memory

from percola import Table, Worker, WrongTypeError
from percola.recipes import COUNTER, Monoid, Tree, check, top


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
