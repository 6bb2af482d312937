"""The tasks of the Spark job `load`: each reads a part of a crawl and writes it.

A task runs in a Python worker process of Spark, which may die at any moment: killed, out of
memory, or with its machine. Then Spark runs the task again elsewhere. The loader transactions that
had committed stay, the same captures are found to be loaded already, and nothing else is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark import TaskContext

import percola
from percola import PercolaError
from percola.spark import in_transactions
from webindex import tables
from webindex.crawl.framing import open_warc
from webindex.crawl.warc import (
    Capture,
    NotAWarcError,
    Rejected,
    Rejection,
    Resource,
    Revisit,
    Sitemap,
    plan_splits,
    read_captures,
)
from webindex.load.bodies import reading_documents
from webindex.load.throttle import Pace
from webindex.load.transaction import Loaded, load_from

GROUP: Final = 16
"""Records that one transaction writes: enough to share a commit, few enough to repeat it."""
_GROUP_BYTES: Final = 8 << 20
_PLAIN_SPLITS: Final = 16

MESSAGES: Final = 10
"""Rejected records that a report describes one by one."""


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of a WARC file, from byte `start` to byte `end`."""

    path: str
    start: int
    end: int


Part = Sequence[Split]


@dataclass(slots=True)
class Outcome:
    """What a task reports about its part. `error` is why it did not read to the end."""

    attempt: int = 0
    loaded: Loaded = field(default_factory=Loaded)
    rejected: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)
    error: str | None = None


def plan_parts(paths: Iterable[str], part_bytes: int) -> list[list[Split]]:
    """Split large files and combine small ones: about `part_bytes` for each task."""
    parts: list[list[Split]] = []
    room = 0
    for path in paths:
        file, gzip = open_warc(path)
        with file:
            size = file.seek(0, 2)
        # In a plain file, a reader skips all records before its split one by one: limit the splits.
        target = part_bytes if gzip else max(part_bytes, size // _PLAIN_SPLITS)
        for start, end in plan_splits(path, target):
            if end - start > room:
                parts.append([])
                room = part_bytes
            parts[-1].append(Split(path, start, end))
            room -= end - start
    return parts


def run_task(
    address: str, max_body: int, max_resource: int | None, parts: Iterable[Part]
) -> Iterator[Outcome]:
    """Load parts, in a worker process of Spark; resources only with a limit for them.

    Errors that would recur (no such repository, no space left, a missing file) are returned as an
    outcome. All others are raised: Spark runs the task again, here or elsewhere.
    """
    context = TaskContext.get()
    load = in_transactions(
        load_from, address, schema=tables.SCHEMA, chunk_rows=GROUP, chunk_bytes=_GROUP_BYTES
    )
    for part in parts:
        outcome = Outcome(attempt=context.attemptNumber() if context is not None else 0)
        try:
            # Opened for one part: the process outlives the part, and maybe the repository.
            with (
                percola.open(address, schema=tables.SCHEMA, create=False) as repo,
                reading_documents(),
            ):
                pace = Pace(repo)
                for split in part:
                    records = _records(split, max_body, max_resource, outcome, pace)
                    for loaded in load(records):
                        outcome.loaded.add(loaded)
                        if bad := loaded.bad_urls + loaded.resources.bad_urls:
                            outcome.rejected[Rejection.BAD_URL.value] += bad
        except (PercolaError, NotAWarcError) as error:
            outcome.error = str(error)
        except OSError as error:
            outcome.error = f"{error.filename or address}: {error.strerror or error}."
        yield outcome


def _records(
    split: Split, max_body: int, max_resource: int | None, outcome: Outcome, pace: Pace
) -> Iterator[tuple[str, Capture | Revisit | Resource | Sitemap]]:
    """The records to load, with their file; rejected ones are added to the outcome."""
    found = 0
    for record in read_captures(
        split.path,
        start=split.start,
        end=split.end,
        max_body=max_body,
        max_resource=max_resource,
        sitemaps=True,
        skipped=outcome.skipped,
    ):
        if isinstance(record, Rejected):
            outcome.rejected[record.reason.value] += 1
            if len(outcome.messages) < MESSAGES:
                outcome.messages.append(f"{split.path} {record}")
            continue
        yield split.path, record
        found += 1
        if found % GROUP == 0:
            pace.keep()  # A transaction has just written the records read before.
