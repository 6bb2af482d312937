"""Write `prices.parquet`, which the nightly job reads: each change of a product's price."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

CATEGORIES = ("books", "games", "music")
PRODUCTS = 20_000
CENTS = Decimal("0.01")


def rows() -> list[tuple[str, str, date, Decimal]]:
    """Prices of three days: product, category, the first day of the price, and the price."""
    found = []
    for number in range(PRODUCTS):
        product, category = f"p{number:05d}", CATEGORIES[number % len(CATEGORIES)]
        price = (500 + number * 137 % 4_000) * CENTS
        found.append((product, category, date(2026, 11, 1), price))
        if number % 2 == 0:
            found.append((product, category, date(2026, 11, 8), price + 1))
        if number % 10 == 0:
            reduced = (price * 7 / 10).quantize(CENTS)
            found.append((product, category, date(2026, 11, 15), reduced))
    return found


if __name__ == "__main__":
    columns = list(zip(*rows(), strict=True))
    names = ["product", "category", "day", "price"]
    types = [pa.string(), pa.string(), pa.date32(), pa.decimal128(12, 2)]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    pq.write_table(pa.table(arrays, names=names), "prices.parquet")
    print(f"{len(arrays[0]):,} prices of {PRODUCTS:,} products")
