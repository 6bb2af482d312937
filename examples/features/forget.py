"""Delete all events of a user: `python forget.py bob`. The features follow."""

from __future__ import annotations

import sys

import percola
from features import SCHEMA, at, cents, events, kind, product, user

if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo:

        def forget(t: percola.Transaction) -> int:
            found = [row.key for row in t.scan(events) if row.get(user) == sys.argv[1]]
            for event in found:
                for column in (user, kind, product, cents, at):
                    t.delete(column, event)
            return len(found)

        print(f"{repo.run(forget)} events forgotten")
