"""Notes, and an observer that exports them to a search engine outside of the repository.

The engine is SQLite's full-text index, which every Python has. Another one needs other statements
in `apply`, and the same two rules:

- What an observer does outside may be done twice, if its transaction conflicts or its process is
  killed before it commits. So it says what the document is now, and not what to add to it.
- A run that was delayed must not overwrite what a later one exported. So each document has the
  timestamp that it was read at, and an older one is refused.
"""

from __future__ import annotations

import sqlite3

from percola import Table, Transaction, observer

ENGINE = "search.sqlite"

notes = Table("notes")
title = notes.column("title", str, observed=True)
body = notes.column("body", str, observed=True)

SCHEMA = [notes]


def connect() -> sqlite3.Connection:
    """Connect to the search engine; creates its tables."""
    engine = sqlite3.connect(ENGINE, isolation_level=None, timeout=60)
    engine.execute("CREATE TABLE IF NOT EXISTS exported (note TEXT PRIMARY KEY, version INTEGER)")
    engine.execute(
        "CREATE VIRTUAL TABLE IF NOT EXISTS found USING fts5 (note UNINDEXED, title, body)"
    )
    return engine


def apply(note: str, document: tuple[str, str] | None, version: int) -> None:
    """Make the engine have this document, or none, unless it has a newer version."""
    engine = connect()
    try:
        engine.execute("BEGIN IMMEDIATE")
        known = engine.execute("SELECT version FROM exported WHERE note = ?", (note,)).fetchone()
        if known is None or known[0] < version:
            engine.execute("DELETE FROM found WHERE note = ?", (note,))
            if document is not None:
                engine.execute("INSERT INTO found VALUES (?, ?, ?)", (note, *document))
            engine.execute("REPLACE INTO exported VALUES (?, ?)", (note, version))
        engine.execute("COMMIT")
    finally:
        engine.close()


@observer(title, body, dedicated=True)
def export(t: Transaction, note: str) -> None:
    """Bring the engine's document of a note up to date. One worker at a time runs it."""
    found = t.get_row(notes, note)
    document = (found.get(title) or "", found.get(body) or "") if found else None
    apply(note, document, t.start_ts)
