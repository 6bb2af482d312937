"""Show a category as it is now: `python show.py books`."""

from __future__ import annotations

import sys

import percola
from catalogue import best_deals, by_category, cheapest, price, prices

if __name__ == "__main__":
    name = sys.argv[1]
    with percola.open("./shop", create=False) as repo, repo.snapshot() as now:
        summary = by_category.get(now, name)
        if not summary:
            print(f"{name}: no products")
            sys.exit()
        lowest, product = cheapest.get(now, name)
        print(f"{name}: {summary.count:,} products, on average {summary.mean('price'):.2f}")
        history = [str(one[price]) for one in now.scan(prices, prefix=f"{product}/")]
        print(f"cheapest: {product}, {lowest}; its prices: {', '.join(history)}")
        for reduced, product in best_deals.get(now, name) or []:
            print(f"deal: {product}, {reduced} % off")
