"""Apply all changes since the last time to another system, each exactly once.

The other system is a database. The position in the feed is a row of it, written in the transaction
that applies the changes: if this program is killed, either both are there or neither.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import percola
from orders import SCHEMA, cents, customer, orders
from percola import Row, feed

KEEP_SECONDS = 7 * 24 * 3600
"""For how long after a run the changes that follow it are certainly kept."""


def follow(repo: percola.Repository, other: sqlite3.Connection) -> int:
    """Apply what has changed since the stored position; returns the number of changes."""
    other.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY, customer, cents)")
    other.execute("CREATE TABLE IF NOT EXISTS position (ts INTEGER)")
    found = other.execute("SELECT ts FROM position").fetchone()
    after = found[0] if found else 0
    upto = max(after, feed.settled(repo, orders))  # A position never goes back.
    applied = 0
    with other, repo.snapshot(at=upto) as now:  # One transaction of the other system.
        for name, image in images(repo, after, upto) if found else present(now):
            if image:
                values = (name, image.get(customer), image.get(cents))
                other.execute("REPLACE INTO orders VALUES (?, ?, ?)", values)
            else:
                other.execute("DELETE FROM orders WHERE name = ?", (name,))
            applied += 1
        other.execute("DELETE FROM position")
        other.execute("INSERT INTO position VALUES (?)", (upto,))
    # Garbage collection keeps what comes after the position until the next run, for a week.
    repo.hold(upto, KEEP_SECONDS, name="warehouse")
    return applied


def present(now: percola.Snapshot) -> Iterator[tuple[str, Row[str]]]:
    """The rows that are there at first: the feed may not reach back to all of them."""
    return ((row.key, row) for row in now.scan(orders))


def images(repo: percola.Repository, after: int, upto: int) -> Iterator[tuple[str, Row[str]]]:
    """The rows that have changed, as each change has left them."""
    return ((change.row, change.image) for change in feed.changes(repo, orders, after, upto))


if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo:
        other = sqlite3.connect("warehouse.sqlite")
        print(f"{follow(repo, other)} changes applied")
        for name, who, amount in other.execute("SELECT * FROM orders ORDER BY name"):
            print(f"  {name}: {who}, {amount}")
        other.close()
