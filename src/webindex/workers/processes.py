"""§2.4: the worker processes of the web index, and their supervisor.

`webindex work --processes N` runs these; without it, Spark tasks do the same
(`webindex.workers.spark`). Every worker process runs all observers, in one thread; parsing holds
Python's global lock, so several processes are needed to use the cores. The supervisor starts them,
shows progress, restarts processes that die, and stops them on request or when nothing is left to
do. A worker whose supervisor has ended, however it did, stops by itself: its standard input ends.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Protocol

from percola import Observer, Repository, Worker, WorkerOptions
from percola.inspection import locks
from webindex.errors import WorkingError
from webindex.incomplete import refuse_half_built
from webindex.journal import trim
from webindex.load.opening import open_repository as open_repository
from webindex.load.resources import keeps_resources
from webindex.load.settling import offer, settle, wake
from webindex.observers.clustering import join
from webindex.observers.documents import assemble
from webindex.observers.export import export_to
from webindex.observers.inlinks import add_links, count, invert
from webindex.observers.parse import parse
from webindex.observers.redirects import follow, resolve
from webindex.observers.repeated import find_repeated
from webindex.observers.sitemaps import list_url, list_urls
from webindex.observers.summaries import share, summarise
from webindex.rendering.browser import Browser
from webindex.rendering.dependencies import dependency_observers
from webindex.rendering.render import ATTEMPTS, render_with
from webindex.serving.base import ServingIndex
from webindex.serving.located import LocatedIndex
from webindex.takedown.erasing import erase

THREADS: Final = 1
"""Threads of a worker process. With three, each commit waits for Python's lock while it holds the
store's: two processes then process 115 pages a second instead of 165."""
REPORT: Final = 5.0
"""Seconds between reports of a worker for the live view (`WorkerOptions.report`)."""
NICENESS: Final = 10
"""Added to the niceness of a renderer and its browser. A page takes several processes of the
browser: with the priority of workers, they double the time until a changed page is found."""
_RESTARTS: Final = 20
_RESTARTS_SECONDS: Final = 3600.0
"""Within this time more processes than that must not die: of months, any number may."""


def open_index(repo: Repository, *, create: bool = False) -> LocatedIndex:
    """The search index of a repository; see `webindex.serving.located`."""
    return LocatedIndex(repo, create=create)


def build_observers(index: ServingIndex, *, resources: bool = False) -> list[Observer[Any]]:
    """Every observer of the web index: the paper's main() of the worker.

    `resources` says whether the repository keeps resources (`keeps_resources`): then what pages use
    is followed as well. Rendering has a process of its own (`webindex.rendering.render`).
    """
    return [
        *(dependency_observers() if resources else ()),
        parse,
        settle,
        offer,
        wake,
        resolve,
        follow,
        find_repeated,
        join,
        invert,
        count,
        add_links,
        list_urls,
        list_url,
        assemble,
        share,
        summarise,
        erase,
        trim,
        export_to(index),
    ]


def work_here(address: str, *, threads: int = THREADS) -> None:
    """Run the observers in this process until SIGTERM, SIGINT or the end of standard input."""
    with open_repository(address) as repo, open_index(repo, create=True) as index:
        refuse_half_built(repo)
        observers = build_observers(index, resources=keeps_resources(repo))
        worker = Worker(
            repo, observers, WorkerOptions(threads=threads, report=REPORT, warn_unobserved=False)
        )
        with worker.ending_with_input():
            print("ready", flush=True)
            worker.run()


def render_here(address: str, rate: float = math.inf) -> None:
    """Render pages that are due in this process, until it is told to end as `work_here` is.

    At most `rate` pages a second. The process and its browser have a low priority (`NICENESS`).
    """
    os.nice(NICENESS)
    with open_repository(address) as repo, Browser() as browser:
        refuse_half_built(repo)
        # Started at once, so that a browser that does not run is known before the first page.
        _ = browser.version
        options = WorkerOptions(threads=1, attempts=ATTEMPTS, report=REPORT, warn_unobserved=False)
        worker = Worker(repo, [render_with(browser, rate)], options)
        with worker.ending_with_input():
            print("ready", flush=True)
            worker.run()


class Workers:
    """Supervised worker processes on one repository.

    Raises WorkingError from `check` if they keep dying.
    """

    def __init__(
        self,
        address: str,
        count: int,
        *,
        threads: int = THREADS,
        command: Sequence[str] = ("run-worker",),
    ) -> None:
        self._command = [sys.executable, "-m", "webindex.cli.main", *command, "--repo", address]
        self._command += ["--threads", str(threads)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.restarts = 0
        self._died: deque[float] = deque(maxlen=_RESTARTS + 1)
        for _ in range(count):
            self.processes.append(self._start())

    def _start(self) -> subprocess.Popen[bytes]:
        # glibc gives every thread its own arena; two are enough, and halve the memory.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
        # In its own process group: a terminal's Ctrl-C is for the supervisor alone.
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            process_group=0,
        )

    def wait_ready(self) -> None:
        """Return once every process runs its observers."""
        for process in self.processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                process.wait()  # Its output has ended: it is about to.
        self.check()

    def check(self) -> None:
        """Restart processes that died; raise WorkingError if this happens again and again."""
        for place, process in enumerate(self.processes):
            code = process.poll()
            if code is None:
                continue
            self.restarts += 1
            now = time.monotonic()
            self._died.append(now)
            often = len(self._died) > _RESTARTS and now - self._died[0] < _RESTARTS_SECONDS
            if code > 0 or often:
                raise WorkingError(
                    f"A worker process ended with exit code {code}; what it said stands above. "
                    "Nothing is lost: mend the cause and run 'webindex work' again."
                )
            self.processes[place] = self._start()

    def stop(self) -> None:
        """Let running observers finish, end the processes, and return when they are gone."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


@contextmanager
def running(
    address: str, count: int, *, threads: int = THREADS, command: Sequence[str] = ("run-worker",)
) -> Iterator[Workers]:
    """Worker processes for the length of a block; `run-renderer` is the command of renderers.

    `command` is that word, with options.
    """
    workers = Workers(address, count, threads=threads, command=command)
    try:
        yield workers
    finally:
        workers.stop()


class Watched(Protocol):
    """Running workers of either kind."""

    def check(self) -> None:
        """Raise an error with a helpful message if they cannot go on."""


class Together:
    """Workers and a renderer, which are watched together."""

    def __init__(self, *watched: Watched) -> None:
        self._watched = watched

    def check(self) -> None:
        """Check each of them."""
        for one in self._watched:
            one.check()


def supervise(
    repo: Repository,
    workers: Watched,
    *,
    until_idle: bool,
    show: Callable[[dict[str, int]], None],
    stopping: threading.Event,
    is_idle: Callable[[], bool] | None = None,
) -> bool:
    """Supervise workers until told to stop or, with `until_idle`, until nothing is dirty.

    Returns whether that was reached; False if told to stop. `is_idle` says so in another way, if
    some columns are left to other workers. `show` is called a few times a second with the number of
    dirty cells by column.
    """
    shown = 0.0
    while not stopping.is_set():
        workers.check()
        if until_idle and (is_idle or repo.is_idle)():
            return True
        # Counting reads every dirty cell: the more there are, the less often it is done.
        began = time.monotonic()
        if began >= shown:
            show(repo.pending())
            shown = time.monotonic() + max(0.25, 20 * (time.monotonic() - began))
        stopping.wait(0.05 if until_idle else 0.25)
    return False


@contextmanager
def idle_but_for_renders(
    repo: Repository, *, renders: bool = False
) -> Iterator[Callable[[], bool]]:
    """A function that says whether nothing is left to do; with `renders`, nothing to render either.

    What only paused observers have yet to handle does not count.
    """
    with ExitStack() as stack:
        index = stack.enter_context(open_index(repo, create=True))
        observers = build_observers(index, resources=keeps_resources(repo))
        if renders:
            observers.append(render_with(stack.enter_context(Browser())))
        yield Worker(repo, observers, warn_unobserved=False).is_idle


def is_at_rest(repo: Repository) -> bool:
    """Whether there is nothing to do, not even locks of dead processes to resolve."""
    return repo.is_idle() and not any(locks(repo)) and repo.is_idle()


def wait_until_idle(repo: Repository, workers: Watched, seconds: float) -> None:
    """Return when nothing is dirty; WorkingError if that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not repo.is_idle():
        workers.check()
        if time.monotonic() > deadline:
            raise WorkingError(f"There is still work to do after {seconds:.0f} s.")
        time.sleep(0.005)
