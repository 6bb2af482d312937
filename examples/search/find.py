"""Search in the engine: `python find.py rain`. Does not touch the repository."""

from __future__ import annotations

import sys

from notes import connect

if __name__ == "__main__":
    statement = "SELECT note, title, body FROM found WHERE found MATCH ? ORDER BY rank, note"
    # In quotes, a word is no part of the engine's own language: "don't", "e-mail".
    words = [f'"{one.replace(chr(34), " ")}"' for one in " ".join(sys.argv[1:]).split()]
    rows = connect().execute(statement, (" ".join(words),)).fetchall() if words else []
    for note, title, shown in rows:
        print(f"{note}: {title}: {shown}")
    print(f"{len(rows)} found")
