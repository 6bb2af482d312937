"""Figure 7's steps: documents that arrive at a fixed rate, what is measured of each, and the notes.

A document is *crawled* when it is due, whether or not the system takes it then (an open loop), and
clustered when the transaction with its cluster has committed, or when whatever a system without
transactions gives out has come. Times are `time.monotonic_ns`, one clock for all processes.
Standard library only: peers' own environments import this too.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

RATES: Final = (0.1, 1.0, 10.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
"""Percent of the repository an hour."""

_NOTE: Final = struct.Struct("<qq")
_KEYS: Final = struct.Struct("<qqqq")
_GRACE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a system made of documents that came at one rate.

    Attributes:
        percent: of the repository an hour.
        per_second: the same in documents a second.
        seconds: from the first document's due time until the last one is clustered.
        held: whether the last one was clustered soon after it was due.
        cpu: processor seconds of all the system's processes, its loader too.
        delays: milliseconds of each document, in order.
    """

    percent: float
    per_second: float
    documents: int
    seconds: float
    held: bool
    cpu: float
    delays: tuple[float, ...]

    @property
    def throughput(self) -> float:
        """Documents a second that were clustered."""
        return self.documents / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Processor milliseconds a document."""
        return 1000 * self.cpu / self.documents

    def percentiles(self) -> dict[str, float]:
        """5th, 50th, 95th and 99th percentile of the delays, by nearest rank."""
        return {f"p{share}": nearest_rank(self.delays, share) for share in (5, 50, 95, 99)}

    def to_json(self) -> dict[str, Any]:
        """All but the single delays."""
        stored = asdict(self)
        del stored["delays"]
        return {**stored, **self.percentiles(), "cpu_ms_a_document": self.cpu_ms}


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """The least value that at least so many percent of the values, in order, do not exceed."""
    return ordered[max(1, -(-percent * len(ordered) // 100)) - 1]


def plan(size: int, rates: Sequence[float], seconds: float) -> list[tuple[float, float, int]]:
    """(Percent, documents a second, documents) of each step.

    A step lasts `seconds`, or as long as ten documents take to come, but at most three times that.
    """
    found = []
    for percent in rates:
        rate = size * percent / 100 / 3600
        long = min(max(seconds, 10 / rate), 3 * seconds)
        found.append((percent, rate, max(3, round(rate * long))))
    return found


def step_of(
    percent: float, rate: float, first: int, start: int, done: dict[int, int], cpu: float
) -> Step:
    """A step from the time at which each document, `first` and on, was clustered.

    `start` is when the first was due, in nanoseconds.
    """
    count = len(done)
    last_due = start + int((count - 1) * 1e9 / rate)
    end = max(done.values())
    delays = sorted((at - start) / 1e6 - (doc - first) * 1e3 / rate for doc, at in done.items())
    held = (end - last_due) / 1e9 <= _GRACE + 0.05 * count / rate
    return Step(percent, rate, count, (end - start) / 1e9, held, cpu, tuple(delays))


def arrivals(rate: float, count: int, most: int) -> Iterator[tuple[int, int]]:
    """Wait until documents are due, and yield which: (first, end), at most so many at a time.

    What does not keep up is given what has become due, so no document is left out.
    """
    start = time.monotonic_ns()
    given = 0
    while given < count:
        due = int((time.monotonic_ns() - start) * rate / 1e9) + 1
        if due <= given:
            # The rate is what is asked for.
            time.sleep(max(0.0, given / rate - (time.monotonic_ns() - start) / 1e9))
            continue
        end = min(due, count, given + most)
        yield given, end
        given = end


# --- Notes of processes --------------------------------------------------------------------


class Notes:
    """A file of (document, nanoseconds), a record each, that one process appends to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, docs: Sequence[int], at: int) -> None:
        """Documents that were clustered at this time."""
        os.write(self._file, b"".join(_NOTE.pack(doc, at) for doc in docs))


def count_notes(folder: Path) -> int:
    """How many records a folder's files have."""
    return sum(one.stat().st_size for one in folder.glob("*.notes")) // _NOTE.size


def read_notes(folder: Path, first: int = 0) -> dict[int, int]:
    """When each document from `first` on was clustered first."""
    found: dict[int, int] = {}
    for path in folder.glob("*.notes"):
        raw = path.read_bytes()
        for doc, at in _NOTE.iter_unpack(raw[: len(raw) // _NOTE.size * _NOTE.size]):
            if doc >= first:
                found[doc] = min(at, found.get(doc, at))
    return found


def write_keys(path: Path, keys: Sequence[Sequence[int]]) -> None:
    """Leave the keys of documents, from document 0 on, for a program in another environment."""
    with path.open("wb") as file:
        for doc, its in enumerate(keys):
            file.write(_KEYS.pack(doc, *its))


def read_keys(path: Path) -> list[tuple[int, int, int]]:
    """The keys of all documents."""
    return [(one, two, three) for _, one, two, three in _KEYS.iter_unpack(path.read_bytes())]


# --- Processor time -------------------------------------------------------------------------


def processes_below(root: int) -> list[int]:
    """A process and all that it has started, directly or not, and that still run."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def cpu_of(root: int) -> float:
    """Processor seconds of a process, of its descendants, and of those of them that have ended."""
    ticks = 0
    for pid in processes_below(root):
        with suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(one) for one in stat[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def waits_of(root: int) -> dict[int, float]:
    """Seconds for which each thread of a process and of its descendants has waited for a core.

    By the thread's number, of threads that run now; empty where the kernel does not tell.
    """
    found = {}
    for pid in processes_below(root):
        for told in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                found[int(told.parent.name)] = int(told.read_text().split()[1]) / 1e9
    return found


def wait_for(done: Callable[[], bool], what: str, timeout: float, moved: Callable[[], int]) -> None:
    """Return once `done`; TimeoutError if for so many seconds nothing has `moved`."""
    last, since = moved(), time.monotonic()
    while not done():
        time.sleep(0.01)  # Other processes tell by files.
        if (now := moved()) != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > timeout:
            raise TimeoutError(
                f"{what}: there is work left, and for {timeout:.0f} s none was done."
            )


def say(message: dict[str, Any]) -> None:
    """A line of JSON to the process that started this one."""
    print(json.dumps(message), flush=True)
