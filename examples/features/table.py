"""Print the feature table as CSV: all users, all features, as of one timestamp."""

from __future__ import annotations

import csv
import sys

import percola
from features import SCHEMA, last, looked_at, spent

if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo, repo.snapshot() as now:
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(["user", "purchases", "cents", "products_seen", "last_event"])
        users = {name for name, _ in spent.groups(now)} | {row.key for row in now.scan(last.table)}
        for name in sorted(one for one in users if "/" not in one):
            bought = spent.get(now, name)
            seen = looked_at.get(now, name)
            newest = last.get(now, name)
            if newest is not None:
                out.writerow([name, bought.count, bought["cents"], seen, newest])
