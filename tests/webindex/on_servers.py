"""The web index on a store of servers: a life of it, by its commands alone.

`test_webindex_bigtable` and `test_webindex_hbase` live it. Whatever opens the repository is a
process of its own: a test's has no Java in it, and everything is as where a user types it. Spark
jobs share one such process, for starting a session takes seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import linked_crawl
import web_commands
from children import Child, say
from commands import Answer, answer_of, command, environment
from from_scratch import mentions
from servers import Servers
from warc_files import Crawl

from webindex.page.urls import page_row
from webindex.sample import CHANGED_URL, CHANGED_WORDS, recrawl_path, sample_path
from webindex.serving import TantivyIndex
from webindex.spark.jobs import running_session
from webindex.workers.processes import open_repository

SECONDS: Final = 600.0
OBSERVERS: Final = "webindex.main:observers"
RUNS: Final = "percola_observer_runs_total"
REMOVED: Final = "httpd.apache.org"
"""A host of the sample, to which pages of the others have no links."""
REMOVED_PAGES: Final = 93
REMOVED_LIVE: Final = 92
"""How many pages it has, and how many of them are live."""

WaitUntil = Callable[..., Any]


class WebIndex:
    """A web index on servers, and the processes that use it."""

    def __init__(self, servers: Servers, name: str, folder: Path, stack: ExitStack) -> None:
        self.address = servers.address(name, stack)
        self.search = folder / f"search-{name}"
        self.variables = servers.variables | {"WEBINDEX_SEARCH": str(self.search)}
        self.environment = environment(**self.variables)

    def percola(self, *arguments: object) -> Answer:
        """Run `percola` on the repository."""
        return self._run(command("--repo", self.address, *arguments))

    def webindex(self, word: str, *arguments: object) -> Answer:
        """Run a command of `webindex` on it."""
        return self._run(web_commands.command(word, "--repo", self.address, *arguments))

    def _run(self, line: Sequence[str]) -> Answer:
        return answer_of(line, seconds=SECONDS, **self.variables)

    def pending(self) -> dict[str, int]:
        """How many cells wait for an observer, by column."""
        return dict(self.percola("--json", "status").json["notifications"])

    @contextmanager
    def started(self, line: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """A process, and the first line that it writes; it is killed at the end of the block."""
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            line, env=self.environment, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True
        ) as process:
            try:
                assert process.stdout is not None
                yield process, process.stdout.readline()
            finally:
                process.kill()

    @contextmanager
    def worker(self) -> Iterator[PercolaWorker]:
        """A `percola worker` with the web index's observers, once it has begun."""
        options = ("--threads", 1, "--metrics-port", 0)
        line = command("--repo", self.address, "--json", "worker", OBSERVERS, *options)
        with self.started(line) as (process, first):
            yield PercolaWorker(process, json.loads(first)["metrics_port"])

    @contextmanager
    def site(self) -> Iterator[str]:
        """The address of its pages for people; SIGTERM ends `serve` at the end of the block."""
        line = web_commands.command("serve", "--repo", self.address, "--port", 0)
        with self.started(line) as (process, first):
            yield first.split()[1]
            process.terminate()
            assert process.wait(SECONDS) == 0

    @contextmanager
    def spark(self) -> Iterator[SparkJobs]:
        """A process with a Spark session, for the length of a block."""
        with Child(_run_jobs, self.variables) as child:
            yield SparkJobs(child, self)


@dataclass
class PercolaWorker:
    """A worker process, which says how much it has done."""

    process: subprocess.Popen[str]
    port: int

    def runs(self) -> float:
        """How often its observers have run."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as said:
            lines = said.read().decode().splitlines()
        return sum(float(one.split()[-1]) for one in lines if one.startswith(RUNS))


class SparkJobs:
    """Commands of `webindex` that run in one process, on one Spark session of two cores."""

    def __init__(self, child: Child, web: WebIndex) -> None:
        self._child, self._web = child, web

    def on(self, web: WebIndex) -> SparkJobs:
        """The same process, for another index on the same servers."""
        return SparkJobs(self._child, web)

    def __call__(self, word: str, *arguments: object) -> Answer:
        """Run one."""
        line = [word, "--repo", self._web.address, *map(str, arguments)]
        self._child.tell((self._web.variables, line))
        assert self._child.speaks_within(SECONDS), f"{word} takes for ever"
        return Answer(*self._child.hear())


def _run_jobs(pipe: Connection, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    with running_session(None, "local[2]", "the web index on servers"):
        while True:
            own, line = pipe.recv()
            os.environ.update(own)
            answer = web_commands.call(*line)
            say(pipe, (answer.code, answer.out, answer.err))


# --- A life -------------------------------------------------------------------------------


def live(
    web: WebIndex,
    wait_until: WaitUntil,
    *,
    removed: bool = False,
    spoilt: bool = False,
    empty: WebIndex | None = None,
) -> None:
    """Loaded, worked off by workers of which one is killed, ranked, crawled again; verified.

    In between its search index is lost, and made anew by `reindex`; at the end it is served.

    Args:
        removed: whether a host is taken down before it is crawled once more.
        spoilt: at the end, whether `verify` sees a cell that is not what it should be: so it would
            on every store from which it reads all that it compares.
        empty: another index on the same servers, to be rebuilt: so it would be on every store.
    """
    with web.spark() as spark:
        loaded = spark("load", "--json", sample_path())
        assert loaded.code == 0, loaded
        _work_off_with_a_kill(web, wait_until)
        summary = web.webindex("work", "--until-idle", "--processes", 1, "--json").json
        assert (summary["pages"], summary["clusters"], summary["dead_lettered"]) == (204, 183, 0)

        ranked = spark("rank", "--json")
        assert ranked.code == 0 and ranked.json["written"] > 0, ranked
        assert spark("load", "--json", recrawl_path()).json["loaded"]["written"] == 1
        shutil.rmtree(web.search)
        assert web.webindex("reindex", "--json").json == {"documents": 183}
        if removed:
            _take_down(spark, web)
        # On Spark this time, in tasks that go on until all is done.
        assert spark("work", "--until-idle", "--workers", 1, "--json").code == 0
        if removed:
            _is_down(web)
        _verified(spark, live=204 - removed * REMOVED_LIVE)
        found = web.webindex("search", "--json", CHANGED_WORDS).json
        assert [hit["url"] for hit in found["hits"]] == [CHANGED_URL]
        _served(web)
        if spoilt:
            _spoilt(spark, web)
        if empty is not None:
            _rebuilt(spark, empty)


def _work_off_with_a_kill(web: WebIndex, wait_until: WaitUntil) -> None:
    """Two workers, of which one is killed in the middle; the other is told to end."""
    with ExitStack() as stack:
        victim, survivor = (stack.enter_context(web.worker()) for _ in range(2))
        wait_until(lambda: victim.runs() > 20, seconds=SECONDS, what="some pages to be parsed")
        victim.process.kill()
        victim.process.wait()
        assert web.pending(), "the kill should fall in the middle of the work"
        survivor.process.send_signal(signal.SIGTERM)
        assert survivor.process.wait(SECONDS) == 0


def _take_down(spark: SparkJobs, web: WebIndex) -> None:
    """A host is removed and blocked; then the same crawl is loaded again, and a later one."""
    with Child(_mentions, web.variables, web.address) as child:
        assert child.hear()
    removed = web.webindex("remove", "--host", REMOVED, "--block", "--json")
    assert removed.code == 0 and removed.json["pages"] == REMOVED_PAGES, removed
    later = web.search.with_suffix(".later.warc.gz")
    body = linked_crawl.html("Here again", linked_crawl.words(1))
    later.write_bytes(
        Crawl().add(f"https://{REMOVED}/", body, WARC_Date="2100-01-01T00:00:00Z").data
    )
    loaded = spark("load", "--json", sample_path(), later).json["loaded"]
    assert (loaded["written"], loaded["refused"]) == (0, REMOVED_PAGES + 1), loaded


def _is_down(web: WebIndex) -> None:
    """Neither a table nor the search index names the host."""
    with Child(_mentions, web.variables, web.address) as child:
        left = child.hear()
    assert left == [], left
    with TantivyIndex(web.search) as index:
        documents = [index.get(cluster) for cluster, _ in index.clusters()]
    assert documents and not [one for one in documents if one is None or REMOVED in str(one)]


def _mentions(pipe: Connection, variables: dict[str, str], address: str) -> None:
    """What names the host that is removed, as a child says it."""
    os.environ.update(variables)
    with open_repository(address) as repo:
        say(pipe, mentions(repo, REMOVED))


def _served(web: WebIndex) -> None:
    """`serve` answers a search, and tells a page's story, of what was crawled last."""
    with web.site() as site:
        found = _page(site, q=f'"{CHANGED_WORDS}"')
        assert f'href="{CHANGED_URL}"' in found and "1 document in" in found
        story = _page(site + "page", url=CHANGED_URL)
        assert "In search" in story and CHANGED_WORDS in story


def _page(address: str, **asked: str) -> str:
    """A page's HTML, its white space collapsed."""
    url = f"{address}?{urllib.parse.urlencode(asked)}"
    with urllib.request.urlopen(url, timeout=SECONDS) as said:
        return " ".join(said.read().decode().split())


def _spoilt(spark: SparkJobs, web: WebIndex) -> None:
    """`verify` sees what nobody mends, as nobody observes this column."""
    row = page_row(CHANGED_URL)
    assert web.percola("set", row, "pages.text", "Not what was captured.").code == 0
    wrong = spark("verify", "--json")
    assert wrong.code == 1, wrong
    broken = [one for one in wrong.json["invariants"] if one["differing"]]
    assert [one["invariant"] for one in broken] == [1], broken


def _rebuilt(spark: SparkJobs, web: WebIndex) -> None:
    """An empty index is filled at one go, which leaves the observers nothing to do."""
    crawl = web.search.with_suffix(".warc.gz")
    crawl.write_bytes(linked_crawl.crawl().data)
    on = spark.on(web)
    built = on("rebuild", "--json", crawl)
    assert built.code == 0, built
    assert web.pending() == {}
    assert (built.json["pages"], built.json["clusters"]) == (41, 13)
    _verified(on, live=21)
    again = on("rebuild", "--json", crawl)
    assert again.code == 1 and "has pages already" in again.err, again


def _verified(spark: SparkJobs, live: int = 204) -> None:
    verdict = spark("verify", "--json")
    assert verdict.code == 0, verdict
    # The last two are of resources, of which the sample's repository keeps none.
    of_pages = verdict.json["invariants"][:14]
    assert all(one["checked"] for one in of_pages)
    # Of the eleventh there are none in the sample.
    compared = {one["invariant"]: one["compared"] for one in of_pages}
    assert all(count > 5 for number, count in compared.items() if number != 11), compared
    assert verdict.json["live"] == live
