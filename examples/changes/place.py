"""Place, change or cancel an order: `place.py ORDER CUSTOMER CENTS`, `place.py --cancel ORDER`."""

from __future__ import annotations

import sys

import percola
from orders import SCHEMA, cents, customer

if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo, repo.transaction() as t:
        if sys.argv[1] == "--cancel":
            t.delete(customer, sys.argv[2])
            t.delete(cents, sys.argv[2])
        else:
            t.set(customer, sys.argv[1], sys.argv[2])
            t.set(cents, sys.argv[1], int(sys.argv[3]))
