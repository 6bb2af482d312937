"""The nightly job as observers: what a change of one price changes, in transactions.

- prices: a row for each row of the Parquet table, PRODUCT/DAY; the history of a product
- products: the newest price of each product, and the one before
- deals: the products whose last change of price was a reduction by a fifth or more
- by_category, cheapest, best_deals: the summary, the lowest price, the top deals of a category
"""

from __future__ import annotations

from percola import DATE, Table, Transaction, decimal_of, observer
from percola.recipes import MIN, Sums, Tree, top

MONEY = decimal_of(12, 2)

prices = Table("prices")
price = prices.column("price", MONEY, observed=True)
since = prices.column("day", DATE)
priced_in = prices.column("category", str)

products = Table("products", feed=True)  # other systems can follow its changes
category = products.column("category", str)
current = products.column("price", MONEY, observed=True)
before = products.column("before", MONEY, observed=True)
priced_on = products.column("day", DATE)

deals = Table("deals")
percent = deals.column("percent", int)

by_category = Sums("by_category", products, {"price": decimal_of(18, 2)})
cheapest = Tree("cheapest", products, MIN)
best_deals = Tree("best_deals", products, top(3))


@observer(price)
def newest_price(t: Transaction, row: str) -> None:
    """Bring a product up to date after one of its prices was written, corrected or deleted."""
    product, _, _ = row.partition("/")
    history = [one for one in t.scan(prices, prefix=f"{product}/") if price in one]
    if not history:
        for column in (current, before, category, priced_on):
            t.delete(column, product)
        return
    newest = history[-1]
    # Written even if nothing changes: of two transactions that write prices of one product at the
    # same time, neither of which sees the other's, one conflicts here and runs again.
    t.set(current, product, newest[price])
    if kind := newest.get(priced_in):
        t.set(category, product, kind)
    else:
        t.delete(category, product)
    if day := newest.get(since):
        t.set(priced_on, product, day)
    if len(history) > 1:
        t.set(before, product, history[-2][price])
    else:
        t.delete(before, product)


@observer(current, before)
def summarise(t: Transaction, product: str) -> None:
    """Let a product contribute to its category, if any, and enter it in the deals or remove it."""
    now, earlier, kind = t.get(current, product), t.get(before, product), t.get(category, product)
    reduced = 0 if now is None or not earlier else int((earlier - now) * 100 // earlier)
    is_deal = reduced >= 20
    listed = kind if now is not None else None
    by_category.contribute(t, product, {listed: {"price": now}} if listed else {})
    cheapest.contribute(t, product, {listed: [now, product]} if listed else {})
    best_deals.contribute(t, product, {listed: [[reduced, product]]} if listed and is_deal else {})
    if is_deal:
        t.set(percent, product, reduced)
    else:
        t.delete(percent, product)


RECIPES = [by_category, cheapest, best_deals]
SCHEMA = [prices, products, deals, *(table for recipe in RECIPES for table in recipe.tables)]
OBSERVERS = [newest_price, summarise]
OBSERVERS += [one for recipe in RECIPES for one in recipe.observers]
