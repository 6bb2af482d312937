"""Queries 1, 3, 5, 6 and 10 of TPC-H, kept up to date by recipes."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from percola import (
    DATE,
    INT32,
    INT64,
    Column,
    Observer,
    Row,
    Snapshot,
    Table,
    Transaction,
    decimal_of,
    observer,
)
from percola.recipes import Index, Sums, Tree, top

MONEY = decimal_of(15, 2)
TOTAL = decimal_of(38, 6)
date = datetime.date

# Rows are facts that come and go whole, so one column of each is observed.
lineitem = Table("lineitem")  # ORDER/NUMBER
price = lineitem.column("l_extendedprice", MONEY, observed=True)
discount = lineitem.column("l_discount", MONEY)
tax = lineitem.column("l_tax", MONEY)
quantity = lineitem.column("l_quantity", MONEY)
flag = lineitem.column("l_returnflag", str)
status = lineitem.column("l_linestatus", str)
shipped = lineitem.column("l_shipdate", DATE)
supplier_of = lineitem.column("l_suppkey", INT64)

orders = Table("orders")  # the key in ten digits
ordered = orders.column("o_orderdate", DATE, observed=True)
customer_of = orders.column("o_custkey", INT64)
priority = orders.column("o_shippriority", INT32)
changed = orders.weak_column("changed")
joined = orders.weak_column("joined")

customer = Table("customer", rows=INT64)
segment = customer.column("c_mktsegment", str, observed=True)
nation_of = customer.column("c_nationkey", INT64, observed=True)
SHOWN: list[Column[int, Any]] = [
    customer.column("c_name", str),
    customer.column("c_acctbal", MONEY),
    customer.column("c_address", str),
    customer.column("c_phone", str),
    customer.column("c_comment", str),
]

supplier = Table("supplier", rows=INT64)
seated = supplier.column("s_nationkey", INT64, observed=True)

# There before everything else, and never changed.
nation = Table("nation", rows=INT64)
nation_name = nation.column("n_name", str)
region_of = nation.column("n_regionkey", INT64)
region = Table("region", rows=INT64)
region_name = region.column("r_name", str)

PRICING = ["lines", "quantity", "base", "discounted", "charge", "discount"]
pricing = Sums("q1", orders, {"lines": int, **dict.fromkeys(PRICING[1:], TOTAL)})
unshipped: Tree[str] = Tree("q3", orders, top(10))
by_nation = Sums("q5", orders, {"revenue": TOTAL})
forecast = Sums("q6", orders, {"revenue": TOTAL})
returned = Sums("q10", orders, {"revenue": TOTAL}, observed=True)
returning: Tree[str] = Tree("q10.top", returned.table, top(20))
parties = Index("parties", orders, due=joined)  # c7: of the customer 7, s7: has the supplier 7


# --- Who has to be looked at --------------------------------------------------------------


@observer(price, batch=256)
def line_changed(t: Transaction, line: str) -> None:
    t.notify(changed, line.partition("/")[0])


@observer(ordered, batch=256)
def order_changed(t: Transaction, order: str) -> None:
    t.notify(changed, order)


@observer(segment, nation_of)
def customer_changed(t: Transaction, key: int) -> None:
    parties.notify_owners(t, f"c{key}")


@observer(seated)
def supplier_changed(t: Transaction, key: int) -> None:
    parties.notify_owners(t, f"s{key}")


# --- What an order contributes, with all its lines ----------------------------------------


def revenue(lines: Sequence[Row[str]]) -> Decimal:
    return sum((line[price] * (1 - line[discount]) for line in lines), Decimal())


def lines_of(t: Snapshot, order: str) -> list[Row[str]]:
    return list(t.scan(lineitem, prefix=f"{order}/"))


def q3_lines(lines: Sequence[Row[str]], day: date | None) -> list[Row[str]]:
    if day is None or day >= date(1995, 3, 15):
        return []
    return [line for line in lines if line[shipped] > date(1995, 3, 15)]


def q5_lines(lines: Sequence[Row[str]], day: date | None) -> list[Row[str]]:
    return list(lines) if day is not None and day.year == 1994 else []


@observer(changed, batch=64)
def add_up(t: Transaction, order: str) -> None:
    """Contribute to the queries that join nothing; register what the others read."""
    lines = lines_of(t, order)
    head = t.get_row(orders, order)
    day = head.get(ordered)

    groups: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line[shipped] <= date(1998, 9, 2):
            cost, off = line[price], line[discount]
            less = cost * (1 - off)
            values = [1, line[quantity], cost, less, less * (1 + line[tax]), off]
            group = groups.setdefault(line[flag] + line[status], dict.fromkeys(PRICING, 0))
            for name, value in zip(PRICING, values, strict=True):
                group[name] += value
    pricing.contribute(t, order, groups)

    cheap = [
        line[price] * line[discount]
        for line in lines
        if line[shipped].year == 1994
        and Decimal("0.05") <= line[discount] <= Decimal("0.07")
        and line[quantity] < 24
    ]
    forecast.contribute(t, order, {"all": {"revenue": sum(cheap)}} if cheap else {})

    back = [line for line in lines if line[flag] == "R"]
    if back and day is not None and date(1993, 10, 1) <= day < date(1994, 1, 1):
        returned.contribute(t, order, {str(head[customer_of]): {"revenue": revenue(back)}})
    else:
        returned.contribute(t, order, {})

    needed = q5_lines(lines, day)
    keys = {f"s{line[supplier_of]}" for line in needed}
    if day is not None and (needed or q3_lines(lines, day)):
        keys.add(f"c{head[customer_of]}")
    if keys or parties.keys(t, order):
        parties.register(t, order, keys)


@observer(joined, batch=64)
def join(t: Transaction, order: str) -> None:
    """Contribute to the queries that read customers and suppliers."""
    lines, head = lines_of(t, order), t.get_row(orders, order)
    day, who = head.get(ordered), head.get(customer_of)

    waiting = q3_lines(lines, day)
    best = {}
    if waiting and day and who and t.get(segment, who) == "BUILDING":
        best["all"] = [[revenue(waiting), -day.toordinal(), int(order), head[priority]]]
    unshipped.contribute(t, order, best)

    home = t.get(nation_of, who) if who else None
    local = [one for one in q5_lines(lines, day) if t.get(seated, one[supplier_of]) == home]
    sold = {}
    if home is not None and local and t.get(region_name, t.get(region_of, home) or 0) == "ASIA":
        sold[str(t.get(nation_name, home))] = {"revenue": revenue(local)}
    by_nation.contribute(t, order, sold)


@observer(returned.count, returned.measures["revenue"], batch=64)
def rank(t: Transaction, who: str) -> None:
    """Let a customer take part in the list of query 10: a derived table of a derived table."""
    found = returned.get(t, who)
    returning.contribute(t, who, {"all": [[found["revenue"], int(who)]]} if found else {})


# --- The answers, as TPC-H has them -------------------------------------------------------


def mean(total: Decimal, count: int) -> Decimal:
    return (total / count).quantize(Decimal("0.000001"), ROUND_HALF_UP)


def q1(now: Snapshot) -> list[tuple[Any, ...]]:
    rows = []
    for group, found in pricing.groups(now):
        count, qty, base, less, charge, off = (found[name] for name in PRICING)
        means = (mean(one, count) for one in (qty, base, off))
        rows.append((group[0], group[1], qty, base, less, charge, *means, count))
    return rows


def q3(now: Snapshot) -> list[tuple[Any, ...]]:
    found = unshipped.get(now, "all") or []
    return [
        (order, total, date.fromordinal(-day), shipping) for total, day, order, shipping in found
    ]


def q5(now: Snapshot) -> list[tuple[Any, ...]]:
    rows = [(name, found["revenue"]) for name, found in by_nation.groups(now)]
    return sorted(rows, key=lambda row: row[1], reverse=True)


def q6(now: Snapshot) -> list[tuple[Any, ...]]:
    found = forecast.get(now, "all")
    return [(found["revenue"] if found else None,)]


def q10(now: Snapshot) -> list[tuple[Any, ...]]:
    rows = []
    for total, who in returning.get(now, "all") or []:
        name, balance, address, phone, comment = (now.get(column, who) for column in SHOWN)
        country = now.get(nation_name, now.get(nation_of, who) or 0)
        rows.append((who, name, total, balance, country, address, phone, comment))
    return rows


ANSWERS = {1: q1, 3: q3, 5: q5, 6: q6, 10: q10}
RECIPES = [pricing, unshipped, by_nation, forecast, returned, returning, parties]
SCHEMA: list[Table[Any]] = [lineitem, orders, customer, supplier, nation, region]
SCHEMA += [table for recipe in RECIPES for table in recipe.tables]
OBSERVERS: list[Observer[Any]] = [line_changed, order_changed, customer_changed]
OBSERVERS += [supplier_changed, add_up, join, rank]
OBSERVERS += [one for recipe in RECIPES for one in recipe.observers]
