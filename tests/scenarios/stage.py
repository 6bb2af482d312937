"""Where scenarios play: repositories in a folder, and the programs that work on them.

Everything is done by the commands of `webindex`, run in this process: those that start a Spark
job then share one Spark context, which takes seconds to start. Observers run in real worker
processes.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from percola import Repository
from tests.scenarios.crawls import Crawl
from tests.scenarios.traces import Trace, traced
from webindex.cli.main import cli
from webindex.workers.processes import (
    Workers,
    open_index,
    open_repository,
    running,
    wait_until_idle,
)

WORKERS: Final = 2
Show = Callable[[str], None]


@dataclass
class Stage:
    """A folder for repositories, and a crawl to load into them.

    Attributes:
        folder: scratch, which whoever makes the stage removes; what is made for the crawl itself
            stands in its folder `crawl`.
        crawl: what is loaded.
        seed: of what is left to chance.
        timeout: seconds that workers may take to come to rest.
        pool: how many pages the random updates are about.
        show: told what is going on.
    """

    folder: Path
    crawl: Crawl
    seed: int
    timeout: float = 90.0
    pool: int = 150
    show: Show = lambda said: None
    _bulk: Base | None = field(default=None, init=False)

    def empty(self, name: str) -> Site:
        """A repository of one's own with nothing in it; there is none yet."""
        folder = self.folder / name
        if folder.exists():
            shutil.rmtree(folder)
        return Site(str(folder), self)

    def loaded(self, name: str) -> Site:
        """A repository of one's own into which the first crawl was loaded and worked off."""
        site = self.empty(name)
        shutil.copytree(self.bulk().site.address, site.address)
        return site

    def clear(self) -> None:
        """Remove all but the crawl and the bulk load: a corpus takes gigabytes, many times."""
        for path in self.folder.iterdir():
            if path.is_dir() and path.name not in ("bulk", "crawl"):
                shutil.rmtree(path)

    def bulk(self) -> Base:
        """The first crawl, loaded at once into an empty repository and then worked off."""
        if self._bulk is None:
            site = self.empty("bulk")
            began = time.monotonic()
            report = site.load(self.crawl.first)
            loaded = time.monotonic()
            site.work()
            ended = time.monotonic()
            self._bulk = Base(site, report, loaded - began, ended - loaded, site.trace())
        return self._bulk


@dataclass
class Base:
    """How the bulk load went. `site` is not to be changed: `Stage.loaded` copies it."""

    site: Site
    report: dict[str, Any]
    load_seconds: float
    work_seconds: float
    trace: Trace


@dataclass(frozen=True)
class Judgement:
    """What `webindex verify` said."""

    code: int
    said: dict[str, Any]

    def __str__(self) -> str:
        if self.code == 0 and self.said["holds"]:
            return f"holds ({self.said['live']:,} live pages, {self.said['clusters']:,} clusters)"
        broken = [one for one in self.said["invariants"] if one["differing"]]
        return "; ".join(
            f"{one['invariant']}: {one['differing']:,} rows differ, such as {one['first'][:1]}"
            for one in broken
        )


@dataclass
class Site:
    """One repository."""

    address: str
    stage: Stage

    def load(self, files: Iterable[Path]) -> dict[str, Any]:
        """`webindex load`; its report."""
        self.stage.show("loading")
        return command("load", "--repo", self.address, "--json", *files)

    def work(self) -> dict[str, Any]:
        """`webindex work --processes N --until-idle`; its summary."""
        self.stage.show("working")
        # Plain processes: a scenario works dozens of times, and each would start Spark.
        options = ("--processes", WORKERS, "--until-idle", "--json")
        summary = command("work", "--repo", self.address, *options)
        assert summary["dead_lettered"] == 0, "a change was dead-lettered"
        return summary

    def rank(self) -> dict[str, Any]:
        """`webindex rank`; its report."""
        self.stage.show("ranking")
        return command("rank", "--repo", self.address, "--json")

    def rebuild(self, files: Iterable[Path]) -> dict[str, Any]:
        """`webindex rebuild`; its report."""
        self.stage.show("rebuilding")
        return command("rebuild", "--repo", self.address, "--json", *files)

    def judge(self, files: Iterable[Path]) -> Judgement:
        """`webindex verify`, given all files that were loaded."""
        self.stage.show("verifying")
        crawls = [word for file in files for word in ("--crawl", file)]
        code, out = run("verify", "--repo", self.address, "--json", *crawls)
        return Judgement(code, json.loads(out))

    def verify(self, files: Iterable[Path]) -> Judgement:
        """The same; AssertionError unless all invariants of pages were checked and hold.

        Those of resources are only there in a repository that keeps some.
        """
        judgement = self.judge(files)
        assert judgement.code == 0 and judgement.said["holds"], str(judgement)
        assert judgement.said["unfinished"] == []
        of_pages = [one for one in judgement.said["invariants"] if one["invariant"] < 15]
        unchecked = [one["name"] for one in of_pages if not one["checked"]]
        assert not unchecked, f"not checked: {unchecked}"
        return judgement

    @contextmanager
    def opened(self, *, create: bool = False) -> Iterator[Repository]:
        """The repository, for the length of a block."""
        with open_repository(self.address, create=create) as repo:
            open_index(repo, create=True).close()
            yield repo

    @contextmanager
    def at_work(self) -> Iterator[tuple[Repository, Workers]]:
        """Workers on the repository while a block does something; at rest at its end."""
        with self.opened(create=True) as repo, running(self.address, WORKERS) as workers:
            workers.wait_ready()
            yield repo, workers
            self.stage.show("working")
            wait_until_idle(repo, workers, self.stage.timeout)

    def now(self) -> int:
        """The newest timestamp."""
        with self.opened() as repo, repo.snapshot() as snapshot:
            return snapshot.start_ts

    def trace(self, since: int = 0) -> Trace:
        """What was done since a timestamp."""
        with self.opened() as repo:
            return traced(repo, since)


def wait_for(condition: Callable[[], bool], workers: Workers, seconds: float) -> None:
    """Return when a condition holds; AssertionError if workers do not bring it about in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        workers.check()
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain"
        pause.wait(0.01)


# --- Commands -----------------------------------------------------------------------------


def run(*arguments: object) -> tuple[int, str]:
    """`webindex` with arguments: its exit code, and what it printed."""
    runner = CliRunner(env={"WEBINDEX_REPO": None})
    result = runner.invoke(cli, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert not result.stderr, f"webindex {arguments[0]}: {result.stderr}"
    return result.exit_code, result.stdout


def command(*arguments: object) -> dict[str, Any]:
    """The same for one that must end well and prints JSON."""
    code, out = run(*arguments)
    assert code == 0, f"webindex {arguments[0]} ended with exit code {code}: {out}"
    found = json.loads(out)
    assert isinstance(found, dict)
    return found
