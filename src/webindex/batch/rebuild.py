"""The job of `webindex rebuild`: fills an empty repository with an index computed in Spark.

The paper's index was seeded in this way by the MapReduces that it replaced, and was kept up
to date by observers from then on.

While the job runs, and if it is killed, the row `rebuild` of the `journal` records that the index
is half built; `refuse_half_built` keeps all others away from it. The index is not read before
it is complete, so cells may be written in any order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from socket import gethostname
from typing import Any, Final

from pyspark import SparkContext, StorageLevel
from pyspark.core.rdd import RDD
from pyspark.sql import SparkSession

from percola import PercolaError, Repository, Transaction, Worker, inspection
from webindex import tables
from webindex.batch.actual import as_stored
from webindex.batch.crawl import Newest, newest
from webindex.batch.expected import whole_index
from webindex.batch.facts import Facts, facts_of
from webindex.batch.inlinks import Row
from webindex.batch.recrawls import recrawls_of
from webindex.batch.write import acknowledge, writes
from webindex.crawl.warc import MAX_BODY
from webindex.errors import WebindexError
from webindex.incomplete import (
    REBUILD_ROW,
    RebuildError,
    rebuild_under_way,
    refuse_half_built,
)
from webindex.load.job import warc_files
from webindex.load.opening import with_tables
from webindex.load.removals import rules_in
from webindex.load.revisits import MOST_EARLIER, earlier_key, is_synthetic, key_of, shares, waits_at
from webindex.observers.export import export_to
from webindex.page.urls import page_id
from webindex.serving import ServingError
from webindex.spark.cached import freed
from webindex.spark.jobs import (
    Job,
    Progress,
    Show,
    progress_bar,
    reachable,
    running_context,
    started_job,
)
from webindex.workers.processes import open_index

_PARTS_A_CORE: Final = 8
_BYTES_A_PART: Final = 2 << 20


@dataclass(slots=True)
class RebuildReport:
    """The report of a rebuild.

    Attributes:
        files, bytes: the WARC files that were read.
        pages: pages that have a capture.
        clusters: documents that were exported.
        cells: cells that were written.
        started_ms: milliseconds since 1970.
        max_page_bytes: the limit at which longer pages were cut off.
        seconds: all of it, Spark's start (`starting_seconds`) included.
        computing_seconds, writing_seconds, acknowledging_seconds, exporting_seconds: its parts.
    """

    files: int
    bytes: int
    started_ms: int
    max_page_bytes: int = MAX_BODY
    pages: int = 0
    clusters: int = 0
    cells: int = 0
    seconds: float = 0.0
    starting_seconds: float = 0.0
    computing_seconds: float = 0.0
    writing_seconds: float = 0.0
    acknowledging_seconds: float = 0.0
    exporting_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """The report as lines of a table."""
        took = self.seconds - self.starting_seconds
        rate = self.pages / took if took > 0 else 0.0
        time_taken = (
            f"{self.seconds:.1f} s ({rate:,.0f} pages/s without Spark's start of "
            f"{self.starting_seconds:.1f} s): computing {self.computing_seconds:.1f}, "
            f"writing {self.writing_seconds:.1f}, acknowledging "
            f"{self.acknowledging_seconds:.1f}, exporting {self.exporting_seconds:.1f}"
        )
        return [
            ("Files", f"{self.files:,}, {self.bytes / 1e6:,.1f} MB"),
            ("Pages", f"{self.pages:,}"),
            ("Documents", f"{self.clusters:,}"),
            ("Cells written", f"{self.cells:,}"),
            ("Time", time_taken),
        ]


def rebuild(
    address: str | os.PathLike[str],
    files: Iterable[str | os.PathLike[str]],
    *,
    spark: SparkSession | SparkContext | None = None,
    master: str | None = None,
    max_page_bytes: int = MAX_BODY,
    progress: Show | None = None,
    quiet: bool = False,
) -> RebuildReport:
    """Fill an empty repository, which is created if it does not exist, from WARC files.

    Afterwards it is as if the files had been loaded and processed: load more, and work.

    Args:
        address: the repository. Every machine that runs tasks must reach it, and the files, under
            the same address and paths.
        files: WARC files, and folders, of which all `.warc` and `.warc.gz` files are taken.
        spark, master, max_page_bytes, progress, quiet: as for `webindex.load.job.load`.

    Raises:
        NotAWarcError: a file is missing, empty or not a WARC file; nothing was written.
        RebuildError: the repository has pages, or workers; nothing was written. Or the job ended
            early: the repository is half built, and unusable.
        SparkJobError: the job could not start.
    """
    paths = warc_files(files)
    report = RebuildReport(
        len(paths),
        sum(os.stat(path).st_size for path in paths),
        time.time_ns() // 1_000_000,
        max_page_bytes,
    )
    began = time.perf_counter()
    with with_tables(address) as repo:
        place = reachable(repo)
        refuse_half_built(repo)
        _refuse_full(repo)
        with nullcontext(progress) if progress is not None else progress_bar(quiet=quiet) as show:
            show(Progress("Starting Spark"))
            with running_context(spark, master, "webindex rebuild") as context:
                report.starting_seconds = time.perf_counter() - began
                # Only now: nothing has been written before.
                salt = repo.run(lambda t: _begin(t, repo, report))
                with started_job(context, "webindex rebuild", show) as job, freed(context):
                    try:
                        _Build(context, job, repo, place, report).run(paths, salt)
                    except (PercolaError, ServingError, WebindexError) as error:
                        with suppress(PercolaError):
                            repo.run(lambda t: _end(t, report, "failed"))
                        raise RebuildError(
                            f"The rebuild ended early: {error} The repository {place} is half "
                            "built: delete it and run 'webindex rebuild' again."
                        ) from error
        report.seconds = time.perf_counter() - began
        repo.run(lambda t: _end(t, report, "done"))
    return report


def _refuse_full(repo: Repository) -> None:
    with repo.snapshot() as snapshot:
        for _ in snapshot.scan(tables.pages):
            raise RebuildError(
                f"The repository {repo.address} has pages already, and only an empty one can be "
                "rebuilt: name another folder, or load the files with 'webindex load'."
            )
    if any(one.observers for one in inspection.processes(repo)):
        raise RebuildError(
            f"Workers run on the repository {repo.address}: stop them, rebuild, and start them "
            "again."
        )


def _begin(t: Transaction, repo: Repository, report: RebuildReport) -> int:
    # Of two rebuilds that start at once, one conflicts, is retried, and sees the other.
    if rebuild_under_way(t) is not None:
        refuse_half_built(repo)
    state = {"state": "running", "token": repo.context.coordination.token, "host": gethostname()}
    t.set(tables.report, REBUILD_ROW, {**state, "pid": os.getpid(), **report.to_json()})
    return t.start_ts


def _end(t: Transaction, report: RebuildReport, state: str) -> None:
    t.set(tables.report, REBUILD_ROW, {"state": state, "pid": os.getpid(), **report.to_json()})


class _Build:
    """The job, step by step; each is timed."""

    def __init__(
        self, context: SparkContext, job: Job, repo: Repository, place: str, report: RebuildReport
    ) -> None:
        self._context = context
        self._job = job
        self._repo = repo
        self._place = place
        self._report = report
        cores = max(1, context.defaultParallelism)
        self._cores = cores
        self._parts = min(_PARTS_A_CORE * cores, 1 + report.bytes // _BYTES_A_PART)

    def run(self, files: list[str], salt: int) -> None:
        """Compute everything, write it, and export it to the search index."""
        began = time.perf_counter()
        with self._repo.snapshot() as now:
            rules = rules_in(now)
        captured = newest(
            self._context,
            files,
            self._parts,
            bodies=True,
            max_body=self._report.max_page_bytes,
            rules=rules,
        )
        captured.persist(StorageLevel.DISK_ONLY)
        facts: RDD[Facts] = captured.flatMap(_facts)
        facts.persist(StorageLevel.DISK_ONLY)
        self._report.pages = self._job.run(Progress("Parsing every page"), facts.count)
        whole = self._job.run(
            Progress("Finding the clusters"), lambda: whole_index(facts, self._parts)
        )
        cells = captured.flatMap(_captured).filter(lambda row: row.table == "pages")
        rows: RDD[Row] = self._context.union(
            [
                recrawls_of(facts, cells.map(lambda row: (row.row, row.values)), self._parts),
                captured.flatMap(_captured),
                captured.flatMap(_wanted).distinct().map(_marked),
                whole.rows,
                whole.clusters.map(as_stored),
                whole.hosts,
            ]
        )
        self._report.computing_seconds = self._since(began)

        began = time.perf_counter()
        writing = rows.mapPartitions(writes(self._place, salt))
        self._report.cells = self._job.run(Progress("Writing the index"), writing.sum)
        self._report.writing_seconds = self._since(began)

        began = time.perf_counter()
        numbers = self._context.parallelize(range(self._cores), self._cores)
        seen = numbers.mapPartitions(partial(acknowledge, self._place))
        self._job.run(Progress("Acknowledging"), seen.collect)
        self._report.acknowledging_seconds = self._since(began)

        began = time.perf_counter()
        self._report.clusters = self._job.run(Progress("Exporting"), self._export)
        self._report.exporting_seconds = self._since(began)

    def _export(self) -> int:
        """Run the exporter; no other observer has anything to do."""
        with open_index(self._repo, create=True) as index:
            Worker(self._repo, [export_to(index)], threads=1, retention=None).run_until_idle()
            return index.count()

    @staticmethod
    def _since(began: float) -> float:
        return time.perf_counter() - began


def _facts(page: tuple[str, Newest]) -> Iterator[Facts]:
    row, found = page
    if found.capture is not None:
        yield facts_of(row, found.capture, found.body, None)


def _captured(page: tuple[str, Newest]) -> Iterator[Row]:
    """The cells that `load` and `settle` would have written of a page, except in shared rows."""
    row, found = page
    values: dict[str, Any] = {}
    kept = found.others[
        : MOST_EARLIER + (found.capture is not None and is_synthetic(found.capture))
    ]
    if found.capture is not None:
        values = {"capture": found.capture, "body": found.body}
    if found.revisited is not None:
        values["revisited"] = found.revisited
    if found.unresolved:
        values["unresolved"] = found.unresolved
    if kept:
        values["earlier"] = {earlier_key(capture): capture for capture, _ in kept}
    for capture, body in kept:
        values[f"earlier_body:{earlier_key(capture)}"] = body
    yield Row("pages", row, values)
    for capture in [one for one in (found.capture, *(one for one, _ in kept)) if one is not None]:
        payload = shares(capture)
        if payload is not None and not is_synthetic(capture):
            holder = f"{key_of(payload)}/{page_id(capture['url'])}"
            yield Row("payloads", holder, {"held": capture["url"]})
    places = {f"{key}/{page_id(one['url'])}": one["url"] for key, one in _waits(found)}
    for place, url in places.items():
        yield Row("waiting", place, {"for": url})


def _waits(found: Newest) -> Iterator[tuple[str, dict[str, Any]]]:
    for report in found.reports:
        for key in waits_at(report):
            yield key, report


def _marked(key: str) -> Row:
    return Row("waiting", key, {"wanted": 1})


def _wanted(page: tuple[str, Newest]) -> Iterator[str]:
    for key, _ in _waits(page[1]):
        yield key
