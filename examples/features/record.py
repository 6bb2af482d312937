"""Record events from a CSV file: `python record.py monday.csv`. Recording twice changes nothing."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import percola
from features import SCHEMA, at, cents, kind, product, user

if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo, Path(sys.argv[1]).open(newline="") as file:
        recorded = 0
        for one in csv.DictReader(file):
            with repo.transaction() as t:
                t.set(user, one["event"], one["user"])
                t.set(kind, one["event"], one["kind"])
                t.set(product, one["event"], one["product"])
                t.set(cents, one["event"], int(one["cents"] or 0))
                t.set(at, one["event"], one["at"])
            recorded += 1
        print(f"{recorded} events recorded")
