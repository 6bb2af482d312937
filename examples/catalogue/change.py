"""Change three prices, as a shop's own program does: no Spark, one transaction."""

from __future__ import annotations

import percola
from catalogue import SCHEMA, price, priced_in

CHANGES = [("p000", "books", 999), ("p003", "books", 455), ("p060", "books", 700)]

if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo, repo.transaction() as t:
        for product, category, now in CHANGES:
            t.set(price, f"{product}/2026-11-22", now)
            t.set(priced_in, f"{product}/2026-11-22", category)
    print(f"{len(CHANGES)} prices changed")
