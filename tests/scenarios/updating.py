"""Several processes that load captures at the same time, some of which are killed with -9."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from percola import Repository, inspection
from tests.crash.processes import end, environment
from webindex.workers.processes import Workers

_SECONDS: Final = 360.0
"""Until a process that was killed, or has done its work, is gone."""


class Updater:
    """One process, and the successor of one that was killed.

    Attributes:
        done: how many captures it has said to have written, of `total`.
    """

    def __init__(self, address: str, file: Path, total: int, seed: int) -> None:
        command = [sys.executable, "-m", "tests.scenarios.updater", address, str(file), str(seed)]
        self.file, self.total, self.done = file, total, 0
        self.process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._rest = b""

    @property
    def descriptor(self) -> int:
        """Where it can be heard."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def hear(self) -> bool:
        """Take what it has said; False once it has ended."""
        said = os.read(self.descriptor, 65536)
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            if line != b"ready":
                self.done = int(line)
        return bool(said)

    def kill(self) -> None:
        """kill -9; AssertionError if it had ended before."""
        assert self.process.poll() is None, "an updater ended before it could be killed"
        self.process.kill()
        assert self.process.wait(_SECONDS) == -signal.SIGKILL
        while self.hear():
            pass
        assert self.done < self.total, "an updater was done before it was killed"
        self.close()

    def close(self) -> None:
        """End it, however far it is, and let go of it."""
        end(self.process)


class Updating:
    """Load files by one updater each, while workers are at work; kill some of both.

    Args:
        seed: of the moments of the kills.
        timeout: seconds that all of it may take.

    Attributes:
        killed: how many of whom.
        left: locks that somebody dead had left, at the moments after the kills.
    """

    def __init__(self, repo: Repository, workers: Workers, seed: int, timeout: float) -> None:
        self.killed: Counter[str] = Counter()
        self.left = 0
        self._repo, self._workers = repo, workers
        self._seed = seed
        self._timeout = timeout
        self._rng = random.Random(f"kills {seed}")

    def run(self, files: Sequence[tuple[Path, int]], updaters: int, workers: int) -> None:
        """Load files, given with the number of their captures.

        So many `updaters` are killed, each in the middle of its file, and `workers` at moments
        of their own. AssertionError if one of these kills did not fall into the work.
        """
        running = [self._start(file, total) for file, total in files]
        # Where in its file each victim dies, and after how many captures of all a worker does.
        moments = {one: self._rng.uniform(0.2, 0.7) * one.total for one in running[:updaters]}
        everything = sum(total for _, total in files)
        deaths = sorted(self._rng.uniform(0.2, 0.8) * everything for _ in range(workers))
        alive = set(running)
        finished = 0
        try:
            deadline = time.monotonic() + self._timeout
            while alive:
                assert time.monotonic() < deadline, "the updaters do not come to an end"
                by_place = {one.descriptor: one for one in alive}
                for place in select.select(list(by_place), [], [], 1.0)[0]:
                    one = by_place[place]
                    if one.hear():
                        if one in moments and one.done >= moments[one]:
                            alive.remove(one)
                            successor = self._replace(one)
                            running.append(successor)
                            alive.add(successor)
                        continue
                    assert one.process.wait(_SECONDS) == 0 and one.done == one.total
                    alive.remove(one)
                    finished += one.total
                # A worker that was killed is started anew by then.
                self._workers.check()
                if deaths and finished + sum(one.done for one in alive) >= deaths[0]:
                    deaths.pop(0)
                    self._kill_worker()
        finally:
            for one in running:
                one.close()
        self._workers.check()
        assert self.killed == {"updaters": updaters, "workers": workers}
        assert self._workers.restarts == workers

    def _start(self, file: Path, total: int) -> Updater:
        return Updater(self._repo.address, file, total, self._seed)

    def _replace(self, one: Updater) -> Updater:
        assert self._repo.pending(), "nothing was going on when an updater was killed"
        one.kill()
        self.killed["updaters"] += 1
        self._look()
        return self._start(one.file, one.total)

    def _kill_worker(self) -> None:
        victim = self._rng.choice(self._workers.processes)
        assert victim.poll() is None, "a worker ended before it could be killed"
        assert self._repo.pending(), "nothing was going on when a worker was killed"
        victim.kill()
        assert victim.wait(_SECONDS) == -signal.SIGKILL
        self.killed["workers"] += 1
        self._look()

    def _look(self) -> None:
        self.left += sum(1 for one in inspection.locks(self._repo) if not one.owner_alive)
