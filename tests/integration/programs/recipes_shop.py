"""Orders and products with every recipe; what the workers of `test_recipes_kills` run."""

from __future__ import annotations

from decimal import Decimal

from percola import Table, Transaction, decimal_of, observer
from percola.recipes import MIN, Distinct, Index, Sums, Tree

orders = Table("orders")
customer = orders.column("customer", str, observed=True)
product = orders.column("product", str, observed=True)
pieces = orders.column("pieces", int, observed=True)
priced = orders.weak_column("priced")
products = Table("products")
category = products.column("category", str, observed=True)
cents = products.column("cents", int, observed=True)

KILOS = Decimal("0.125")
"""What a piece weighs."""

ordered = Sums("ordered", orders, {"pieces": int, "kilos": decimal_of(18, 3)})
buyers = Distinct("buyers", orders)
cheapest: Tree[str] = Tree("cheapest", products, MIN)
by_product = Index("by_product", orders, due=priced)
turnover = Sums("turnover", orders, {"cents": int})


@observer(customer, product, pieces)
def order_changed(t: Transaction, order: str) -> None:
    who, what, number = (t.get(column, order) for column in (customer, product, pieces))
    if number is None:
        who = what = None
    measures = {"pieces": number, "kilos": (number or 0) * KILOS}
    ordered.contribute(t, order, {str(who): measures} if who else {})
    buyers.contribute(t, order, {str(what): [str(who)]} if who and what else {})
    by_product.register(t, order, [str(what)] if what else [])


@observer(category, cents)
def product_changed(t: Transaction, name: str) -> None:
    kind, price = t.get(category, name), t.get(cents, name)
    cheapest.contribute(t, name, {kind: [price, name]} if kind and price is not None else {})
    by_product.notify_owners(t, name)


@observer(priced)
def add_up(t: Transaction, order: str) -> None:
    now = {}
    for what in by_product.keys(t, order):
        kind, price = t.get(category, what), t.get(cents, what)
        if kind is not None and price is not None:
            now[kind] = {"cents": price * (t.get(pieces, order) or 0)}
    turnover.contribute(t, order, now)


RECIPES = [ordered, buyers, cheapest, by_product, turnover]
SCHEMA = [orders, products, *(table for recipe in RECIPES for table in recipe.tables)]
OBSERVERS = [order_changed, product_changed, add_up]
OBSERVERS += [one for recipe in RECIPES for one in recipe.observers]
