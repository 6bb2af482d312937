"""Change three prices, as a shop's own program does: no Spark, one transaction."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import percola
from catalogue import SCHEMA, price, priced_in, since

DAY = date(2026, 11, 22)
CHANGES = [("p00000", "9.99"), ("p00003", "4.55"), ("p00060", "7.00")]

if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo, repo.transaction() as t:
        for product, now in CHANGES:
            row = f"{product}/{DAY}"
            t.set(price, row, Decimal(now))
            t.set(since, row, DAY)
            t.set(priced_in, row, "books")
    print(f"{len(CHANGES)} prices changed")
