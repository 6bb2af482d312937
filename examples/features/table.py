"""Print the feature table as CSV: all users, all features, as of one timestamp."""

from __future__ import annotations

import csv
import sys
from urllib.parse import unquote

import percola
from features import SCHEMA, last, looked_at, spent

if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo, repo.snapshot() as now:
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(["user", "purchases", "cents", "products_seen", "last_event"])
        # Every user has a last event. Other rows of its tree have a slash; names have it escaped.
        users = {unquote(row.key) for row in now.scan(last.table) if "/" not in row.key}
        for name in sorted(users):
            bought = spent.get(now, name)
            seen = looked_at.get(now, name)
            newest = last.get(now, name)
            if newest is not None:
                out.writerow([name, bought.count, bought["cents"], seen, newest])
