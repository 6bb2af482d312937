"""Print the feature table as CSV: all users, all features, as of one timestamp."""

from __future__ import annotations

import csv
import itertools
import sys

import percola
from features import SCHEMA, last, looked_at, spent

if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo, repo.snapshot() as now:
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(["user", "purchases", "cents", "products_seen", "last_event"])
        users = spent.groups(now)
        while some := dict(itertools.islice(users, 1000)):
            seen, newest = looked_at.get_many(now, some), last.get_many(now, some)
            for (name, bought), *features in zip(some.items(), seen, newest, strict=True):
                out.writerow([name, bought["purchases"], bought["cents"], *features])
