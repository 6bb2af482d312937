"""Print how many events users have had lately: `python recent.py 2026-11-03T09:00 ann bob`.

Nothing runs because time has passed. So what depends on the time of day is computed when it is
read, from parts that do not: here a window of 24 hours from the sums of its hours.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta

import percola
from features import SCHEMA, hour_of, hourly


def lately(now: percola.Snapshot, users: Sequence[str], at: datetime, hours: int) -> list[int]:
    """The events of each user in the hour of `at` and those before it, so many in all."""
    window = [(at - timedelta(hours=back)).isoformat() for back in range(hours)]
    found = hourly.get_many(now, (hour_of(user, hour) for user in users for hour in window))
    counts = [one.count for one in found]
    return [sum(counts[first : first + hours]) for first in range(0, len(counts), hours)]


if __name__ == "__main__":
    at, users = datetime.fromisoformat(sys.argv[1]), sys.argv[2:]
    with percola.open("./shop", SCHEMA) as repo, repo.snapshot() as now:
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(["user", "last_hour", "last_24"])
        out.writerows(
            zip(users, lately(now, users, at, 1), lately(now, users, at, 24), strict=True)
        )
