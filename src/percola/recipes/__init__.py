"""Derived tables without the hard part: recipes for observers.

A nightly job computes sums, counts, maxima and joins of whole tables. Kept by observers, each
contribution must be counted once and taken back when its row changes, and groups that many rows
share must not slow their writers down. A recipe is a table or two, the observers that keep it, and
a few functions to call from an observer of one's own:

    orders = Table("orders")
    customer = orders.column("customer", str, observed=True)
    euros = orders.column("euros", int, observed=True)
    spent = Sums("spent", orders, {"euros": int})

    @observer(customer, euros)
    def add_up(t, order):
        price = t.get(euros, order)
        spent.contribute(t, order, {t.get(customer, order): {"euros": price}} if price else {})

    SCHEMA = [orders, *spent.tables]
    OBSERVERS = [add_up, *spent.observers]

Declaring a recipe builds plain values and adds one column to the source table, in which each row
keeps what it has contributed (`Applied`). Observers run after a commit: a derived table agrees with
its source at every timestamp at which nothing was pending. Each contribution is counted once.

`Export` passes changes on to a system outside the repository.
"""

from __future__ import annotations

from collections.abc import Iterable

from percola.errors import UsageError
from percola.ranges import HERE, Runner
from percola.recipes.applied import Applied, Change
from percola.recipes.comparing import MOST_DIFFERENCES, Checkable, Recipe, differences
from percola.recipes.distinct import Distinct
from percola.recipes.export import Entry, Export, Refused
from percola.recipes.index import Index
from percola.recipes.sums import Aggregate, Sums, shard_of
from percola.recipes.tree import COUNTER, MAX, MIN, Monoid, Nodes, Tree, top
from percola.repository import Repository

__all__ = [
    "COUNTER",
    "MAX",
    "MIN",
    "Aggregate",
    "Applied",
    "Change",
    "Checkable",
    "Distinct",
    "Entry",
    "Export",
    "Index",
    "Monoid",
    "Nodes",
    "Recipe",
    "Refused",
    "Sums",
    "Tree",
    "check",
    "shard_of",
    "top",
]


def check(
    repo: Repository,
    recipes: Iterable[Checkable],
    *,
    runner: Runner = HERE,
    most: int = MOST_DIFFERENCES,
) -> list[str]:
    """Recompute derived tables from what their sources have contributed, at one timestamp.

    Returns what differs, one sentence each; empty if nothing does. Run it while nothing is pending
    (`percola status` tells). In this process it needs memory for every group, value, key and
    contribution to a tree of one recipe.

    Args:
        runner: who computes: this process by default, or Spark (`percola.spark.OnSpark`): its tasks
            scan ranges of the tables, and shuffle what they find by group.
        most: how many sentences to return; if there are more, the last one says how many.

    Raises StoreError if the store cannot be read, SparkJobError if Spark gave up, and UsageError
    for anything but a list of recipes.
    """
    if isinstance(recipes, Checkable):
        raise UsageError(
            f"The recipes to check are a list, but this is {type(recipes).__name__} alone: put it "
            "in one."
        )
    recipes = list(recipes)
    for recipe in recipes:
        if not isinstance(recipe, Checkable):
            raise UsageError(
                f"{recipe!r} is neither a recipe nor an Export, and cannot be checked."
            )
    found: list[str] = []
    number = 0
    with repo.snapshot() as now:
        for one in (one for recipe in recipes for one in recipe.comparisons()):
            more, sentences = differences(repo.context, now.start_ts, one, runner, most)
            number += more
            found += sentences[: most - len(found)]
    if number > len(found):
        found.append(f"{number - len(found):,} more differences were found.")
    return found
