"""Recipes agree with a computation of everything, whatever was written in which order.

That they do under faults and kill -9 is shown by `tests/simulation` and
`tests/integration/test_recipes_kills.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import all_at_once, in_memory

import percola
from percola import (
    DATE,
    FLOAT32,
    INT16,
    JSON,
    Observer,
    Repository,
    Row,
    Table,
    Transaction,
    Worker,
    decimal_of,
    inspection,
    observer,
)
from percola.cells import Kind
from percola.errors import (
    ConflictError,
    RowTooLongError,
    SchemaError,
    UsageError,
    WrongTypeError,
)
from percola.recipes import (
    COUNTER,
    MAX,
    MIN,
    Distinct,
    Export,
    Index,
    Sums,
    Tree,
    check,
    top,
)
from percola.recipes import index as index_module
from percola.recipes import tree as tree_module
from percola.recipes.applied import VALUES
from percola.recipes.keys import PART_BYTES, join, part


def opened(source: Table[Any], *recipes: Any) -> Repository:
    return in_memory([source, *(table for one in recipes for table in one.tables)])


def with_sums(**measures: Any) -> tuple[Repository, Sums]:
    """A repository in which rows contribute to sums."""
    source = Table("source")
    sums = Sums("sums", source, measures)
    return opened(source, sums), sums


def with_tree() -> tuple[Repository, Tree[str]]:
    """A repository in which rows contribute to a maximum."""
    source = Table("source")
    tree = Tree("best", source, MAX)
    return opened(source, tree), tree


def work(repo: Repository, observers: Sequence[Observer[Any]]) -> None:
    Worker(repo, observers, threads=1, retention=None).run_until_idle()


def conflict(repo: Repository, sums: Sums, group: str, n: int, rows: str) -> None:
    """Two rows contribute at once: the one that loses does so again, to a part."""
    first, second = repo.transaction(), repo.transaction()
    for t, row in zip((first, second), rows, strict=True):
        sums.contribute(t, row, {group: {"n": n}})
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    repo.run(lambda t: sums.contribute(t, rows[1], {group: {"n": n}}))


Contributions = Mapping[str, Any]

ROWS = st.sampled_from(["a", "b", "c", "d", "e"])
GROUPS = st.sampled_from(["red", "green/blue", "~%"])
SOUGHT = ["~%", "none", "red", "green/blue", "red"]
BATCHES = 4


def histories(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Writes of contributions, in batches after each of which the observers run."""
    contributions = st.dictionaries(GROUPS, values, max_size=3)
    return st.lists(
        st.lists(st.tuples(ROWS, contributions), min_size=1, max_size=6), min_size=1, max_size=4
    )


def play(make: Callable[[Table[str]], Any], batches: Any) -> tuple[Any, Repository, dict[str, Any]]:
    """Let rows contribute what they hold; the recipe, the repository and what each row holds."""
    source = Table("source")
    holds = source.column("holds", JSON, observed=True)
    recipe = make(source)

    @observer(holds)
    def contribute(t: Transaction, row: str) -> None:
        recipe.contribute(t, row, t.get(holds, row) or {})

    repo = opened(source, recipe)
    held: dict[str, Any] = {}
    for batch in batches:
        for row, contributions in batch:
            with repo.transaction() as t:
                t.set(holds, row, contributions)
            held[row] = contributions
        work(repo, [contribute, *recipe.observers])
        assert check(repo, [recipe]) == []
    return recipe, repo, held


def by_group(held: Mapping[str, Contributions]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in sorted(held):
        for group, value in held[row].items():
            found.setdefault(group, []).append(value)
    return found


# --- Sums -------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    histories(st.fixed_dictionaries({"n": st.integers(-5, 5)}, optional={"x": st.floats(-9, 9)}))
)
def test_sums_agree_with_a_computation_of_everything(batches: Any) -> None:
    recipe, repo, held = play(lambda s: Sums("sums", s, {"n": int, "x": float}), batches)
    now = repo.snapshot()
    expected = by_group(held)
    found = dict(recipe.groups(now))
    assert found.keys() == expected.keys()
    for group, values in expected.items():
        one = found[group]
        assert one.count == len(values)
        assert one["n"] == sum(value["n"] for value in values)
        assert one["x"] == pytest.approx(sum(value.get("x", 0) for value in values), abs=1e-9)
        assert one.mean("n") == one["n"] / one.count
    assert {row.key for row in now.scan(recipe.table)} == set(expected), "empty groups are deleted"
    assert recipe.get_many(now, iter(SOUGHT)) == [recipe.get(now, group) for group in SOUGHT]


def test_a_sum_to_which_nothing_was_added_is_a_zero_of_its_type_and_no_missing_cell() -> None:
    repo, sums = with_sums(price=decimal_of(9, 2), n=int, x=float)
    repo.run(lambda t: sums.contribute(t, "a", {"g": {"price": Decimal(0), "n": 3}}))
    row = repo.snapshot().get_row(sums.table, "g")  # In SQL a missing cell is NULL.
    found = [row.get(column) for column in sums.measures.values()]
    assert repr(found) == "[Decimal('0.00'), 3, 0.0]"
    none = sums.get(repo.snapshot(), "other")
    assert not none
    assert repr([*none.sums.values()]) == "[Decimal('0.00'), 0, 0.0]"
    with repo.transaction() as t:
        t.delete(sums.measures["x"], "g")  # As if this measure had been declared later.
        sums.contribute(t, "b", {"g": {"x": 0.0}})
    assert repo.snapshot().get(sums.measures["x"], "g") == 0.0


def test_a_measure_that_is_unknown_or_of_another_type_is_refused() -> None:
    repo, sums = with_sums(n=int, x=float)
    t = repo.transaction()
    with pytest.raises(SchemaError, match=r"no measure 'm'\. They have: n, x"):
        sums.contribute(t, "a", {"g": {"m": 1}})
    with pytest.raises(WrongTypeError, match=r"sums\.n holds int, but was given str"):
        sums.contribute(t, "a", {"g": {"n": "1"}})
    with pytest.raises(WrongTypeError, match=r"nan cannot be added to sums\.x"):
        sums.contribute(t, "a", {"g": {"x": float("nan")}})
    assert sums.contribute(t, "a", {"g": {"n": None}})
    assert sums.get(t, "g").count == 1
    with pytest.raises(SchemaError, match="cannot be named 'part'"):
        Sums("other", Table("more"), {"part": int})


def test_transactions_that_conflict_in_a_group_give_it_shards_until_they_are_folded() -> None:
    repo, sums = with_sums(n=int)
    conflict(repo, sums, "hot", 5, "ab")
    third = repo.transaction()
    row, shards = repo.snapshot().get_row(sums.table, "hot"), sums.table.resolve("shards")
    assert row[shards] == 2, row  # type: ignore[index]
    assert row[sums.count] == 1, "the second contribution went to a part"
    assert sums.get(third, "hot").count == 2
    assert sums.get(third, "hot")["n"] == 10
    third.rollback()
    work(repo, sums.observers)
    row = repo.snapshot().get_row(sums.table, "hot")
    assert dict(row.items()) == {sums.count: 2, sums.measures["n"]: 10}, "and no shards are left"
    repo.run(lambda t: t.set(shards, "hot", 8))  # type: ignore[arg-type]
    for one in "ab":
        repo.run(lambda t, one=one: sums.contribute(t, one, {}))
    work(repo, sums.observers)
    assert not repo.snapshot().get_row(sums.table, "hot"), "nor is a group without rows"


def test_concurrent_threads_lose_no_addition_to_one_group() -> None:
    repo, sums = with_sums(n=int)

    def add(worker: int) -> None:
        for number in range(50):
            repo.run(
                lambda t, n=number: sums.contribute(t, f"{worker}.{n}", {"hot": {"n": n}}),
                attempts=200,
            )

    assert all_at_once([lambda n=number: add(n) for number in range(4)]) == [None] * 4
    found = sums.get(repo.snapshot(), "hot")
    assert (found.count, found["n"]) == (200, 4 * sum(range(50)))
    work(repo, sums.observers)
    assert sums.get(repo.snapshot(), "hot") == found
    assert check(repo, [sums]) == []


def test_a_recipe_follows_the_groups_of_observed_sums_also_where_they_have_shards() -> None:
    source = Table("source")
    sums = Sums("sums", source, {"n": int}, observed=True)
    best: Tree[str] = Tree("best", sums.table, MAX)

    @observer(sums.count, sums.measures["n"])
    def rank(t: Transaction, group: str) -> None:
        found = sums.get(t, group)
        best.contribute(t, group, {"all": [found["n"], group]} if found else {})

    repo = opened(source, sums, best)

    def largest() -> Any:
        work(repo, [rank, *sums.observers, *best.observers])
        assert check(repo, [sums, best]) == []
        return best.get(repo.snapshot(), "all")

    for row, group, n in (("a", "red", 5), ("b", "blue", 3)):
        with repo.transaction() as t:
            sums.contribute(t, row, {group: {"n": n}})
    assert largest() == [5, "red"]
    conflict(repo, sums, "blue", 4, "cd")
    assert largest() == [11, "blue"]
    with repo.transaction() as t:
        for row in "bcd":
            sums.contribute(t, row, {})
    assert largest() == [5, "red"]


def test_observed_trees_and_distinct_values_run_observers_when_a_group_changes() -> None:
    source = Table("source")
    best = Tree("best", source, MAX, observed=True)
    kinds = Distinct("kinds", source, observed=True)
    ran: list[tuple[str, object]] = []

    @observer(best.value)
    def note_best(t: Transaction, group: str) -> None:
        ran.append((group, t.get(best.value, group)))

    @observer(kinds.counts.count)
    def note_kinds(t: Transaction, group: str) -> None:
        ran.append((group, kinds.get(t, group)))

    repo = opened(source, best, kinds)
    observers = [note_best, note_kinds, *best.observers, *kinds.observers]
    expected = []
    for row, number in (("a", 5), ("b", 3), ("c", 7)):
        with repo.transaction() as t:
            best.contribute(t, row, {"red": number})
            kinds.contribute(t, row, {"blue": ["odd"]})
        work(repo, observers)
        expected += {"a": [("blue", 1), ("red", 5)], "b": [], "c": [("red", 7)]}[row]
        assert sorted(ran) == sorted(expected)
    repo.run(lambda t: [best.contribute(t, row, {}) for row in "abc"])
    work(repo, observers)
    assert ran[-1] == ("red", None)


@pytest.mark.parametrize("there", [{}, {"red": {"n": 5}}])
def test_parts_that_cancel_out_run_the_observer_of_a_group_that_was_read_between_them(
    there: Contributions,
) -> None:
    source = Table("source")
    sums = Sums("sums", source, {"n": int}, observed=True)
    seen: dict[str, int] = {}

    @observer(sums.measures["n"])
    def read(t: Transaction, group: str) -> None:
        seen[group] = sums.get(t, group)["n"]

    repo = opened(source, sums)
    repo.run(lambda t: sums.contribute(t, "a", {"red": {"n": 1}}))
    conflict(repo, sums, "red", 2, "bc")  # From now on there are parts.
    repo.run(lambda t: [sums.contribute(t, row, {}) for row in "bc"])
    repo.run(lambda t: sums.contribute(t, "a", there))
    work(repo, sums.observers)
    repo.run(lambda t: t.set(sums._shards, "red", 2))
    repo.run(lambda t: sums.contribute(t, "d", {"red": {"n": 7}}))
    work(repo, [read])
    assert seen == {"red": sums.get(repo.snapshot(), "red")["n"]}
    repo.run(lambda t: sums.contribute(t, "d", {}))
    work(repo, [read, *sums.observers])
    assert seen == {"red": sums.get(repo.snapshot(), "red")["n"]}
    assert check(repo, [sums]) == []


@settings(max_examples=40)
@given(histories(st.lists(st.sampled_from(["x", "y/z", "%"]), max_size=3)))
def test_distinct_values_agree_with_a_computation_of_everything(batches: Any) -> None:
    recipe, repo, held = play(lambda s: Distinct("seen", s), batches)
    now = repo.snapshot()
    for group in ("red", "green/blue", "~%"):
        values = {value for one in held.values() for value in one.get(group, ())}
        assert recipe.get(now, group) == len(values)
        assert set(recipe.values(now, group)) == values
    assert recipe.get_many(now, iter(SOUGHT)) == [recipe.get(now, group) for group in SOUGHT]


# --- Trees ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("monoid", "values"),
    [
        (MAX, st.integers(0, 9)),
        (MIN, st.lists(st.integers(0, 9), min_size=2, max_size=2)),
        (top(2), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        (COUNTER, st.dictionaries(st.sampled_from("xyz"), st.integers(1, 3), min_size=1)),
    ],
    ids=["max", "min", "top", "counter"],
)
def test_a_tree_agrees_with_a_computation_of_everything(
    monoid: Any, values: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_module, "MOST_ENTRIES", 2)
    monkeypatch.setattr(tree_module, "FAN_OUT", 2)
    aggregates = {
        "max": max,
        "min": min,
        "top 2": lambda found: sorted(itertools.chain(*found), reverse=True)[:2],
        "counter": lambda found: {
            key: sum(one.get(key, 0) for one in found)
            for key in sorted({k for f in found for k in f})
        },
    }

    @settings(max_examples=30)
    @given(histories(values))
    def agrees(batches: Any) -> None:
        recipe, repo, held = play(lambda s: Tree("best", s, monoid), batches)
        now = repo.snapshot()
        expected = by_group(held)
        for group in ("red", "green/blue", "~%"):
            found = expected.get(group)
            wanted = aggregates[monoid.name](found) if found else None
            assert recipe.get(now, group) == wanted
        assert recipe.get_many(now, iter(SOUGHT)) == [recipe.get(now, group) for group in SOUGHT]

    agrees()


def test_a_tree_that_grows_keeps_its_aggregate_at_every_step() -> None:
    """A split moves entries; nobody may see a tree without those that are on their way."""
    repo, tree = with_tree()
    (node,) = tree.observers
    for number in range(200, 0, -1):
        with repo.transaction() as t:
            tree.contribute(t, f"row {number}", {"all": number})
    work(repo, [node])
    assert tree.get(repo.snapshot(), "all") == 200
    rows = list(repo.snapshot().scan(tree.table))
    assert len(rows) > 40, "the root was split"
    assert not rows[0].family(tree._nodes.entry), "and has no entries of its own"
    for number in range(200, 150, -1):
        with repo.transaction() as t:
            tree.contribute(t, f"row {number}", {})
        work(repo, [node])
        assert tree.get(repo.snapshot(), "all") == number - 1


def test_a_load_is_spread_over_the_nodes_before_any_of_them_runs() -> None:
    """Else all of it is moved by one transaction, and each later run passes what it deleted."""
    repo, tree = with_tree()
    for low in range(0, 5_000, 50):
        with repo.transaction() as t:
            for number in range(low, low + 50):
                tree.contribute(t, f"row {number}", {"all": number})
    nodes = tree._nodes
    held = {
        row.key: len(row.family(nodes.entry))
        for row in repo.snapshot().scan(tree.table, columns=[nodes.entry])
    }
    assert held["all"] == max(held.values()) == tree_module.MOST_ENTRIES
    assert sum(held.values()) == 5_000
    work(repo, tree.observers)
    assert tree.get(repo.snapshot(), "all") == 4_999
    assert list(check(repo, [tree])) == []
    with repo.transaction() as t:
        for number in range(5_000):
            tree.contribute(t, f"row {number}", {})
    work(repo, tree.observers)
    assert list(repo.snapshot().scan(tree.table)) == []


@pytest.mark.parametrize("then", [9, None])
def test_a_shrinking_tree_leaves_nothing_and_loses_no_entry_meanwhile(then: int | None) -> None:
    """Its contributor has still seen a node split that no longer is, and wrote below it."""
    repo, tree = with_tree()

    def put(value: int | None, *names: str) -> None:
        with repo.transaction() as t:
            for name in names:
                tree.contribute(t, name, {} if value is None else {"all": value})

    def found() -> list[Row[str]]:
        return list(repo.snapshot().scan(tree.table))

    names = [f"row {number}" for number in range(200)]
    put(1, *names)
    work(repo, tree.observers)
    assert len(found()) > 40, "the root was split"
    put(None, *names)
    late = repo.transaction()
    tree.contribute(late, "late", {"all": 5})
    work(repo, tree.observers)
    assert found() == []
    late.commit()
    [entry] = found()
    assert entry.key != "all", "it is below the root, which is not split"
    put(then, "late")
    work(repo, tree.observers)
    assert tree.get(repo.snapshot(), "all") == then
    assert check(repo, [tree]) == []
    put(None, "late")
    work(repo, tree.observers)
    assert found() == []


def test_a_change_touches_few_cells_of_a_large_tree() -> None:
    repo, tree = with_tree()
    with repo.transaction() as t:
        for number in range(9_000):
            tree.contribute(t, f"row {number}", {"all": number})
    work(repo, tree.observers)
    before = repo.snapshot().start_ts
    repo.run(lambda t: tree.contribute(t, "row 17", {"all": 18_000}))
    work(repo, tree.observers)
    store = repo.context.store
    changed = sum(
        1
        for row in repo.snapshot().scan(tree.table)
        for column, _ in row.items()
        if store.entries(repo.snapshot()._cell(column, row.key), Kind.WRITE, before + 1, 2**62)
    )
    assert tree.get(repo.snapshot(), "all") == 18_000
    # An entry, the sub-aggregates above it on two levels, and the value.
    assert 0 < changed <= 4


# --- Index ------------------------------------------------------------------------------


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "OWNERS_AT_A_TIME", 3)


def test_all_owners_of_a_key_are_notified_some_at_a_time(few_at_a_time: None) -> None:
    source = Table("source")
    due = source.weak_column("due")
    index = Index("by_key", source, due=due)
    ran: list[str] = []

    @observer(due)
    def note(t: Transaction, row: str) -> None:
        ran.append(row)

    repo = opened(source, index)
    with repo.transaction() as t:
        for number in range(10):
            index.register(t, f"r{number}", ["k", "k/2"] if number % 2 else ["k"])
    work(repo, [note, *index.observers])
    assert sorted(ran) == sorted(f"r{n}" for n in range(10)), "who registers is notified"
    ran.clear()
    repo.run(lambda t: index.notify_owners(t, "k/2"))
    work(repo, [note, *index.observers])
    assert sorted(ran) == ["r1", "r3", "r5", "r7", "r9"]
    now = repo.snapshot()
    assert list(index.owners(now, "k")) == [f"r{n}" for n in range(10)]
    assert index.keys(now, "r1") == ["k", "k/2"]
    repo.run(lambda t: index.register(t, "r1", []))
    assert "r1" not in index.owners(repo.snapshot(), "k")
    assert check(repo, [index]) == []


def test_an_index_notifies_rows_of_its_source_or_nobody() -> None:
    source = Table("source")
    with pytest.raises(SchemaError, match=r"a weak column of that table, and not other\.due"):
        Index("by_key", source, due=Table("other").weak_column("due"))
    by_key = Index("by_key", source)
    repo = opened(source, by_key)
    t = repo.transaction()
    with pytest.raises(SchemaError, match="declare it with due="):
        by_key.notify_owners(t, "k")


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_no_list_of_recipes_is_not_checked(alone: bool) -> None:
    repo, sums = with_sums(n=int)
    wrong: Any = sums if alone else [sums.table]
    with pytest.raises(UsageError, match="Sums alone: put it" if alone else r"^Table\('sums'\) is"):
        check(repo, wrong)


def test_a_program_without_a_measure_does_not_replace_contributions_to_it() -> None:
    """As of a newer program beside it: they would be counted once more when they come again."""
    older, newer = Table("source"), Table("source")
    some, all_ = Sums("sums", older, {"n": int}), Sums("sums", newer, {"n": int, "m": int})
    repo = opened(newer, all_)
    with repo.transaction() as t:
        some.contribute(t, "a", {"g": {"n": 1}})
        all_.contribute(t, "b", {"g": {"n": 1, "m": 5}, "h": {"n": 1}})
    repo.run(lambda t: all_.contribute(t, "a", {"g": {"n": 1, "m": 2}}))
    for now in ({"g": {"n": 3}}, {}):
        t = repo.transaction()
        with pytest.raises(SchemaError, match="5 to the measure 'm' of the sums 'sums'"):
            some.contribute(t, "b", now)
    repo.run(lambda t: all_.contribute(t, "b", {"g": {"n": 3, "m": 4}}))
    assert all_.get(repo.snapshot(), "g").sums == {"n": 4, "m": 6}
    assert check(repo, [all_]) == []


def test_a_program_without_a_measure_leaves_parts_of_sums_that_have_it() -> None:
    """As a worker of an older version does, which folds the parts of all programs."""
    older, newer = Table("source"), Table("source")
    some, all_ = Sums("sums", older, {"n": int}), Sums("sums", newer, {"n": int, "m": int})
    repo = opened(newer, all_)
    repo.run(lambda t: t.set(all_._shards, "g", 2))
    repo.run(lambda t: all_.contribute(t, "a", {"g": {"n": 1, "m": 5}}))
    Worker(repo, some.observers, threads=1, retention=None, attempts=1).run_until_idle()
    assert all_.get(repo.snapshot(), "g").sums == {"n": 1, "m": 5}
    [letter] = inspection.failures(repo)
    assert "5 to the measure 'm' of the sums 'sums'" in letter.error
    inspection.retry_failures(repo)
    work(repo, all_.observers)
    assert repo.snapshot().get(all_.measures["m"], "g") == 5
    assert check(repo, [all_]) == []


def test_check_tells_what_differs() -> None:
    source = Table("source")
    sums = Sums("sums", source, {"n": int})
    seen = Distinct("seen", source)
    best: Tree[str] = Tree("best", source, MAX)
    by_key = Index("by_key", source)
    recipes = [sums, seen, best, by_key]
    repo = opened(source, *recipes)
    with repo.transaction() as t:
        sums.contribute(t, "a", {"g": {"n": 1}, "h": {"n": 2}})
        seen.contribute(t, "a", {"g": ["x"]})
        best.contribute(t, "a", {"g": 1, "h": 1, "i": 1})
        best.contribute(t, "b", {"i": 2})
        by_key.register(t, "a", ["k", "l"])
    work(repo, [*sums.observers, *best.observers])
    assert check(repo, recipes) == []
    with repo.transaction() as t:
        t.set(sums.measures["n"], "g", 7)
        t.delete(sums.count, "h")
        t.delete(sums.measures["n"], "h")
        t.delete(seen._refs, join("g", "x"))
        t.set(best.value, "g", 9)
        t.delete(best.value, "h")
        row = repo.snapshot().get_row(best.table, "i", [best._nodes.entry])
        of_a, of_b = (column for column, _ in sorted(row.items(), key=lambda item: item[1]))
        t.set(of_a, "i", 0)
        t.set(of_b, "g", 5)
        t.delete(of_b, "i")
        t.set(by_key._owner, join("k", "b"), "b")
        t.delete(by_key._owner, join("l", "a"))
    assert check(repo, recipes) == [
        "sums['g'] has n = 7; it should be 1.",
        "sums['h'] is missing; it should count 1 rows.",
        "seen.values['g/x'] is missing; 1 rows contribute it.",
        "best['g'] has the value 9; its max is 1.",
        "best['g'] has the entry 5 of no row.",
        "best['i'] has the entry 0 of the row 'a'; it should be 1.",
        "best['h'] is missing; its max is 1.",
        "best['i'] has no entries of the row 'b'; it should have one.",
        "by_key['k/b'] is an entry of no row.",
        "by_key['l/a'] is missing, an entry of the row 'a'.",
    ]


@pytest.mark.parametrize(
    "values", [(1, 1.0), (Decimal("1.5"), Decimal("1.50")), ([2, "a"], [2.0, "a"])]
)
def test_equal_contributions_that_are_written_otherwise_are_no_difference(values: Any) -> None:
    repo, best = with_tree()
    with repo.transaction() as t:
        for group in "cdefghij":  # In one of them, their entries come in another order.
            for row, value in zip("ab", values, strict=True):
                best.contribute(t, row + group, {group: value})
    work(repo, best.observers)
    assert check(repo, [best]) == []


def test_check_says_of_contributions_that_cannot_be_combined_which_they_are() -> None:
    repo, best = with_tree()
    with repo.transaction() as t:
        best.contribute(t, "a", {"g": 1})
        best.contribute(t, "b", {"g": "x"})
    with pytest.raises(WrongTypeError, match="cannot be checked: rows contribute 1 and 'x'"):
        check(repo, [best])


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_different_parts_have_different_keys_that_fit(left: str, right: str) -> None:
    for text in (left, right):
        try:
            text.encode()
        except UnicodeEncodeError:
            return
    assert (part(left) == part(right)) == (left == right)
    assert len(part(left * 9).encode()) <= PART_BYTES
    assert "/" not in part(left)
    assert join(left, right).split("/") == [part(left), part(right)]
    assert "~" in part(left) or unquote(part(left)) == left  # As docs/recipes.md says.


# --- Contributions ------------------------------------------------------------------------


@given(
    st.recursive(
        st.none() | st.sampled_from(["abc", "1.20", ""]) | st.decimals(allow_nan=False),
        lambda values: (
            st.lists(values, max_size=2)
            | st.dictionaries(st.sampled_from(["decimal", "", "g"]), values, max_size=2)
        ),
        max_leaves=6,
    )
)
def test_a_contribution_is_read_as_it_was_written(value: Any) -> None:
    """Also a dictionary that looks like a decimal."""
    assert VALUES.decode(VALUES.encode(value)) == value


def test_a_group_may_be_named_decimal() -> None:
    names: Table[str] = Table("names")
    longest: Tree[str] = Tree("longest", names, MAX)
    repo = opened(names, longest)
    for value in ("abc", "12"):
        with repo.transaction() as t:
            longest.contribute(t, "a", {"decimal": value})
        work(repo, longest.observers)
        assert longest.get(repo.snapshot(), "decimal") == value
    assert check(repo, [longest]) == []
    assert VALUES.decode(b'{"decimal":"abc"}') == {"decimal": "abc"}, "of an earlier version"


def test_sums_of_decimals_keep_all_digits() -> None:
    """A program's own decimal context rounds to 28."""
    repo, sums = with_sums(price=decimal_of(38, 2))
    large, small = Decimal("123456789012345678901234567890123456.78"), Decimal("0.01")
    repo.run(lambda t: t.set(sums._shards, "parts", 2))
    for row, price in (("a", large), ("b", small), ("c", small)):
        with repo.transaction() as t:
            sums.contribute(t, row, {group: {"price": price} for group in ("direct", "parts")})
    for step in (lambda: None, lambda: work(repo, sums.observers)):
        step()
        for group in ("direct", "parts"):
            found = sums.get(repo.snapshot(), group)["price"]
            assert str(found) == "123456789012345678901234567890123456.80"
    assert check(repo, [sums]) == []
    repo.run(lambda t: sums.contribute(t, "a", {}))
    work(repo, sums.observers)
    assert sums.get(repo.snapshot(), "direct")["price"] == Decimal("0.02")
    assert check(repo, [sums]) == []


def test_a_sum_of_floats_never_becomes_infinite() -> None:
    """What is taken back would leave it infinite for ever."""
    repo, sums = with_sums(x=float)
    repo.run(lambda t: sums.contribute(t, "a", {"g": {"x": 1e308}}))
    t = repo.transaction()
    with pytest.raises(WrongTypeError, match=r"1e\+308 and 1e\+308 is beyond the range of floats"):
        sums.contribute(t, "b", {"g": {"x": 1e308}})


def test_a_contribution_that_is_refused_leaves_nothing_in_its_transaction(tmp_path: Path) -> None:
    """A program may catch the error of one row, and commit what the others contribute."""
    source = Table("source")
    sums, seen = Sums("sums", source, {"n": INT16, "x": float}), Distinct("seen", source)
    repo = percola.open(tmp_path / "repo", schema=[source, *sums.tables, *seen.tables])
    repo.run(lambda t: sums.contribute(t, "a", {"g": {"n": 30_000, "x": 1e308}}))
    long = "x" * 1000
    with repo.transaction() as t:
        for now in ({"g": {"n": 10_000}}, {"g": {"x": 1e308}}, {"f": {"n": 1}, "g": {"n": 9_000}}):
            with pytest.raises(WrongTypeError):
                sums.contribute(t, "b", now)
        with pytest.raises(RowTooLongError):
            sums.contribute(t, "b", {"g": {"n": 1}, long: {}})
        with pytest.raises(RowTooLongError):
            seen.contribute(t, "b", {"g": ["v"], long: ["v"]})
        sums.contribute(t, "c", {"g": {"n": 7}})
    assert check(repo, [sums, seen]) == []
    with repo.snapshot() as now:
        assert (sums.get(now, "g").count, sums.get(now, "g")["n"]) == (2, 30_007)
        assert not sums.get(now, "f") and not seen.get(now, "g")
    repo.close()


@pytest.mark.parametrize("type_", [FLOAT32, str, bool, DATE])
def test_a_measure_of_a_type_without_sums_is_refused(type_: Any) -> None:
    with pytest.raises(SchemaError, match="The measure 'x' of the sums 'sums' is"):
        Sums("sums", Table("source"), {"x": type_})


DEEP: Any = functools.reduce(lambda inner, _: [inner], range(100_000), [])


@pytest.mark.parametrize("bad", [None, 1, "", "\ud800", b"b", True, ("a", "b"), float("nan")])
def test_a_key_that_cannot_be_one_is_refused_before_anything_is_written(bad: Any) -> None:
    source = Table("source")
    sums, seen = Sums("sums", source), Distinct("seen", source)
    best: Tree[str] = Tree("best", source, MAX)
    by_key = Index("by_key", source, due=source.weak_column("due"))
    queue = Export("queue")
    recipes = [sums, seen, best, by_key]
    repo = opened(source, *recipes, queue)
    with repo.transaction() as t:
        for call in (
            lambda: sums.contribute(t, "a", {bad: {}, "g": {}}),
            lambda: seen.contribute(t, "a", {bad: ["x"], "g": ["x"]}),
            lambda: seen.contribute(t, "a", {"g": [bad, "x"]}),
            lambda: best.contribute(t, "a", {bad: 1, "g": 1}),
            lambda: best.get(t, bad),
            *(functools.partial(one.get_many, t, [bad]) for one in (sums, seen, best)),
            lambda: by_key.register(t, "a", [bad, "k"]),
            lambda: by_key.notify_owners(t, bad),
            lambda: queue.enter(t, bad),
        ):
            with pytest.raises(WrongTypeError, match=r"A key of a recipe|is not valid Unicode"):
                call()
    assert not repo.pending()
    assert not any(repo.snapshot().scan(source))


@pytest.mark.parametrize("bad", [None, [], "abc", [("g", {})], 5])
def test_a_contribution_that_is_no_dictionary_is_refused(bad: Any) -> None:
    source = Table("source")
    recipes = Sums("sums", source), Distinct("seen", source), Tree("best", source, MAX)
    t = opened(source, *recipes).transaction()
    for recipe in recipes:
        with pytest.raises(WrongTypeError, match="a dictionary by group"):
            recipe.contribute(t, "a", bad)
        with pytest.raises(WrongTypeError, match="lists of texts, but this is str 'abc'"):
            recipe.get_many(t, "abc")


def test_values_that_cannot_be_contributed_are_refused() -> None:
    source = Table("source")
    sums, seen = Sums("sums", source, {"x": float}), Distinct("seen", source)
    best: Tree[str] = Tree("best", source, MAX)
    by_key = Index("by_key", source)
    recipes = [sums, seen, best, by_key]
    t = opened(source, *recipes).transaction()
    for bad in (float("nan"), "\ud800", {1, 2}, b"b", 10**5000, DEEP):
        best.contribute(t, "a", {"g": 1})
        with pytest.raises(WrongTypeError, match=r"source\.applied\.best holds json"):
            best.contribute(t, "a", {"g": bad})
    with pytest.raises(WrongTypeError, match=r"sums\.x holds float, but was given int 1000"):
        sums.contribute(t, "a", {"g": {"x": 10**400}})
    with pytest.raises(WrongTypeError, match="a dictionary of measures"):
        sums.contribute(t, "a", {"g": 5})  # type: ignore[dict-item]
    # A text has characters, which nobody means.
    with pytest.raises(WrongTypeError, match="lists of texts, but this is str 'p17'"):
        by_key.register(t, "a", "p17")
    with pytest.raises(WrongTypeError, match="lists of texts, but this is str 'red'"):
        seen.contribute(t, "a", {"g": "red"})


@pytest.mark.parametrize(("make", "longest"), [(Sums, 40), (Distinct, 33), (Index, 40)])
def test_a_recipe_whose_name_is_too_long_says_so(make: Any, longest: int) -> None:
    assert make("x" * longest, Table("source")).tables
    with pytest.raises(SchemaError, match=r"named after it to its source 'source'.*shorter name"):
        make("x" * (longest + 1), Table("source"))
