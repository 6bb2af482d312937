"""The job of `webindex verify`: compares the repository with a computation from scratch.

Both are taken at one timestamp, at which the driver holds a snapshot until the end. From the
repository's own captures everything else is computed again, then all rows of all tables are
compared; `invariants` says what each of them shows. Work may go on meanwhile: it is not seen,
except by invariant 11 and the search index, which keep no old versions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from pyspark import SparkContext, StorageLevel
from pyspark.core.rdd import RDD
from pyspark.sql import SparkSession

from percola import Repository
from webindex import tables
from webindex.batch import actual as found
from webindex.batch.compare import (
    Keyed,
    Tally,
    compare,
    keyed,
    pair_names,
    renamed,
)
from webindex.batch.crawl import Newest, newest
from webindex.batch.digest import timeless
from webindex.batch.expected import Whole, whole_index
from webindex.batch.idle import judge_rest
from webindex.batch.inlinks import Row, interim_ranks, listed_rows
from webindex.batch.invariants import NAMES
from webindex.batch.read import Found, Moment
from webindex.batch.recrawls import recrawls_of
from webindex.batch.renders import rendered
from webindex.batch.verdict import Judged, Verdict
from webindex.incomplete import REBUILD_ROW
from webindex.load.job import warc_files
from webindex.load.removals import Rules, rules_in
from webindex.load.transaction import reports_in
from webindex.page.markup import MAX_BODY
from webindex.page.urls import url_of_row
from webindex.rendering import tables as rendering
from webindex.serving.located import search_place
from webindex.spark.cached import freed
from webindex.spark.jobs import (
    Job,
    Progress,
    Show,
    progress_bar,
    reachable,
    running_session,
    started_job,
)
from webindex.workers.processes import open_repository

_PARTS_A_CORE: Final = 4
_PAGES_A_PART: Final = 1000
_READS_A_CORE: Final = 8


def verify(
    address: str | os.PathLike[str],
    *,
    spark: SparkSession | SparkContext | None = None,
    master: str | None = None,
    at: int | None = None,
    crawl: Iterable[str | os.PathLike[str]] = (),
    progress: Show | None = None,
    quiet: bool = False,
) -> Verdict:
    """Compare the whole repository with what follows from its captures.

    Args:
        address: the repository. Every machine that runs tasks must reach it under this address.
        spark: the session or context to use; it is left running. Without it, the session of this
            process is used if there is one, otherwise one is started and stopped.
        master: the Spark master of a session that is started here; `local[*]` by default.
        at: the timestamp to compare; now by default. For an earlier one the search index is not
            compared: it keeps no old versions.
        crawl: the WARC files, and folders of them, that were loaded: the captures and revisits
            of the repository are compared with theirs. By default the files that the captures
            themselves name, if all of them still exist.
        progress: called several times a second, instead of showing a bar.
        quiet: show nothing.

    Raises:
        NotARepositoryError: there is no web index at `address`.
        SnapshotTooOldError: garbage collection has removed versions at `at`.
        NotAWarcError: one of the files of the crawl is missing or not a WARC file.
        SparkJobError: the job could not start, or Spark gave up on it.
    """
    files = warc_files(given) if (given := list(crawl)) else []
    began = time.perf_counter()
    with open_repository(os.fspath(address)) as repo, repo.snapshot(at=at) as snapshot:
        resting, unfinished = judge_rest(repo)
        judged = [Judged(number) for number in NAMES]
        verdict = Verdict(repo.address, snapshot.start_ts, judged, unfinished=unfinished)
        verdict.judged[10] = resting
        with nullcontext(progress) if progress is not None else progress_bar(quiet=quiet) as show:
            show(Progress("Starting Spark"))
            with running_session(spark, master, "webindex verify") as session:
                context = session.sparkContext
                verdict.starting_seconds = time.perf_counter() - began
                with started_job(context, "webindex verify", show) as job, freed(context):
                    moment = Moment(session, reachable(repo), verdict.at)
                    _Comparison(moment, job, verdict, now=at is None).run(repo, files)
        verdict.seconds = time.perf_counter() - began
        return verdict


class _Comparison:
    """The job, step by step."""

    def __init__(self, moment: Moment, job: Job, verdict: Verdict, *, now: bool) -> None:
        self._moment = moment
        self._context = context = moment.spark.sparkContext
        self._job = job
        self._verdict = verdict
        self._now = now
        self._cores = max(1, context.defaultParallelism)
        self._parts = self._cores

    def run(self, repo: Repository, files: Sequence[str]) -> None:
        """Compare, and fill in the verdict."""
        moment, reads = self._moment, _READS_A_CORE * self._cores
        facts = self._job.run(
            Progress("Looking at the pages"), lambda: moment.page_facts(reads, short=True)
        )
        facts.persist(StorageLevel.DISK_ONLY)
        step = Progress("Parsing every page anew", 0, facts.getNumPartitions())
        self._verdict.pages = self._job.run(step, facts.count)
        # Few parts for few pages: scheduling a task would cost more than running it.
        enough = 1 + self._verdict.pages // _PAGES_A_PART
        self._parts = min(enough, _PARTS_A_CORE * self._cores)
        facts = facts.coalesce(self._parts)
        whole = self._job.run(
            Progress("Finding the clusters", 0, 0), lambda: whole_index(facts, self._parts)
        )
        plain, large, naming, captured = self._job.run(
            Progress("Looking at the tables"),
            lambda: (
                found.plain_rows(moment, self._parts),
                found.for_large_pages(moment, self._parts),
                found.naming_rows(moment, self._parts),
                moment.rows("captured", self._parts),
            ),
        )
        there: list[RDD[Keyed]] = [
            plain.map(keyed),
            facts.map(found.body_found),
        ]
        wanted: list[RDD[Keyed]] = [
            self._context.union([whole.rows, whole.clusters.map(found.as_stored), whole.hosts]).map(
                keyed
            ),
            facts.flatMap(found.given_parts),
            large.map(keyed),
        ]
        sitemaps = moment.rows("sitemaps", self._parts).map(_cells)
        wanted.append(listed_rows(sitemaps, captured.map(_cells), self._parts).map(keyed))
        wanted.append(recrawls_of(facts, captured.map(_cells), self._parts).map(keyed))
        if not facts.filter(lambda page: page.interim).isEmpty():
            wanted.append(interim_ranks(facts, self._parts).map(keyed))
        self._add_named(repo, naming, whole, there, wanted)
        self._add_crawl(repo, captured, list(files), there, wanted)
        self._add_renders(repo, reads, there, wanted)
        tally = self._job.run(
            Progress("Comparing every row", 0, 0),
            lambda: compare(self._context.union(there), self._context.union(wanted), self._parts),
        )
        self._verdict.live, self._verdict.clusters = self._job.run(
            Progress("Counting"),
            lambda: (
                whole.placed.count(),
                whole.placed.map(lambda page: page.cluster).distinct(self._parts).count(),
            ),
        )
        self._fill_in(tally)

    def _add_named(
        self,
        repo: Repository,
        naming: RDD[tuple[str, Row]],
        whole: Whole,
        there: list[RDD[Keyed]],
        wanted: list[RDD[Keyed]],
    ) -> None:
        """Compare rows that name clusters, under the computed names; and the search index."""
        naming.persist(StorageLevel.MEMORY_AND_DISK)
        joined = naming.filter(lambda one: "joined" in one[1].values).map(
            lambda one: (one[1].row, one[0])
        )
        names = pair_names(joined, whole.placed, self._parts)
        names.persist(StorageLevel.MEMORY_AND_DISK)
        rows_there = renamed(naming, names, self._parts)
        there.append(rows_there.map(keyed))
        if not self._now:
            self._verdict[10].note = "without the search index, which has no past"
            return
        place = search_place(repo)
        listed = found.listed_documents(place)
        served = found.served_rows(self._context, place, listed, self._parts)
        there.append(renamed(served, names, self._parts).map(keyed))
        wanted.append(whole.clusters.flatMap(found.to_be_served))
        wanted.append(rows_there.filter(_is_cluster).flatMap(found.expected_epoch))

    def _add_crawl(
        self,
        repo: Repository,
        captured: RDD[Found],
        files: list[str],
        there: list[RDD[Keyed]],
        wanted: list[RDD[Keyed]],
    ) -> None:
        """Compare captures with those of the WARC files."""
        captured.persist(StorageLevel.MEMORY_AND_DISK)
        with repo.snapshot(at=self._verdict.at) as then:
            rules = rules_in(then)
        there.append(captured.flatMap(partial(_refused, rules)))
        given = bool(files)
        if not given:
            named: RDD[str] = captured.flatMap(_file_of).distinct(self._parts)
            files = sorted(self._job.run(Progress("Looking for the crawl"), named.collect))
            missing = [file for file in files if not os.path.isfile(file)]
            if missing or not files:
                why = f"{missing[0]} is no longer there" if missing else "nothing was captured"
                self._verdict[1].note = f"without the crawl: {why}"
                self._verdict[12].note = f"not checked: {why}; name the files with --crawl"
                self._verdict[12].checked = False
                return
        pages = captured.map(lambda one: (one.row, one.values))
        revisited = None if given else pages.flatMapValues(_revisited)
        cut_off: RDD[tuple[tuple[str, str], int]] = captured.flatMap(_cuts)
        crawled = newest(
            self._context,
            files,
            self._parts,
            max_body=_page_bytes(repo),
            cuts=dict(self._job.run(Progress("Looking for long pages"), cut_off.collect)),
            revisited=revisited,
            rules=rules,
            copies=pages.flatMapValues(partial(_copy_of_removed, rules)),
        )
        there.append(pages.map(partial(_captured, given)))
        wanted.append(crawled.mapValues(_columns).map(partial(_captured, given)))

    def _add_renders(
        self, repo: Repository, reads: int, there: list[RDD[Keyed]], wanted: list[RDD[Keyed]]
    ) -> None:
        """Compare resources, their uses, and images."""
        uses, images = self._verdict[15], self._verdict[16]
        with repo.snapshot(at=self._verdict.at) as then:
            kept = then.get(rendering.kept, rendering.SETTINGS)
        if kept is None:
            for judged in (uses, images):
                judged.checked, judged.note = False, "this repository keeps no resources"
            return
        since_ms = kept.get("since_ms", 0)
        found = self._job.run(
            Progress("Following resources", 0, 0),
            lambda: rendered(self._moment, since_ms, self._parts, reads, images=self._now),
        )
        there.append(found.there.map(keyed))
        wanted.append(found.wanted.map(keyed))
        if found.unfollowed:
            uses.note = (
                f"without {found.unfollowed:,} pages that were loaded before it kept resources: "
                "webindex rerun ask_page"
            )
        if not self._now:
            images.checked, images.note = False, "not checked: which pages are due has no past"
        elif found.waiting:
            wait = "waits" if found.waiting == 1 else "wait"
            images.note = f"{found.waiting:,} {wait} to be rendered"

    def _fill_in(self, tally: Tally) -> None:
        for judged in self._verdict.judged:
            number = judged.invariant
            if number == 11:
                continue
            judged.compared = tally.compared[number]
            judged.differing = tally.differing[number]
            judged.first = [one for one in tally.first if one.invariant == number]
        twelfth = self._verdict[12]
        if twelfth.checked:
            twelfth.compared = self._verdict.pages


def _page_bytes(repo: Repository) -> int:
    """A page size limit that is as large as that of any load, or of the rebuild."""
    with repo.snapshot() as now:
        reports = [now.get(tables.report, REBUILD_ROW)]
        reports += [row[tables.report] for row in now.scan(tables.journal, prefix="load/")]
    # Those of old loads are gone; the command takes no larger limit than this.
    return max([MAX_BODY, *(int(one.get("max_page_bytes", 0)) for one in reports if one)])


def _cells(found: Found) -> tuple[str, dict[str, Any]]:
    return found.row, found.values


def _is_cluster(row: Row) -> bool:
    return row.table == "clusters"


def _cuts(page: Found) -> Iterator[tuple[tuple[str, str], int]]:
    """After how many bytes the captures that are kept of a page were cut off, each by its load."""
    captures = list((page.values.get("earlier") or {}).values())
    if "capture" in page.values:
        captures.append(page.values["capture"])
    for capture in captures:
        if capture.get("cut") is not None:
            original = capture.get("original") or capture
            yield (str(original["url"]), str(original["date"])), int(capture["cut"])


def _file_of(page: Found) -> Iterator[str]:
    """The files of all captures that are kept of a page, and of the originals that it uses."""
    captures = list((page.values.get("earlier") or {}).values())
    if "capture" in page.values:
        captures.append(page.values["capture"])
    for capture in captures:
        yield str(capture["file"])
        original = capture.get("original")
        if original is not None and original.get("file") is not None:
            yield str(original["file"])


def _revisited(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "revisited" in values:
        yield values["revisited"]


def _refused(rules: Rules, page: Found) -> Iterator[Keyed]:
    """A page that has a record which was removed, as a part that should not be there."""
    capture, values = page.values.get("capture"), page.values
    seen, reports = reports_in(values.get("revisited"))
    records = [*(values.get("earlier") or {}).values(), *reports]
    if capture is not None:
        records.append(capture)
    url = records[0]["url"] if records else url_of_row(page.row)
    dates = [one["date"] for one in records] + ([seen] if seen is not None else [])
    if url is not None and any(rules.refuses(url, date) for date in dates):
        yield keyed(Row("pages", page.row, {"removed": url}))


def _copy_of_removed(rules: Rules, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The capture of a page that was made from the capture of a page which was removed since."""
    capture: dict[str, Any] = values.get("capture", {})
    original = capture.get("original")
    if original is not None and rules.refuses(original["url"], original["date"]):
        yield capture


def _columns(page: Newest) -> dict[str, Any]:
    found = {
        "capture": page.capture,
        "revisited": page.revisited,
        "unresolved": page.unresolved or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _captured(revisits: bool, page: tuple[str, dict[str, Any]]) -> Keyed:
    """The comparable parts of a capture.

    They exclude how its record was digested, which may vary, and which of several captures of the
    same payload there are and a revisit was resolved with.
    """
    row, values = page
    shown: dict[str, Any] = {n: values[n] for n in ("capture", "unresolved") if n in values}
    if revisits and "revisited" in values:
        seen, reports = reports_in(values["revisited"])
        shown["revisited"] = {"seen": seen, "reports": [timeless(dict(one)) for one in reports]}
    if "capture" in shown:
        left_out = ("payload", "original", "identical")
        shown["capture"] = {k: v for k, v in shown["capture"].items() if k not in left_out}
    return keyed(Row("pages", row, shown))
