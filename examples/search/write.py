"""Write a note, or delete it: `write.py NOTE TITLE BODY`, `write.py --delete NOTE`."""

from __future__ import annotations

import sys

import percola
from notes import SCHEMA, body, title

if __name__ == "__main__":
    with percola.open("./notebook", SCHEMA) as repo, repo.transaction() as t:
        if sys.argv[1] == "--delete":
            t.delete(title, sys.argv[2])
            t.delete(body, sys.argv[2])
        else:
            t.set(title, sys.argv[1], sys.argv[2])
            t.set(body, sys.argv[1], sys.argv[3])
