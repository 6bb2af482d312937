"""TPC-H's refresh functions: RF1 inserts orders with their lines, RF2 deletes some.

The generator makes no refresh data. So RF1 copies orders, with other prices, to keys that TPC-H
leaves unused, and RF2 deletes orders that were loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from decimal import Decimal

import percola
from percola import Repository, Row
from queries import SCHEMA, lines_of, ordered, orders, price


def some_orders(repo: Repository, number: int, first: int) -> list[str]:
    """`number` of the orders that were loaded, spread over all."""
    now = repo.snapshot()
    keys = [row.key for row in now.scan(orders, columns=[ordered]) if int(row.key) % 32 < 8]
    return keys[first :: max(1, len(keys) // number)][:number]


def insert(repo: Repository, number: int) -> int:
    """RF1: insert so many orders, each in a transaction; returns how many rows that were."""
    rows = 0
    for at, old in enumerate(some_orders(repo, number, 0), 1):
        new = f"{int(old) + 8:010}"
        with repo.transaction() as t:
            for column, value in t.get_row(orders, old).items():
                if column.name.startswith("o_"):
                    t.set(column, new, value)
            for line in lines_of(t, old):
                for column, value in line.items():
                    more = at * Decimal("0.01") if column is price else 0
                    t.set(column, new + line.key[10:], value + more if more else value)
                rows += 1
        rows += 1
    return rows


def delete(repo: Repository, number: int) -> int:
    """RF2: delete so many orders with their lines, each in a transaction; returns the rows."""
    rows = 0
    for key in some_orders(repo, number, 1):
        with repo.transaction() as t:
            lines = lines_of(t, key)
            whole: Iterable[Row[str]] = [t.get_row(orders, key), *lines]
            for row in whole:
                for column, _ in row.items():
                    if column.name.startswith(("o_", "l_")):
                        t.delete(column, row.key)
        rows += 1 + len(lines)
    return rows


if __name__ == "__main__":
    what, number = sys.argv[1:]
    with percola.open("tpch", SCHEMA) as repo:
        done = (insert if what == "insert" else delete)(repo, int(number))
    print(f"{what}: {done} rows of orders and lineitem")
