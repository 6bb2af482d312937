"""Write a page with its links, or delete it: `put.py PAGE TARGET …`, `put.py --delete PAGE`."""

from __future__ import annotations

import sys

import percola
from graph import SCHEMA, links

if __name__ == "__main__":
    with percola.open("./web", SCHEMA) as repo, repo.transaction() as t:
        if sys.argv[1] == "--delete":
            t.delete(links, sys.argv[2])
        else:
            t.set(links, sys.argv[1], sys.argv[2:])
