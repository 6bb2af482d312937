"""Writes a journal (`tests.crash.journal`) while it is recorded, and marks what it was told.

Arguments: the repository's folder, the durability, a name, the number of threads, how many
transactions each commits, how often each syncs in the background, in seconds (0: as usual).

Markers: "opened"; before each commit "begin WRITER NUMBER"; once it was acknowledged "done
WRITER NUMBER COMMIT_TS"; "safe TS" once garbage
was collected up to there; "closed".
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from percola import Repository
from percola.coordination.local.coordination import LocalCoordination
from percola.oracle.embedded import EmbeddedOracle
from percola.repository import create
from percola.store.lmdb.background_sync import BackgroundSync
from percola.store.lmdb.store import LmdbStore
from tests.crash.journal import SCHEMA, write
from tests.crash.processes import end_with_input
from tests.crash.recording.trace import mark

COLLECTED_EVERY = 5
"""Garbage is collected after every so many commits of a writer."""

SMALL_MAP = 1 << 17
"""Bytes of address space to begin with, so that the map grows on the way."""


def main(folder: Path, durability: str, name: str, threads: int, commits: int, care: float) -> None:
    end_with_input(lambda: os._exit(1))
    if care:
        BackgroundSync.seconds = care
    create(folder, durability=durability)
    (folder / "store").mkdir(exist_ok=True)
    store = LmdbStore(folder / "store", durability=durability, map_bytes=SMALL_MAP)
    coordination = LocalCoordination(folder)
    repo = Repository(str(folder), store, EmbeddedOracle(store), coordination, SCHEMA)
    mark("opened")

    def write_all(writer: str) -> None:
        for number in range(1, commits + 1):
            mark(f"begin {writer} {number}")
            commit_ts = write(repo, writer, number, two_phase=number % 3 == 0)
            mark(f"done {writer} {number} {commit_ts}")
            if number % COLLECTED_EVERY == 0:
                mark(f"safe {repo.collect_garbage(retention=0).safe_point}")

    with ThreadPoolExecutor(threads) as workers:
        list(workers.map(write_all, [f"{name}{place}" for place in range(threads)]))
    coordination.close()
    store.close()
    mark("closed")
    print("done", flush=True)


if __name__ == "__main__":
    where, how, who, threads, commits, care = sys.argv[1:]
    main(Path(where), how, who, int(threads), int(commits), float(care))
