"""Recipes under seeded schedules and faults: each contribution is counted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar, Final
from unittest import mock

from percola import Observer, Repository, Table, Transaction, observer
from percola.recipes import MAX, Index, Nodes, Sums, Tree, check, sums, tree
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload

SHARDED: Final = "an addition went to a part of a sum"
SPLIT: Final = "a node of a tree was split"

orders = Table("orders")
shop = orders.column("shop", str, observed=True)
euros = orders.column("euros", int, observed=True)
spent = Sums("spent", orders, {"euros": int})


@contextmanager
def patched(*patches: Any) -> Iterator[None]:
    """Several patches at a time."""
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


class Summing(Workload):
    """Clients put orders, change them and take them back; observers add up each shop's."""

    name = "sums"
    tables = (orders, *spent.tables)
    sizes: ClassVar[Sizes] = {"orders": (2, 8), "shops": (1, 2), "batch": (1, 4)}

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(shop, euros, batch=self.size("batch"))
        def add_up(t: Transaction, order: str) -> None:
            price = t.get(euros, order)
            where = t.get(shop, order)
            spent.contribute(t, order, {} if price is None else {where or "none": {"euros": price}})

        return [add_up, *spent.observers]

    def turn(self, client: Client, number: int) -> None:
        rng = client.rng
        order = f"o{rng.randrange(self.size('orders'))}"
        where, price = f"s{rng.randrange(self.size('shops'))}", rng.randint(1, 100)

        def put(t: RecordedTransaction) -> None:
            if rng.random() < 0.3:
                t.delete(euros, order)
            else:
                t.set(euros, order, price)
                t.set(shop, order, where)

        client.transact(put)

    def at_rest(self, repo: Repository) -> None:
        now = repo.snapshot()
        expected: dict[str, tuple[int, int]] = {}
        for row in now.scan(orders, columns=[euros, shop]):
            if (price := row.get(euros)) is not None:
                count, total = expected.get(row[shop], (0, 0))
                expected[row[shop]] = (count + 1, total + price)
        found = {group: (one.count, one["euros"]) for group, one in spent.groups(now)}
        if found != expected:
            self.violate(f"The shops have sold {expected}, and their sums say {found}.")
        for problem in check(repo, [spent]):
            self.violate(problem)

    def patched(self) -> AbstractContextManager[Any]:
        original = Sums._add_to_part

        def add_to_part(*args: Any) -> None:
            self.simulation.world.sightings[SHARDED] += 1
            original(*args)

        spent._contended.clear()
        return patched(
            mock.patch.object(sums, "_salt", return_value=1),
            mock.patch.object(Sums, "_add_to_part", add_to_part),
        )


lines = Table("lines")
product = lines.column("product", str, observed=True)
line_due = lines.weak_column("due")
products = Table("products")
price = products.column("price", int, observed=True)
by_product = Index("by_product", lines, due=line_due)
worth = Sums("worth", lines, {"price": int})


class Joining(Workload):
    """Order lines name a product whose price changes; the worth of all lines by product."""

    name = "join"
    tables = (lines, products, *by_product.tables, *worth.tables)
    sizes: ClassVar[Sizes] = {"lines": (1, 6), "products": (1, 2)}

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(product)
        def register(t: Transaction, line: str) -> None:
            named = t.get(product, line)
            by_product.register(t, line, [] if named is None else [named])

        @observer(line_due)
        def join(t: Transaction, line: str) -> None:
            self.join(t, line)

        @observer(price)
        def tell(t: Transaction, named: str) -> None:
            by_product.notify_owners(t, named)

        return [register, join, tell, *by_product.observers, *worth.observers]

    def turn(self, client: Client, number: int) -> None:
        rng = client.rng
        line = f"l{rng.randrange(self.size('lines'))}"
        named, cost = f"p{rng.randrange(self.size('products'))}", rng.randint(1, 100)
        what = rng.random()

        def put(t: RecordedTransaction) -> None:
            if what < 0.35:
                t.set(product, line, named)
            elif what < 0.5:
                t.delete(product, line)
            elif what < 0.85:
                t.set(price, named, cost)
            else:
                t.delete(price, named)

        client.transact(put)

    @staticmethod
    def join(t: Transaction, line: str) -> None:
        """Contribute what a line is worth, by its registered products."""
        found = {}
        for named in by_product.keys(t, line):
            cost = t.get(price, named)
            if cost is not None:
                found[named] = {"price": cost}
        worth.contribute(t, line, found)

    def at_rest(self, repo: Repository) -> None:
        now = repo.snapshot()
        expected: dict[str, tuple[int, int]] = {}
        for row in now.scan(lines, columns=[product]):
            cost = now.get(price, row[product])
            if cost is not None:
                count, total = expected.get(row[product], (0, 0))
                expected[row[product]] = (count + 1, total + cost)
        found = {group: (one.count, one["price"]) for group, one in worth.groups(now)}
        if found != expected:
            self.violate(f"The lines are worth {expected}, and their sums say {found}.")
        for recipe in (by_product, worth):
            for problem in check(repo, [recipe]):
                self.violate(problem)

    def patched(self) -> AbstractContextManager[Any]:
        worth._contended.clear()
        return patched(
            mock.patch.object(sums, "_salt", return_value=1),
            mock.patch("percola.recipes.index.OWNERS_AT_A_TIME", 2),
        )


bids = Table("bids")
amount = bids.column("amount", int, observed=True)
highest = Tree("highest", bids, MAX)


class Climbing(Workload):
    """Clients bid, raise and withdraw; the highest bid of each lot, in trees that are split."""

    name = "tree"
    tables = (bids, *highest.tables)
    sizes: ClassVar[Sizes] = {"bids": (2, 12), "turns": (3, 10), "lots": (1, 2)}

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(amount)
        def bid(t: Transaction, row: str) -> None:
            value = t.get(amount, row)
            lot = row.partition(".")[0]
            highest.contribute(t, row, {} if value is None else {lot: [value, row]})

        return [bid, *highest.observers]

    def turn(self, client: Client, number: int) -> None:
        rng = client.rng
        row = f"l{rng.randrange(self.size('lots'))}.{rng.randrange(self.size('bids'))}"
        value, withdraws = rng.randint(1, 3), rng.random() < 0.4

        def put(t: RecordedTransaction) -> None:
            if withdraws:
                t.delete(amount, row)
            else:
                t.set(amount, row, value)

        client.transact(put)

    def at_rest(self, repo: Repository) -> None:
        now = repo.snapshot()
        for number in range(self.size("lots")):
            lot = f"l{number}"
            found = [[row[amount], row.key] for row in now.scan(bids, prefix=f"{lot}.")]
            if highest.get(now, lot) != max(found, default=None):
                self.violate(
                    f"The highest bid for {lot} is {max(found, default=None)}, and the tree says "
                    f"{highest.get(now, lot)}."
                )
        for problem in check(repo, [highest]):
            self.violate(problem)
        nodes = highest._nodes
        for row in now.scan(highest.table, columns=[nodes.split, nodes.sub]):
            if (nodes.split in row) != bool(row.family(nodes.sub)):
                self.violate(f"The node {row.key} is split and has no nodes below it, or reversed.")

    def patched(self) -> AbstractContextManager[Any]:
        highest._nodes._entered.clear()
        original = Nodes._move_down

        def move_down(*args: Any, **options: Any) -> None:
            self.simulation.world.sightings[SPLIT] += 1
            original(*args, **options)

        return patched(
            mock.patch.object(tree, "MOST_ENTRIES", 2),
            mock.patch.object(tree, "FAN_OUT", 2),
            mock.patch.object(Nodes, "_move_down", move_down),
        )
