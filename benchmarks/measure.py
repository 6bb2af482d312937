"""The arithmetic of the benchmarks, where their files go, and the conditions they ran under.

Two things are compared in turn, in the same run: a pair of short blocks after another, the order
changed from pair to pair. What counts is the median of the pairs' ratios: whatever else the
machine does slows both halves of a pair, and a pair in which it did not is one of many.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

OUTPUT: Final = Path(__file__).resolve().parents[1] / "build" / "benchmarks"
"""Where figures and plots are left, and all that is measured is kept: on the disk of the tree."""


# --- Arithmetic ---------------------------------------------------------------------------


@dataclass(slots=True)
class Comparison:
    """Rates of a raw store and of Percola, pair by pair: operations a second."""

    raw: list[float] = field(default_factory=list)
    percola: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Percola's rate over the raw one's, for each pair."""
        return [ours / theirs for ours, theirs in zip(self.percola, self.raw, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios (not the ratio of the medians)."""
        return statistics.median(self.ratios)

    @property
    def middle(self) -> tuple[float, float]:
        """Between which two ratios the middle half of the pairs lies."""
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    def to_json(self) -> dict[str, Any]:
        """Medians, the middle half of the ratios, and every pair."""
        return {
            "raw_per_second": statistics.median(self.raw),
            "percola_per_second": statistics.median(self.percola),
            "ratio": self.ratio,
            "middle_half": list(self.middle),
            "pairs": [list(pair) for pair in zip(self.raw, self.percola, strict=True)],
        }


def compare(
    pairs: int, raw: Callable[[], float], percola: Callable[[], float], into: Comparison
) -> None:
    """Measure both in turn, `pairs` times; every second pair the other one goes first."""
    for number in range(pairs):
        if number % 2 == 0:
            into.raw.append(raw())
            into.percola.append(percola())
        else:
            into.percola.append(percola())
            into.raw.append(raw())


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles of milliseconds, by nearest rank: each is a value that was measured."""

    count: int
    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Distribution | None:
        """None if nothing was measured."""
        if not milliseconds:
            return None
        ordered = sorted(milliseconds)
        p50, p95, p99 = (percentile(ordered, share) for share in (0.50, 0.95, 0.99))
        return cls(len(ordered), p50, p95, p99, ordered[-1])


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least value that at least `share` of the values do not exceed; they are in order."""
    rank = max(1, -int(-share * len(ordered) // 1))
    return float(ordered[rank - 1])


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Each part's share of the sum; the shares add up to 1."""
    total = sum(seconds.values())
    return {name: one / total if total else 0.0 for name, one in seconds.items()}


def throughput(measured: Sequence[tuple[int, float, float]]) -> float:
    """Operations a second of processes that worked together: (operations, began, ended) of each.

    From the first one's beginning to the last one's end. The sum of their own rates would claim
    too much as soon as the system lets one of them begin late, and so work alone for a while.
    """
    first = min(began for _, began, _ in measured)
    last = max(ended for _, _, ended in measured)
    return sum(count for count, _, _ in measured) / (last - first)


# --- Memory and processor time of other processes -----------------------------------------


@dataclass(slots=True)
class Usage:
    """The resource usage of a process on Linux: peaks in bytes, processor time in seconds.

    `anonymous` is memory of its own. `resident` also counts pages of files, so with them the
    store's map, which all processes share and which the system takes back when it needs room.
    """

    anonymous: int = 0
    resident: int = 0
    cpu_seconds: float = 0.0

    def look(self, pid: int) -> None:
        """Take note of what a process uses now; nothing if it has ended, or not on Linux."""
        with suppress(OSError, KeyError):
            now = parse_sizes(Path(f"/proc/{pid}/smaps_rollup").read_text())
            self.anonymous = max(self.anonymous, now["Anonymous"])
            peak = parse_sizes(Path(f"/proc/{pid}/status").read_text())
            self.resident = max(self.resident, peak["VmHWM"])
            self.cpu_seconds = cpu_seconds(Path(f"/proc/{pid}/stat").read_text())


def parse_sizes(text: str) -> dict[str, int]:
    """The lines `NAME: NUMBER kB` of a file of /proc, in bytes."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found


def cpu_seconds(stat: str) -> float:
    """User and system time of a process from its /proc/PID/stat."""
    # The name of the program, in brackets, may hold spaces and brackets itself.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- Files and conditions -----------------------------------------------------------------


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder on the disk of the tree, removed at the end of the block."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=OUTPUT) as folder:
        yield Path(folder)


def output_name(benchmark: str, *, quick: bool) -> str:
    """The name of a benchmark's files: a quick run never replaces those of a whole one."""
    return f"{benchmark}-quick" if quick else benchmark


def write_json(name: str, figures: Mapping[str, Any]) -> Path:
    """Write all figures of a benchmark beside its plot."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / f"{name}.json"
    write_whole(path, json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all: figures of an earlier run stay if the disk is full."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def conditions() -> dict[str, Any]:
    """The conditions of a run: machine, disk, versions, load by other programs."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "file_system": _file_system(OUTPUT),
        "python": platform.python_version(),
        "lmdb": version("lmdb"),
        "sync_ms": _sync_milliseconds(),
        "load_before": os.getloadavg()[0],
    }


def conditions_line(found: Mapping[str, Any]) -> str:
    """The conditions as one readable line."""
    return (
        f"{found['cores']} cores ({found['processor']}), {found['file_system']}, a sync takes "
        f"{found['sync_ms']:.2f} ms, Python {found['python']}, load before the run "
        f"{found['load_before']:.1f}"
    )


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(place: Path) -> str:
    """The type of the file system that holds a folder."""
    best, kind = "", "an unknown file system"
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mounted, type_, *_ = line.split()
            inside = mounted == "/" or f"{place}/".startswith(f"{mounted}/")
            if inside and len(mounted) >= len(best):
                best, kind = mounted, type_
    return kind


def _sync_milliseconds() -> float:
    """The median time that a page written takes to be on the disk."""
    with temporary_folder() as folder, (folder / "probe").open("wb", buffering=0) as file:
        times = []
        for _ in range(100):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
