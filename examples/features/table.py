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
        for name, bought in spent.groups(now):
            seen = looked_at.get(now, name)
            newest = last.get(now, name)
            out.writerow([name, bought["purchases"], bought["cents"], seen, newest])
