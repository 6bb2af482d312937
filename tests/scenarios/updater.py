"""A process that loads the captures of a WARC file, a few at a time: `updating` starts it.

    python -m tests.scenarios.updater REPOSITORY FILE SEED

Prints how many captures it has written after each transaction, and goes on when workers have
caught up: they shall see what pages were in between, not only what they are in the end. It may be
killed at any moment: whoever begins anew with the same file writes what is missing. It ends with
its standard input.
"""

from __future__ import annotations

import os
import random
import sys
import threading

from tests.crash.processes import end_with_input
from webindex.crawl.warc import Capture, Revisit, read_captures
from webindex.load.transaction import load_captures
from webindex.workers.processes import open_repository

MOST = 5
DIRTY = 100
"""Cells that may wait for an observer when the next captures are written."""


def main(address: str, file: str, seed: str) -> None:
    end_with_input(lambda: os._exit(1))
    rng = random.Random(seed)
    found = [one for one in read_captures(file) if isinstance(one, Capture | Revisit)]
    with open_repository(address) as repo:
        print("ready", flush=True)
        done = 0
        pause = threading.Event()
        while done < len(found):
            group = found[done : done + rng.randrange(1, MOST + 1)]
            load_captures(repo, group, file)
            done += len(group)
            print(done, flush=True)
            while sum(repo.pending().values()) > DIRTY:
                pause.wait(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
