"""Workloads as the users of `percola.testing.simulation` write them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from datetime import date
from typing import Any, cast

import pytest

import percola
from percola import DATE, INT64, Observer, Repository, Table, Transaction
from percola.recipes import Distinct, Entry, Export, Index, Sums, check
from percola.testing import simulation
from percola.testing.simulation import Client, Simulation, Workload, tell

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
size = docs.column("size", int)


@percola.observer(contents)
def measure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(contents, row) or ""))


@percola.observer(contents, name="measure")
def mismeasure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(contents, row) or "") % 5)


def test_the_example_of_the_package_runs_as_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"^    class .*?(?=^\S)", simulation.__doc__ or "", re.DOTALL | re.MULTILINE)
    assert found is not None
    example = textwrap.dedent(found[0]).replace("range(1000)", "range(12)")
    names: dict[str, Any] = {**vars(simulation), **globals()}
    exec(example, names)
    assert names["result"].seed == 11
    assert capsys.readouterr().out == ""
    exec(example, names | {"measure": mismeasure})
    assert "VIOLATED: A document is not measured." in capsys.readouterr().out


days = Table("shop.days", rows=INT64)
sold = days.column("sold", int, observed=True)
doubled = days.column("doubled", int)
keys = Table("shop.keys", rows=bytes)
tags = keys.family("tag", int)
dates = Table("dates", rows=DATE)
noted = dates.column("noted", int)


@percola.observer(sold)
def double(t: Transaction, day: int) -> None:
    t.set(doubled, day, 2 * (t.get(sold, day) or 0))


class OfEveryType(Workload):
    """Rows that are no texts, and names with the signs that separate the parts of a key."""

    name = "of-every-type"
    tables = (days, keys, dates)
    wrong = False

    def observers(self) -> Sequence[Observer[Any]]:
        return [double]

    def turn(self, client: Client, number: int) -> None:
        def work(t: Any) -> None:
            list(t.scan(days, columns=[sold]))
            list(t.scan(keys, columns=[tags["a"]]))
            t.set(sold, -client.number, number)
            t.set(tags["a/b%"], b"\xff\0", number)
            t.set(tags["a"], b"/%d" % client.number, number)
            t.set(noted, date(2026, 11, client.number), number)

        client.transact(work)

    def at_rest(self, repo: Repository) -> None:
        for row in repo.snapshot().scan(days):
            if self.wrong or row[doubled] != 2 * row[sold]:
                self.violate("A day is not doubled.", (sold, row.key), (tags["a/b%"], b"\xff\0"))


class Wrong(OfEveryType):
    wrong = True


def test_rows_of_every_type_and_names_with_dots_and_slashes_are_simulated() -> None:
    for seed in range(4):
        result = Simulation(OfEveryType, seed).run()
        assert result.violated is None, tell(result)
    told = tell(Simulation(Wrong, 1).run())
    assert "VIOLATED: A day is not doubled." in told
    cells = told.partition("VIOLATED")[2]
    assert r"shop.days['\x7f\\xff" in cells
    assert "data @" in cells.partition(r"shop.keys['\\xff\x00'].tag:a/b%")[2]


orders = Table("orders")
due = orders.weak_column("due")
spent = Sums("spent", orders, {"cents": int})
buyers = Distinct("buyers", orders)
by_product = Index("by_product", orders, due=due)
outbox = Export("outbox")
RECIPES = [spent, buyers, by_product]


@percola.transactional
def place(t: Transaction, order: str, cents: int) -> None:
    spent.contribute(t, order, {"all": {"cents": cents}})
    buyers.contribute(t, order, {"all": [f"b{cents % 3}"]})
    by_product.register(t, order, [f"p{cents % 2}"])
    outbox.enter(t, order)


class Placing(Workload):
    """Clients contribute to recipes themselves, by a function of the program's own.

    No observer folds the sums: what it did would not be recorded. An exporter has a dedicated
    thread.
    """

    name = "placing"
    tables = (orders, *(table for one in RECIPES for table in one.tables), *outbox.tables)

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.sent: dict[str, int] = {}

    def observers(self) -> Sequence[Observer[Any]]:
        def send(t: Transaction, entries: Sequence[Entry]) -> None:
            for one in entries:
                self.sent[one.key] = max(one.epoch, self.sent.get(one.key, 0))

        return outbox.observers(send)

    def turn(self, client: Client, number: int) -> None:
        order, cents = f"o{client.number}", client.rng.randint(1, 99)
        client.transact(lambda t: place(cast("Transaction", t), order, cents))

    def at_rest(self, repo: Repository) -> None:
        for problem in check(repo, [*RECIPES, outbox]):
            self.violate(problem)
        placed = [row.key for row in repo.snapshot().scan(orders)]
        if sorted(self.sent) != placed:
            self.violate(f"The orders are {placed}, and exported were {self.sent}.")


def test_clients_contribute_to_recipes_and_call_transactional_functions() -> None:
    for seed in range(4):
        result = Simulation(Placing, seed).run()
        assert result.violated is None, tell(result)
        assert result.counts["committed"]
        spent._contended.clear()
        buyers.counts._contended.clear()
