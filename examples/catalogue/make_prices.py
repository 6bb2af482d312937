"""Write `prices.parquet`, which the nightly job reads: each change of a product's price."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

CATEGORIES = ("books", "games", "music")
PRODUCTS = 90


def rows() -> list[tuple[str, str, str, int]]:
    """Prices of three days: product, category, the first day of the price, and cents."""
    found = []
    for number in range(PRODUCTS):
        product, category = f"p{number:03d}", CATEGORIES[number % len(CATEGORIES)]
        cents = 500 + number * 137 % 4_000
        found.append((product, category, "2026-11-01", cents))
        if number % 2 == 0:
            found.append((product, category, "2026-11-08", cents + 100))
        if number % 10 == 0:
            found.append((product, category, "2026-11-15", cents * 7 // 10))
    return found


if __name__ == "__main__":
    columns = list(zip(*rows(), strict=True))
    names = ["product", "category", "day", "cents"]
    types = [pa.string(), pa.string(), pa.string(), pa.int64()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    pq.write_table(pa.table(arrays, names=names), "prices.parquet")
    print(f"{len(arrays[0])} prices of {PRODUCTS} products")
