"""Search in the engine: `python find.py rain`. Does not touch the repository."""

from __future__ import annotations

import sys

from notes import connect

if __name__ == "__main__":
    statement = "SELECT note, title, body FROM found WHERE found MATCH ? ORDER BY rank, note"
    rows = connect().execute(statement, (" ".join(sys.argv[1:]),)).fetchall()
    for note, title, shown in rows:
        print(f"{note}: {title}: {shown}")
    print(f"{len(rows)} found")
