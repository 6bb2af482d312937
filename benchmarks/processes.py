"""What a benchmark's processes use, seen from outside; and the commands of `webindex` among them.

Linux tells of every process how much memory is its own and how much of the files that it has
mapped, and what it has computed. The store's map is shared by all processes: in a sum its pages
are counted once (`Pss`), and they are pages that the system takes back when it needs room.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import cpu_seconds, parse_sizes
from percola import PercolaError, Repository

_LOOK_SECONDS: Final = 1.0

ROLES: Final = {
    "benchmarks.clocked": "worker",
    "pyspark.worker": "task of Spark",  # What its daemon is told to fork, whichever daemon.
    "java": "Spark's JVM",
    "webindex.cli.main": "driver",
    "webindex.main": "driver",
}
"""How processes are called, by a word of their command line; the first that is there counts."""


class StageError(PercolaError):
    """A stage of a benchmark did not do the work to be measured."""


def check_no_failures(repo: Repository) -> None:
    """StageError if changes were dead-lettered: what observers failed to do has cost nothing."""
    if failed := repo.dead_lettered():
        raise StageError(f"{failed:,} changes were dead-lettered: observers failed.")


@dataclass(slots=True)
class Footprint:
    """What processes of one role used: peaks of one process in bytes, and of all their sum.

    `own` is anonymous memory; `resident` also counts pages of files. `cpu` is in seconds.
    """

    own: int = 0
    resident: int = 0
    together: int = 0
    cpu: float = 0.0


@dataclass(slots=True)
class Usage:
    """What the descendants of this process used during a stretch of time.

    Attributes:
        by_role: as in `ROLES`.
        own: peak of the sum over all of them of their own memory, in bytes. What a fork still
            shares with its parent counts for both.
        mapped: peak of the sum of all memory, pages of files too, each page counted once.
    """

    by_role: dict[str, Footprint] = field(default_factory=dict)
    own: int = 0
    mapped: int = 0

    def cpu(self, *roles: str) -> float:
        """Processor time of some roles, in seconds."""
        return sum(self.by_role[role].cpu for role in roles if role in self.by_role)

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return asdict(self)


class _Watch:
    """Looks at the descendants of this process again and again, and adds up what they use."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._roles: dict[int, str] = {}
        self._before: dict[int, float] = {}
        self._cpu: dict[int, float] = {}
        self.look(first=True)

    def look(self, *, first: bool = False) -> None:
        """Take note of what they use now; on the `first` look, also of what counts no more."""
        own = mapped = 0
        together: dict[str, int] = {}
        for pid in descendants(os.getpid()):
            with suppress(OSError, KeyError, IndexError):
                # A process that has just been started is still called as its parent.
                role = role_of(Path(f"/proc/{pid}/cmdline").read_bytes())
                stat = Path(f"/proc/{pid}/stat").read_text()
                sizes = parse_sizes(Path(f"/proc/{pid}/smaps_rollup").read_text())
                if role is None:
                    continue
                self._roles[pid] = role
                self._cpu[pid] = cpu_seconds(stat)
                if first:
                    self._before[pid] = self._cpu[pid]
                own += sizes["Anonymous"]
                mapped += sizes["Pss"]
                together[role] = together.get(role, 0) + sizes["Anonymous"]
                print_of = self.usage.by_role.setdefault(role, Footprint())
                print_of.own = max(print_of.own, sizes["Anonymous"])
                print_of.resident = max(print_of.resident, sizes["Rss"])
        self.usage.own = max(self.usage.own, own)
        self.usage.mapped = max(self.usage.mapped, mapped)
        for role, size in together.items():
            footprint = self.usage.by_role[role]
            footprint.together = max(footprint.together, size)
            footprint.cpu = sum(
                seconds - self._before.get(pid, 0.0)
                for pid, seconds in self._cpu.items()
                if self._roles[pid] == role
            )


def descendants(root: int) -> list[int]:
    """The processes that a process has started, and those that these have started, and so on."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, IndexError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                children.setdefault(parent_of(stat), []).append(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def parent_of(stat: str) -> int:
    """The process that started one, from its /proc/PID/stat."""
    return int(stat.rpartition(")")[2].split()[1])


def role_of(command_line: bytes) -> str | None:
    """What a process is here, from its /proc/PID/cmdline; None for what is none of the index's."""
    words = [Path(one).name for one in command_line.decode(errors="replace").split("\0")]
    return next((role for word, role in ROLES.items() if word in words), None)


@contextmanager
def watched() -> Iterator[Usage]:
    """Sample, once a second, the usage of all descendants of this process."""
    watch = _Watch()
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_SECONDS):
            watch.look()

    thread = threading.Thread(target=look, name="usage", daemon=True)
    thread.start()
    try:
        yield watch.usage
    finally:
        done.set()
        thread.join()
        watch.look()


# --- Commands of webindex -----------------------------------------------------------------


def command(
    *arguments: str,
    meanwhile: Callable[[], None] | None = None,
    accepted: Sequence[int] = (0,),
) -> dict[str, Any]:
    """Run a command of `webindex` that prints JSON, as somebody would who types it.

    `meanwhile` is called again and again until it has ended. Raises StageError with the
    command's own last words if it ends with a code that is not `accepted`.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "webindex.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    said: list[bytes] = []
    listener = threading.Thread(target=lambda: said.extend(process.communicate()), daemon=True)
    listener.start()
    try:
        while listener.is_alive():
            if meanwhile is not None:
                meanwhile()
            listener.join(0.05 if meanwhile is None else 0)
    finally:
        if process.poll() is None:
            _interrupt(process)
    out, err = said
    words = err.decode(errors="replace").strip().splitlines()
    told = " ".join(words[-1:]) or "it said nothing"
    if process.returncode not in accepted:
        raise StageError(
            f"'webindex {' '.join(arguments)}' ended with exit code {process.returncode}: {told}"
        )
    try:
        found: dict[str, Any] = json.loads(out.decode().strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise StageError(f"'webindex {' '.join(arguments)}' printed no JSON: {told}") from None
    return found


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """End a command and its descendants."""
    with suppress(OSError):
        process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
        return
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def disk_bytes(folder: Path) -> int:
    """The disk usage of a folder: its files' blocks, not their lengths."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(Path(place) / name).st_blocks * 512
    return size


def until(
    done: Callable[[], bool],
    moved: Callable[[], object],
    timeout: float,
    every: float = 0.05,
) -> None:
    """Return once `done`; StageError if meanwhile nothing has `moved` for `timeout` seconds."""
    last, since = moved(), time.monotonic()
    while not done():
        time.sleep(every)  # Of other processes nothing tells when they have moved.
        now = moved()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > timeout:
            raise StageError(f"There is still work to do, and for {timeout:.0f} s none was done.")
